//! Address space that hodo keeps in reserve while it changes a process, so that it can detach when there is no more
//! memory: because somebody lowers a limit (`prlimit --as`), or because the system has no more. Rust ends a program
//! that gets none.
//!
//! The reserve is given back to the system at the first allocation that fails, which is tried again then, and when
//! detaching begins, for that maps files, too.

use std::alloc::{GlobalAlloc, Layout};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

/// Bytes of it, at most. Nobody touches them: they are only addresses.
const MOST: u64 = 32 << 20;
/// With a limit on address space, its share of that.
const SHARE: u64 = 32;

static HELD: AtomicPtr<libc::c_void> = AtomicPtr::new(ptr::null_mut());
static SIZE: AtomicUsize = AtomicUsize::new(0);
static NEEDED: AtomicBool = AtomicBool::new(false);

/// The allocator of a program that attaches: another one, with the reserve.
#[derive(Debug)]
pub struct WithReserve<A>(pub A);

/// Keeps addresses in reserve, once, if there are any.
pub fn hold() {
    let size = hodo_ptrace::limits::address_space().map_or(MOST, |limit| (limit / SHARE).min(MOST))
        as usize;
    if SIZE.compare_exchange(0, size, Ordering::SeqCst, Ordering::SeqCst) != Ok(0) {
        return;
    }
    // SAFETY: the mapping is a new one.
    let held = unsafe {
        libc::mmap(
            ptr::null_mut(),
            size,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if held != libc::MAP_FAILED {
        HELD.store(held, Ordering::SeqCst);
    }
}

/// Gives the reserve back. Returns whether there was one.
pub fn give_back() -> bool {
    let held = HELD.swap(ptr::null_mut(), Ordering::SeqCst);
    let size = SIZE.load(Ordering::SeqCst);
    // SAFETY: whoever has taken the address out of its place is the only one that has it, and nothing is in the
    // mapping.
    !held.is_null() && unsafe { libc::munmap(held, size) } == 0
}

/// Was it needed because there was no memory?
pub fn was_needed() -> bool {
    NEEDED.load(Ordering::SeqCst)
}

/// What an allocation gives, or a second try does.
fn retried(allocate: impl Fn() -> *mut u8) -> *mut u8 {
    let got = allocate();
    if !got.is_null() || !give_back() {
        return got;
    }
    NEEDED.store(true, Ordering::SeqCst);
    allocate()
}

// SAFETY: all that is given is the other allocator's.
unsafe impl<A: GlobalAlloc> GlobalAlloc for WithReserve<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's.
        retried(|| unsafe { self.0.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's.
        retried(|| unsafe { self.0.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's; a try that fails leaves the block as it is.
        retried(|| unsafe { self.0.realloc(block, layout, size) })
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's.
        unsafe { self.0.dealloc(block, layout) }
    }
}
