//! System calls that signals break off which are nothing to the program.

use std::time::{Duration, Instant};

use anyhow::Result;
use hodo_ptrace::{Stopped, stops};

/// How much time must pass before a system call with a timeout is restarted again.
const SELDOM: Duration = Duration::from_secs(60);

/// When a thread last restarted a system call with a timeout because of a signal that it ignores.
#[derive(Debug, Clone, Copy, Default)]
pub struct Restarts(Option<Instant>);

impl Restarts {
    /// A signal is about to be delivered to the thread: if the thread ignores it, it must not break off a system call.
    ///
    /// # Errors
    /// If the thread is gone.
    pub fn before(&mut self, thread: Stopped, signal: i32) -> Result<()> {
        let lately = self.0.is_some_and(|at| at.elapsed() < SELDOM);
        if stops::restart_ignored(thread, signal, lately)? && !lately {
            self.0 = Some(Instant::now());
        }
        Ok(())
    }
}
