//! Memory: pages, and smaller pieces in powers of two.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering};

use crate::hart::without_interrupts;
use crate::paging::{self, PAGE};

/// The largest piece has 2 to the power of this many bytes, minus one power.
const CLASSES: usize = 24;

struct Lists {
    /// Where memory that was never used begins.
    fresh: usize,
    /// Free pieces of each power of two. The first word of a piece is the next one's address.
    free: [usize; CLASSES],
}

struct Heap {
    taken: AtomicBool,
    lists: UnsafeCell<Lists>,
}

// SAFETY: the lists are used by whoever has set `taken`.
unsafe impl Sync for Heap {}

#[global_allocator]
static HEAP: Heap = Heap {
    taken: AtomicBool::new(false),
    lists: UnsafeCell::new(Lists {
        fresh: 0,
        free: [0; CLASSES],
    }),
};

impl Heap {
    fn with<T>(&self, action: impl FnOnce(&mut Lists) -> T) -> T {
        // An interrupt handler that needs memory would wait for ever.
        without_interrupts(|| {
            while self.taken.swap(true, Ordering::Acquire) {
                core::hint::spin_loop();
            }
            // SAFETY: nobody else has it.
            let result = action(unsafe { &mut *self.lists.get() });
            self.taken.store(false, Ordering::Release);
            result
        })
    }
}

fn class(layout: Layout) -> usize {
    let size = layout.size().max(layout.align()).max(16);
    size.next_power_of_two().trailing_zeros() as usize
}

// SAFETY: pieces do not overlap, and begin at multiples of their size.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let class = class(layout);
        if class >= CLASSES {
            return core::ptr::null_mut();
        }
        self.with(|lists| {
            let first = lists.free[class];
            if first != 0 {
                // SAFETY: it is free, and its first word the address of the next one.
                lists.free[class] = unsafe { *(first as *const usize) };
                return first as *mut u8;
            }
            let heap = paging::layout().heap;
            let start = lists.fresh.max(heap.start).next_multiple_of(1 << class);
            if start + (1 << class) > heap.end {
                return core::ptr::null_mut();
            }
            lists.fresh = start + (1 << class);
            start as *mut u8
        })
    }

    unsafe fn dealloc(&self, piece: *mut u8, layout: Layout) {
        let class = class(layout);
        self.with(|lists| {
            // SAFETY: it is free now, and has at least a word.
            unsafe { *piece.cast::<usize>() = lists.free[class] };
            lists.free[class] = piece.addr();
        });
    }
}

/// A page of zeros, which is never freed. The heap is mapped at its physical address.
pub fn page() -> usize {
    pages(1)
}

/// This many pages of zeros, one after the other.
pub fn pages(count: usize) -> usize {
    let layout = Layout::from_size_align(count * PAGE, PAGE).expect("a layout of pages");
    // SAFETY: it is not empty.
    let pages = unsafe { alloc::alloc::alloc_zeroed(layout) };
    assert!(!pages.is_null(), "there is no memory");
    pages.addr()
}
