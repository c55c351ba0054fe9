//! What changing code needs from the place where it runs. For Linux it is built in ([`Memory`](crate::Memory),
//! [`Process`](crate::Process)); a kernel, or a program without an operating system, implements the traits once, and
//! names itself to each of the crates that use them.

use core::ops::Range;

pub use crate::sys::Errno;

/// The memory is not there, or may not be written.
pub const EIO: Errno = 5;
/// There is no such function.
pub const ENOSYS: Errno = 38;

/// Reads and writes code.
///
/// # Safety
/// * What [`write`](Self::write) has written is there.
/// * On RISC-V, aligned words of four bytes are stored at once, and so are the aligned halves of one that is not
///   written as a whole. On AArch64, aligned words are.
/// * When [`sync`](Self::sync) returns, all processors see what was written, and none executes what it fetched before.
pub unsafe trait Text: Sync {
    /// Called before the first write of a change.
    ///
    /// # Errors
    /// If code cannot be written now. Nothing is changed then.
    fn begin(&self) -> Result<(), Errno> {
        Ok(())
    }

    /// Reads up to as many bytes as there is room for; fewer where memory ends. Returns how many. Probes need it. If it
    /// is left as it is, and returns 0, changes that are near each other are written one by one.
    fn read(&self, at: usize, into: &mut [u8]) -> usize {
        let _ = (at, into);
        0
    }

    /// Writes code that other processors may be executing, and that they must not be able to write.
    ///
    /// # Errors
    /// If not all was written.
    ///
    /// # Safety
    /// `at` is code of the program, and `bytes` is allowed there.
    unsafe fn write(&self, at: usize, bytes: &[u8]) -> Result<(), Errno>;

    /// Returns whether an aligned four-byte word is written by one store. Only static keys on AArch64 ask: there a
    /// branch is then changed at once, otherwise byte by byte, in three steps.
    fn writes_words(&self) -> bool {
        false
    }

    /// Makes every processor execute a serializing instruction (x86-64), `fence.i` (RISC-V), or `isb` (AArch64).
    fn sync(&self);

    /// Called after the last write, even if one has failed.
    fn end(&self) {}
}

/// A piece of memory that is mapped, or where nothing can be mapped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    /// Its addresses.
    pub range: Range<u64>,
    /// It can be read.
    pub read: bool,
    /// It can be written.
    pub write: bool,
    /// It can be executed.
    pub execute: bool,
    /// Others see what is written there.
    pub shared: bool,
    /// It grows downwards: it is the first thread's stack. Nothing is mapped directly below it.
    pub grows: bool,
    /// The offset in its file, which is 0 where the headers of an ELF file are mapped. Without files: not 0.
    pub offset: u64,
}

/// What memory is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// It is executed, and written only by [`Text`].
    Code,
    /// It is read and written.
    Data,
    /// The same, but little of it will be used.
    Sparse,
}

/// Memory for code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// Where it begins: a multiple of 16.
    pub address: usize,
    /// Its length in bytes.
    pub length: usize,
}

/// Bytes of a page.
const PAGE: u64 = 4096;
/// No page is asked for below this address.
const LOWEST: u64 = 0x1_0000;
/// How many places are tried. Another thread may take one first.
const TRIES: usize = 16;

/// Provides memory.
///
/// # Safety
/// Memory that is mapped is zeroed, nobody else uses it, and it stays. [`Text::write`] can write to code there.
pub unsafe trait Pages: Sync {
    /// Shows everything that is mapped, or where nothing can be mapped, in the order of addresses. Probes are set only
    /// in code that is shown as executable.
    ///
    /// # Errors
    /// If that is not known.
    fn mappings(&self, see: &mut dyn FnMut(Mapping)) -> Result<(), Errno>;

    /// Maps memory: at the given address, which is a multiple of 4096, or anywhere if that is 0.
    ///
    /// # Errors
    /// If something is there, or there is no memory.
    fn map(&self, at: u64, size: usize, for_what: Use) -> Result<u64, Errno>;

