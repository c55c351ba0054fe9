//! The environment of Linux programs.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicPtr, Ordering};

use super::arch;
use super::environment::{self, CallSites, Environment, Errno, Pages, Text, Threads, Use, Window};
use super::maps::Mapping;
use super::refusal::Refusal;
use super::sys;
use hodo_sys::{Change, Memory};

/// A Linux program.
struct Linux {
    /// Its memory as a file, opened when the engine starts. It is replaced in a child of `fork`, by the only thread.
    memory: AtomicPtr<Memory>,
    /// A word that is 1 in the process that wrote it, and 0 in a child that `fork` made.
    marker: AtomicPtr<u64>,
}

static LINUX: Linux = Linux {
    memory: AtomicPtr::new(core::ptr::null_mut()),
    marker: AtomicPtr::new(core::ptr::null_mut()),
};

/// Sets this environment, if the program has not set one of its own.
pub(super) fn set() {
    static SELF: &dyn Environment = &LINUX;
    if !environment::is_set() {
        environment::set_environment(&SELF);
    }
}

fn kernel(what: &'static str) -> impl Fn(Errno) -> Refusal {
    move |error| Refusal::Kernel(what, error)
}

impl Linux {
    fn memory(&self) -> Option<&Memory> {
        // SAFETY: `open` has made it. It is freed only by a process's only thread, which is in `open` then.
        unsafe { self.memory.load(Ordering::Acquire).as_ref() }
    }

    fn open(&self) -> Result<(), Refusal> {
        let memory = Memory::open().map_err(kernel("/proc/self/mem cannot be opened"))?;
        let old = self
            .memory
            .swap(Box::into_raw(Box::new(memory)), Ordering::AcqRel);
        if !old.is_null() {
            // SAFETY: a box made it, and nobody else uses it: this process has no other thread that does.
            drop(unsafe { Box::from_raw(old) });
        }
        Ok(())
    }
}

const EBADF: Errno = 9;

// SAFETY: the kernel writes to the memory, aligned words at once (`hodo_sys`), and has all threads synchronize.
unsafe impl Text for Linux {
    fn read(&self, at: u64, into: &mut [u8]) -> usize {
        self.memory().map_or(0, |memory| memory.read_into(at, into))
    }

    unsafe fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Errno> {
        let memory = self.memory().ok_or(EBADF)?;
        // SAFETY: as the caller promises.
        unsafe { memory.write(at, bytes) }
    }

    unsafe fn change(&self, changes: &[Change]) -> Result<(), Errno> {
        let memory = self.memory().ok_or(EBADF)?;
        // SAFETY: as the caller promises.
        unsafe { memory.change(changes) }
    }

    fn synchronize(&self) {
        sys::sync_core();
    }
}

// SAFETY: these are new mappings.
unsafe impl Pages for Linux {
    fn mappings(&self) -> Result<Vec<Mapping>, Errno> {
        mappings()
    }

    fn map(&self, at: u64, size: usize, for_what: Use) -> Result<u64, Errno> {
        let (rights, flags) = match for_what {
            Use::Code => (sys::PROT_READ | sys::PROT_EXEC, 0),
            Use::Data => (sys::PROT_READ | sys::PROT_WRITE, 0),
            Use::Sparse => (sys::PROT_READ | sys::PROT_WRITE, sys::MAP_NORESERVE),
        };
        sys::map(at, size, rights, flags)
    }

    fn shadow(&self) -> Result<Window, Errno> {
        let here = sys::map(0, 4096, sys::PROT_READ, 0)?;
        let window = arch::sys::window(here);
        let place = (window.low - window.distance) & !0xFFF;
        let size = window.top - window.low + 8192;
        self.map(place, size as usize, Use::Sparse)?;
        sys::leave_out_of_dumps(place, size as usize);
        Ok(window)
    }
}

// SAFETY: the C library, or whoever starts threads, sets the thread pointer; the kernel numbers them.
unsafe impl Threads for Linux {
    fn current(&self) -> u32 {
        sys::thread()
    }

    fn exists(&self, thread: u32) -> bool {
        sys::signal_thread(thread, 0).is_ok()
    }

