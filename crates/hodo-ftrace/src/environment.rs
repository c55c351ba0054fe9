//! What the layers need from the place where they run.

use core::sync::atomic::Ordering;

use crate::arch;
use crate::call::Call;
use crate::state::state;
use crate::thread::Thread;

/// What a program or a kernel provides. [`set_environment!`](crate::set_environment) names the type that implements it.
///
/// # Safety
/// * [`thread`](Self::thread) returns the same data each time it is called in one thread, and never in another.
/// * [`thread`](Self::thread) uses no floating-point and no vector registers: it runs before they are saved.
/// * [`thread_offset`](Self::thread_offset) is none, or leads to the same data in all threads that can be traced; and
///   all threads can.
/// * If [`prepare`](Self::prepare) returns true, [`Thread::set_open_calls`] and [`Thread::set_shadow`] have been called
///   as they require.
/// * None of them calls an instrumented function.
pub unsafe trait Environment {
    /// The data of the calling thread; none if it cannot be traced.
    fn thread() -> Option<&'static Thread>;

    /// How far the data of each thread are from its thread pointer (x86-64: the word at `fs:0`; RISC-V: `tp`), if that
    /// is the same for all threads and never changes. They are then found without a call. It is asked when hooks are
    /// set.
    fn thread_offset() -> Option<isize> {
        None
    }

    /// Whether code may use registers of the processor's vector extension: RISC-V's V, Arm's SVE. They are then kept
    /// around hooks that may change all registers. It is asked when hooks are set. (x86-64 needs no answer.)
    fn has_vectors() -> bool {
        false
    }

    /// Gives a thread memory for its open calls, if it has none, and maps the shadow of a stack slot. Returns false if
    /// that is not possible: the return of this call is not traced then. All registers are saved.
    fn prepare(thread: &'static Thread, slot: usize) -> bool;

    /// Reports that a function has returned with the wrong frame pointer. Ends the program if `abort` is set; if it
    /// returns, the program continues. All registers are saved.
    fn frame_mismatch(call: &Call, expected: usize, found: usize, abort: bool);
}

/// Names the [`Environment`] of a program or a kernel. This must be done once.
#[macro_export]
macro_rules! set_environment {
    ($environment:ty) => {
        const _: () = {
            use $crate::environment::{Mismatch, as_pointer};
            use $crate::{Environment, Thread};

            #[unsafe(no_mangle)]
            extern "C" fn __hodo_ftrace_thread() -> *const Thread {
                as_pointer(<$environment as Environment>::thread())
            }

            #[unsafe(no_mangle)]
            extern "C" fn __hodo_ftrace_thread_offset() -> isize {
                <$environment as Environment>::thread_offset().unwrap_or(0)
            }

            #[unsafe(no_mangle)]
            extern "C" fn __hodo_ftrace_has_vectors() -> usize {
                usize::from(<$environment as Environment>::has_vectors())
            }

            #[unsafe(no_mangle)]
            extern "C" fn __hodo_ftrace_prepare(thread: &'static Thread, slot: usize) -> usize {
                usize::from(<$environment as Environment>::prepare(thread, slot))
            }

            #[unsafe(no_mangle)]
            extern "C" fn __hodo_ftrace_mismatch(mismatch: &Mismatch, abort: usize) -> usize {
                <$environment as Environment>::frame_mismatch(
                    mismatch.call(),
                    mismatch.expected,
                    mismatch.found,
                    abort != 0,
                );
                0
            }
        };
    };
}

unsafe extern "C" {
    safe fn __hodo_ftrace_thread() -> *const Thread;
    pub(crate) safe fn __hodo_ftrace_prepare(thread: &'static Thread, slot: usize) -> usize;
    pub(crate) safe fn __hodo_ftrace_mismatch(mismatch: &Mismatch, abort: usize) -> usize;
}

/// What [`set_environment!`](crate::set_environment) passes on.
#[doc(hidden)]
#[repr(C)]
#[derive(Debug)]
pub struct Mismatch {
    pub call: *const Call,
    pub expected: usize,
    pub found: usize,
}

impl Mismatch {
    /// The call.
    pub fn call(&self) -> &Call {
        // SAFETY: it is in the list of open calls until this has been reported.
        unsafe { &*self.call }
    }
}

#[doc(hidden)]
#[inline]
pub fn as_pointer(thread: Option<&'static Thread>) -> *const Thread {
    thread.map_or(core::ptr::null(), core::ptr::from_ref)
}

/// The data of the calling thread.
#[inline]
pub(crate) fn thread() -> Option<&'static Thread> {
    let thread = match state().thread_offset.load(Ordering::Relaxed) {
        0 => __hodo_ftrace_thread(),
        offset => arch::thread_pointer().wrapping_add_signed(offset) as *const Thread,
    };
    // SAFETY: it is null, or comes from a reference that is valid forever.
    unsafe { thread.as_ref() }
}
