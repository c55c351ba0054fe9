//! How code is written, and where memory for code comes from.

use std::ops::Range;

use hodo_ftrace::dynamic::{Errno, Mapping, Page, Pages, TRAMPOLINE, Text, Use};
use hodo_sys::{Memory, sys};

use crate::frames;

/// Linux, while something is changed. Whoever makes it holds the lock of `hodo_sys`.
pub struct Host(Memory);

impl Host {
    /// Opens the process's memory.
    pub fn new() -> Result<Self, Errno> {
        sys::register_sync_core()?;
        Memory::open().map(Self)
    }

    /// Reads up to `size` bytes; fewer where the mapping ends.
    pub fn read(&self, at: usize, size: usize) -> Vec<u8> {
        self.0.read(at as u64, size)
    }
}

// SAFETY: as `Memory` does it. Only whoever holds the lock changes code.
unsafe impl Text for Host {
    fn read(&self, at: usize, into: &mut [u8]) -> usize {
        self.0.read_into(at as u64, into)
    }

    unsafe fn write(&self, at: usize, bytes: &[u8]) -> Result<(), Errno> {
        // SAFETY: as the caller promises.
        unsafe { self.0.write(at as u64, bytes) }
    }

    fn sync(&self) {
        self.0.sync();
    }
}

// SAFETY: as `Memory` does it.
unsafe impl Pages for Host {
    fn mappings(&self, see: &mut dyn FnMut(Mapping)) -> Result<(), Errno> {
        self.0.mappings(see)
    }

    fn map(&self, at: u64, size: usize, for_what: Use) -> Result<u64, Errno> {
        self.0.map(at, size, for_what)
    }

    /// Unwinders know the trampolines that will be there.
    fn page(&self, from: usize, to: usize, reach: usize) -> Option<Page> {
        let page = self.0.page(from, to, reach)?;
        frames::register(page.address, page.length, TRAMPOLINE);
        Some(page)
    }
}

/// Returns whether an emulator of one process runs this one, such as qemu's user mode: it has threads of its own, and
/// does not notice changes of code without help.
pub fn is_emulated() -> bool {
    !hodo_sys::is_noticed()
}

/// The addresses of a line of `/proc/self/maps`.
pub fn range(line: &str) -> Option<Range<usize>> {
    let (start, rest) = line.split_once('-')?;
    let (end, _) = rest.split_once(' ')?;
    let number = |text| usize::from_str_radix(text, 16).ok();
    Some(number(start)?..number(end)?)
}
