//! The kernel, called without a C library.

use core::ffi::CStr;

use crate::arch::{self, number};

/// What a system call failed with: a number of `errno.h`.
pub type Errno = i32;

/// Interrupted by a signal.
pub const EINTR: Errno = 4;
/// No such thread.
pub const ESRCH: Errno = 3;

/// Opens for reading only.
pub const O_RDONLY: usize = 0;
/// Opens for reading and writing.
pub const O_RDWR: usize = 2;

/// Makes a system call.
///
/// # Safety
/// As the system call.
pub unsafe fn call(number: usize, args: [usize; 6]) -> Result<usize, Errno> {
    // SAFETY: the caller answers for it.
    match unsafe { arch::call(number, args) } {
        error @ -4095..=-1 => Err(-error as Errno),
        value => Ok(value.cast_unsigned()),
    }
}

/// Opens a file; `flags` as `open` has them. It is closed by exec.
pub fn open(path: &CStr, flags: usize) -> Result<i32, Errno> {
    const AT_FDCWD: usize = -100_isize as usize;
    const O_CLOEXEC: usize = 0o2_000_000;
    let args = [AT_FDCWD, path.as_ptr() as usize, flags | O_CLOEXEC, 0, 0, 0];
    // SAFETY: the path is a string.
    unsafe { call(number::OPENAT, args) }.map(|file| file as i32)
}

/// Closes a file.
///
/// # Safety
/// It is the caller's own, and not used after this.
pub unsafe fn close(file: i32) {
    // SAFETY: as the caller says.
    let _ = unsafe { call(number::CLOSE, [file as usize, 0, 0, 0, 0, 0]) };
}

/// Reads from a file, again after an interruption.
pub fn read(file: i32, into: &mut [u8]) -> Result<usize, Errno> {
    let buffer = into.as_mut_ptr() as usize;
    loop {
        // SAFETY: the buffer has that length.
        match unsafe { call(number::READ, [file as usize, buffer, into.len(), 0, 0, 0]) } {
            Err(EINTR) => {}
            result => return result,
        }
    }
}

/// Reads at an offset.
pub fn pread(file: i32, into: &mut [u8], at: u64) -> Result<usize, Errno> {
    let buffer = into.as_mut_ptr() as usize;
    let args = [file as usize, buffer, into.len(), at as usize, 0, 0];
    // SAFETY: the buffer has that length.
    unsafe { call(number::PREAD, args) }
}

/// Writes at an offset.
///
/// # Safety
/// If the file is memory: as writing to that memory.
pub unsafe fn pwrite(file: i32, from: &[u8], at: u64) -> Result<usize, Errno> {
    let buffer = from.as_ptr() as usize;
    let args = [file as usize, buffer, from.len(), at as usize, 0, 0];
    // SAFETY: the buffer has that length; the caller answers for the rest.
    unsafe { call(number::PWRITE, args) }
}

/// Lets other threads run.
pub fn yield_now() {
    // SAFETY: no arguments.
    let _ = unsafe { call(number::SCHED_YIELD, [0; 6]) };
}

/// The number of this process.
pub fn process() -> usize {
    // SAFETY: no arguments.
    unsafe { call(number::GETPID, [0; 6]) }.unwrap_or(0)
}

/// The number of this thread.
pub fn thread() -> u32 {
    // SAFETY: no arguments.
    unsafe { call(number::GETTID, [0; 6]) }.unwrap_or(0) as u32
}

/// Sends a signal to a thread of this process; 0 asks only whether it is there.
pub fn signal_thread(thread: u32, signal: i32) -> Result<(), Errno> {
    let args = [process(), thread as usize, signal as usize, 0, 0, 0];
    // SAFETY: plain numbers.
    unsafe { call(number::TGKILL, args) }.map(|_| ())
}

/// Registers the process for [`sync_core`], where the kernel wants that. Fails where the kernel does not have it
/// (`ENOSYS`, `EINVAL`: Linux before 4.16).
pub fn register_sync_core() -> Result<(), Errno> {
    // Any number of processes may be in it at any time, so there is nothing to register.
    #[cfg(target_arch = "riscv64")]
    return Ok(());
    #[cfg(not(target_arch = "riscv64"))]
    // SAFETY: plain numbers.
    unsafe { call(number::MEMBARRIER, [1 << 6, 0, 0, 0, 0, 0]) }.map(|_| ())
}

/// Has every processor that runs a thread of this process execute a serializing instruction and a memory barrier: what was
/// written to code before is what they execute after. The process must be registered, or a child of one that is.
pub fn sync_core() {
    // `fence.i` on all harts: `membarrier` has that on RISC-V only since Linux 6.10.
    #[cfg(target_arch = "riscv64")]
    // SAFETY: an empty range stands for all memory.
    let barrier = || unsafe { call(number::FLUSH_ICACHE, [0; 6]) };
    #[cfg(not(target_arch = "riscv64"))]
    // SAFETY: plain numbers.
    let barrier = || unsafe { call(number::MEMBARRIER, [1 << 5, 0, 0, 0, 0, 0]) };
    while let Err(error) = barrier() {
        // Only a process that has not registered is refused; a child of fork may be one.
        if error == EINTR || register_sync_core().is_err() {
            yield_now();
        }
    }
}
