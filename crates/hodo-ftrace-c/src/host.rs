//! How code is written, and where memory for code comes from.

use std::cell::RefCell;
use std::ops::Range;

use hodo_ftrace::dynamic::{Errno, Page, Pages, TRAMPOLINE, Text};
use hodo_sys::{Memory, sys};

use crate::arch::UNIT;
use crate::frames;

/// Writes of one page share a system call if they are no further apart than this.
const NEAR: usize = 512;
const PAGE: usize = 4096;
const EIO: Errno = 5;

/// Linux, while something is changed. Whoever makes it holds the lock of `hodo_sys`.
pub struct Host {
    memory: Memory,
    waiting: RefCell<Waiting>,
}

/// What is to be written next.
#[derive(Default)]
struct Waiting {
    /// The address of a page, and what it shall contain.
    page: usize,
    content: Vec<u8>,
    /// The part that is to be written.
    part: Range<usize>,
}

impl Host {
    /// Opens the process's memory.
    pub fn new() -> Result<Self, Errno> {
        sys::register_sync_core()?;
        if is_emulated() {
            hodo_sys::set_written(translate_again);
        }
        Ok(Self {
            memory: Memory::open()?,
            waiting: RefCell::default(),
        })
    }

    /// Reads up to `size` bytes; fewer where the mapping ends.
    pub fn read(&self, at: usize, size: usize) -> Vec<u8> {
        self.memory.read(at as u64, size)
    }

    fn flush(&self, waiting: &mut Waiting) -> Result<(), Errno> {
        let part = std::mem::take(&mut waiting.part);
        if part.is_empty() {
            return Ok(());
        }
        let at = waiting.page + part.start;
        // SAFETY: these are the bytes that `write` was given, and those that are between them.
        unsafe { self.memory.write(at as u64, &waiting.content[part]) }
    }

    /// Notes bytes, all in one page.
    fn note(&self, at: usize, bytes: &[u8]) -> Result<(), Errno> {
        let waiting = &mut *self.waiting.borrow_mut();
        let page = at & !(PAGE - 1);
        if page != waiting.page || waiting.content.is_empty() {
            self.flush(waiting)?;
            waiting.content = self.read(page, PAGE);
            waiting.page = page;
        }
        let from = at - page;
        let to = from + bytes.len();
        let unit = from & !(UNIT - 1)..to.next_multiple_of(UNIT);
        if unit.end > waiting.content.len() {
            return Err(EIO);
        }
        let is_near =
            unit.start <= waiting.part.end + NEAR && unit.end + NEAR >= waiting.part.start;
        if !is_near {
            self.flush(waiting)?;
        }
        waiting.content[from..to].copy_from_slice(bytes);
        waiting.part = if waiting.part.is_empty() {
            unit
        } else {
            waiting.part.start.min(unit.start)..waiting.part.end.max(unit.end)
        };
        Ok(())
    }
}

// SAFETY: the kernel writes; the barrier is `membarrier`, or on RISC-V the kernel's `fence.i` on all harts. Bytes
// between two writes are rewritten as they are, and only whoever holds the lock changes code.
unsafe impl Text for Host {
    unsafe fn write(&self, at: usize, bytes: &[u8]) -> Result<(), Errno> {
        let end_of_page = (at & !(PAGE - 1)) + PAGE;
        let (first, second) = bytes.split_at(bytes.len().min(end_of_page - at));
        self.note(at, first)?;
        if second.is_empty() {
            Ok(())
        } else {
            self.note(end_of_page, second)
        }
    }

    fn sync(&self) -> Result<(), Errno> {
        let flushed = self.flush(&mut self.waiting.borrow_mut());
        sys::sync_core();
        flushed
    }
}

// SAFETY: the memory is new, and is never unmapped.
unsafe impl Pages for Host {
    fn page(&self, from: usize, to: usize, reach: usize) -> Option<Page> {
        // Another thread may take a place first.
        places(from, to, reach).into_iter().find_map(|address| {
            map_code(address).then(|| {
                frames::register(address, PAGE, TRAMPOLINE);
                Page {
                    address,
                    length: PAGE,
                }
            })
        })
    }
}

/// Returns whether qemu's user mode emulator runs this process, as tests say.
pub fn is_emulated() -> bool {
    std::env::var_os("HODO_EMULATED").is_some()
}

/// qemu's user mode emulator does not notice that code was changed through `/proc/self/mem`, unless its page becomes
/// writable. This is for tests.
fn translate_again(at: u64, length: usize) {
    let first = at as usize & !(PAGE - 1);
    let size = (at as usize + length).next_multiple_of(PAGE) - first;
    let code = libc::PROT_READ | libc::PROT_EXEC;
    for protection in [code | libc::PROT_WRITE, code] {
        // SAFETY: these are pages of code, which stay executable all the time.
        unsafe { libc::mprotect(first as *mut _, size, protection) };
    }
}

/// Maps a page for code at this address, if nothing is there.
fn map_code(address: usize) -> bool {
    // SAFETY: nothing that exists is replaced.
    let at = unsafe {
        libc::mmap(
            address as *mut _,
            PAGE,
            libc::PROT_READ | libc::PROT_EXEC,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
            -1,
            0,
        )
    };
    if at == libc::MAP_FAILED {
        return false;
    }
    if at as usize != address {
        // Before Linux 4.17, the address is only a wish.
        // SAFETY: it was just mapped, and nobody else has it.
        unsafe { libc::munmap(at, PAGE) };
        return false;
    }
    true
}

/// Free places for a page within reach of all of a range, the nearest first: below mappings, where nothing grows. The
/// heap grows upwards, and what is below a stack is left alone.
fn places(from: usize, to: usize, reach: usize) -> Vec<usize> {
    const LOWEST: usize = 0x1_0000;
    let text = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mut end = LOWEST;
    let mut places = Vec::new();
    for line in text.lines() {
        let Some(mapping) = range(line) else { continue };
        let place = mapping.start.saturating_sub(PAGE);
        let is_free = place >= end;
        let farthest = to.abs_diff(place).max(from.abs_diff(place + PAGE));
        if is_free && farthest < reach && !line.ends_with("[stack]") {
            places.push(place);
        }
        end = mapping.end;
    }
    places.sort_by_key(|place| from.abs_diff(*place));
    places
}

/// The addresses of a line of `/proc/self/maps`.
pub fn range(line: &str) -> Option<Range<usize>> {
    let (start, rest) = line.split_once('-')?;
    let (end, _) = rest.split_once(' ')?;
    let number = |text| usize::from_str_radix(text, 16).ok();
    Some(number(start)?..number(end)?)
}
