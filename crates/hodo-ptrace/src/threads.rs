//! Starting threads of hodo.
//!
//! The standard library ends the whole process if a new thread gets no memory for its alternate stack. So threads are
//! started before a target is changed, and whoever starts one waits until it runs.

use std::io;
use std::sync::mpsc::{Sender, channel};
use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle};

/// Runs a function in a new thread. Returns when the thread runs.
///
/// # Errors
/// If there can be no more threads.
pub fn start(run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let (begun, wait) = channel();
    let started = Builder::new().spawn(move || tell(&begun, run))?;
    let _ = wait.recv();
    Ok(started)
}

/// The same for a thread that ends in a scope.
///
/// # Errors
/// The same.
pub fn start_scoped<'scope>(
    scope: &'scope Scope<'scope, '_>,
    run: impl FnOnce() + Send + 'scope,
) -> io::Result<ScopedJoinHandle<'scope, ()>> {
    let (begun, wait) = channel();
    let started = Builder::new().spawn_scoped(scope, move || tell(&begun, run))?;
    let _ = wait.recv();
    Ok(started)
}

fn tell(begun: &Sender<()>, run: impl FnOnce()) {
    // Whoever starts the thread is waiting for this.
    let _ = begun.send(());
    run();
}
