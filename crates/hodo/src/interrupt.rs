//! Signals that end the viewing part of a command. `live` first has to remove a directory, and a pager must have the
//! terminal to itself until the user leaves it.

use std::os::fd::AsRawFd;
use std::process::{Child, ChildStdin};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, Ordering};

static SIGNAL: AtomicI32 = AtomicI32::new(0);
static WATCHED: AtomicBool = AtomicBool::new(false);
/// The pager, which must not share the terminal with the shell, and the descriptor that feeds it. 0 and -1: there is
/// none.
static PAGER: AtomicI32 = AtomicI32::new(0);
static PIPE: AtomicI32 = AtomicI32::new(-1);

const SIGNALS: [i32; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

/// Until this time, in milliseconds of the kernel's clock, a signal counts as a repetition of an earlier one.
static UNTIL: AtomicI64 = AtomicI64::new(0);
/// Signals within this time mean a single request: those to a process group, those of `timeout`, Ctrl-C twice.
const TOGETHER: i64 = 1000;

/// Other signals that would end the viewing by default, without a good reason.
const OTHERS: [i32; 9] = [
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGVTALRM,
    libc::SIGPROF,
    libc::SIGXCPU,
    libc::SIGIO,
    libc::SIGPWR,
    libc::SIGSTKFLT,
];

fn now() -> i64 {
    // SAFETY: clock_gettime fills the time, and is async-signal-safe.
    unsafe {
        let mut now: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now);
        now.tv_sec * 1000 + now.tv_nsec / 1_000_000
    }
}

extern "C" fn remember(signal: i32) {
    if now() >= UNTIL.load(Ordering::Relaxed) {
        SIGNAL.store(signal, Ordering::Relaxed);
    }
}

extern "C" fn nothing(_: i32) {}

/// Lets the user read the pager's text, and ends this process after the pager.
extern "C" fn after_the_pager(signal: i32) {
    // SAFETY: close, waitpid, signal and raise are async-signal-safe. The descriptor is not written to afterwards,
    // because the handler does not return as long as the signal ends processes.
    unsafe {
        libc::close(PIPE.load(Ordering::Relaxed));
        libc::waitpid(PAGER.load(Ordering::Relaxed), std::ptr::null_mut(), 0);
        libc::signal(signal, libc::SIG_DFL);
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, signal);
        libc::raise(signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
    }
}

fn handle(signals: &[i32], action: libc::sighandler_t) {
    for &signal in signals {
        // SAFETY: an all-zero sigaction is valid: no flags (so that system calls are interrupted) and an empty mask.
        // The handlers are async-signal-safe.
        unsafe {
            let mut new: libc::sigaction = std::mem::zeroed();
            new.sa_sigaction = action;
            libc::sigaction(signal, &raw const new, std::ptr::null_mut());
        }
    }
}

/// Remembers signals that ask this process to end, instead of ending immediately. `attached`: hodo has detached from a
/// process, perhaps because of a signal that may come once more.
pub fn watch(attached: bool) {
    WATCHED.store(true, Ordering::Relaxed);
    if attached {
        UNTIL.store(now() + TOGETHER, Ordering::Relaxed);
    }
    handle(
        &SIGNALS,
        remember as extern "C" fn(i32) as libc::sighandler_t,
    );
    handle(&OTHERS, nothing as extern "C" fn(i32) as libc::sighandler_t);
    // A recording leaves all signals blocked, and a pager would inherit this.
    // SAFETY: all-zero is a valid sigset_t for sigemptyset to fill; the old mask is not requested.
    unsafe {
        let mut none = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
    }
}

/// Returns the signal that asked this process to end, if there was one.
pub fn signal() -> Option<i32> {
    match SIGNAL.load(Ordering::Relaxed) {
        0 => None,
        signal => Some(signal),
    }
}

/// From here on, a signal that asks this process to end waits for the pager. With [`watch`], it does so anyway.
pub fn before_pager(pager: &Child, pipe: &ChildStdin) {
    if !WATCHED.load(Ordering::Relaxed) {
        PAGER.store(pager.id().cast_signed(), Ordering::Relaxed);
        PIPE.store(pipe.as_raw_fd(), Ordering::Relaxed);
        handle(
            &SIGNALS,
            after_the_pager as extern "C" fn(i32) as libc::sighandler_t,
        );
    }
}

/// The pager has ended.
pub fn after_pager() {
    if !WATCHED.load(Ordering::Relaxed) {
        handle(&SIGNALS, libc::SIG_DFL);
    }
}
