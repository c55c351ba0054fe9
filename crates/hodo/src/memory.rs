//! hodo's memory allocator.
//!
//! The plan of a large library and its stubs take hundreds of megabytes for a moment. The kernel needs longer to hand
//! these out page by page than hodo needs to fill them. So large blocks are mapped in huge pages where the system
//! allows it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

/// Blocks of at least this many bytes are large.
const LARGE: usize = 4 << 20;
/// The size of a huge page in bytes.
const PAGE: usize = 2 << 20;
/// The system aligns mappings to this and no more.
const ALIGNMENT: usize = 4096;

/// The system's memory, in huge pages for large blocks.
pub struct Memory;

/// Freed blocks are kept for reuse, up to this many bytes in total: the kernel clears all the memory that it hands out.
const KEPT: usize = 64 << 20;

/// Whether addresses are limited (`ulimit -v`): nothing is kept then.
static IS_LIMITED: AtomicBool = AtomicBool::new(false);

/// Looks at the limit on addresses. If there is one, hodo takes none that it does not use: the C library would reserve
/// 64 MiB for each thread. To be called before there are other threads.
pub fn heed_limit() {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the call writes the limit.
    let is_known = unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut limit) } == 0;
    if !is_known || limit.rlim_cur == libc::RLIM_INFINITY {
        return;
    }
    IS_LIMITED.store(true, Ordering::Relaxed);
    // SAFETY: there is one thread.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1)
    };
}

/// Freed mappings that were kept: address and size in bytes. A size of 0 means none.
struct Spare {
    busy: AtomicBool,
    blocks: UnsafeCell<[(usize, usize); 8]>,
}

// SAFETY: only the thread that has set `busy` accesses the blocks.
unsafe impl Sync for Spare {}

static SPARE: Spare = Spare {
    busy: AtomicBool::new(false),
    blocks: UnsafeCell::new([(0, 0); 8]),
};

impl Spare {
    /// Calls `act` with the blocks, unless another thread uses them.
    fn with<T>(&self, act: impl FnOnce(&mut [(usize, usize); 8]) -> Option<T>) -> Option<T> {
        if self.busy.swap(true, Ordering::Acquire) {
            return None;
        }
        // SAFETY: `busy` was not set, so no other thread is here. `act` does not allocate and does not panic.
        let done = act(unsafe { &mut *self.blocks.get() });
        self.busy.store(false, Ordering::Release);
        done
    }

    /// Takes a kept block of this size in bytes, or one that is not much larger.
    fn take(&self, size: usize) -> Option<*mut u8> {
        let (at, found) = self.with(|blocks| {
            let fits = |block: &&mut (usize, usize)| block.1 >= size && block.1 / 4 <= size;
            let block = blocks.iter_mut().filter(fits).min_by_key(|block| block.1)?;
            Some(std::mem::take(block))
        })?;
        let start = ptr::with_exposed_provenance_mut::<u8>(at);
        if found > size {
            // SAFETY: this is the end of a mapping that nobody uses.
            unsafe { libc::munmap(start.add(size).cast(), found - size) };
        }
        Some(start)
    }

    /// Keeps a block, if there is room for it.
    fn keep(&self, at: *mut u8, size: usize) -> Option<()> {
        if IS_LIMITED.load(Ordering::Relaxed) {
            return None;
        }
        self.with(|blocks| {
            let all: usize = blocks.iter().map(|block| block.1).sum();
            let free = blocks.iter_mut().find(|block| block.1 == 0)?;
            (all.saturating_add(size) <= KEPT).then(|| *free = (at.expose_provenance(), size))
        })
    }
}

/// Returns whether a block has its own mapping.
fn is_large(size: usize, align: usize) -> bool {
    size >= LARGE && align <= ALIGNMENT && size <= isize::MAX as usize - PAGE
}