    /// Maps memory that all code from `from` to `to` can call: no byte of it is further than `reach` bytes from any of
    /// that. At least 512 bytes. On RISC-V, one page of call sites serves a module, and no more than 4,096 bytes of it
    /// are used.
    ///
    /// What is here takes the free page that is nearest to `from`, directly below a mapping. (The heap grows upwards.)
    fn page(&self, from: usize, to: usize, reach: usize) -> Option<Page> {
        let mut tried = None;
        for _ in 0..TRIES {
            let place = nearest_below(self, from as u64..to as u64, reach as u64, tried)?;
            tried = Some(place);
            if let Ok(at) = self.map(place.1, PAGE as usize, Use::Code) {
                return Some(Page {
                    address: at as usize,
                    length: PAGE as usize,
                });
            }
        }
        None
    }
}

/// A free page's distance, and its address.
type Place = (u64, u64);

/// The nearest free page below a mapping that is within reach, and comes after the one that was `tried` last.
fn nearest_below(
    pages: &(impl Pages + ?Sized),
    code: Range<u64>,
    reach: u64,
    tried: Option<Place>,
) -> Option<Place> {
    let mut nearest: Option<Place> = None;
    let mut end = LOWEST;
    pages
        .mappings(&mut |mapping| {
            let place = mapping.range.start.saturating_sub(PAGE);
            let farthest = code
                .end
                .abs_diff(place)
                .max(code.start.abs_diff(place + PAGE));
            let found = (code.start.abs_diff(place), place);
            let is_new = tried.is_none_or(|tried| found > tried);
            let is_nearer = nearest.is_none_or(|nearest| found < nearest);
            if place >= end && farthest < reach && !mapping.grows && is_new && is_nearer {
                nearest = Some(found);
            }
            end = mapping.range.end;
        })
        .ok()?;
    nearest
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::vec::Vec;

    /// Mappings, and places that somebody else takes first.
    struct Some_ {
        mapped: Vec<(Range<u64>, bool)>,
        taken: Vec<u64>,
        asked: Mutex<Vec<u64>>,
    }

    // SAFETY: nobody uses the memory.
    unsafe impl Pages for Some_ {
        fn mappings(&self, see: &mut dyn FnMut(Mapping)) -> Result<(), Errno> {
            for (range, grows) in self.mapped.clone() {
                see(Mapping {
                    range,
                    read: true,
                    write: false,
                    execute: true,
                    shared: false,
                    grows,
                    offset: 0,
                });
            }
            Ok(())
        }

        fn map(&self, at: u64, size: usize, for_what: Use) -> Result<u64, Errno> {
            assert_eq!((size, for_what), (4096, Use::Code));
            self.asked.lock().expect("no panic").push(at);
            if self.taken.contains(&at) {
                return Err(17);
            }
            Ok(at)
        }
    }

    #[test]
    fn pages_are_the_nearest_free_ones() {
        let mut memory = Some_ {
            mapped: std::vec![
                (0x40_0000..0x41_0000, false),
                // Directly behind it.
                (0x41_0000..0x42_0000, false),
                (0x50_0000..0x51_0000, false),
                (0x60_0000..0x61_0000, true),
                (0x8000_0000..0x8001_0000, false),
            ],
            taken: Vec::new(),
            asked: Mutex::default(),
        };
        let page = |memory: &Some_, reach| {
            let found = memory.page(0x50_2000, 0x50_8000, reach);
            found.map(|page| page.address)
        };
        assert_eq!(page(&memory, 1 << 20), Some(0x4F_F000));
        assert_eq!(page(&memory, 1 << 12), None);
        // The one below the stack is not asked for.
        memory.taken = std::vec![0x4F_F000, 0x3F_F000];
        assert_eq!(page(&memory, 1 << 25), None);
        assert_eq!(page(&memory, 1 << 32), Some(0x7FFF_F000));
        let asked = memory.asked.into_inner().expect("no panic");
        assert_eq!(asked[1..3], [0x4F_F000, 0x3F_F000]);
    }
}
