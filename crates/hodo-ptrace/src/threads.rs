//! Starting threads of hodo.
//!
//! The standard library ends the whole process if a new thread gets no memory for its alternate stack. So threads are
//! started before a target is changed, and whoever starts one waits until it runs.

use std::io;
use std::sync::mpsc::{Sender, channel};
use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle};

/// Starts threads in which no signal arrives: those that are sent to hodo are for the thread that does the work, or for
/// the program, and would end hodo in any other thread.
pub fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    // SAFETY: all-zero is a valid sigset_t; the calls only write the sets that they are given.
    unsafe {
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let started = start();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        started
    }
}

/// Runs a function in a new thread. Returns when the thread runs.
///
/// # Errors
/// If there can be no more threads.
pub fn start(run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let (begun, wait) = channel();
    let started = without_signals(|| Builder::new().spawn(move || tell(&begun, run)))?;
    let _ = wait.recv();
    Ok(started)
}

/// Runs a function in a new thread that ends in a scope. Returns when the thread runs.
///
/// # Errors
/// If there can be no more threads.
pub fn start_scoped<'scope>(
    scope: &'scope Scope<'scope, '_>,
    run: impl FnOnce() + Send + 'scope,
) -> io::Result<ScopedJoinHandle<'scope, ()>> {
    let (begun, wait) = channel();
    let started =
        without_signals(|| Builder::new().spawn_scoped(scope, move || tell(&begun, run)))?;
    let _ = wait.recv();
    Ok(started)
}

fn tell(begun: &Sender<()>, run: impl FnOnce()) {
    // Whoever starts the thread is waiting for this.
    let _ = begun.send(());
    run();
}
