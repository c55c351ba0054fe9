//! Reads and writes code, by the environment's [`Text`](crate::environment::Text).

use alloc::vec::Vec;

use super::environment::{self, Errno};
use hodo_sys::poke::{self, Session};

/// An address and the bytes to write there.
pub(crate) type Change = (u64, Vec<u8>);

/// The code of this program.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Memory;

impl Memory {
    /// Reads up to `size` bytes; fewer where the mapping ends.
    pub(crate) fn read(self, at: u64, size: usize) -> Vec<u8> {
        let mut bytes = vec![0; size];
        let count = environment::current().read(at as usize, &mut bytes);
        bytes.truncate(count);
        bytes
    }

    /// Writes all bytes.
    ///
    /// # Safety
    /// As writing to that memory; if it is code, other threads may be executing it.
    pub(crate) unsafe fn write(self, at: u64, bytes: &[u8]) -> Result<(), Errno> {
        let session = Session::begin(environment::current())?;
        // SAFETY: as the caller promises.
        unsafe { session.write(at as usize, bytes) }
    }

    /// Makes changes, which are sorted by address and do not overlap.
    ///
    /// # Safety
    /// As [`poke::change`].
    pub(crate) unsafe fn change(self, changes: &[Change]) -> Result<(), Errno> {
        // SAFETY: as the caller promises.
        unsafe { poke::change(environment::current(), changes) }
    }
}
