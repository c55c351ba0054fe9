//! What a probe must preserve: flags, the red zone, vector registers, the stack.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

use hodo_probe::{Execution, Registers};

use crate::code::{alone, counter, counting, of, register, request};

// A leaf function that uses the red zone, flags across many instructions, all registers and the upper halves of
// vectors.
function! { state:
    "push rbx"
    "push rbp"
    "push r12"
    "push r13"
    "push r14"
    "push r15"
    "mov rbx, 3"
    "mov rbp, 5"
    "mov r12, 7"
    "mov r13, 11"
    "mov r14, 13"
    "mov r15, 17"
    "mov rcx, 19"
    "mov rdx, 23"
    "mov r8, 29"
    "mov r9, 31"
    "mov r10, 37"
    "mov r11, 41"
    "mov rax, 43"
    "vmovdqu ymm0, [rdi]"
    "vmovdqu ymm15, [rdi + 32]"
    "mov qword ptr [rsp - 8], 1"
    "mov qword ptr [rsp - 128], 2"
    "cmp rbx, rbp"
    "std"
    "1:"
    "lea rax, [rax + rbx]"
    "lea rax, [rax + rbp]"
    "cld"
    "setb al"
    "movzx eax, al"
    "lea rax, [rax + rax*8]"
    "add rax, rbx"
    "add rax, rbp"
    "add rax, r12"
    "add rax, r13"
    "add rax, r14"
    "add rax, r15"
    "add rax, rcx"
    "add rax, rdx"
    "add rax, r8"
    "add rax, r9"
    "add rax, r10"
    "add rax, r11"
    "add rax, [rsp - 8]"
    "add rax, [rsp - 128]"
    "vmovdqu [rsi], ymm0"
    "vmovdqu [rsi + 32], ymm15"
    "vzeroupper"
    "pop r15"
    "pop r14"
    "pop r13"
    "pop r12"
    "pop rbp"
    "pop rbx"
    "ret"
}

unsafe extern "C" {
    fn test_state(from: *const [u64; 8], to: *mut [u64; 8]) -> u64;
}

const RESULT: u64 = 9 + 3 + 5 + 7 + 11 + 13 + 17 + 19 + 23 + 29 + 31 + 37 + 41 + 1 + 2;

#[inline(never)]
fn spoil() -> f64 {
    // SAFETY: the registers are named as changed.
    unsafe {
        std::arch::asm!(
            "vpcmpeqd ymm0, ymm0, ymm0", "vmovdqa ymm15, ymm0", "vmovdqa ymm7, ymm0", "vzeroupper",
            out("ymm0") _, out("ymm15") _, out("ymm7") _,
        );
    }
    std::hint::black_box(1.5) * 2.0
}

extern "C" fn spoiling(registers: &mut Registers, data: *mut c_void) {
    assert!(spoil() > 2.0);
    // A string instruction here must go upwards, whatever the program's direction flag is.
    let text = vec![7u8; 300];
    assert!(std::hint::black_box(text.clone()) == text);
    assert_ne!(registers.rsp, 0);
    // SAFETY: the test passes a counter.
    unsafe { (*data.cast::<AtomicU64>()).fetch_add(1, Ordering::Relaxed) };
}

#[test]
fn every_instruction_keeps_the_state() {
    let _alone = alone();
    let start = test_state as *const () as u64;
    let from = [1u64, 2, 3, 4, 5, 6, 7, 8].map(|n| n * 0x0101_0101_0101_0101);
    let run = || {
        let mut to = [0; 8];
        // SAFETY: the function reads the one and writes the other.
        let result = unsafe { test_state(&from, &mut to) };
        assert_eq!((result, to), (RESULT, from));
    };
    run();
    // SAFETY: the test's own code.
    let code = unsafe { std::slice::from_raw_parts(start as *const u8, 260) };
    let mut optimized = 0;
    let mut tried = 0;
    let code = code.to_vec();
    for step in hodo_isa::native::steps::Steps::new(&code, start) {
        for execution in [
            None,
            Some(Execution::Boosted),
            Some(Execution::OutOfLine),
            Some(Execution::Simulated),
        ] {
            let hits = counter();
            let mut wish = request(step.addr)
                .before(spoiling)
                .data(std::ptr::from_ref(hits).cast_mut().cast());
            if let Some(execution) = execution {
                wish = wish.execution(execution);
            }
            let Ok(probe) = register(&wish) else {
                assert!(execution.is_some(), "{:#x} is refused", step.addr - start);
                continue;
            };
            optimized += usize::from(probe.execution() == Execution::Optimized);
            tried += 1;
            run();
            run();
            assert_eq!(
                (of(hits), probe.missed(), probe.faults()),
                (2, 0, 0),
                "at {:#x}",
                step.addr - start
            );
        }
        if step.flow.is_end() {
            break;
        }
    }
    assert!(optimized > 40 && tried > 130, "{optimized} of {tried}");
}

#[test]
fn all_instructions_at_once() {
    let _alone = alone();
    let start = test_state as *const () as u64;
    // SAFETY: the test's own code.
    let code = unsafe { std::slice::from_raw_parts(start as *const u8, 260) }.to_vec();
    let mut requests = Vec::new();
    let hits = counter();
    for step in hodo_isa::native::steps::Steps::new(&code, start) {
        requests.push(counting(step.addr, hits));
        if step.flow.is_end() {
            break;
        }
    }
    // SAFETY: the handler only counts.
    let probes: Vec<_> = unsafe { crate::code::engine().register_all(&requests) }
        .into_iter()
        .map(|probe| probe.expect("it can be probed"))
        .collect();
    let from = [1, 2, 3, 4, 5, 6, 7, 8];
    for round in 1..=3 {
        let mut to = [0; 8];
        // SAFETY: the function reads the one and writes the other.
        let result = unsafe { test_state(&from, &mut to) };
        assert_eq!((result, to), (RESULT, from));
        assert_eq!(of(hits), round * probes.len() as u64);
    }
    crate::code::engine()
        .unregister_all(probes)
        .expect("they can be unregistered");
    // SAFETY: the test's own code.
    let after = unsafe { std::slice::from_raw_parts(start as *const u8, 260) };
    assert_eq!(after, code);
}
