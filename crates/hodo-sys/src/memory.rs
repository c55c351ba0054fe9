//! Reads and writes code through `/proc/self/mem`, so that it is never writable and executable at once, and stays a
//! mapping of its file.

#[cfg(feature = "alloc")]
use alloc::{vec, vec::Vec};
use core::sync::atomic::{AtomicPtr, Ordering};

#[cfg(feature = "alloc")]
use crate::lock;
use crate::sys::{self, Errno};
use crate::unprotected::{self, EIO};

#[cfg(feature = "alloc")]
/// Writes that are no further apart than this share one system call.
const NEAR: u64 = 512;
/// Changes are written in aligned units of this many bytes. On RISC-V the kernel's `memcpy` stores such words at once,
/// and everything else byte by byte; nobody may execute half of a changed two-byte instruction.
#[cfg(feature = "alloc")]
const UNIT: u64 = if cfg!(target_arch = "riscv64") { 4 } else { 1 };
#[cfg(feature = "alloc")]
const EDEADLK: Errno = 35;

/// The function that is called after each write, if any.
static WRITTEN: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// Sets a function that is called with address and length after each write. It is for tests under emulators that do not
/// notice by themselves that code was changed through `/proc/self/mem`.
#[doc(hidden)]
pub fn set_written(written: fn(u64, usize)) {
    WRITTEN.store(written as *mut (), Ordering::Release);
}

/// Writes to this process's memory, as [`sys::pwrite`] to `file`, which is `/proc/self/mem`, even if the mapping is read-only.
///
/// Some kernels let only a tracer do that (`proc_mem.force_override`, since Linux 6.12; Debian 14 is built so). There the
/// pages are made writable for the moment of the write.
///
/// # Safety
/// As writing to that memory.
pub unsafe fn write_memory(file: i32, from: &[u8], at: u64) -> Result<usize, Errno> {
    // SAFETY: the caller answers for what is written.
    match unsafe { sys::pwrite(file, from, at) } {
        // SAFETY: as above.
        Err(EIO) => unsafe { unprotected::write(file, from, at) },
        result => result,
    }
}

/// The memory of this process as a file.
#[derive(Debug)]
pub struct Memory(i32);

/// An address and the bytes to write there.
#[cfg(feature = "alloc")]
pub type Change = (u64, Vec<u8>);

impl Memory {
    /// Opens it. What a child of fork inherits is its parent's memory: open it again there.
    pub fn open() -> Result<Self, Errno> {
        sys::open(c"/proc/self/mem", sys::O_RDWR).map(Self)
    }

    #[cfg(feature = "alloc")]
    /// Reads up to `size` bytes; fewer where the mapping ends.
    pub fn read(&self, at: u64, size: usize) -> Vec<u8> {
        let mut bytes = vec![0; size];
        let count = sys::pread(self.0, &mut bytes, at).unwrap_or(0);
        bytes.truncate(count);
        bytes
    }

    /// Writes all bytes, even if the mapping is read-only.
    ///
    /// # Safety
    /// As writing to that memory; if it is code, other threads may be executing it.
    pub unsafe fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Errno> {
        // SAFETY: the caller answers for what is written.
        let count = unsafe { write_memory(self.0, bytes, at) }?;
        let written = WRITTEN.load(Ordering::Acquire);
        if !written.is_null() {
            // SAFETY: `set_written` stored it.
            let written: fn(u64, usize) = unsafe { core::mem::transmute(written) };
            written(at, count);
        }
        if count == bytes.len() {
            Ok(())
        } else {
            Err(EIO)
        }
    }

    /// Reads as many bytes as there is room for; fewer where the mapping ends. Returns how many.
    pub fn read_into(&self, at: u64, into: &mut [u8]) -> usize {
        sys::pread(self.0, into, at).unwrap_or(0)
    }

    #[cfg(feature = "alloc")]
    /// Makes changes, as [`change_by`].
    ///
    /// # Safety
    /// As [`Memory::write`]; and nobody may change the bytes in between without the lock.
    pub unsafe fn change(&self, changes: &[Change]) -> Result<(), Errno> {
        // SAFETY: as the caller promises.
        let write = |at, bytes: &[u8]| unsafe { self.write(at, bytes) };
        change_by(changes, |at, size| self.read(at, size), write)
    }
}

/// Makes changes, which must be sorted by address and not overlap, by reading and writing memory. Bytes between changes
/// that are close together are rewritten unchanged, while [`lock`] is held; on RISC-V so is the rest of each aligned
/// word. `read` returns fewer bytes where memory ends.
#[cfg(feature = "alloc")]
pub fn change_by(
    changes: &[Change],
    read: impl Fn(u64, usize) -> Vec<u8>,
    write: impl Fn(u64, &[u8]) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let _guard = lock::take().map_err(|lock::Busy| EDEADLK)?;
    let mut rest = changes;
    while let Some((first, _)) = rest.first() {
        let mut end = *first;
        let mut count = 0;
        for (at, bytes) in rest {
            // A write does not cross a page boundary, because the next page may belong to another mapping.
            if count > 0 && (at.saturating_sub(end) > NEAR || at >> 12 != first >> 12) {
                break;
            }
            end = at + bytes.len() as u64;
            count += 1;
        }
        let (now, later) = rest.split_at(count);
        rest = later;
        if let [(at, bytes)] = now
            && (at | bytes.len() as u64).is_multiple_of(UNIT)
        {
            write(*at, bytes)?;
            continue;
        }
        let (first, end) = (first & !(UNIT - 1), end.next_multiple_of(UNIT));
        let mut whole = read(first, (end - first) as usize);
        if whole.len() as u64 != end - first {
            return Err(EIO);
        }
        for (at, bytes) in now {
            whole[(at - first) as usize..][..bytes.len()].copy_from_slice(bytes);
        }
        write(first, &whole)?;
    }
    Ok(())
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: our own descriptor.
        unsafe { sys::close(self.0) };
    }
}

#[cfg(all(test, feature = "alloc"))]
mod tests {
    use super::*;

    #[test]
    fn read_only_memory_is_written() {
        static PLACE: [u8; 8] = *b"original";
        let memory = Memory::open().expect("there is /proc");
        let at = (&raw const PLACE).addr() as u64;
        assert_eq!(memory.read(at, 8), b"original");
        // SAFETY: nobody else uses it, and it is read as bytes of a file.
        unsafe { memory.change(&[(at, vec![b'O']), (at + 4, vec![b'I', b'N'])]) }.expect("written");
        assert_eq!(memory.read(at, 8), b"OrigINal");
    }

    #[test]
    fn unmapped_memory_is_an_error() {
        let memory = Memory::open().expect("there is /proc");
        assert_eq!(memory.read(4096, 8), []);
        // SAFETY: nothing is there.
        assert_eq!(unsafe { memory.write(4096, &[1]) }, Err(5));
        sys::register_sync_core().expect("the kernel has it");
        sys::sync_core();
    }
}
