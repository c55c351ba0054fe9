//! The function by which the dynamic linker announces that it has mapped or unmapped libraries.

use anyhow::{Context, Result};
use hodo_module::mapped::of_mapping;
use hodo_patch::{Announcement, Island, Patches};
use hodo_ptrace::Memory;
use hodo_ptrace::TargetAddr;
use hodo_ptrace::arch::BREAKPOINT;
use hodo_ptrace::maps::Mapping;

use crate::arch;
use crate::space::{Linker, Space};

/// Where the dynamic linker announces new libraries.
pub fn linker_breakpoint(pid: i32, base: u64, maps: &[Mapping]) -> Result<Option<Linker>> {
    /// Offset of `r_state` in `struct r_debug`.
    const STATE: u64 = 24;
    let Some(mapping) = maps.iter().find(|m| m.start <= base && base < m.end) else {
        return Ok(None);
    };
    let (_, image) = of_mapping(pid, mapping)?;
    let [symbol, list] = image.symbols(&["_dl_debug_state", "_r_debug"]);
    let symbol = symbol
        .with_context(|| format!("{} does not announce libraries", mapping.path.display()))?;
    let state = list.map(|list| base.wrapping_add(list.start) + STATE);
    Ok(Some(Linker {
        at: base.wrapping_add(symbol.start),
        state,
    }))
}

/// What replaces the code where the dynamic linker announces new libraries: a jump to code in this island, if that is
/// possible. This code does not stop when there is no recorder any more. The island must be written afterward.
pub fn announcement(
    at: u64,
    memory: &Memory,
    island: &mut Island,
    taken: &[&Patches],
    space: &mut Space,
) -> Option<Announcement> {
    let is_free = has_room(memory, at) && !taken.iter().any(|patches| takes_room(at, patches));
    let announcement = is_free.then(|| island.add_announcement(at)).flatten();
    let ret = space.return_place();
    let blocks = space.trap_blocks_mut();
    blocks.add_linker(island, at, ret, announcement.is_none());
    announcement
}

/// Sets the breakpoint where the dynamic linker announces new libraries, or the code that stops in its place.
pub fn arm_linker(
    Linker { at, state }: Linker,
    memory: &Memory,
    announcement: Option<Announcement>,
    space: &mut Space,
) -> Result<()> {
    let jump = announcement.map(|announcement| announcement.jump.to_vec());
    let bytes = jump.unwrap_or_else(|| BREAKPOINT.to_vec());
    let mut original = vec![0; bytes.len()];
    memory.read(TargetAddr(at), &mut original)?;
    space.set_linker_stop(Some(at), announcement);
    space.note(memory)?;
    space.note_original(memory, at, original)?;
    memory.write(TargetAddr(at), &bytes)?;
    space.watch_linker(state);
    Ok(())
}

/// How many bytes are written at most where the dynamic linker announces libraries.
pub const ANNOUNCING: u64 = 5;

/// Whether this function only returns, and is followed by padding.
fn has_room(memory: &Memory, at: u64) -> bool {
    let mut code = [0; ANNOUNCING as usize];
    memory.read(TargetAddr(at), &mut code).is_ok() && arch::only_returns(at, code)
}

/// Whether patches need the bytes after the first one.
fn takes_room(at: u64, patches: &Patches) -> bool {
    let mut writes = patches.writes.iter();
    writes.any(|(start, bytes)| *start < at + ANNOUNCING && at + 1 < start + bytes.len() as u64)
}

/// Whether [`make_room`] will have something to do.
pub fn has_to_make_room(patches: &Patches, space: &Space) -> bool {
    let takes = |at| takes_room(at, patches);
    space.has_announcement() && space.linker_stop().is_some_and(takes)
}

/// If patches need the padding where the dynamic linker announces libraries, leaves only the breakpoint there.
pub fn make_room(memory: &Memory, patches: &Patches, space: &mut Space) -> Result<()> {
    let Some(at) = space.linker_stop().filter(|&at| takes_room(at, patches)) else {
        return Ok(());
    };
    let had_room = space.has_announcement();
    space.set_linker_stop(Some(at), None);
    let mut originals = space.written().originals().iter();
    if had_room && let Some((_, original)) = originals.find(|(start, _)| *start == at) {
        let mut bytes = original.clone();
        bytes[..BREAKPOINT.len()].copy_from_slice(&BREAKPOINT);
        memory.write(TargetAddr(at), &bytes)?;
    }
    Ok(())
}
