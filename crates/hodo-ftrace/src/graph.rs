//! Tracing returns: hijacked return addresses, and the list of calls that they belong to.

use core::mem::MaybeUninit;
use core::sync::atomic::{Ordering, compiler_fence};

use crate::environment::{__hodo_ftrace_mismatch, __hodo_ftrace_prepare, Mismatch};
use crate::hooks::call_keeping;
use crate::shadow::{return_to_handler, shadow};
use crate::state::{FrameTest, GraphOps, Hooks, Vectors, state};
use crate::thread::{Open, Thread};
use crate::{arch, environment};

/// Has the return of a function traced, if the hooks of [`set_graph`](crate::set_graph) want it: calls the hook for
/// entries, and replaces the return address at `parent`. `selfpc` is what the hooks are given as the function.
/// `frame_pointer` is compared with the frame pointer at the return ([`crate::FrameTest`]).
///
/// `mcount` and `__fentry__` do this by themselves. This function is for other entries, such as those that a kernel
/// patches. It uses no vector registers; hooks do only as their flags say.
///
/// # Safety
/// `parent` is the address of the stack slot with the return address of a function that runs and returns through it.
/// The caller has saved the registers that it needs.
pub unsafe fn prepare_ftrace_return(parent: *mut usize, selfpc: usize, frame_pointer: usize) {
    let Some(thread) = environment::thread() else {
        return;
    };
    if thread.start_hook(parent as usize) {
        // SAFETY: as the caller promises.
        unsafe {
            let signer = arch::signer_of_plain(parent.read_volatile());
            let places = (arch::key(parent), parent as usize);
            push(thread, parent, places, selfpc, frame_pointer, signer);
        };
        thread.end_hook();
    }
}

