//! The control word of SSE arithmetic.

use std::ffi::c_void;

use hodo_probe::{Execution, Handler, Registers};

use crate::code::{alone, counter, counting, of, place, register};

function! { count: "lea rax, [rdi + rsi]" "add rax, 1" "ret" }

unsafe extern "C" {
    fn test_count(a: u64, b: u64) -> u64;
}

fn call(a: u64, b: u64) -> u64 {
    // SAFETY: a function of two numbers.
    unsafe { test_count(a, b) }
}

/// The control word of SSE arithmetic.
fn control() -> u32 {
    let mut word = 0u32;
    // SAFETY: it is stored to a local.
    unsafe { std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut word) };
    word
}

// Handlers that use only SSE: one divides inexactly; one changes the rounding mode from then on.
function! { divides:
    "mov eax, 1"
    "cvtsi2sd xmm0, eax"
    "mov eax, 3"
    "cvtsi2sd xmm1, eax"
    "divsd xmm0, xmm1"
    "lock inc qword ptr [rsi]"
    "ret"
}
function! { rounds:
    "push 0x7F80"
    "ldmxcsr [rsp]"
    "pop rax"
    "lock inc qword ptr [rsi]"
    "ret"
}

unsafe extern "C" {
    safe fn test_divides(registers: &mut Registers, data: *mut c_void);
    safe fn test_rounds(registers: &mut Registers, data: *mut c_void);
}

#[test]
fn the_control_word_of_arithmetic_is_kept() {
    let _alone = alone();
    for (handler, name) in [
        (test_divides as Handler, "divides"),
        (test_rounds, "rounds"),
    ] {
        for way in [Execution::Optimized, Execution::Boosted] {
            let hits = counter();
            let wish = counting(place(test_count as *const (), 1), hits)
                .before(handler)
                .execution(way);
            let probe = register(&wish).expect("it can be probed");
            // SAFETY: all exceptions are masked, none is noted.
            unsafe { std::arch::asm!("ldmxcsr [{}]", in(reg) &0x1F80u32) };
            let result = call(3, 4);
            let word = control();
            assert_eq!((result, of(hits), word), (8, 1, 0x1F80), "{name}, {way}");
            drop(probe);
        }
    }
}
