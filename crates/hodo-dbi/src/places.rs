//! Where hodo puts its memory in the program's address space.
//!
//! It is where programs have nothing and want nothing. The runtimes of sanitizers put their shadow memory at fixed
//! addresses and want these to be free: that of AddressSanitizer begins at 0x7FFF_8000. That of ThreadSanitizer accepts
//! mappings only in some ranges, as from 0x7E80_0000_0000 on. Some programs, valgrind for example, manage their address
//! space themselves: they put what comes next above what they have.

use hodo_abi::Span;
use hodo_codegen::arena::{highest_gap, nearest_gap};
use hodo_ptrace::maps::Mapping;

/// Bytes of a region of the cache. Only what is used takes memory.
pub(crate) const REGION: u64 = 64 << 20;
/// Code is at most this far from the region with its translation: its operands are within 2 GiB of both.
pub(crate) const REACH: u64 = 1 << 30;
/// hodo puts memory that may be anywhere from here on, if possible. Programs have nothing there, so their own mappings
/// are where they are alone.
pub(crate) const AWAY: u64 = 0x7E90_0000_0000;

/// To which multiples regions are aligned.
const ALIGN: u64 = 64 << 10;

/// Bytes before that for regions that are near nothing.
const FAR: u64 = 64 << 30;

/// Room for the table of targets: its address is part of instructions.
pub(crate) fn for_table(maps: &[Mapping], size: u64) -> Option<u64> {
    const LOWEST: u64 = 1 << 16;
    const HIGHEST: u64 = 0x7F00_0000;
    highest_gap(maps.iter().map(Mapping::span), LOWEST..HIGHEST, size, ALIGN)
}

/// Room for a region that is near nothing.
pub(crate) fn for_far_region(maps: &[Mapping]) -> Option<u64> {
    highest_gap(
        maps.iter().map(Mapping::span),
        AWAY - FAR..AWAY,
        REGION,
        ALIGN,
    )
}

/// Whether a region is there.
pub(crate) fn is_away(region: Span) -> bool {
    (AWAY - FAR..AWAY).contains(&region.start)
}

/// Room for a region near an address. `is_first`: the address is the program's entry. `heap`: where the heap that `brk`
/// moves begins.
pub(crate) fn for_region(
    maps: &[Mapping],
    near: u64,
    is_first: bool,
    heap: Option<u64>,
) -> Option<u64> {
    const GUARD: u64 = 1 << 20;
    const LOW: u64 = 1 << 32;
    /// What comes to be near an address is nearer than this.
    const APART: u64 = 512 << 20;
    let spans = || maps.iter().map(Mapping::span);
    // Above a program at a low address, its heap grows. The kernel lets it begin anywhere in the GiB above the program:
    // the region goes below it, or, if there is no room, far above it.
    if near < LOW {
        let below = heap.filter(|&heap| near < heap);
        let below = below
            .and_then(|heap| highest_gap(spans(), near..heap.min(near + REACH), REGION, ALIGN));
        let above = || highest_gap(spans(), near + (256 << 20)..near + REACH, REGION, ALIGN);
        return below.or_else(above);
    }
    let nearest = || nearest_gap(spans(), near, REGION, REACH, GUARD);
    if is_first {
        return nearest();
    }
    let below = near - APART;
    nearest_gap(spans(), below, REGION, APART - REGION, GUARD).or_else(nearest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(start: u64, end: u64) -> Mapping {
        Mapping {
            start,
            end,
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

    /// The kernel chooses it anywhere in the GiB above the program.
    #[test]
    fn regions_near_low_programs_leave_room_for_the_heap() {
        const LEAST: u64 = 512 << 20;
        let (start, end) = (0x40_0000, 0x4B_0000);
        let maps = [mapping(start, end)];
        for heap in (end..end + (1 << 30)).step_by(1 << 20) {
            let place = for_region(&maps, start, true, Some(heap)).expect("room");
            assert!(place >= end && place + REGION <= start + REACH, "{heap:#x}");
            let grows_into = place + REGION > heap;
            assert!(
                !grows_into || place - heap >= LEAST,
                "{heap:#x}: {place:#x}"
            );
        }
    }
}
