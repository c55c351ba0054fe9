//! Where hodo's memory comes from.
//!
//! The plan of a large library and the stubs for it take hundreds of megabytes for a moment. Page by page, the kernel needs longer to hand them
//! out than hodo needs to fill them, so what is large is mapped in large pages, where the system allows that.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr;

/// What has so many bytes is large.
const LARGE: usize = 4 << 20;
/// Bytes of a large page.
const PAGE: usize = 2 << 20;
/// The system has no other alignment for mappings.
const ALIGNMENT: usize = 4096;

/// The system's memory, in large pages where it is for something large.
pub struct Memory;

/// Does this have a mapping of its own?
fn is_large(size: usize, align: usize) -> bool {
    size >= LARGE && align <= ALIGNMENT && size <= isize::MAX as usize - PAGE
}

/// What the kernel says of memory, or nothing.
fn mapped(at: *mut libc::c_void, size: usize) -> *mut u8 {
    if at == libc::MAP_FAILED {
        return ptr::null_mut();
    }
    // SAFETY: the range was just mapped, and the advice changes no contents. What is refused is as right without.
    unsafe { libc::madvise(at, size, libc::MADV_HUGEPAGE) };
    at.cast()
}

fn map(size: usize) -> *mut u8 {
    let size = size.next_multiple_of(PAGE);
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping at a place that the kernel chooses concerns nothing else.
    let at = unsafe { libc::mmap(ptr::null_mut(), size, rights, flags, -1, 0) };
    mapped(at, size)
}

// SAFETY: small and large blocks are told apart by their layout, which is the same when they are given back; each kind is dealt with by those
// who have made it. Mappings are aligned to their pages, and no two overlap.
unsafe impl GlobalAlloc for Memory {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match is_large(layout.size(), layout.align()) {
            true => map(layout.size()),
            // SAFETY: the caller's promises are those that the system asks for.
            false => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match is_large(layout.size(), layout.align()) {
            // New mappings are zero.
            true => map(layout.size()),
            // SAFETY: as above.
            false => unsafe { System.alloc_zeroed(layout) },
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match is_large(layout.size(), layout.align()) {
            // SAFETY: the block is a mapping of this size, and nobody uses it any more.
            true => unsafe {
                libc::munmap(block.cast(), layout.size().next_multiple_of(PAGE));
            },
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
                // SAFETY: the block is a mapping of this size, which belongs to the caller; if the call fails, it stays as it is.
                let at = unsafe { libc::mremap(block.cast(), before, after, libc::MREMAP_MAYMOVE) };
                mapped(at, after)
            }
            _ => {
                // SAFETY: the size is not 0, and no larger than the caller may ask for with this alignment.
                let layout_after = unsafe { Layout::from_size_align_unchecked(size, align) };
                // SAFETY: the layout has a size that is not 0.
                let other = unsafe { self.alloc(layout_after) };
                if !other.is_null() {
                    // SAFETY: both blocks have so many bytes, they do not overlap, and the first is given back once.
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

    /// A vector grows and shrinks over all sizes, and has its content at each; `hodo`'s tests run with this memory.
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
    fn large_zeroed_memory_is_zero_also_where_it_was_in_use() {
        for size in [100, LARGE, 3 * LARGE] {
            for _ in 0..2 {
                let mut bytes = vec![0u8; size];
                assert!(bytes.iter().all(|&byte| byte == 0));
                bytes.fill(7);
            }
        }
    }
}
