//! Where the islands of programs can be.

use anyhow::{Context, Result};
use hodo_abi::Span;
use hodo_codegen::arena::highest_gap;

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
    let place = |size| island_place(module, bias, &taken, size).map(|place| Span::at(place, size));
    let place = sizes.into_iter().find_map(place);
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

/// Where an island of a program can be.
fn island_place(module: &Module, bias: u64, taken: &[Span], need: u64) -> Option<u64> {
    let std::ops::Range { start, end } = extent(module, bias);
    // Everything in the file must be within reach; for a large zeroed area, its first part is enough.
    let content = module.image.segments.iter().map(|s| s.addr + s.size).max();
    let content = bias.wrapping_add(content.unwrap_or(0));
    let reach = content.saturating_sub(REACH)..start.saturating_add(REACH);
    // Below a program that is loaded high; or else far above it, out of the way of its heap; or anywhere with enough
    // room.
    let below = reach.start.max(LOWEST)..start.saturating_sub(16 << 20);
    let above = end.saturating_add(ISLANDS.heap)..reach.end;
    let tight = reach.start.max(LOWEST)..start;
    let places = if start > 1 << 32 {
        [below, tight, above]
    } else {
        [above, below, tight]
    };
    places
        .into_iter()
        .filter(|range| range.start < range.end)
        .find_map(|range| highest_gap(taken.iter().copied(), range, need))
}