/// Calls the hook for an entry, and then replaces the return address. `slot` is the address under which the call is
/// known (`arch::key`). `place` is where the return address is on the stack, also if it is not there yet: at the entry
/// it may still be in a register, which a stub has saved at `parent`. Without a `signer`, the return cannot be traced.
///
/// # Safety
/// As for [`prepare_ftrace_return`]; the thread is the calling one.
#[inline(always)]
pub(crate) unsafe fn push(
    thread: &'static Thread,
    parent: *mut usize,
    (slot, place): (usize, usize),
    selfpc: usize,
    frame_pointer: usize,
    signer: Option<arch::Signer>,
) {
    let graph = state().graph.word();
    let Some((ops, vectors)) = Hooks::of(graph) else {
        return;
    };
    let Some(signer) = signer else {
        thread.count_untraced();
        return;
    };
    // SAFETY: the caller promises that this is the return address of a running function.
    let there = unsafe { parent.read_volatile() };
    let plain = arch::without_signature(there);
    // A traced function has jumped to this one, and both will return through the same slot.
    let is_tail_call = plain == return_to_handler();
    let original = match is_tail_call {
        // SAFETY: whoever put this address there has written the shadow before.
        true => unsafe { shadow(slot) }.load(Ordering::Relaxed),
        false => plain,
    };
    thread.drop_below(slot + usize::from(!is_tail_call));
    let mut depth = thread.depth.load(Ordering::Relaxed);
    if thread.is_full(depth) || !thread.has_shadow(slot) {
        if !makes_room(thread, slot) {
            return;
        }
        depth = thread.depth.load(Ordering::Relaxed);
    }
    if !is_tail_call {
        // Before the hook, because the function's own return has to wait for this. The unwinder finds the right address
        // at each moment: in the slot, and then in its shadow. SAFETY: the shadow of this slot was mapped above, or
        // before.
        unsafe { shadow(slot) }.store(original, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        // SAFETY: the caller promises that the function returns through it.
        unsafe { parent.write_volatile(signer.sign(return_to_handler())) };
    }
    // SAFETY: it is not full.
    let open = unsafe { thread.call(depth) };
    open.slot.store(slot, Ordering::Relaxed);
    open.parent.store(place, Ordering::Relaxed);
    open.frame_pointer.store(frame_pointer, Ordering::Relaxed);
    open.ops.store(graph, Ordering::Relaxed);
    // SAFETY: this place in the list is free.
    unsafe { open.set_call(selfpc, original, depth) };
    // Calls in signal handlers come after it.
    thread.depth.store(depth + 1, Ordering::Relaxed);
    if !wants(ops, vectors, open) {
        if !is_tail_call {
            // SAFETY: as above. The function returns to where it was called.
            unsafe { parent.write_volatile(there) };
        }
        thread.depth.store(depth, Ordering::Relaxed);
    }
}

/// Gets memory for a thread's calls, and for the shadow of this slot. Returns false, and counts it, if another call
/// cannot be traced.
#[cold]
#[inline(never)]
fn makes_room(thread: &'static Thread, slot: usize) -> bool {
    if !thread.has_open_calls() || !thread.has_shadow(slot) {
        // SAFETY: this function takes these two words. It may need a C library, which uses vector registers.
        let prepared = unsafe {
            arch::call_with_vectors(
                __hodo_ftrace_prepare as *const () as usize,
                core::ptr::from_ref(thread) as usize,
                slot,
            )
        };
        if prepared & 1 == 0 {
            thread.count_untraced();
            return false;
        }
    }
    if thread.is_full(thread.depth.load(Ordering::Relaxed)) {
        thread.count_too_deep();
        return false;
    }
    true
}

/// Asks the hook for entries whether the return is to be traced.
fn wants(ops: &GraphOps, vectors: Vectors, open: &Open) -> bool {
    let Some(entry) = ops.entry else { return true };
    if vectors == Vectors::None {
        // SAFETY: nothing else uses this call while the hook runs.
        return entry(unsafe { &mut *open.call() }) != 0;
    }
    // SAFETY: the function takes one word. It returns 32 bits.
    (unsafe { call_keeping(vectors, entry as usize, open.call() as usize, 0) }) as u32 != 0
}

/// Handles the return of a traced function, for `return_to_handler`: `stack` is the stack pointer, `frame_pointer` the
/// frame pointer after the return. Returns where the function was called. (The kernel: `ftrace_return_to_handler`.)
///
/// # Safety
/// A function has just returned to `return_to_handler`, which has saved all general registers.
pub(crate) unsafe extern "C" fn leave(stack: usize, frame_pointer: usize) -> usize {
    let thread = environment::thread();
    if let Some(thread) = thread
        && let Some((depth, open)) = only_last(thread, stack)
        && state().frame_test.load(Ordering::Relaxed) == FrameTest::Off as usize
        && !thread.is_in_hook(stack)
    {
        thread.start_hook(stack);
        // SAFETY: the slot of an open call has a shadow.
        let back = unsafe { shadow(open.slot.load(Ordering::Relaxed)) }.load(Ordering::Relaxed);
        call_exit_hook(open);
        thread.depth.store(depth - 1, Ordering::Relaxed);
        thread.end_hook();
        return back;
    }
    // SAFETY: as the caller promises.
    unsafe { leave_any(thread, stack, frame_pointer) }
}

/// The usual case: the last open call is the only one that this return ends. Returns it, and the number of open calls.
#[inline]
fn only_last(thread: &Thread, stack: usize) -> Option<(usize, &Open)> {
    // SAFETY: there are more than `number` of them.
    let open = |number| unsafe { thread.call(number) };
    let slot = |number| open(number).slot.load(Ordering::Relaxed);
    let depth = thread.depth.load(Ordering::Relaxed);
    // A slot at or above the stack pointer makes this a very large number.
    let is_last =
        depth > 0 && stack.wrapping_sub(slot(depth - 1)).wrapping_sub(1) < arch::FARTHEST_SLOT;
    let is_only = is_last && (depth == 1 || slot(depth - 2) >= stack);
    is_only.then(|| (depth, open(depth - 1)))
}

/// [`leave`] in all cases.
///
/// # Safety
/// As for [`leave`].
#[cold]
#[inline(never)]
unsafe fn leave_any(thread: Option<&'static Thread>, stack: usize, frame_pointer: usize) -> usize {
    let mut first = 0;
    let mut slot = None;
    if let Some(thread) = thread {
        first = thread.depth.load(Ordering::Relaxed);
        // Frames of all calls below the stack pointer are gone. The outermost of them is the one that returns.
        while first > 0 {
            // SAFETY: there are at least `first` of them.
            let other = unsafe { thread.call(first - 1) }
                .slot
                .load(Ordering::Relaxed);
            if other >= stack {
                break;
            }
            slot = Some(other);
            first -= 1;
        }
    }
    let slot = slot.filter(|slot| stack.wrapping_sub(*slot) <= arch::FARTHEST_SLOT);
    // SAFETY: the function had a slot with this address, or its open call was lost.
    let back = unsafe { shadow(slot.unwrap_or_else(|| lost_slot(stack))) }.load(Ordering::Relaxed);
    if let Some(thread) = thread {
        // A slot below those of all calls that are still open, so that these are not taken for calls of the hook.
        let free = thread.start_hook(stack);
        while thread.depth.load(Ordering::Relaxed) > first {
            let depth = thread.depth.load(Ordering::Relaxed) - 1;
            // SAFETY: there are more than `depth` of them.
            let open = unsafe { thread.call(depth) };
            if Some(open.slot.load(Ordering::Relaxed)) == slot {
                if free {
                    returned(thread, open, frame_pointer);
                }
            } else {
                thread.count_dropped();
            }
            thread.depth.store(depth, Ordering::Relaxed);
        }
        if slot.is_none() {
            thread.count_lost();
        }
        if free {
            thread.end_hook();
        }
    }
    back
}

/// The slot of a function that has just returned but is in no list: the one whose content is still there.
fn lost_slot(stack: usize) -> usize {
    const WORD: usize = size_of::<usize>();
    let is_it = |slot: usize| {
        // SAFETY: the stack is readable there: a frame was there a moment ago.
        let there = unsafe { (slot as *const usize).read_volatile() };
        there == return_to_handler()
    };
    let mut distance = WORD;
    while distance <= arch::FARTHEST_SLOT {
        if is_it(stack - distance) {
            return stack - distance;
        }
        distance += WORD;
    }
    stack - WORD
}

/// Compares frame pointers, and calls the hook for returns.
fn returned(thread: &Thread, open: &Open, frame_pointer: usize) {
    let test = state().frame_test.load(Ordering::Relaxed);
    let expected = open.frame_pointer.load(Ordering::Relaxed);
    if test != FrameTest::Off as usize && expected != frame_pointer {
        thread.count_mismatched();
        mismatch(open, expected, frame_pointer, test);
    }
    call_exit_hook(open);
}

/// Calls the hook for returns, if it is still the one that was set at the entry.
#[inline]
fn call_exit_hook(open: &Open) {
    let graph = state().graph.word();
    if graph != open.ops.load(Ordering::Relaxed) {
        return;
    }
    let Some((ops, vectors)) = Hooks::of(graph) else {
        return;
    };
    let Some(exit) = ops.exit else { return };
    if vectors == Vectors::None {
        // SAFETY: nothing else uses this call while the hook runs.
        exit(unsafe { &mut *open.call() });
    } else {
        // SAFETY: the function takes one word.
        unsafe { call_keeping(vectors, exit as usize, open.call() as usize, 0) };
    }
}

#[cold]
#[inline(never)]
fn mismatch(open: &Open, expected: usize, found: usize, test: usize) {
    let mut mismatch = MaybeUninit::<Mismatch>::uninit();
    let at = mismatch.as_mut_ptr();
    // One word at a time: see `thread.rs`.
    // SAFETY: all words of it are set.
    unsafe {
        (&raw mut (*at).call).write_volatile(open.call());
        (&raw mut (*at).expected).write_volatile(expected);
        (&raw mut (*at).found).write_volatile(found);
    }
    let abort = usize::from(test == FrameTest::Abort as usize);
    // SAFETY: this function takes these two words.
    unsafe {
        arch::call_with_vectors(
            __hodo_ftrace_mismatch as *const () as usize,
            at as usize,
            abort,
        )
    };
}
