//! What the engine needs from the place where it runs. Linux programs need not know of it: theirs is built in. A kernel
//! implements the traits, names itself by [`set_environment`], and calls [`traps`](crate::traps) at breakpoints and
//! faults.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicPtr, Ordering};

pub use super::call_site::{CallSite, CallSites};
pub use super::maps::Mapping;
use super::refusal::Refusal;
pub use hodo_sys::Change;

/// The error number of what has failed, as Linux has them.
pub type Errno = i32;

const ENOSYS: Errno = 38;

/// Reads and writes code.
///
/// # Safety
/// * What [`write`](Self::write) has written is there.
/// * On RISC-V, aligned words of four bytes are stored at once, and so are the aligned halves of one that is not written
///   as a whole.
/// * When [`synchronize`](Self::synchronize) returns, all processors see what was written, and none executes what it has
///   fetched before.
pub unsafe trait Text: Sync {
    /// Reads up to as many bytes as there is room for; fewer where memory ends. Returns how many.
    fn read(&self, at: u64, into: &mut [u8]) -> usize;

    /// Writes all bytes. They are code that others may be executing, and that they must not be able to write.
    ///
    /// # Errors
    /// If they were not all written.
    ///
    /// # Safety
    /// As writing to that memory.
    unsafe fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Errno>;

    /// Makes changes, which are sorted by address and do not overlap. What is here needs [`write`](Self::write) for
    /// each group of near changes.
    ///
    /// # Errors
    /// If they were not all written.
    ///
    /// # Safety
    /// As [`write`](Self::write); and nobody changes the bytes in between without [`hodo_sys::lock`].
    unsafe fn change(&self, changes: &[Change]) -> Result<(), Errno> {
        let read = |at, size| {
            let mut bytes = vec![0; size];
            let count = self.read(at, &mut bytes);
            bytes.truncate(count);
            bytes
        };
        // SAFETY: as the caller promises.
        let write = |at, bytes: &[u8]| unsafe { self.write(at, bytes) };
        hodo_sys::change_by(changes, read, write)
    }

    /// Makes every processor execute a serializing instruction (x86-64) or `fence.i` (RISC-V).
    fn synchronize(&self);
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

/// Where return addresses have a shadow, and how far below them it is.
#[derive(Debug, Clone, Copy)]
pub struct Window {
    /// The lowest place of a return address that has a shadow.
    pub low: u64,
    /// The end of the highest.
    pub top: u64,
    /// How far the shadow of a place is below it. It should not be a multiple of 4096: a load of one would seem to
    /// depend on a store to the other.
    pub distance: u64,
}

/// Memory within reach of code.
///
/// # Safety
/// Memory that is mapped is zeroed, nobody else uses it, and it stays.
pub unsafe trait Pages: Sync {
    /// Everything that is mapped, or where nothing can be mapped, sorted by address. Only code that is listed as
    /// executable is probed.
    ///
    /// # Errors
    /// If that is not known.
    fn mappings(&self) -> Result<Vec<Mapping>, Errno>;

    /// Maps memory: at the given address, which is a multiple of 4096, or anywhere if that is 0.
    ///
    /// # Errors
    /// If something is there, or there is no memory.
    fn map(&self, at: u64, size: usize, for_what: Use) -> Result<u64, Errno>;

    /// Maps the shadow of the stacks, where return probes keep the real return addresses. Called once.
    ///
    /// # Errors
    /// If there is no memory, or no room.
    fn shadow(&self) -> Result<Window, Errno>;
}

/// Threads; in a kernel, what runs on a stack of its own.
///
/// # Safety
/// * The thread pointer (`tp` on RISC-V, the base of `fs` on x86-64) of each thread points to its own block of thread-local variables, as the linker
///   has laid them out (`PT_TLS`), zeroed at first. It is so in handlers of interrupts, too.
/// * No two threads that exist have the same number.
/// * [`barrier`](Self::barrier) is a memory barrier in all threads that run.
pub unsafe trait Threads: Sync {
    /// The number of the running thread, which is not 0.
    fn current(&self) -> u32;

