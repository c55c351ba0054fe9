//! Reading and writing code: through `/proc/self/mem`, so that it is never writable and executable at once, and stays a
//! mapping of its file.

use alloc::vec::Vec;

use super::sys::{self, Errno};

/// Writes that are not further apart than this are made by one system call.
const NEAR: u64 = 512;
const EIO: Errno = 5;

/// The memory of this process as a file.
pub(super) struct Memory(i32);

/// Bytes for an address.
pub(super) type Change = (u64, Vec<u8>);

impl Memory {
    /// Opens it.
    pub(super) fn open() -> Result<Self, Errno> {
        const O_RDWR: usize = 2;
        sys::open(c"/proc/self/mem", O_RDWR).map(Self)
    }

    /// Reads up to `size` bytes; fewer where the mapping ends.
    pub(super) fn read(&self, at: u64, size: usize) -> Vec<u8> {
        let mut bytes = vec![0; size];
        let count = sys::pread(self.0, &mut bytes, at).unwrap_or(0);
        bytes.truncate(count);
        bytes
    }

    /// Writes all bytes.
    pub(super) fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Errno> {
        // SAFETY: the engine writes into its own islands, and into code by the protocol of `patch.rs`.
        match unsafe { sys::pwrite(self.0, bytes, at) }? {
            count if count == bytes.len() => Ok(()),
            _ => Err(EIO),
        }
    }

    /// Makes changes, which must be sorted by address and not overlap. Bytes between those that are close are written again
    /// as they are.
    pub(super) fn change(&self, changes: &[Change]) -> Result<(), Errno> {
        let mut rest = changes;
        while let Some((first, _)) = rest.first() {
            let mut end = *first;
            let mut count = 0;
            for (at, bytes) in rest {
                // Not across a page, which may be another mapping's.
                if count > 0 && (at.saturating_sub(end) > NEAR || at >> 12 != first >> 12) {
                    break;
                }
                end = at + bytes.len() as u64;
                count += 1;
            }
            let (now, later) = rest.split_at(count);
            rest = later;
            if let [(at, bytes)] = now {
                self.write(*at, bytes)?;
                continue;
            }
            let mut whole = self.read(*first, (end - first) as usize);
            if whole.len() as u64 != end - first {
                return Err(EIO);
            }
            for (at, bytes) in now {
                whole[(at - first) as usize..][..bytes.len()].copy_from_slice(bytes);
            }
            self.write(*first, &whole)?;
        }
        Ok(())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        sys::close(self.0);
    }
}
