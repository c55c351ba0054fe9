//! Ends hodo as the program ended: with its status, or by its signal.

use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;

use hodo_record::Exit;

/// With a lower limit on core files, the kernel writes none, and does not set the bit in the wait status either.
const SMALLEST_CORE: u64 = 4096;

/// Ends as the program did: with its status, or by its signal.
pub fn end(exit: Exit) -> ExitCode {
    let (signal, core) = match exit {
        Exit::Code(code) => return ExitCode::from(code as u8),
        Exit::Signal(signal) => (signal, false),
        Exit::Core(signal) => (signal, true),
    };
    // A core file of this process would overwrite the program's own. If core_pattern is a pipe, limits do not apply, so
    // prctl is needed.
    let limit = if core && leaves_core_elsewhere() {
        SMALLEST_CORE
    } else {
        // SAFETY: none of these arguments is an address.
        unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0) };
        0
    };
    let limit = libc::rlimit {
        rlim_cur: limit,
        rlim_max: limit,
    };
    // SAFETY: these only read `limit` and write `set`; the signal ends this process.
    unsafe {
        libc::setrlimit(libc::RLIMIT_CORE, &raw const limit);
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, signal);
        libc::signal(signal, libc::SIG_DFL);
        libc::sigprocmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
        libc::raise(signal);
    }
    // The signal does not end a process.
    ExitCode::from(128 + signal as u8)
}

/// Makes the kernel write a core file of this process into a temporary directory, which is removed after this process
/// has ended. Returns whether this is possible: core files must go to the working directory. The kernel sets the bit
/// for "core dumped" in the wait status only if it writes a core file.
fn leaves_core_elsewhere() -> bool {
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    let pattern = pattern.trim_end();
    if pattern.is_empty() || pattern.starts_with('|') || pattern.contains('/') {
        return false;
    }
    let directory = tempfile::Builder::new().prefix("hodo-end-").tempdir();
    let Ok(directory) = directory.map(tempfile::TempDir::keep) else {
        return false;
    };
    let ready = std::env::set_current_dir(&directory).is_ok() && remove_after_us(&directory);
    if !ready {
        let _ = fs::remove_dir(&directory);
    }
    ready
}

/// Starts a process that removes the directory and its files when this process has ended.
fn remove_after_us(directory: &Path) -> bool {
    let Ok(name) = CString::new(directory.as_os_str().as_bytes()) else {
        return false;
    };
    let mut ends = [0; 2];
    // SAFETY: `ends` is filled by pipe. There may be other threads, so the child makes only system calls until it ends.
    // It waits for the end of the pipe; only this process has the other end.
    unsafe {
        if libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) != 0 {
            return false;
        }
        match libc::fork() {
            -1 => false,
            0 => {
                let mut all = std::mem::zeroed();
                libc::sigfillset(&raw mut all);
                libc::sigprocmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
                // The child closes inherited descriptors, so that nobody waits for it to do so.
                libc::dup2(ends[0], 0);
                libc::syscall(libc::SYS_close_range, 1, u32::MAX, 0);
                libc::read(0, ends.as_mut_ptr().cast(), 1);
                empty();
                libc::rmdir(name.as_ptr());
                libc::_exit(0)
            }
            _ => {
                libc::close(ends[0]);
                true
            }
        }
    }
}

/// Removes the files in the working directory with system calls only.
fn empty() {
    /// The offsets of an entry's length and name (`struct linux_dirent64`).
    const LENGTH: usize = 16;
    const NAME: usize = 19;
    let mut entries = [0u64; 256];
    // SAFETY: the kernel fills `entries` with complete entries, whose names end with a zero byte.
    unsafe {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY;
        let directory = libc::open(c".".as_ptr(), flags);
        let read = libc::syscall(
            libc::SYS_getdents64,
            directory,
            entries.as_mut_ptr(),
            size_of_val(&entries),
        );
        let start = entries.as_ptr().cast::<u8>();
        let mut at = 0;
        while at < usize::try_from(read).unwrap_or(0) {
            libc::unlink(start.add(at + NAME).cast());
            at += usize::from(start.add(at + LENGTH).cast::<u16>().read_unaligned());
        }
    }
}
