//! Calls the kernel without a C library.

use core::ffi::CStr;
use core::sync::atomic::AtomicU32;
use core::time::Duration;

use crate::arch::{self, number};

/// The `errno` of a failed system call.
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
    // SAFETY: as the caller promises.
    match unsafe { arch::call(number, args) } {
        error @ -4095..=-1 => Err(-error as Errno),
        value => Ok(value.cast_unsigned()),
    }
}

/// Opens a file; `flags` are those of `open`. Exec closes it.
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
/// It is the caller's own, and is not used afterwards.
pub unsafe fn close(file: i32) {
    // SAFETY: as the caller promises.
    let _ = unsafe { call(number::CLOSE, [file as usize, 0, 0, 0, 0, 0]) };
}

/// Reads from a file; retries after an interruption.
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

/// Returns whether an aligned four-byte word written to `/proc/self/mem` is written by one store. Always false on
/// x86-64 and RISC-V, where nobody needs it.
pub fn writes_words() -> bool {
    arch::writes_words()
}

/// Lets other threads run.
pub fn yield_now() {
    // SAFETY: no arguments.
    let _ = unsafe { call(number::SCHED_YIELD, [0; 6]) };
}

/// Lets other threads run for a while, or less if a signal comes.
pub fn sleep(nanoseconds: u32) {
    let time = [0_u64, nanoseconds.into()];
    // SAFETY: it has the layout of a `timespec`.
    let _ = unsafe { call(number::NANOSLEEP, [time.as_ptr().addr(), 0, 0, 0, 0, 0]) };
}

/// Maps zeroed memory, which becomes zero again in a child of fork (Linux 4.14). It is never unmapped.
pub fn wiped_in_children(size: usize) -> Result<*mut u8, Errno> {
    const READ_AND_WRITE: usize = 3;
    const PRIVATE_AND_ANONYMOUS: usize = 0x22;
    const MADV_WIPEONFORK: usize = 18;
    let args = [
        0,
        size,
        READ_AND_WRITE,
        PRIVATE_AND_ANONYMOUS,
        usize::MAX,
        0,
    ];
    // SAFETY: a new mapping.
    let memory = unsafe { call(number::MMAP, args) }?;
    // SAFETY: that mapping.
    let wiped = unsafe { call(number::MADVISE, [memory, size, MADV_WIPEONFORK, 0, 0, 0]) };
    if let Err(error) = wiped {
        // SAFETY: that mapping, which nobody uses.
        let _ = unsafe { call(number::MUNMAP, [memory, size, 0, 0, 0, 0]) };
        return Err(error);
    }
    Ok(core::ptr::with_exposed_provenance_mut(memory))
}

/// The ID of this process.
pub fn process() -> usize {
    // SAFETY: no arguments.
    unsafe { call(number::GETPID, [0; 6]) }.unwrap_or(0)
}

/// The ID of this thread.
pub fn thread() -> u32 {
    // SAFETY: no arguments.
    unsafe { call(number::GETTID, [0; 6]) }.unwrap_or(0) as u32
}

/// Sends a signal to a thread of this process; 0 only checks whether the thread exists.
pub fn signal_thread(thread: u32, signal: i32) -> Result<(), Errno> {
    let args = [process(), thread as usize, signal as usize, 0, 0, 0];
    // SAFETY: plain numbers.
    unsafe { call(number::TGKILL, args) }.map(|_| ())
}

/// Sleeps while a word has a value: until [`futex_wake`], or at most this long. May return earlier.
pub fn futex_wait(word: &AtomicU32, value: u32, most: Duration) {
    const WAIT_PRIVATE: usize = 128;
    let time = timespec(most);
    let args = [
        word.as_ptr() as usize,
        WAIT_PRIVATE,
        value as usize,
        time.as_ptr() as usize,
        0,
        0,
    ];
    // SAFETY: the kernel reads the word and the time.
    let _ = unsafe { call(number::FUTEX, args) };
}

