//! What is kept for each thread: which hook runs, and which calls are open.
//!
//! All of it is changed by its own thread only, but signal handlers interrupt that at any instruction. Words are atomic
//! for this reason, and for another: compilers do not combine atomic accesses into accesses by vector registers, whose
//! values still belong to the program here. (`hodo-ftrace-c/tests/code.rs` checks the code.)

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use crate::call::Call;
use crate::state::GraphOps;

/// An open call: the address on the stack under which it is known (`arch::key`), and what belongs to it.
#[repr(C)]
#[derive(Debug)]
pub struct Open {
    pub(crate) slot: AtomicUsize,
    pub(crate) frame_pointer: AtomicUsize,
    pub(crate) ops: AtomicPtr<GraphOps>,
    /// Where the return address is, which may be another address than the one under which the call is known.
    pub(crate) parent: AtomicUsize,
    pub(crate) call: UnsafeCell<Call>,
}

impl Open {
    /// The call.
    pub(crate) fn call(&self) -> *mut Call {
        self.call.get()
    }

    /// Sets the call, one word at a time: see the module's text.
    ///
    /// # Safety
    /// No hook uses it.
    pub(crate) unsafe fn set_call(&self, func: usize, parent: usize, depth: usize) {
        let call = self.call.get();
        // SAFETY: it belongs to this thread, and as the caller promises.
        unsafe {
            (&raw mut (*call).func).write_volatile(func);
            (&raw mut (*call).parent).write_volatile(parent);
            (&raw mut (*call).depth).write_volatile(depth);
            (&raw mut (*call).data).write_volatile(0);
        }
    }
}

/// The stack slot of the return address of a call; where that is in a register at first, it is where functions usually
/// store it.
///
/// # Safety
/// The call is one that a hook has just been given.
pub unsafe fn stack_slot(call: &Call) -> usize {
    let distance = core::mem::offset_of!(Open, call);
    // SAFETY: hooks are given the calls that are in such structures.
    let open = unsafe { &*core::ptr::from_ref(call).byte_sub(distance).cast::<Open>() };
    open.parent.load(Ordering::Relaxed)
}

/// What was not seen in a thread.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Entries while a hook ran.
    pub missed: usize,
    /// Calls that were too deep for the list of open calls; their returns are not seen. (The kernel: `overrun`.)
    pub too_deep: usize,
    /// Calls whose returns are not seen because there is no memory for them, or no shadow for their stack, or their
    /// return address was not found.
    pub untraced: usize,
    /// Open calls that were left by other ways than a return.
    pub dropped: usize,
    /// Returns of calls that were no longer in the list.
    pub lost: usize,
    /// Returns with the wrong frame pointer.
    pub mismatched: usize,
}

/// What the layers keep for one thread. All zeros is a thread with nothing in it.
#[repr(C)]
#[derive(Debug)]
pub struct Thread {
    /// While a hook runs: the stack slot of the call that it was called for. Otherwise 0.
    pub(crate) busy: AtomicUsize,
    pub(crate) depth: AtomicUsize,
    pub(crate) limit: AtomicUsize,
    pub(crate) calls: AtomicPtr<Open>,
    pub(crate) shadow_from: AtomicUsize,
    pub(crate) shadow_size: AtomicUsize,
    missed: AtomicUsize,
    too_deep: AtomicUsize,
    untraced: AtomicUsize,
    dropped: AtomicUsize,
    lost: AtomicUsize,
    mismatched: AtomicUsize,
    /// The bits of the tracers that are switched on in this thread.
    tracers: AtomicU64,
    /// Which versions of functions it uses during a transition (`livepatch`).
    mark: AtomicUsize,
}

