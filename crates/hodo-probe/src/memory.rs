//! Reads and writes code, by the environment's [`Text`](crate::environment::Text).

use alloc::vec::Vec;

use super::environment::{self, Errno};
use hodo_sys::Change;

/// The code of this program.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Memory;

impl Memory {
    /// Reads up to `size` bytes; fewer where the mapping ends.
    pub(crate) fn read(self, at: u64, size: usize) -> Vec<u8> {
        let mut bytes = vec![0; size];
        let count = environment::current().read(at, &mut bytes);
        bytes.truncate(count);
        bytes
    }

    /// Writes all bytes.
    ///
    /// # Safety
    /// As writing to that memory; if it is code, other threads may be executing it.
    pub(crate) unsafe fn write(self, at: u64, bytes: &[u8]) -> Result<(), Errno> {
        // SAFETY: as the caller promises.
        unsafe { environment::current().write(at, bytes) }
    }

    /// Makes changes, which are sorted by address and do not overlap.
    ///
    /// # Safety
    /// As [`Text::change`](crate::environment::Text::change).
    pub(crate) unsafe fn change(self, changes: &[Change]) -> Result<(), Errno> {
        // SAFETY: as the caller promises.
        unsafe { environment::current().change(changes) }
    }
}
