//! Probes that only count leave the flags alone.

use std::arch::asm;

use hodo_probe::Execution;

use crate::code::{alone, register, request};

function!(flags_carries: "lea rax, [rdi + rsi]" "adc rax, 0" "ret");
function!(flags_compares: "mov rax, rdi" "lea rax, [rax + rsi]" "cmp rdi, rsi" "setb al" "ret");

unsafe extern "C" {
    fn test_flags_carries(a: u64, b: u64) -> u64;
    fn test_flags_compares(a: u64, b: u64) -> u64;
}

/// Calls a function of two numbers with these flags, and a mark in the red zone.
fn with_flags(function: unsafe extern "C" fn(u64, u64) -> u64, flags: u64) -> (u64, u64) {
    let (result, after): (u64, u64);
    // SAFETY: the function changes its result and the flags only.
    unsafe {
        asm!(
            "push {flags}",
            "popfq",
            "call {function}",
            "pushfq",
            "pop {after}",
            flags = in(reg) flags,
            function = in(reg) function,
            after = lateout(reg) after,
            in("rdi") 3u64,
            in("rsi") 4u64,
            lateout("rax") result,
            out("rcx") _, out("rdx") _,
        );
    }
    (result, after & 0xCD5)
}

#[test]
fn counts_leave_the_flags_that_are_read() {
    let _alone = alone();
    for function in [test_flags_carries, test_flags_compares] {
        let at = function as *const () as u64;
        let cases: Vec<u64> = (0..64)
            .map(|bits: u64| {
                let bit = |index: u64, flag: u64| (bits >> index & 1) * flag;
                bit(0, 1) | bit(1, 4) | bit(2, 0x10) | bit(3, 0x40) | bit(4, 0x80) | bit(5, 0x800)
            })
            .collect();
        let alone: Vec<_> = cases
            .iter()
            .map(|flags| with_flags(function, *flags))
            .collect();
        let probe = register(&request(at).count()).expect("it can be probed");
        assert_eq!(probe.execution(), Execution::Optimized);
        for (flags, alone) in cases.iter().zip(&alone) {
            assert_eq!(with_flags(function, *flags), *alone, "{flags:#x}");
        }
        assert_eq!(probe.count(), 64);
    }
}
