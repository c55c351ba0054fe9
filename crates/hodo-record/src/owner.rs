//! The word that shows targets whether a recorder lives. It is a robust futex: when the thread that owns it ends in any
//! way, the kernel marks the word before it releases that thread's tracees.

use std::ffi::c_long;
use std::sync::atomic::{AtomicU32, Ordering};

use hodo_trace::format::file_header::OWNER_DIED;

/// The kernel's `struct robust_list_head`: a linked list of locks, the last of which points to the head.
#[repr(C)]
struct Head {
    list: *const *const Head,
    offset: c_long,
    pending: *const Head,
}

/// A lock in that list; its word is elsewhere.
#[repr(C)]
struct Lock {
    next: *const Head,
}

/// From here on, the word says that the calling thread traces, until the thread ends.
pub fn take(word: &AtomicU32) {
    // Both live as long as the thread.
    let head: &mut Head = Box::leak(Box::new(Head {
        list: std::ptr::null(),
        offset: 0,
        pending: std::ptr::null(),
    }));
    let lock = Box::leak(Box::new(Lock { next: head }));
    head.offset = word
        .as_ptr()
        .addr()
        .wrapping_sub(std::ptr::from_ref(lock).addr()) as c_long;
    head.list = std::ptr::from_ref(lock).cast();
    // SAFETY: gettid only returns a number. The kernel reads the list when this thread ends, and the word if it is
    // still mapped. libc uses this list for process-shared locks, of which hodo has none.
    unsafe {
        word.store(libc::gettid().cast_unsigned(), Ordering::SeqCst);
        libc::syscall(
            libc::SYS_set_robust_list,
            std::ptr::from_ref::<Head>(head),
            size_of::<Head>(),
        );
    }
}

/// From here on, the word says that nobody traces.
pub fn give_up(word: &AtomicU32) {
    word.store(OWNER_DIED, Ordering::SeqCst);
}
