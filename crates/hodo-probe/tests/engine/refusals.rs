//! The messages of refusals that need special memory.

use hodo_probe::{Execution, Refusal};

use crate::code::{alone, bytes, register, request};

function! { wide:
    ["mov eax, 5"
    "ret"]
    ["lui a5, 0x12345"
    "li a0, 5"
    "ret"]
}

unsafe extern "C" {
    fn test_wide() -> u64;
}

/// A page of `mov eax, 5; ret` or `li a0, 5; ret`.
fn page(sharing: i32) -> u64 {
    // SAFETY: the test's own memory, which stays.
    unsafe {
        let write = libc::PROT_READ | libc::PROT_WRITE;
        let flags = sharing | libc::MAP_ANONYMOUS;
        let page = libc::mmap(std::ptr::null_mut(), 4096, write, flags, -1, 0);
        assert_ne!(page, libc::MAP_FAILED);
        let code: &[u8] = if cfg!(target_arch = "x86_64") {
            &[0xB8, 5, 0, 0, 0, 0xC3]
        } else {
            &[0x13, 5, 0x50, 0, 0x82, 0x80]
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

#[cfg(target_arch = "riscv64")]
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

#[test]
fn kernel_refusals_show_the_error_number() {
    assert_eq!(
        Refusal::Kernel("code cannot be written", 13).to_string(),
        "code cannot be written: error 13"
    );
}
