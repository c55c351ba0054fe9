//! Where the islands of programs can be.

use anyhow::{Context, Result};
use hodo_abi::Span;
use hodo_codegen::arena::{highest_gap, nearest_gap_within};

use super::mapping::extent;
use super::{LOWEST, REACH};
use crate::arch::ISLANDS;
use crate::recorder::Recorder;
use crate::trampolines::growth;
use hodo_module::Module;
use hodo_ptrace::maps::Mapping;

/// Where a program's island can be, and where its heap begins, if there is none yet. `room`: address space is not
/// scarce.
pub(super) fn program_place(
    module: &Module,
    bias: u64,
    (maps, heap): (&[Mapping], Option<u64>),
    room: bool,
    recorder: &dyn Recorder,
) -> Result<Span> {
    let mut stubs = module.functions.len() + module.libcalls.len();
    if room {
        stubs = stubs.max(module.plan.functions.len());
    }
    let need = stubs as u64 * 512 + (1 << 20) + module.probed.room();
    // More room for other stubs, in case the recording is changed while it runs.
    let more = match (room, recorder.is_roomy()) {
        (false, _) => 0,
        (true, false) => (2 * need).clamp(16 << 20, 128 << 20),
        (true, true) => (8 * need).clamp(64 << 20, 512 << 20),
    };
    // A part of what a jump reaches.
    let more = more.min(REACH / 3);
    let sizes = [need + more, need].map(|size| size.next_multiple_of(1 << 20));
    let taken = taken(maps, heap);
    let std::ops::Range { start, end } = extent(module, bias);
    let file = File {
        content: start..contents(module, bias),
        end,
    };
    let near = |&size: &u64| Some(Span::at(file.island(&taken, size)?, size));
    let far = |&size: &u64| Some(Span::at(file.far_island(&taken, size)?, size));
    let place = sizes.iter().find_map(near);
    let place = place.or_else(|| sizes.iter().find_map(far));
    place.context("there is no room for an island within reach of the program")
}

/// What is taken: the mappings, and where the heap will grow, if an island may be as close to the program.
fn taken(maps: &[Mapping], heap: Option<u64>) -> Vec<Span> {
    let grows = growth(maps, heap).filter(|heap| ISLANDS.heap < heap.len());
    let mut all: Vec<Span> = maps.iter().map(Mapping::span).collect();
    if let Some(heap) = grows {
        all.push(Span::at(heap.start, ISLANDS.heap));
    }
    all.sort_unstable_by_key(|span| span.start);
    all
}

/// Where what a file contains ends. Of a large zeroed area, the first part is enough.
fn contents(module: &Module, bias: u64) -> u64 {
    let segments = module.image.segments.iter();
    bias.wrapping_add(segments.map(|s| s.addr + s.size).max().unwrap_or(0))
}

/// Where a program is.
struct File {
    /// What its file contains.
    content: std::ops::Range<u64>,
    /// Where all of it ends.
    end: u64,
}

impl File {
    /// From where on an island is within reach of everything in the file, and up to where.
    fn reach(&self, reach: u64) -> std::ops::Range<u64> {
        let first = self.content.end.saturating_sub(reach).max(LOWEST);
        first..self.content.start.saturating_add(reach)
    }

    /// Where an island can be that one jump reaches from everything in the file.
    fn island(&self, taken: &[Span], need: u64) -> Option<u64> {
        let start = self.content.start;
        let reach = self.reach(REACH);
        // Below a program that is loaded high; or else far above it, out of the way of its heap; or anywhere with
        // enough room.
        let below = reach.start..start.saturating_sub(16 << 20);
        let above = self.end.saturating_add(ISLANDS.heap)..reach.end;
        let tight = reach.start..start;
        let places = if start > 1 << 32 {
            [below, tight, above]
        } else {
            [above, below, tight]
        };
        places
            .into_iter()
            .filter(|range| range.start < range.end)
            .find_map(|range| highest_gap(taken.iter().copied(), range, need, ISLANDS.align))
    }

    /// Where an island can be that two jumps reach, and one from as much of the file as possible.
    fn far_island(&self, taken: &[Span], need: u64) -> Option<u64> {
        if ISLANDS.far == ISLANDS.jump {
            return None;
        }
        let middle = self.content.start.midpoint(self.content.end);
        let (taken, reach) = (taken.iter().copied(), self.reach(ISLANDS.far));
        nearest_gap_within(taken, reach, middle, need, ISLANDS.far, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn an_island_is_far_away_only_if_there_is_no_room_near() {
        let start = 1 << 40;
        let file = |size: u64| File {
            content: start..start + size,
            end: start + size + MIB,
        };
        let own = |file: &File| Span::from(start..file.end);
        let small = file(MIB);
        let taken = [own(&small)];
        let near = small.island(&taken, MIB).expect("room");
        assert!(start - near <= REACH);
        // All that one jump reaches is taken.
        let around = Span::from(start - REACH..start + REACH);
        let taken = [around];
        assert_eq!(small.island(&taken, MIB), None);
        let far = small.far_island(&taken, MIB);
        if ISLANDS.far == REACH {
            return assert_eq!(far, None);
        }
        assert_eq!(far, Some(around.end));
        // The file is larger than that.
        let large = file(2 * REACH);
        let taken = [own(&large)];
        assert_eq!(large.island(&taken, MIB), None);
        assert_eq!(large.far_island(&taken, MIB), Some(start - MIB));
        let both = [Span::from(start - ISLANDS.far..start), own(&large)];
        assert_eq!(large.far_island(&both, MIB), Some(large.end));
        let all = [Span::from(start - ISLANDS.far..start + ISLANDS.far)];
        assert_eq!(large.far_island(&all, MIB), None);
    }
}
