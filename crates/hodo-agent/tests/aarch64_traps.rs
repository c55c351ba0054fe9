//! Has the handler of SIGTRAP lead on from breakpoints. For AArch64 only: `scripts/cross.sh` runs it under an emulator.
#![cfg(target_arch = "aarch64")]

use std::ptr;

unsafe extern "C" {
    /// Part of the compiler's library.
    fn __clear_cache(start: *mut u8, end: *mut u8);
}

const PAGE: usize = 4096;
/// `brk #0`
const BREAKPOINT: u32 = 0xD420_0000;
/// `ret`
const RETURN: u32 = 0xD65F_03C0;
/// `bti c`
const LANDING: u32 = 0xD503_245F;
/// `br x0`
const BRANCH: u32 = 0xD61F_0000;

/// `mov w0, #NUMBER`
const fn result(number: u16) -> u32 {
    0x5280_0000 | (number as u32) << 5
}

/// A page of code, which is executable in this way.
fn code(bytes: &[u8], more: i32) -> usize {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let (writable, executable) = (libc::PROT_WRITE, libc::PROT_EXEC | more);
    // SAFETY: a mapping of its own, in which there is room for the code.
    unsafe {
        let at = libc::mmap(
            ptr::null_mut(),
            PAGE,
            libc::PROT_READ | writable,
            flags,
            -1,
            0,
        );
        assert_ne!(at, libc::MAP_FAILED);
        assert!(bytes.len() <= PAGE);
        ptr::copy_nonoverlapping(bytes.as_ptr(), at.cast(), bytes.len());
        __clear_cache(at.cast(), at.byte_add(PAGE).cast());
        let done = libc::mprotect(at, PAGE, libc::PROT_READ | executable);
        assert_eq!(done, 0);
        at.expose_provenance()
    }
}

fn instructions(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Installs the handler, with a list of blocks of breakpoints and where they lead to.
fn install(blocks: &[&[(usize, usize)]]) {
    let agent = hodo_agent::trap_handler();
    let mut next = 0;
    for block in blocks {
        let mut words = vec![next, block.len()];
        words.extend(block.iter().flat_map(|&(from, to)| [from, to]));
        next = words.leak().as_ptr().expose_provenance();
    }
    let mut bytes = agent.code.to_vec();
    bytes[agent.head..][..8].copy_from_slice(&next.to_le_bytes());
    let handler = code(&bytes, 0);
    let mut action = bytes[agent.action..][..32].to_vec();
    action[..8].copy_from_slice(&handler.to_le_bytes());
    assert_eq!(agent.restorer, None);
    // SAFETY: the kernel's structure, which it copies.
    let done = unsafe {
        libc::syscall(
            libc::SYS_rt_sigaction,
            libc::SIGTRAP,
            action.as_ptr(),
            ptr::null::<u8>(),
            8usize,
        )
    };
    assert_eq!(done, 0);
}

/// Calls code with an argument.
fn call(at: usize, argument: usize) -> usize {
    // SAFETY: the code is one of this file's, which does what functions may.
    let function: extern "C" fn(usize) -> usize = unsafe { std::mem::transmute(at) };
    function(argument) & 0xFFFF
}

/// How a child ends that does this.
fn end_of(child: impl FnOnce()) -> i32 {
    // SAFETY: the child allocates nothing, and does not return.
    unsafe {
        let pid = libc::fork();
        assert!(pid >= 0);
        if pid == 0 {
            let none = libc::rlimit {
                rlim_cur: 0,
                rlim_max: 0,
            };
            libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
            child();
            libc::_exit(77);
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
        status
    }
}

#[test]
fn breakpoints_lead_on() {
    /// Indirect branches must lead to instructions that say so (`PROT_BTI`).
    const GUARDED: i32 = 0x10;
    const GUARDED_BRANCHES: u32 = 17;
    let site = instructions(&[BREAKPOINT, result(1), RETURN]);
    let sites = [code(&site, 0), code(&site, 0), code(&site, 0)];
    let goals = [5, 6].map(|number| code(&instructions(&[result(number), RETURN]), 0));
    // SAFETY: a plain question.
    let guards = unsafe { libc::getauxval(libc::AT_HWCAP2) } >> GUARDED_BRANCHES & 1 == 1;
    let more = if guards { GUARDED } else { 0 };
    let guarded = code(&site, more);
    let goal = code(&instructions(&[result(7), RETURN]), more);
    let branches = code(&instructions(&[LANDING, BRANCH]), more);
    install(&[
        &[(sites[0], goals[0])],
        &[],
        &[(guarded, goal), (sites[1], goals[1])],
    ]);
    assert_eq!(call(sites[0], 0), 5);
    assert_eq!(call(sites[1], 0), 6);
    // A branch through a register leads to the breakpoint, which may be anywhere.
    assert_eq!(call(branches, guarded), 7);
    // A breakpoint of the program, and signals that are none, do what they do without a handler.
    let trapped =
        |status: i32| libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGTRAP;
    assert!(trapped(end_of(|| {
        call(sites[2], 0);
    })));
    // SAFETY: a signal for the child itself.
    assert!(trapped(end_of(|| unsafe {
        libc::raise(libc::SIGTRAP);
    })));
    assert_eq!(call(sites[0], 0), 5);
}
