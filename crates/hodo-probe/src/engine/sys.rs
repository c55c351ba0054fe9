//! The kernel, called without a C library.

use core::arch::{asm, global_asm};
use core::ffi::CStr;

/// What a system call failed with: a number of `errno.h`.
pub(super) type Errno = i32;

pub(super) const EINTR: Errno = 4;

const READ: usize = 0;
const OPEN: usize = 2;
const CLOSE: usize = 3;
const MMAP: usize = 9;
const MUNMAP: usize = 11;
const RT_SIGACTION: usize = 13;
const RT_SIGPROCMASK: usize = 14;
const PREAD: usize = 17;
const PWRITE: usize = 18;
const SCHED_YIELD: usize = 24;
const MADVISE: usize = 28;
const GETPID: usize = 39;
const GETTID: usize = 186;
const TGKILL: usize = 234;
const MEMBARRIER: usize = 324;

pub(super) const PROT_READ: usize = 1;
pub(super) const PROT_WRITE: usize = 2;
pub(super) const PROT_EXEC: usize = 4;
pub(super) const MAP_PRIVATE: usize = 2;
pub(super) const MAP_ANONYMOUS: usize = 0x20;
pub(super) const MAP_NORESERVE: usize = 0x4000;
pub(super) const MAP_FIXED_NOREPLACE: usize = 0x10_0000;
const MADV_DONTDUMP: usize = 16;
const MADV_WIPEONFORK: usize = 18;

pub(super) const SIGILL: i32 = 4;
pub(super) const SIGTRAP: i32 = 5;
pub(super) const SIGBUS: i32 = 7;
pub(super) const SIGFPE: i32 = 8;
pub(super) const SIGSEGV: i32 = 11;

/// # Safety
/// As the system call.
unsafe fn call(number: usize, args: [usize; 6]) -> Result<usize, Errno> {
    let result: isize;
    // SAFETY: the kernel keeps all registers but these; the caller answers for what the call does.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") args[0],
            in("rsi") args[1],
            in("rdx") args[2],
            in("r10") args[3],
            in("r8") args[4],
            in("r9") args[5],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    match result {
        -4095..=-1 => Err(-result as Errno),
        value => Ok(value.cast_unsigned()),
    }
}

/// Opens a file; `flags` as `open` has them.
pub(super) fn open(path: &CStr, flags: usize) -> Result<i32, Errno> {
    const O_CLOEXEC: usize = 0o2_000_000;
    // SAFETY: the path is a string.
    let file = unsafe {
        call(
            OPEN,
            [path.as_ptr() as usize, flags | O_CLOEXEC, 0, 0, 0, 0],
        )
    };
    file.map(|file| file as i32)
}

pub(super) fn close(file: i32) {
    // SAFETY: our own descriptor, which is not used after this.
    let _ = unsafe { call(CLOSE, [file as usize, 0, 0, 0, 0, 0]) };
}

/// Reads from a file, again after an interruption.
pub(super) fn read(file: i32, into: &mut [u8]) -> Result<usize, Errno> {
    loop {
        // SAFETY: the buffer has that length.
        match unsafe {
            call(
                READ,
                [
                    file as usize,
                    into.as_mut_ptr() as usize,
                    into.len(),
                    0,
                    0,
                    0,
                ],
            )
        } {
            Err(EINTR) => {}
            result => return result,
        }
    }
}

/// Reads at an offset.
pub(super) fn pread(file: i32, into: &mut [u8], at: u64) -> Result<usize, Errno> {
    let args = [
        file as usize,
        into.as_mut_ptr() as usize,
        into.len(),
        at as usize,
        0,
        0,
    ];
    // SAFETY: the buffer has that length.
    unsafe { call(PREAD, args) }
}

/// Writes at an offset.
///
/// # Safety
/// If the file is memory: as writing to that memory.
pub(super) unsafe fn pwrite(file: i32, from: &[u8], at: u64) -> Result<usize, Errno> {
    let args = [
        file as usize,
        from.as_ptr() as usize,
        from.len(),
        at as usize,
        0,
        0,
    ];
    // SAFETY: the buffer has that length; the caller answers for the rest.
    unsafe { call(PWRITE, args) }
}

/// Maps fresh memory; at an address only if nothing is there.
pub(super) fn map(at: u64, size: usize, protection: usize, flags: usize) -> Result<u64, Errno> {
    let fixed = if at == 0 { 0 } else { MAP_FIXED_NOREPLACE };
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | fixed | flags;
    // SAFETY: nothing that is mapped already is replaced.
    let place =
        unsafe { call(MMAP, [at as usize, size, protection, flags, usize::MAX, 0]) }? as u64;
    if at != 0 && place != at {
        // A kernel that does not know the flag takes the address for a hint.
        // SAFETY: it was mapped just now, and nobody knows it.
        let _ = unsafe { call(MUNMAP, [place as usize, size, 0, 0, 0, 0]) };
        return Err(17);
    }
    Ok(place)
}