    fn most(&self) -> usize {
        16384
    }

    fn process(&self) -> usize {
        sys::process()
    }

    fn pause(&self) {
        sys::yield_now();
    }

    fn barrier(&self) {
        sys::barrier();
    }

    fn has_vectors(&self) -> bool {
        arch::sys::has_vectors()
    }
}

impl Environment for Linux {
    fn start(&self) -> Result<(), Refusal> {
        sys::register_sync_core().map_err(kernel("membarrier is not possible"))?;
        self.open()?;
        let marker = sys::map(0, 4096, sys::PROT_READ | sys::PROT_WRITE, 0)
            .map_err(kernel("there is no memory"))?;
        sys::wipe_on_fork(marker, 4096).map_err(kernel("fork cannot be noticed"))?;
        let marker = marker as *mut u64;
        // SAFETY: it was mapped just now.
        unsafe { marker.write(1) };
        self.marker.store(marker, Ordering::Release);
        Ok(())
    }

    fn is_copy(&self) -> Result<bool, Refusal> {
        let marker = self.marker.load(Ordering::Acquire);
        // SAFETY: it is our own page. The engine's lock is held.
        unsafe {
            if marker.is_null() || marker.read_volatile() != 0 {
                return Ok(false);
            }
            // The open file is the parent's memory.
            self.open()?;
            marker.write_volatile(1);
        }
        Ok(true)
    }

    fn call_sites(&self) -> Option<&'static dyn CallSites> {
        Some(&super::ftrace::FTRACE)
    }
}

/// All mappings, by address: `/proc/self/maps`.
pub(super) fn mappings() -> Result<Vec<Mapping>, Errno> {
    let file = sys::open(c"/proc/self/maps", sys::O_RDONLY)?;
    let mut text = Vec::new();
    let result = loop {
        let len = text.len();
        text.resize(len + 16384, 0);
        match sys::read(file, &mut text[len..]) {
            Ok(0) => {
                text.truncate(len);
                break Ok(());
            }
            Ok(count) => text.truncate(len + count),
            Err(error) => break Err(error),
        }
    };
    // SAFETY: the file is ours.
    unsafe { sys::close(file) };
    result?;
    Ok(text.split(|&byte| byte == b'\n').filter_map(line).collect())
}

fn line(line: &[u8]) -> Option<Mapping> {
    let mut words = line.split(|&byte| byte == b' ');
    let range = words.next()?;
    let dash = range.iter().position(|&byte| byte == b'-')?;
    let flags = words.next()?;
    let has = |at: usize, letter: u8| flags.get(at) == Some(&letter);
    Some(Mapping {
        range: number(&range[..dash])?..number(&range[dash + 1..])?,
        read: has(0, b'r'),
        write: has(1, b'w'),
        execute: has(2, b'x'),
        shared: has(3, b's'),
        offset: number(words.next()?)?,
    })
}

fn number(digits: &[u8]) -> Option<u64> {
    u64::from_str_radix(core::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::super::maps::{find, free};
    use super::*;

    #[test]
    fn this_function_is_in_an_executable_mapping() {
        let maps = mappings().expect("there are mappings");
        let here = this_function_is_in_an_executable_mapping as *const () as u64;
        let map = find(&maps, here).expect("one has this function");
        assert!(map.execute && !map.write && !map.shared);
        let place = free(&maps, here, 1 << 16, 1 << 30, 1 << 20).expect("there is room nearby");
        assert!(place.abs_diff(here) < 1 << 30);
        assert!(find(&maps, place).is_none() && find(&maps, place + 0xFFFF).is_none());
        assert_eq!(free(&maps, here, 1 << 48, 1 << 49, 1 << 20), None);
    }

    #[test]
    fn lines_are_parsed() {
        let map = line(b"7f00-8f00 r-xp 00012000 fe:00 123   /lib/x").expect("a line");
        assert_eq!(map.range, 0x7F00..0x8F00);
        assert!(map.read && !map.write && map.execute && !map.shared);
        assert_eq!(map.offset, 0x12000);
        assert_eq!(line(b"nonsense"), None);
    }
}
