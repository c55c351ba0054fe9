//! The engine's executable memory near the probed code. Code there is never removed: a thread may be in it.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use super::arch::{self, COUNTERS, ISLAND as SIZE, common};
use super::environment::{Errno, Use};
use super::maps::{self, Mapping};
use super::memory::Memory;
use super::site::SiteCode;
use super::{environment, threads};

/// Bytes of a counter: no two counters share a cache line.
const COUNTER: usize = 64;
/// Where a counter begins in its line: the address is a multiple of 8 and of no larger power of two (`arch::hits`).
const BEGIN: usize = 8;
/// Pieces begin at multiples of this.
const UNIT: u64 = 16;
const MOST: usize = 4096;

struct Island {
    range: Range<u64>,
    /// Where the next piece may begin.
    free: AtomicUsize,
    /// How many counters are in use.
    counters: AtomicUsize,
    /// For each unit, its piece.
    owners: Vec<AtomicPtr<SiteCode>>,
}

static ISLANDS: [AtomicPtr<Island>; MOST] = [const { AtomicPtr::new(core::ptr::null_mut()) }; MOST];
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn islands() -> impl Iterator<Item = &'static Island> {
    let count = COUNT.load(Ordering::Acquire);
    // SAFETY: entries below the count are set, and islands stay.
    ISLANDS[..count]
        .iter()
        .filter_map(|island| unsafe { island.load(Ordering::Acquire).as_ref() })
}

/// Returns whether an address is in one of our islands.
pub(super) fn contains(addr: u64) -> bool {
    start(addr).is_some()
}

/// The start of the island that contains an address.
pub(super) fn start(addr: u64) -> Option<u64> {
    let island = islands().find(|island| island.range.contains(&addr));
    island.map(|island| island.range.start)
}

/// The piece that contains an address.
pub(super) fn piece(addr: u64) -> Option<&'static SiteCode> {
    let island = islands().find(|island| island.range.contains(&addr))?;
    let unit = ((addr - island.range.start) / UNIT) as usize;
    // SAFETY: pieces stay.
    unsafe { island.owners[unit].load(Ordering::Acquire).as_ref() }
}

/// Room for a piece.
pub(super) struct Room {
    island: &'static Island,
    /// Where the piece begins.
    pub at: u64,
    /// Where the shared code is.
    pub common: u64,
}

/// Finds room for `size` bytes near an address, at most `reach` bytes away.
pub(super) fn room(memory: &Memory, near: u64, size: u64, reach: u64) -> Result<Room, Errno> {
    let fits = |island: &Island| {
        let far = island
            .range
            .start
            .abs_diff(near)
            .max(island.range.end.abs_diff(near))
            > reach;
        !far && island.free.load(Ordering::Relaxed) as u64 + size <= SIZE
    };
    let island = match islands().find(|island| fits(island)) {
        Some(island) => island,
        None => add(memory, near, reach)?,
    };
    let at = island.range.start + island.free.load(Ordering::Relaxed) as u64;
    Ok(Room {
        island,
        at,
        common: island.range.start,
    })
}

fn add(memory: &Memory, near: u64, reach: u64) -> Result<&'static Island, Errno> {
    const ENOMEM: Errno = 12;
    let count = COUNT.load(Ordering::Relaxed);
    if count == MOST {
        return Err(ENOMEM);
    }
    let maps = maps::mappings()?;
    let module = module(&maps, near);
    let place = arch::place(&maps, module, near, reach).ok_or(ENOMEM)?;
    let start = environment::current().map(place, SIZE as usize, Use::Code)?;
    environment::current().map(start + SIZE, COUNTERS as usize, Use::Data)?;
    let code = common::code(threads::claim, threads::UNKNOWN.as_ptr()).ok_or(ENOMEM)?;
    // SAFETY: a fresh mapping.
    unsafe { memory.write(start, &code) }?;
    let island = Box::leak(Box::new(Island {
        range: start..start + SIZE,
        free: AtomicUsize::new(code.len().next_multiple_of(UNIT as usize)),
        counters: AtomicUsize::new(0),
        owners: (0..SIZE / UNIT)
            .map(|_| AtomicPtr::new(core::ptr::null_mut()))
            .collect(),
    }));
    ISLANDS[count].store(island, Ordering::Release);
    COUNT.store(count + 1, Ordering::Release);
    Ok(island)
}

/// The start of the gapless run of mappings that contains an address: a module's data is close to its code.
fn module(maps: &[Mapping], addr: u64) -> u64 {
    let at = maps.partition_point(|map| map.range.end <= addr);
    let mut start = maps.get(at).map_or(addr, |map| map.range.start);
    for map in maps[..at.min(maps.len())].iter().rev() {
        if map.range.end != start {
            break;
        }
        start = map.range.start;
    }
    start
}

impl Room {
    /// A nearby counter, which is zero and stays. `None` if all are in use.
    pub(super) fn counter(&self) -> Option<&'static AtomicU64> {
        let used = self.island.counters.load(Ordering::Relaxed);
        let at = used * COUNTER;
        if at as u64 >= COUNTERS {
            return None;
        }
        self.island.counters.store(used + 1, Ordering::Relaxed);
        let place = self.island.range.end as usize + at + BEGIN;
        // SAFETY: (1) it lies in memory that was mapped for this, and stays; (2) nobody else uses it.
        Some(unsafe { &*(place as *const AtomicU64) })
    }

    /// Puts a piece there. `code` is not longer than what was asked of `room`.
    pub(super) fn put(
        self,
        memory: &Memory,
        code: &[u8],
        piece: SiteCode,
    ) -> Result<&'static SiteCode, Errno> {
        // SAFETY: the room is not used yet.
        unsafe { memory.write(self.at, code) }?;
        Ok(self.reserve(code.len(), piece))
    }

    /// Reserves the room for a piece of `len` bytes, which the caller writes.
    pub(super) fn reserve(self, len: usize, piece: SiteCode) -> &'static SiteCode {
        let piece: &'static SiteCode = Box::leak(Box::new(piece));
        let first = ((self.at - self.island.range.start) / UNIT) as usize;
        let units = len.div_ceil(UNIT as usize);
        for owner in &self.island.owners[first..first + units] {
            owner.store(core::ptr::from_ref(piece).cast_mut(), Ordering::Release);
        }
        self.island
            .free
            .store((first + units) * UNIT as usize, Ordering::Relaxed);
        piece
    }
}