/// Has a page be zeros in children that `fork` makes.
pub(super) fn wipe_on_fork(at: u64, size: usize) -> Result<(), Errno> {
    // SAFETY: a mapping of our own.
    unsafe { call(MADVISE, [at as usize, size, MADV_WIPEONFORK, 0, 0, 0]) }.map(|_| ())
}

/// Leaves a mapping out of core dumps.
pub(super) fn leave_out_of_dumps(at: u64, size: usize) {
    // SAFETY: a mapping of our own.
    let _ = unsafe { call(MADVISE, [at as usize, size, MADV_DONTDUMP, 0, 0, 0]) };
}

/// `struct sigaction` as the kernel has it.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Action {
    pub handler: usize,
    pub flags: u64,
    pub restorer: usize,
    pub mask: u64,
}

pub(super) const SA_SIGINFO: u64 = 4;
pub(super) const SA_ONSTACK: u64 = 0x0800_0000;
pub(super) const SA_NODEFER: u64 = 0x4000_0000;
pub(super) const SA_RESETHAND: u64 = 0x8000_0000;
const SA_RESTORER: u64 = 0x0400_0000;

// Unwinders and debuggers know the end of a signal frame by exactly these bytes.
global_asm!(
    ".pushsection .text.hodo_engine_restorer,\"ax\",@progbits",
    ".hidden hodo_engine_restorer",
    ".globl hodo_engine_restorer",
    ".type hodo_engine_restorer,@function",
    "nop",
    "hodo_engine_restorer:",
    ".byte 0x48, 0xC7, 0xC0, 0x0F, 0, 0, 0, 0x0F, 0x05",
    ".size hodo_engine_restorer, . - hodo_engine_restorer",
    ".popsection",
);

unsafe extern "C" {
    fn hodo_engine_restorer();
}

/// Sets what a signal does, and tells what it did.
///
/// # Safety
/// The handler must be one.
pub(super) unsafe fn sigaction(signal: i32, new: Option<&Action>) -> Result<Action, Errno> {
    let mut old = Action::default();
    let new = new.map(|action| Action {
        restorer: hodo_engine_restorer as *const () as usize,
        flags: action.flags | SA_RESTORER,
        ..*action
    });
    let pointer = new.as_ref().map_or(0, |action| &raw const *action as usize);
    let args = [signal as usize, pointer, &raw mut old as usize, 8, 0, 0];
    // SAFETY: both are of the kernel's form; the caller answers for the handler.
    unsafe { call(RT_SIGACTION, args) }.map(|_| old)
}

/// Sets the thread's signal mask.
pub(super) fn set_mask(mask: u64) {
    const SIG_SETMASK: usize = 2;
    // SAFETY: the mask is of the kernel's form.
    let _ = unsafe {
        call(
            RT_SIGPROCMASK,
            [SIG_SETMASK, &raw const mask as usize, 0, 8, 0, 0],
        )
    };
}

pub(super) fn yield_now() {
    // SAFETY: no arguments.
    let _ = unsafe { call(SCHED_YIELD, [0; 6]) };
}

pub(super) fn process() -> usize {
    // SAFETY: no arguments.
    unsafe { call(GETPID, [0; 6]) }.unwrap_or(0)
}

pub(super) fn thread() -> u32 {
    // SAFETY: no arguments.
    unsafe { call(GETTID, [0; 6]) }.unwrap_or(0) as u32
}

/// Sends a signal to a thread of this process; 0 asks only whether it is there.
pub(super) fn signal_thread(thread: u32, signal: i32) -> Result<(), Errno> {
    // SAFETY: plain numbers.
    unsafe {
        call(
            TGKILL,
            [process(), thread as usize, signal as usize, 0, 0, 0],
        )
    }
    .map(|_| ())
}

/// Registers the process for [`sync_core`].
pub(super) fn register_sync_core() -> Result<(), Errno> {
    // SAFETY: plain numbers.
    unsafe { call(MEMBARRIER, [1 << 6, 0, 0, 0, 0, 0]) }.map(|_| ())
}

/// Has every processor that runs a thread of this process execute a serializing instruction and a memory barrier.
pub(super) fn sync_core() {
    // SAFETY: plain numbers.
    while let Err(error) = unsafe { call(MEMBARRIER, [1 << 5, 0, 0, 0, 0, 0]) } {
        // Only a process that has not registered is refused; a child of fork may be one.
        if error == EINTR || register_sync_core().is_err() {
            yield_now();
        }
    }
}
