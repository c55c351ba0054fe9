//! What the engine needs from the place where it runs. Linux programs need not know of it: theirs is built in. A kernel
//! implements the traits, names itself by [`set_environment`], and calls [`traps`](crate::traps) at breakpoints and
//! faults.

use core::sync::atomic::{AtomicPtr, Ordering};

pub use super::call_site::{CallSite, CallSites};
use super::refusal::Refusal;
use hodo_sys::ENOSYS;
pub use hodo_sys::{Errno, Mapping, Pages, Text, Use};

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

/// Threads; in a kernel, what runs on a stack of its own.
///
/// # Safety
/// * The thread pointer (`tp` on RISC-V, the base of `fs` on x86-64) of each thread points to its own block of
///   thread-local variables, as the linker has laid them out (`PT_TLS`), zeroed at first. It is so in handlers of
///   interrupts, too.
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

/// All of it. [`Text::read`] must read code, too.
pub trait Environment: Text + Pages + Threads {
    /// Maps the shadow of the stacks, where return probes keep the real return addresses. Called once.
    ///
    /// # Errors
    /// If there is no memory, or no room.
    fn shadow(&self) -> Result<Window, Errno>;

    /// Called once, when the engine starts.
    ///
    /// # Errors
    /// If something is not possible that the engine needs.
    fn start(&self) -> Result<(), Refusal> {
        Ok(())
    }

    /// Called whenever probes are changed. Returns whether this is a copy, with one thread, of the process that called
    /// it before: a child of `fork`.
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
    unsafe fn write(&self, _: usize, _: &[u8]) -> Result<(), Errno> {
        Err(ENOSYS)
    }

    fn sync(&self) {}
}

// SAFETY: nothing is ever mapped.
unsafe impl Pages for Nowhere {
    fn mappings(&self, _: &mut dyn FnMut(Mapping)) -> Result<(), Errno> {
        Err(ENOSYS)
    }

    fn map(&self, _: u64, _: usize, _: Use) -> Result<u64, Errno> {
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
    fn shadow(&self) -> Result<Window, Errno> {
        Err(ENOSYS)
    }

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
