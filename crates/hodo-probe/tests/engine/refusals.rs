//! The messages of refusals that need special memory.

use hodo_probe::{Execution, Refusal};

use crate::code::{alone, bytes, register, request};

function! { wide:
    ["mov eax, 5"
    "ret"]
    ["lui a5, 0x12345"
    "li a0, 5"
    "ret"]
    ["movz x5, #0x1234, lsl #16"
    "mov x0, #5"
    "ret"]
}

unsafe extern "C" {
    fn test_wide() -> u64;
}

/// A page of `mov eax, 5; ret`, `li a0, 5; ret` or `mov x0, #5; ret`.
fn page(sharing: i32) -> u64 {
    // SAFETY: the test's own memory, which stays.
    unsafe {
        let write = libc::PROT_READ | libc::PROT_WRITE;
        let flags = sharing | libc::MAP_ANONYMOUS;
        let page = libc::mmap(std::ptr::null_mut(), 4096, write, flags, -1, 0);
        assert_ne!(page, libc::MAP_FAILED);
        let code: &[u8] = if cfg!(target_arch = "x86_64") {
            &[0xB8, 5, 0, 0, 0, 0xC3]
        } else if cfg!(target_arch = "riscv64") {
            &[0x13, 5, 0x50, 0, 0x82, 0x80]
        } else {
            &[0xA0, 0, 0x80, 0xD2, 0xC0, 3, 0x5F, 0xD6]
        };
        page.cast::<u8>().copy_from(code.as_ptr(), code.len());
        assert_eq!(
            libc::mprotect(page, 4096, libc::PROT_READ | libc::PROT_EXEC),
            0
        );
        page as u64
    }
}

#[test]
fn code_in_shared_memory_is_refused() {
    let _alone = alone();
    let at = page(libc::MAP_SHARED);
    let wish = request(at).count().function(at..at + 6);
    let refusal = register(&wish).unwrap_err();
    assert_eq!(refusal, Refusal::Shared);
    assert_eq!(
        refusal.to_string(),
        "the code is in shared memory, where other processes would run into the probe"
    );
}

#[test]
fn code_without_tables_needs_a_range() {
    let _alone = alone();
    let at = page(libc::MAP_PRIVATE);
    let refusal = register(&request(at).count()).unwrap_err();
    assert_eq!(refusal, Refusal::NoFunction);
    assert_eq!(
        refusal.to_string(),
        "no unwind table has a function here; give the function's range"
    );
    let wish = request(at).count().function(at..at + 6);
    let probe = register(&wish).expect("it can be probed");
    // SAFETY: the code is that of such a function.
    let function: extern "C" fn() -> u64 = unsafe { std::mem::transmute(at as usize) };
    assert_eq!((function() & 0xFF, probe.count()), (5, 1));
}

/// The target of the jump that the test's code begins with.
#[cfg(target_arch = "x86_64")]
fn target(at: u64) -> u64 {
    let jump = bytes(at, 5);
    assert_eq!(jump[0], 0xE9);
    let distance = i32::from_le_bytes([jump[1], jump[2], jump[3], jump[4]]);
    at.wrapping_add(5).wrapping_add_signed(distance.into())
}

#[cfg(not(target_arch = "x86_64"))]
fn target(at: u64) -> u64 {
    use hodo_isa::native::decode::Insn;
    use hodo_isa::native::scan::Flow;
    match Insn::new(&bytes(at, 4), at).flow() {
        Flow::Jump(to) => to,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_engine_is_not_probed() {
    let _alone = alone();
    let at = test_wide as *const () as u64;
    let probe = register(&request(at).count()).expect("it can be probed");
    assert_eq!(probe.execution(), Execution::Optimized);
    let detour = target(at);
    let wish = request(detour).count().function(detour..detour + 16);
    let refusal = register(&wish).unwrap_err();
    assert_eq!(refusal, Refusal::Engine);
    assert_eq!(
        refusal.to_string(),
        "the code belongs to the engine of probes"
    );
    // SAFETY: a function without arguments.
    assert_eq!(unsafe { test_wide() }, 5);
    assert_eq!(probe.count(), 1);
}

/// What a function calls before its first return, in its own file.
fn called(function: u64) -> Vec<u64> {
    use hodo_isa::effects::Flow;
    // What leads to another file does so through a word of memory.
    let is_here = |to: &u64| {
        hodo_isa::native::vectors::look(&bytes(*to, 16), *to).is_some_and(|first| {
            first.word.is_none() || !matches!(first.flow, Flow::IndirectJump | Flow::IndirectCall)
        })
    };
    let (mut at, mut calls) = (function, Vec::new());
    while let Some(insn) = hodo_isa::native::vectors::look(&bytes(at, 16), at) {
        match insn.flow {
            Flow::Call(to) => calls.push(to),
            Flow::Return { .. } => break,
            _ => {}
        }
        at = insn.end;
    }
    calls.retain(is_here);
    calls
}

/// The handlers that the engine has for signals, and what they call, run at each hit.
#[test]
fn the_code_that_handles_hits_is_not_probed() {
    let _alone = alone();
    let at = test_wide as *const () as u64;
    let probe = register(&request(at).count().execution(Execution::Boosted)).expect("a breakpoint");
    for signal in [libc::SIGTRAP, libc::SIGSEGV] {
        // SAFETY: it only queries.
        let handler = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            assert_eq!(
                libc::sigaction(signal, std::ptr::null(), &raw mut action),
                0
            );
            action.sa_sigaction as u64
        };
        let refusal = register(&request(handler).count()).unwrap_err();
        assert_eq!(refusal, Refusal::Engine);
        // With its range, too, and whatever it calls.
        let calls = called(handler);
        assert!(signal != libc::SIGTRAP || !calls.is_empty());
        for callee in calls {
            let refusal = register(&request(callee).count().function(callee..callee + 64));
            assert_eq!(refusal.map(drop), Err(Refusal::Engine), "{callee:#x}");
        }
    }
    // SAFETY: a function without arguments.
    assert_eq!(unsafe { test_wide() }, 5);
    assert_eq!(probe.count(), 1);
    // Its neighbours in the program can be probed.
    let own = register as *const () as u64;
    drop(register(&request(own).count()).expect("it can be probed"));
}

#[test]
fn kernel_refusals_show_the_error_number() {
    assert_eq!(
        Refusal::Kernel("code cannot be written", 13).to_string(),
        "code cannot be written: error 13"
    );
}
