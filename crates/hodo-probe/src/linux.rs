//! The environment of Linux programs.

use alloc::boxed::Box;
use core::sync::atomic::{AtomicPtr, Ordering};

use super::arch;
use super::environment::{self, CallSites, Environment, Errno, Pages, Text, Threads, Use, Window};
use super::refusal::Refusal;
use super::sys;
use hodo_sys::{Mapping, Memory, maps};

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
    fn read(&self, at: usize, into: &mut [u8]) -> usize {
        self.memory()
            .map_or(0, |memory| memory.read_into(at as u64, into))
    }

    unsafe fn write(&self, at: usize, bytes: &[u8]) -> Result<(), Errno> {
        let memory = self.memory().ok_or(EBADF)?;
        // SAFETY: as the caller promises.
        unsafe { memory.write(at as u64, bytes) }
    }

    fn sync(&self) {
        sys::sync_core();
    }
}

// SAFETY: these are new mappings.
unsafe impl Pages for Linux {
    fn mappings(&self, see: &mut dyn FnMut(Mapping)) -> Result<(), Errno> {
        maps::mappings(see)
    }

    fn map(&self, at: u64, size: usize, for_what: Use) -> Result<u64, Errno> {
        maps::map_for(at, size, for_what)
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

/// The functions of the environment that are called at hits, through a table.
pub(super) fn at_hits() -> [u64; 1] {
    [<Linux as Threads>::current as fn(&Linux) -> u32 as *const () as u64]
}

impl Environment for Linux {
    fn shadow(&self) -> Result<Window, Errno> {
        let here = maps::map(0, 4096, maps::PROT_READ, 0)?;
        let window = arch::sys::window(here);
        let place = (window.low - window.distance) & !0xFFF;
        let size = window.top - window.low + 8192;
        self.map(place, size as usize, Use::Sparse)?;
        sys::leave_out_of_dumps(place, size as usize);
        Ok(window)
    }

    fn start(&self) -> Result<(), Refusal> {
        sys::register_sync_core().map_err(kernel("membarrier is not possible"))?;
        self.open()?;
        let marker = maps::map(0, 4096, maps::PROT_READ | maps::PROT_WRITE, 0)
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