/// The kernel's `struct timespec`.
fn timespec(time: Duration) -> [i64; 2] {
    let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    [seconds, i64::from(time.subsec_nanos())]
}

/// A file to wait for: the kernel's `struct pollfd`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Poll {
    /// The file; if negative, the entry is ignored.
    pub file: i32,
    /// What is waited for.
    pub events: i16,
    /// What has happened: of `events`, or that the file has an error or was hung up.
    pub seen: i16,
}

/// [`Poll::events`]: there is something to read.
pub const READABLE: i16 = 1;
/// [`Poll::events`]: there is room to write.
pub const WRITABLE: i16 = 4;

/// Waits until something happens on one of these files, at most this long if given. May return earlier.
pub fn poll(files: &mut [Poll], most: Option<Duration>) {
    let mut time = most.map(timespec);
    let time = time.as_mut().map_or(0, |time| time.as_mut_ptr() as usize);
    let args = [files.as_mut_ptr() as usize, files.len(), time, 0, 8, 0];
    for file in &mut *files {
        file.seen = 0;
    }
    // SAFETY: this many structures are there; the kernel may write the time, which is our own.
    let _ = unsafe { call(number::PPOLL, args) };
}

/// Wakes all threads that sleep on a word.
pub fn futex_wake(word: &AtomicU32) {
    const WAKE_PRIVATE: usize = 129;
    let all = i32::MAX as usize;
    let args = [word.as_ptr() as usize, WAKE_PRIVATE, all, 0, 0, 0];
    // SAFETY: the kernel takes the word's address as a name.
    let _ = unsafe { call(number::FUTEX, args) };
}

/// Maps this many bytes of zeroed memory.
pub fn map(size: usize) -> Result<*mut u8, Errno> {
    // PROT_READ and PROT_WRITE; MAP_PRIVATE and MAP_ANONYMOUS.
    let args = [0, size, 3, 0x22, usize::MAX, 0];
    // SAFETY: new memory.
    unsafe { call(number::MMAP, args) }.map(|at| at as *mut u8)
}

/// Unmaps such memory.
///
/// # Safety
/// It is what [`map`] has returned for this size, and is not used afterwards.
pub unsafe fn unmap(at: *mut u8, size: usize) {
    // SAFETY: as the caller promises.
    let _ = unsafe { call(number::MUNMAP, [at as usize, size, 0, 0, 0, 0]) };
}

/// Blocks all signals that come from outside for the calling thread, and returns those that were blocked before, for
/// [`set_blocked_signals`]. Signals that an instruction raises are not blocked, and neither are those that C libraries
/// use internally: `setuid` waits until every thread has answered one.
pub fn block_signals() -> Result<u64, Errno> {
    // ILL, TRAP, BUS, FPE, SEGV, SYS; 32 to 34 are glibc's and musl's.
    let keep = [4, 5, 7, 8, 11, 31, 32, 33, 34];
    let kept = keep
        .iter()
        .fold(0_u64, |set, signal| set | 1 << (signal - 1));
    change_mask(0, !kept)
}

/// Sets which signals are blocked for the calling thread.
pub fn set_blocked_signals(set: u64) -> Result<(), Errno> {
    change_mask(2, set).map(|_| ())
}

fn change_mask(how: usize, set: u64) -> Result<u64, Errno> {
    let mut before = 0_u64;
    let args = [
        how,
        (&raw const set) as usize,
        (&raw mut before) as usize,
        size_of::<u64>(),
        0,
        0,
    ];
    // SAFETY: both sets have that size.
    unsafe { call(number::RT_SIGPROCMASK, args) }.map(|_| before)
}

