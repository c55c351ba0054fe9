//! Trampolines: single jumps for sites whose own jump reaches only certain addresses.

use anyhow::Result;
use hodo_abi::Span;
use hodo_codegen::arena::{Arena, Room, gaps};

use crate::arch::ISLANDS;
use crate::ledger::Page;
use crate::space::Space;
use hodo_ptrace::maps;
use hodo_ptrace::maps::Mapping;
use hodo_ptrace::{Stopped, Syscalls, TargetAddr, start_of_heap};

/// Bytes of a place.
const JUMP: u64 = hodo_patch::PLACE;
/// Room for a heap that grows. Allocators whose heap cannot grow by `brk` any more map memory elsewhere.
const HEAP: u64 = 128 << 20;
/// No program gets more pages than this.
const MOST: usize = 4096;

/// Finds places, and maps pages for them if needed.
#[derive(Debug)]
pub struct Trampolines {
    /// The thread that maps pages, if the process is stopped.
    worker: Option<Worker>,
    pages: Arena,
    maps: Option<Vec<Mapping>>,
    /// Where the program's heap will grow, if that is known.
    heap: Option<Span>,
    calls: Option<Syscalls>,
    /// Pages that are only chosen, to be mapped later.
    chosen: Option<Vec<u64>>,
}

/// A stopped thread, and the address of an instruction with which it makes system calls.
#[derive(Debug, Clone, Copy)]
struct Worker {
    thread: Stopped,
    syscall: TargetAddr,
}

impl Trampolines {
    /// For a stopped thread; `syscall` is the address of an instruction that makes system calls.
    pub fn new(thread: Stopped, syscall: TargetAddr, space: &Space) -> Self {
        Self {
            worker: Some(Worker { thread, syscall }),
            pages: pages(space),
            maps: None,
            heap: None,
            calls: None,
            chosen: None,
        }
    }

    /// For a running process: pages are chosen where `maps` has nothing.
    pub fn choose(space: &Space, maps: Vec<Mapping>) -> Self {
        Self {
            worker: None,
            pages: pages(space),
            heap: growth(&maps, None),
            maps: Some(maps),
            calls: None,
            chosen: Some(Vec::new()),
        }
    }

    /// An address in the range where a jump can be put.
    pub fn find(&mut self, range: std::ops::Range<u64>) -> Option<u64> {
        let free = |room: &Room| room.first(range.clone(), JUMP);
        let near = range.start.saturating_sub(Page::SIZE)..range.end;
        let known = self.pages.starting_in(near).find_map(free);
        let at = match known {
            Some(at) => at,
            None if self.pages.is_full() => return None,
            None => {
                let room = Room::new(Span::at(self.map(&range)?, Page::SIZE), 0);
                let at = free(&room);
                self.pages.add(room);
                at?
            }
        };
        self.pages.take(Span::at(at, JUMP)).then_some(at)
    }

    /// Maps a page that reaches into the range, as near to its middle as possible: then it serves sites on both sides.
    fn map(&mut self, range: &std::ops::Range<u64>) -> Option<u64> {
        const LOWEST: u64 = 1 << 16;
        if self.maps.is_none() {
            let tid = self.worker?.thread.tid();
            let maps = maps::read(tid).ok()?;
            self.heap = growth(&maps, start_of_heap(tid));
            self.maps = Some(maps);
        }
        let maps = self.maps.as_mut()?;
        maps.sort_unstable_by_key(|mapping| mapping.start);
        let within = pages_with_places(range);
        let within = within.start.max(LOWEST)..within.end;
        // Not where the program's heap is about to grow; or at least not where it grows first.
        let heap = self.heap;
        let free = |most: u64| {
            let heap = heap.map(|heap| Span::at(heap.start, heap.len().min(most)));
            let mut spans: Vec<Span> = maps.iter().map(Mapping::span).chain(heap).collect();
            spans.sort_unstable_by_key(|span| span.start);
            nearest_page(&spans, within.clone())
        };
        let page = free(HEAP).or_else(|| free(ISLANDS.heap))?;
        if let Some(chosen) = &mut self.chosen {
            chosen.push(page);
            maps.push(taken(page));
            return Some(page);
        }
        if self.calls.is_none() {
            let Worker { thread, syscall } = self.worker?;
            self.calls = Some(Syscalls::begin(thread, syscall).ok()?);
        }
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let rx = libc::PROT_READ | libc::PROT_EXEC;
        let calls = self.calls.as_ref()?;
        let wanted = TargetAddr(page);
        let got = calls.mmap(wanted, Page::SIZE, rx, flags, None).ok()?;
        maps.push(taken(page));
        got.is_at(wanted).then_some(page)
    }