    /// Returns whether a thread still exists.
    fn exists(&self, thread: u32) -> bool;

    /// How many there can be at once. Hits in others are not seen.
    fn most(&self) -> usize;

    /// The number of this process, which is not 0. A child of `fork` has another one.
    fn process(&self) -> usize {
        1
    }

    /// Lets other threads run.
    fn pause(&self) {
        core::hint::spin_loop();
    }

    /// Executes a memory barrier in all running threads.
    fn barrier(&self);

    /// Returns whether there are vector registers of RISC-V that may be used here.
    fn has_vectors(&self) -> bool {
        false
    }
}

/// All of it.
pub trait Environment: Text + Pages + Threads {
    /// Called once, when the engine starts.
    ///
    /// # Errors
    /// If something is not possible that the engine needs.
    fn start(&self) -> Result<(), Refusal> {
        Ok(())
    }

    /// Called whenever probes are changed. Returns whether this is a copy, with one thread, of the process that called it
    /// before: a child of `fork`.
    ///
    /// # Errors
    /// If the copy cannot write to its code.
    fn is_copy(&self) -> Result<bool, Refusal> {
        Ok(false)
    }

    /// The function tracer that has call sites in the code, if there is one.
    fn call_sites(&self) -> Option<&'static dyn CallSites> {
        None
    }
}

/// Where nothing is set.
struct Nowhere;

// SAFETY: nothing is ever written.
unsafe impl Text for Nowhere {
    fn read(&self, _: u64, _: &mut [u8]) -> usize {
        0
    }

    unsafe fn write(&self, _: u64, _: &[u8]) -> Result<(), Errno> {
        Err(ENOSYS)
    }

    fn synchronize(&self) {}
}

// SAFETY: nothing is ever mapped.
unsafe impl Pages for Nowhere {
    fn mappings(&self) -> Result<Vec<Mapping>, Errno> {
        Err(ENOSYS)
    }

    fn map(&self, _: u64, _: usize, _: Use) -> Result<u64, Errno> {
        Err(ENOSYS)
    }

    fn shadow(&self) -> Result<Window, Errno> {
        Err(ENOSYS)
    }
}

// SAFETY: no probe can be set, so that nobody asks.
unsafe impl Threads for Nowhere {
    fn current(&self) -> u32 {
        1
    }

    fn exists(&self, _: u32) -> bool {
        true
    }

    fn most(&self) -> usize {
        0
    }

    fn barrier(&self) {}
}

impl Environment for Nowhere {
    fn start(&self) -> Result<(), Refusal> {
        Err(Refusal::Kernel(
            "the kernel has not called set_environment",
            ENOSYS,
        ))
    }
}

static CURRENT: AtomicPtr<&'static dyn Environment> = AtomicPtr::new(core::ptr::null_mut());

/// Sets the environment, before the engine starts ([`Engine::new`](crate::Engine::new)). Linux programs do not call it.
///
/// ```ignore
/// static KERNEL: &dyn Environment = &Kernel;
/// set_environment(&KERNEL);
/// let engine = Engine::new()?;
/// ```
pub fn set_environment(environment: &'static &'static dyn Environment) {
    CURRENT.store(
        core::ptr::from_ref(environment).cast_mut(),
        Ordering::Release,
    );
}

/// Returns whether one was set.
#[cfg(target_os = "linux")]
pub(super) fn is_set() -> bool {
    !CURRENT.load(Ordering::Acquire).is_null()
}

/// The environment.
pub(super) fn current() -> &'static dyn Environment {
    // SAFETY: `set_environment` has stored a reference that stays.
    match unsafe { CURRENT.load(Ordering::Acquire).as_ref() } {
        Some(environment) => *environment,
        None => &Nowhere,
    }
}
