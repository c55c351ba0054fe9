//! Where the islands of programs can be.

use anyhow::{Context, Result};
use hodo_abi::Span;
use hodo_codegen::arena::highest_gap;

use super::mapping::extent;
use super::{LOWEST, REACH};
use crate::recorder::Recorder;
use hodo_module::Module;
use hodo_ptrace::maps::Mapping;

/// Where a program's island can be. `room`: address space is not scarce.
pub(super) fn program_place(
    module: &Module,
    bias: u64,
    maps: &[Mapping],
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
    let sizes = [need + more, need].map(|size| size.next_multiple_of(1 << 20));
    let place = |size| island_place(module, bias, maps, size).map(|place| Span::at(place, size));
    let place = sizes.into_iter().find_map(place);
    place.context("there is no room for an island within 2 GiB of the program")
}

/// Where an island of a program can be.
fn island_place(module: &Module, bias: u64, maps: &[Mapping], need: u64) -> Option<u64> {
    let std::ops::Range { start, end } = extent(module, bias);
    // Everything in the file must be within reach; for a large zeroed area, its first part is enough.
    let content = module.image.segments.iter().map(|s| s.addr + s.size).max();
    let content = bias.wrapping_add(content.unwrap_or(0));
    let reach = content.saturating_sub(REACH)..start.saturating_add(REACH);
    // Below a program that is loaded high; or else far above it, out of the way of its heap; or anywhere with enough
    // room.
    let below = reach.start.max(LOWEST)..start.saturating_sub(16 << 20);
    let above = end.saturating_add(256 << 20)..reach.end;
    let tight = reach.start.max(LOWEST)..start;
    let places = if start > 1 << 32 {
        [below, tight, above]
    } else {
        [above, below, tight]
    };
    places
        .into_iter()
        .filter(|range| range.start < range.end)
        .find_map(|range| highest_gap(maps.iter().map(Mapping::span), range, need))
}