/// Asks for huge pages in a new mapping. Returns null if the mapping failed.
fn mapped(at: *mut libc::c_void, size: usize) -> *mut u8 {
    if at == libc::MAP_FAILED {
        return ptr::null_mut();
    }
    // SAFETY: the range was just mapped, and the advice changes no contents. If it is refused, the memory works all the
    // same.
    unsafe { libc::madvise(at, size, libc::MADV_HUGEPAGE) };
    at.cast()
}

fn map(size: usize) -> *mut u8 {
    let size = size.next_multiple_of(PAGE);
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping at an address that the kernel chooses affects nothing else.
    let at = unsafe { libc::mmap(ptr::null_mut(), size, rights, flags, -1, 0) };
    mapped(at, size)
}

// SAFETY: large and small blocks are distinguished by their layout, which is the same when they are freed. Each kind is
// freed by the allocator that made it. Mappings are page-aligned and do not overlap.
unsafe impl GlobalAlloc for Memory {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match is_large(layout.size(), layout.align()) {
            true => {
                let spare = SPARE.take(layout.size().next_multiple_of(PAGE));
                spare.unwrap_or_else(|| map(layout.size()))
            }
            // SAFETY: the caller promises what the system's allocator requires.
            false => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match is_large(layout.size(), layout.align()) {
            // New mappings contain zeros.
            true => map(layout.size()),
            // SAFETY: as above.
            false => unsafe { System.alloc_zeroed(layout) },
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match is_large(layout.size(), layout.align()) {
            true => {
                let size = layout.size().next_multiple_of(PAGE);
                if SPARE.keep(block, size).is_none() {
                    // SAFETY: the block is a mapping of this size, and nobody uses it any more.
                    unsafe { libc::munmap(block.cast(), size) };
                }
            }
            // SAFETY: as above.
            false => unsafe { System.dealloc(block, layout) },
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let align = layout.align();
        match (is_large(layout.size(), align), is_large(size, align)) {
            // SAFETY: as above.
            (false, false) => unsafe { System.realloc(block, layout, size) },
            (true, true) => {
                let before = layout.size().next_multiple_of(PAGE);
                let after = size.next_multiple_of(PAGE);
                if before == after {
                    return block;
                }
                // SAFETY: the block is a mapping of this size that belongs to the caller. If the call fails, it remains
                // as it is.
                let at = unsafe { libc::mremap(block.cast(), before, after, libc::MREMAP_MAYMOVE) };
                mapped(at, after)
            }
            _ => {
                // SAFETY: the size is not 0, and within what this alignment allows.
                let layout_after = unsafe { Layout::from_size_align_unchecked(size, align) };
                // SAFETY: the size of the layout is not 0.
                let other = unsafe { self.alloc(layout_after) };
                if !other.is_null() {
                    // SAFETY: both blocks have at least that many bytes and do not overlap, and the first is freed
                    // once.
                    unsafe {
                        ptr::copy_nonoverlapping(block, other, size.min(layout.size()));
                        self.dealloc(block, layout);
                    }
                }
                other
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A vector keeps its content while it grows and shrinks through all sizes. `hodo`'s tests run with this allocator.
    #[test]
    fn contents_survive_growing_and_shrinking() {
        let mut words: Vec<u64> = Vec::new();
        let sizes = [
            1000,
            LARGE / 8 - 1,
            LARGE / 8,
            LARGE,
            2 * LARGE + 1,
            4 * LARGE,
        ];
        for &size in sizes.iter().chain(sizes.iter().rev()) {
            let known = words.len().min(size);
            words.truncate(size);
            words.shrink_to_fit();
            words.reserve_exact(size - words.len());
            words.extend(known as u64..size as u64);
            assert!(words.iter().copied().eq(0..size as u64), "{size}");
        }
    }

    #[test]
    fn large_zeroed_memory_is_zero_when_reused() {
        for size in [100, LARGE, 3 * LARGE] {
            for _ in 0..2 {
                let mut bytes = vec![0u8; size];
                assert!(bytes.iter().all(|&byte| byte == 0));
                bytes.fill(7);
            }
        }
    }
}
