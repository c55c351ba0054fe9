//! What this process inherited, before the Rust runtime changed it: the program gets the same.

use std::fs::File;
use std::os::fd::IntoRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicI32, AtomicU8, AtomicU64, Ordering};

use anyhow::{Context, Result};

/// Signals that the runtime or this program treats in its own way, and that the program gets back as they were.
const OURS: [i32; 5] = [
    libc::SIGPIPE,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTSTP,
    libc::SIGXFSZ,
];
/// The kernel's signals, those that libc keeps for itself included.
const SIGNALS: std::ops::RangeInclusive<i32> = 1..=64;

/// The kernel's `struct sigaction`.
#[repr(C)]
struct Action {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

/// Bit by bit, from signal 1 on: which signals were ignored, as with `nohup`, `trap ''` or a shell's `&`.
static IGNORED: AtomicU64 = AtomicU64::new(0);
/// Bit by bit: which of the standard descriptors were closed.
static CLOSED: AtomicU8 = AtomicU8::new(0);
/// What was standard error before messages went to a file; -1: they do not.
static STDERR: AtomicI32 = AtomicI32::new(-1);

/// Writes all messages from here on to a file. Programs that are run keep the standard error that this process had.
///
/// # Errors
/// If the file cannot be made.
pub fn messages_to(path: &Path) -> Result<()> {
    let file = File::create(path).with_context(|| format!("writing {}", path.display()))?;
    let file = file.into_raw_fd();
    // SAFETY: duplicating descriptors touches no memory, and the file's own is nobody else's.
    unsafe {
        STDERR.store(libc::fcntl(2, libc::F_DUPFD_CLOEXEC, 3), Ordering::Relaxed);
        libc::dup2(file, 2);
        libc::close(file);
    }
    Ok(())
}

/// Runs before `main`, and before the runtime, which ignores SIGPIPE and opens `/dev/null` for closed descriptors.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    let mut ignored = 0;
    for signal in SIGNALS {
        let mut action = Action {
            handler: 0,
            flags: 0,
            restorer: 0,
            mask: 0,
        };
        // SAFETY: without a new action, the system call only writes the old one. libc's own call refuses its signals.
        unsafe {
            let none = std::ptr::null::<Action>();
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                none,
                &raw mut action,
                8usize,
            );
        }
        ignored |= u64::from(action.handler == libc::SIG_IGN) << (signal - 1);
    }
    IGNORED.store(ignored, Ordering::Relaxed);
    let mut closed = 0;
    for descriptor in 0..3 {
        // SAFETY: F_GETFD only asks.
        let flags = unsafe { libc::fcntl(descriptor, libc::F_GETFD) };
        closed |= u8::from(flags == -1) << descriptor;
    }
    CLOSED.store(closed, Ordering::Relaxed);
}

/// Makes signals, limits and standard descriptors what they were. For a child that is about to execute:
/// async-signal-safe.
pub fn restore() {
    let ignored = IGNORED.load(Ordering::Relaxed);
    for signal in SIGNALS {
        let was_ignored = ignored & 1 << (signal - 1) != 0;
        if !was_ignored && !OURS.contains(&signal) {
            continue;
        }
        let action = Action {
            handler: if was_ignored {
                libc::SIG_IGN
            } else {
                libc::SIG_DFL
            },
            flags: 0,
            restorer: 0,
            mask: 0,
        };
        // SAFETY: the system call reads one action, which runs no code.
        unsafe {
            let none = std::ptr::null_mut::<Action>();
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                &raw const action,
                none,
                8usize,
            );
        }
    }
    crate::limits::restore_own();
    let stderr = STDERR.load(Ordering::Relaxed);
    if stderr != -1 {
        // SAFETY: both descriptors are open, and nothing in the child uses them.
        unsafe { libc::dup2(stderr, 2) };
    }
    let closed = CLOSED.load(Ordering::Relaxed);
    for descriptor in (0..3).filter(|descriptor| closed & 1 << descriptor != 0) {
        // SAFETY: what is open there is the runtime's stand-in, which nothing in the child uses.
        unsafe { libc::close(descriptor) };
    }
}