/// The process and the effective user at the other end of a local socket.
pub fn peer(socket: i32) -> Result<(u32, u32), Errno> {
    const SOL_SOCKET: usize = 1;
    const SO_PEERCRED: usize = 17;
    let mut credentials = [0_u32; 3];
    let mut size = size_of_val(&credentials) as u32;
    let args = [
        socket as usize,
        SOL_SOCKET,
        SO_PEERCRED,
        credentials.as_mut_ptr() as usize,
        (&raw mut size) as usize,
        0,
    ];
    // SAFETY: the credentials have that size.
    unsafe { call(number::GETSOCKOPT, args) }?;
    let [process, user, _] = credentials;
    Ok((process, user))
}

/// The effective user of this thread.
pub fn user() -> u32 {
    // SAFETY: no arguments.
    unsafe { call(number::GETEUID, [0; 6]) }.map_or(u32::MAX, |user| user as u32)
}

/// Registers the process for [`sync_core`], where the kernel requires that. Fails if the kernel does not have it
/// (`ENOSYS`, `EINVAL`: Linux before 4.16).
pub fn register_sync_core() -> Result<(), Errno> {
    // There is nothing to register; flushing only the own hart's cache shows whether the call is allowed.
    #[cfg(target_arch = "riscv64")]
    // SAFETY: an empty range stands for all memory.
    return unsafe { call(number::FLUSH_ICACHE, [0, 0, 1, 0, 0, 0]) }.map(|_| ());
    #[cfg(not(target_arch = "riscv64"))]
    // SAFETY: plain numbers.
    unsafe { call(number::MEMBARRIER, [1 << 6, 0, 0, 0, 0, 0]) }.map(|_| ())
}

/// Makes every processor that runs a thread of this process execute a serializing instruction and a memory barrier:
/// afterwards they execute what was written to code before. The process must be registered, or be a child of one that
/// is.
pub fn sync_core() {
    // `fence.i` on all harts: `membarrier` does that on RISC-V only since Linux 6.10.
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

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn signals_are_blocked_and_set_as_they_were() {
        let before = block_signals().expect("there is such a call");
        let now = block_signals().expect("there is such a call");
        let bit = |signal: u32| 1_u64 << (signal - 1);
        // The last of the 64 is qemu's own.
        let some = bit(1) | bit(2) | bit(15) | bit(40);
        assert_eq!(now & some, some);
        assert_eq!((now & !before) & (bit(5) | bit(11) | bit(33)), 0);
        set_blocked_signals(before).expect("there is such a call");
        assert_eq!(block_signals(), Ok(before));
        set_blocked_signals(before).expect("there is such a call");
    }

    #[test]
    fn the_peer_of_a_socket_is_known() {
        let (one, _other) = UnixStream::pair().expect("there are sockets");
        assert_eq!(peer(one.as_raw_fd()), Ok((process() as u32, user())));
        assert!(peer(-1).is_err());
    }

    #[test]
    fn poll_waits_for_files() {
        let (one, mut other) = UnixStream::pair().expect("there are sockets");
        let entry = |events| Poll {
            file: one.as_raw_fd(),
            events,
            seen: 0,
        };
        let mut files = [entry(READABLE)];
        poll(&mut files, Some(Duration::from_millis(10)));
        assert_eq!(files[0].seen, 0);
        std::io::Write::write_all(&mut other, b"x").expect("there is room");
        poll(&mut files, None);
        assert_eq!(files[0].seen, READABLE);
        files = [entry(WRITABLE)];
        poll(&mut files, None);
        assert_eq!(files[0].seen, WRITABLE);
    }

    #[test]
    fn futex_wait_waits_for_a_word() {
        let word = AtomicU32::new(1);
        futex_wait(&word, 0, Duration::from_secs(100));
        let begin = std::time::Instant::now();
        futex_wait(&word, 1, Duration::from_millis(20));
        assert!(begin.elapsed() >= Duration::from_millis(15));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while word.load(core::sync::atomic::Ordering::Acquire) == 1 {
                    futex_wait(&word, 1, Duration::from_secs(100));
                }
            });
            word.store(2, core::sync::atomic::Ordering::Release);
            futex_wake(&word);
        });
    }
}
