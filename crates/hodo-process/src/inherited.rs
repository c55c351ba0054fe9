//! What this process got from the one that started it, before the Rust runtime changed it: the program gets the same.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Signals that the runtime or this program treats in its own way, and that the program gets back as they were.
const OURS: [i32; 6] = [
    libc::SIGPIPE,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTSTP,
    libc::SIGXFSZ,
    libc::SIGXCPU,
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

/// Makes signals, limits and standard descriptors what they were. For a child that is about to execute: async-signal-safe.
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
    let closed = CLOSED.load(Ordering::Relaxed);
    for descriptor in (0..3).filter(|descriptor| closed & 1 << descriptor != 0) {
        // SAFETY: what is open there is the runtime's stand-in, which nothing in the child uses.
        unsafe { libc::close(descriptor) };
    }
}