    /// The pages that were chosen.
    pub fn chosen(&self) -> Vec<u64> {
        self.chosen.clone().unwrap_or_default()
    }

    /// Restores the thread, and returns the pages that exist now.
    pub fn finish(self) -> Result<Vec<Page>> {
        if let Some(calls) = self.calls {
            calls.end()?;
        }
        let page = |room: &Room| Page {
            start: room.span().start,
            used: room.used(),
        };
        Ok(self.pages.rooms().map(page).collect())
    }
}

/// The pages in which a place begins in a range. The last bytes of a page are none.
fn pages_with_places(range: &std::ops::Range<u64>) -> std::ops::Range<u64> {
    let first = (range.start + JUMP - 1) & !(Page::SIZE - 1);
    first..range.end.next_multiple_of(Page::SIZE)
}

/// The free page that is nearest to the middle of a range.
fn nearest_page(taken: &[Span], within: std::ops::Range<u64>) -> Option<u64> {
    let middle = within.start.midpoint(within.end) & !(Page::SIZE - 1);
    let page = |gap: Span| {
        let last = gap.end.checked_sub(Page::SIZE)?;
        (gap.start <= last).then(|| middle.clamp(gap.start, last))
    };
    let pages = gaps(taken.iter().copied(), within).filter_map(page);
    pages.min_by_key(|page| page.abs_diff(middle))
}

/// Where the heap that `brk` moves will grow: after what there is of it, or where it begins.
pub fn growth(maps: &[Mapping], start: Option<u64>) -> Option<Span> {
    let heap = maps.iter().find(|mapping| *mapping.path == *"[heap]");
    let end = heap.map(|heap| heap.end).or(start)?;
    Some(Span::at(end, HEAP))
}

/// The pages of an address space.
fn pages(space: &Space) -> Arena {
    let mut arena = Arena::new(MOST);
    for &page in space.layout().trampolines() {
        arena.add(Room::new(page.span(), page.used));
    }
    arena
}

/// One of our pages.
fn taken(page: u64) -> Mapping {
    Mapping {
        start: page,
        end: page + Page::SIZE,
        writable: false,
        executable: true,
        shared: false,
        offset: 0,
        device: 0,
        inode: 0,
        path: std::path::PathBuf::new(),
        deleted: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = Page::SIZE;

    #[test]
    fn the_end_of_a_page_is_no_place() {
        let first = |start: u64| pages_with_places(&(start..start + 10 * PAGE)).start;
        assert_eq!(first(0x5000), 0x5000);
        assert_eq!(first(0x6000 - JUMP), 0x5000);
        assert_eq!(first(0x6000 - JUMP + 1), 0x6000);
        assert_eq!(pages_with_places(&(0x5000..0x5001)), 0x5000..0x6000);
    }

    #[test]
    fn pages_are_in_the_middle_of_ranges() {
        let start = 1 << 40;
        let within = start..start + 101 * PAGE;
        let middle = start + 50 * PAGE;
        let page = |taken: &[(u64, u64)]| {
            let span = |&(first, pages): &(u64, u64)| Span::at(start + first * PAGE, pages * PAGE);
            let taken: Vec<Span> = taken.iter().map(span).collect();
            nearest_page(&taken, within.clone())
        };
        assert_eq!(page(&[]), Some(middle));
        assert_eq!(page(&[(40, 30)]), Some(start + 39 * PAGE));
        assert_eq!(page(&[(10, 50)]), Some(start + 60 * PAGE));
        assert_eq!(page(&[(0, 100)]), Some(start + 100 * PAGE));
        assert_eq!(page(&[(0, 101)]), None);
    }
}
