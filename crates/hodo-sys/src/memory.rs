//! Reads and writes code through `/proc/self/mem`, so that it is never writable and executable at once, and stays a
//! mapping of its file.

#[cfg(feature = "alloc")]
use alloc::{vec, vec::Vec};
use core::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

use crate::host::{EIO, Errno, Mapping, Pages, Text, Use};
use crate::unprotected;
use crate::{maps, noticed, sys};

/// The function that is called after each write, if any.
static WRITTEN: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// Sets a function that is called with address and length after each write. It is for tests under emulators that do not
/// notice by themselves that code was changed through `/proc/self/mem`: it knows the rights of all code, which would
/// otherwise be looked up in the list of mappings at each write.
#[doc(hidden)]
pub fn set_written(written: fn(u64, usize)) {
    WRITTEN.store(written as *mut (), Ordering::Release);
}

/// Writes to this process's memory, as [`sys::pwrite`] to `file`, which is `/proc/self/mem`, even if the mapping is
/// read-only.
///
/// Some kernels let only a tracer do that (`proc_mem.force_override`, since Linux 6.12; Debian 14 is built so). There
/// the pages are made writable for the moment of the write.
///
/// # Safety
/// As writing to that memory.
unsafe fn write_memory(file: i32, from: &[u8], at: u64) -> Result<usize, Errno> {
    // SAFETY: the caller answers for what is written.
    match unsafe { sys::pwrite(file, from, at) } {
        // SAFETY: as above.
        Err(EIO) => unsafe { unprotected::write(file, from, at) },
        result => result,
    }
}

/// Writes all bytes to this process's memory, `file`, even if the mapping is read-only.
///
/// # Safety
/// As writing to that memory.
unsafe fn write_all(file: i32, at: u64, bytes: &[u8]) -> Result<(), Errno> {
    // SAFETY: the caller answers for what is written.
    let count = unsafe { write_memory(file, bytes, at) }?;
    let written = WRITTEN.load(Ordering::Acquire);
    if !written.is_null() {
        // SAFETY: `set_written` stored it.
        let written: fn(u64, usize) = unsafe { core::mem::transmute(written) };
        written(at, count);
    } else if !noticed::is_noticed() {
        noticed::make_noticed(at, count);
    }
    if count == bytes.len() {
        Ok(())
    } else {
        Err(EIO)
    }
}

fn open() -> Result<i32, Errno> {
    sys::open(c"/proc/self/mem", sys::O_RDWR)
}

/// The memory of this process as a file.
#[derive(Debug)]
pub struct Memory(i32);

impl Memory {
    /// Opens it. What a child of fork inherits is its parent's memory: open it again there.
    pub fn open() -> Result<Self, Errno> {
        open().map(Self)
    }

    #[cfg(feature = "alloc")]
    /// Reads up to `size` bytes; fewer where the mapping ends.
    pub fn read(&self, at: u64, size: usize) -> Vec<u8> {
        let mut bytes = vec![0; size];
        let count = self.read_into(at, &mut bytes);
        bytes.truncate(count);
        bytes
    }

    /// Writes all bytes, even if the mapping is read-only.
    ///
    /// # Safety
    /// As writing to that memory; if it is code, other threads may be executing it.
    pub unsafe fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Errno> {
        // SAFETY: as the caller promises.
        unsafe { write_all(self.0, at, bytes) }
    }

    /// Reads as many bytes as there is room for; fewer where the mapping ends. Returns how many.
    pub fn read_into(&self, at: u64, into: &mut [u8]) -> usize {
        sys::pread(self.0, into, at).unwrap_or(0)
    }
}

/// It stays open between changes.
// SAFETY: the kernel writes; the barrier is `membarrier`, or on RISC-V the kernel's `fence.i` on all harts.
unsafe impl Text for Memory {
    fn begin(&self) -> Result<(), Errno> {
        sys::register_sync_core()
    }

    fn read(&self, at: usize, into: &mut [u8]) -> usize {
        self.read_into(at as u64, into)
    }

    unsafe fn write(&self, at: usize, bytes: &[u8]) -> Result<(), Errno> {
        // SAFETY: as the caller promises.
        unsafe { self.write(at as u64, bytes) }
    }

    fn writes_words(&self) -> bool {
        sys::writes_words()
    }

    fn sync(&self) {
        sys::sync_core();
    }
}

// SAFETY: these are new mappings, which are never unmapped.
unsafe impl Pages for Memory {
    fn mappings(&self, see: &mut dyn FnMut(Mapping)) -> Result<(), Errno> {
        maps::mappings(see)
    }

    fn map(&self, at: u64, size: usize, for_what: Use) -> Result<u64, Errno> {
        maps::map_for(at, size, for_what)
    }
}

/// The memory of this process, opened for each change: in a child of fork, a kept descriptor would be the parent's
/// memory, and programs that close all descriptors they do not know might close it.
#[derive(Debug)]
pub struct Process(AtomicI32);

impl Process {
    /// It is not open yet.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "it is for statics")]
    pub const fn new() -> Self {
        Self(AtomicI32::new(-1))
    }

    fn file(&self) -> i32 {
        self.0.load(Ordering::Relaxed)
    }
}

// SAFETY: as for `Memory`.
unsafe impl Text for Process {
    fn begin(&self) -> Result<(), Errno> {
        sys::register_sync_core()?;
        self.0.store(open()?, Ordering::Relaxed);
        Ok(())
    }

    fn read(&self, at: usize, into: &mut [u8]) -> usize {
        sys::pread(self.file(), into, at as u64).unwrap_or(0)
    }

    unsafe fn write(&self, at: usize, bytes: &[u8]) -> Result<(), Errno> {
        // SAFETY: as the caller promises.
        unsafe { write_all(self.file(), at as u64, bytes) }
    }

    fn writes_words(&self) -> bool {
        sys::writes_words()
    }

    fn sync(&self) {
        sys::sync_core();
    }

    fn end(&self) {
        // SAFETY: `begin` opened it, and only one change is made at a time.
        unsafe { sys::close(self.0.swap(-1, Ordering::Relaxed)) };
    }
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
    fn pages_are_mapped_near_code() {
        let memory = Memory::open().expect("there is /proc");
        let here = pages_are_mapped_near_code as *const () as usize;
        let page = memory
            .page(here, here + 16, 1 << 30)
            .expect("there is room");
        assert!(page.address.abs_diff(here) < 1 << 30);
        let there = maps::map(page.address as u64, 4096, maps::PROT_READ, 0);
        assert!(there.is_err());
        // SAFETY: it is a new page of code.
        unsafe { Memory::write(&memory, page.address as u64, &[1, 2, 3]) }.expect("it is mapped");
    }

    #[test]
    fn read_only_memory_is_written() {
        static PLACE: [u8; 8] = *b"original";
        let memory = Memory::open().expect("there is /proc");
        let at = (&raw const PLACE).addr() as u64;
        assert_eq!(memory.read(at, 8), b"original");
        let changes = [(at, vec![b'O']), (at + 4, vec![b'I', b'N'])];
        // SAFETY: nobody else uses it, and it is read as bytes of a file.
        unsafe { crate::poke::change(&memory, &changes) }.expect("written");
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
