//! Address space that hodo keeps in reserve while it changes a process, so that it can detach when it gets no more
//! memory: because somebody lowers its limit (`prlimit --as`), or because the system has none left. Rust ends a program
//! whose allocation fails.
//!
//! The reserve is returned to the system when an allocation fails, which is then tried again; and when detaching
//! begins, because that maps files, too.

use std::alloc::{GlobalAlloc, Layout};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

/// Its maximum size in bytes. Nothing is stored there: it consists only of addresses.
const MOST: u64 = 32 << 20;
/// If address space is limited, the reserve gets one part in this many.
const SHARE: u64 = 32;

static HELD: AtomicPtr<libc::c_void> = AtomicPtr::new(ptr::null_mut());
static SIZE: AtomicUsize = AtomicUsize::new(0);
static NEEDED: AtomicBool = AtomicBool::new(false);

/// The allocator of a program that attaches: wraps another one, and uses the reserve.
#[derive(Debug)]
pub struct WithReserve<A>(pub A);

/// Reserves addresses, once, if possible.
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

/// Returns the reserve to the system. Returns whether there was one.
pub fn give_back() -> bool {
    let held = HELD.swap(ptr::null_mut(), Ordering::SeqCst);
    let size = SIZE.load(Ordering::SeqCst);
    // SAFETY: only the thread that has swapped out the address has it, and nothing is stored in the mapping.
    !held.is_null() && unsafe { libc::munmap(held, size) } == 0
}

/// Whether it was used because there was no memory.
pub fn was_needed() -> bool {
    NEEDED.load(Ordering::SeqCst)
}

/// Allocates, and tries a second time if that fails.
fn retried(allocate: impl Fn() -> *mut u8) -> *mut u8 {
    let got = allocate();
    if !got.is_null() || !give_back() {
        return got;
    }
    NEEDED.store(true, Ordering::SeqCst);
    allocate()
}

// SAFETY: all memory comes from the other allocator.
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
