//! Records which registered functions a thread is in, so that none is called for its own hits.
//!
//! The record is a list on the thread's stack with a thread-local head. `thread_local!` may allocate if the library was
//! loaded later, and a hit may be in a signal handler. So the head is in the thread's static memory (the initial-exec
//! model), some of which the C library reserves for such libraries.

#[cfg(not(feature = "std"))]
use core::sync::atomic::AtomicU64;

/// Calls the function of a slot, unless this thread is in it.
#[cfg(not(feature = "std"))]
pub fn call(_: usize, _: &AtomicU64, function: impl FnOnce()) {
    function();
}

/// Returns whether this thread is in any of them, as far as is known.
#[cfg(not(feature = "std"))]
pub fn any() -> bool {
    false
}

#[cfg(feature = "std")]
pub use known::{any, call};

#[cfg(feature = "std")]
mod known {
    use core::ptr;
    use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

    use crate::tracepoint::arch;

    struct Link {
        slot: usize,
        outer: *mut Link,
    }

    fn head() -> &'static AtomicPtr<Link> {
        // SAFETY: it lives as long as the thread, and only the thread itself, which calls this, uses it.
        unsafe { &*arch::inside().cast() }
    }

    /// Not inlined into other crates, which would not see the thread-local symbol.
    #[inline(never)]
    pub fn any() -> bool {
        !head().load(Ordering::Relaxed).is_null()
    }

    /// Restores the list's head, also when the function panics.
    struct Entered(*mut Link);

    impl Drop for Entered {
        fn drop(&mut self) {
            head().store(self.0, Ordering::Relaxed);
        }
    }

    pub fn call(slot: usize, missed: &AtomicU64, function: impl FnOnce()) {
        let outer = head().load(Ordering::Relaxed);
        let mut link = outer;
        // SAFETY: links are on this thread's stack, in frames that still exist.
        while let Some(entered) = unsafe { link.as_ref() } {
            if entered.slot == slot {
                missed.fetch_add(1, Ordering::Relaxed);
                return;
            }
            link = entered.outer;
        }
        let mut link = Link { slot, outer };
        // Publishes it to signal handlers of this thread.
        head().store(ptr::from_mut(&mut link), Ordering::Release);
        let entered = Entered(outer);
        function();
        drop(entered);
    }
}