/// Adds one to a number of the calling thread. A signal handler that does the same in between is lost, at worst.
fn count(number: &AtomicUsize) {
    number.store(number.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

impl Thread {
    /// Gives the thread memory for open calls, or takes it back (null and 0).
    ///
    /// # Safety
    /// There must be `limit` of them, all zeros or left over from another thread. They must stay valid until they are
    /// taken back by the thread itself.
    pub unsafe fn set_open_calls(&self, calls: *mut Open, limit: usize) {
        self.limit.store(0, Ordering::Relaxed);
        self.depth.store(0, Ordering::Relaxed);
        self.calls.store(calls, Ordering::Relaxed);
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Returns whether it has memory for open calls.
    pub fn has_open_calls(&self) -> bool {
        self.limit.load(Ordering::Relaxed) != 0
    }

    /// Says that the shadow of the stack slots from `from` to before `to` is mapped.
    ///
    /// # Safety
    /// It is, and stays so as long as the process exists.
    pub unsafe fn set_shadow(&self, from: usize, to: usize) {
        self.shadow_size.store(0, Ordering::Relaxed);
        self.shadow_from.store(from, Ordering::Relaxed);
        self.shadow_size.store(to - from, Ordering::Relaxed);
    }

    /// What was not seen.
    pub fn counts(&self) -> Counts {
        Counts {
            missed: self.missed.load(Ordering::Relaxed),
            too_deep: self.too_deep.load(Ordering::Relaxed),
            untraced: self.untraced.load(Ordering::Relaxed),
            dropped: self.dropped.load(Ordering::Relaxed),
            lost: self.lost.load(Ordering::Relaxed),
            mismatched: self.mismatched.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn mark(&self) -> usize {
        self.mark.load(Ordering::SeqCst)
    }

    pub(crate) fn set_mark(&self, mark: usize) {
        self.mark.store(mark, Ordering::SeqCst);
    }

    /// Sets the mark, if it is still this one.
    pub(crate) fn change_mark(&self, before: usize, mark: usize) -> bool {
        self.mark
            .compare_exchange(before, mark, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }

    /// The return addresses of its open calls. Only the thread itself may ask, or somebody for whom it waits.
    pub fn returns(&self) -> impl Iterator<Item = usize> {
        let depth = self.depth.load(Ordering::Relaxed);
        let depth = depth.min(self.limit.load(Ordering::Relaxed));
        (0..depth).map(|number| {
            // SAFETY: there are more than `number` of them. Nobody changes it meanwhile.
            unsafe { (*self.call(number).call()).parent }
        })
    }

    pub(crate) fn tracers(&self) -> u64 {
        self.tracers.load(Ordering::Relaxed)
    }

    pub(crate) fn set_tracers(&self, mask: u64) {
        self.tracers.store(mask, Ordering::Relaxed);
    }

    pub(crate) fn count_too_deep(&self) {
        count(&self.too_deep);
    }

    pub(crate) fn count_untraced(&self) {
        count(&self.untraced);
    }

    pub(crate) fn count_lost(&self) {
        count(&self.lost);
    }

    pub(crate) fn count_dropped(&self) {
        count(&self.dropped);
    }

    pub(crate) fn count_mismatched(&self) {
        count(&self.mismatched);
    }

    /// Notes that hooks run for the call with this stack slot. Returns false, and counts it, if one runs already.
    ///
    /// A hook that was left by `longjmp`, against the rules, cannot keep the thread busy for ever: calls whose slots
    /// are not below its slot are not inside it.
    pub(crate) fn start_hook(&self, slot: usize) -> bool {
        if self.is_in_hook(slot) {
            count(&self.missed);
            return false;
        }
        self.busy.store(slot, Ordering::Relaxed);
        true
    }

    /// Returns whether a hook runs, and a call with this stack slot is inside it.
    pub(crate) fn is_in_hook(&self, slot: usize) -> bool {
        slot < self.busy.load(Ordering::Relaxed)
    }

    /// Notes that no hook runs.
    pub(crate) fn end_hook(&self) {
        self.busy.store(0, Ordering::Relaxed);
    }

    pub(crate) fn is_full(&self, depth: usize) -> bool {
        depth >= self.limit.load(Ordering::Relaxed)
    }

    /// Returns whether the shadow of this slot is known to be mapped.
    pub(crate) fn has_shadow(&self, slot: usize) -> bool {
        let from = self.shadow_from.load(Ordering::Relaxed);
        slot.wrapping_sub(from) < self.shadow_size.load(Ordering::Relaxed)
    }

    /// An open call.
    ///
    /// # Safety
    /// There is one with this number.
    pub(crate) unsafe fn call(&self, number: usize) -> &Open {
        // SAFETY: as the caller promises; `set_open_calls` requires the memory to be valid.
        unsafe { &*self.calls.load(Ordering::Relaxed).add(number) }
    }

    /// Drops the open calls at the end of the list whose slots are below this address: their frames are gone.
    pub(crate) fn drop_below(&self, address: usize) {
        loop {
            let depth = self.depth.load(Ordering::Relaxed);
            // SAFETY: there are `depth` of them.
            if depth == 0 || unsafe { self.call(depth - 1) }.slot.load(Ordering::Relaxed) >= address
            {
                return;
            }
            self.depth.store(depth - 1, Ordering::Relaxed);
            self.count_dropped();
        }
    }
}
