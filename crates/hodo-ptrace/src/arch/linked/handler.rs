//! Handlers of signals: how threads come into them, and how their frames are recognised.

use anyhow::Result;

use crate::maps::Mapping;
use crate::request::request;
use crate::stopped::Stopped;

impl Stopped {
    /// Has it take a signal, and stop at the first instruction of its handler, as [`Stopped::interrupt`] stops a
    /// thread.
    ///
    /// # Errors
    /// If the thread is gone.
    pub fn enter_handler(self, signal: i32) -> Result<()> {
        // It stops on its way out of the kernel, when the handler's frame has been made.
        self.interrupt()?;
        request(libc::PTRACE_CONT, self.tid(), 0, signal as u64)
    }
}

/// A word of a stack's bytes.
pub fn word(bytes: &[u8], at: usize) -> Option<u64> {
    bytes
        .get(at..)?
        .first_chunk()
        .copied()
        .map(u64::from_le_bytes)
}

/// Whether there is code at an address.
pub fn is_code(maps: &[Mapping], at: u64) -> bool {
    let index = maps.partition_point(|m| m.end <= at);
    maps.get(index)
        .is_some_and(|m| m.start <= at && m.executable)
}
