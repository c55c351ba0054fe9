//! The libraries of an address space: when the dynamic linker maps some, and what is done with them.

use std::path::Path;
use std::rc::Rc;

use anyhow::{Context, Result};
use hodo_patch::{Announcement, Island, Patches};
use serde_json::json;

use super::{
    Seen, Space, Work, apply, file_mappings, keys, patch, real_path, stop, tell_failures,
    write_island,
};
use crate::hooks;
use crate::machine::BREAKPOINT;
use crate::maps::{self, Mapping};
use crate::modules::{Image, Version};
use crate::remote::Memory;
use crate::spots::Spots;

/// Where the dynamic linker announces new libraries.
pub(super) fn linker_breakpoint(pid: i32, base: u64, maps: &[Mapping]) -> Result<Option<u64>> {
    let Some(mapping) = maps.iter().find(|m| m.start <= base && base < m.end) else {
        return Ok(None);
    };
    let image = Image::open(&real_path(pid, &mapping.path), mapping.path.clone())?;
    let [symbol] = image.symbols(&["_dl_debug_state"]);
    let (symbol, _) =
        symbol.with_context(|| format!("{} does not tell of libraries", mapping.path.display()))?;
    Ok(Some(base.wrapping_add(symbol)))
}

/// What is to be where the dynamic linker announces new libraries: a way to a breakpoint in this island, if there can be one, which is
/// not met when no recorder is there any more. The island must be written after that.
pub(super) fn announcement(
    at: u64,
    memory: &Memory,
    island: &mut Island,
    taken: &[&Patches],
) -> Option<Announcement> {
    let is_free = has_room(memory, at) && !taken.iter().any(|patches| takes_room(at, patches));
    is_free.then(|| island.add_announcement(at)).flatten()
}

/// Sets the breakpoint where the dynamic linker announces new libraries, or what leads to it.
pub(super) fn arm_linker(
    at: u64,
    memory: &Memory,
    announcement: Option<Announcement>,
    space: &mut Space,
) -> Result<()> {
    let jump = announcement.map(|announcement| announcement.jump.to_vec());
    let bytes = jump.unwrap_or_else(|| BREAKPOINT.to_vec());
    let mut original = vec![0; bytes.len()];
    memory.read(at, &mut original)?;
    space.originals.push((at, original));
    memory.write(at, &bytes)?;
    space.r_brk = Some(at);
    space.announcement = announcement;
    Ok(())
}

/// Is this a function that only returns, and is there padding after it?
fn has_room(memory: &Memory, at: u64) -> bool {
    /// Bytes of the longer nops, and what stands for single ones.
    const PADDING: [u8; 11] = [
        0x66, 0x2E, 0x0F, 0x1F, 0x84, 0x80, 0x40, 0x44, 0x00, 0x90, 0xCC,
    ];
    const RETURN: u8 = 0xC3;
    const MARKED: [u8; 5] = [0xF3, 0x0F, 0x1E, 0xFA, RETURN];
    let mut code = [0; 5];
    let is_read = memory.read(at, &mut code).is_ok();
    let is_padding = || code[1..].iter().all(|byte| PADDING.contains(byte));
    cfg!(target_arch = "x86_64")
        && is_read
        && (code == MARKED || code[0] == RETURN && at.is_multiple_of(16) && is_padding())
}

/// Do patches need what is behind the first byte?
fn takes_room(at: u64, patches: &Patches) -> bool {
    let mut writes = patches.writes.iter();
    writes.any(|(start, bytes)| *start < at + 5 && at + 1 < start + bytes.len() as u64)
}

/// If patches need the padding where the dynamic linker announces libraries, only its breakpoint is there.
pub(super) fn make_room(memory: &Memory, patches: &Patches, space: &mut Space) -> Result<()> {
    let Some(at) = space.r_brk.filter(|&at| takes_room(at, patches)) else {
        return Ok(());
    };
    if space.announcement.take().is_some()
        && let Some((_, original)) = space.originals.iter().find(|(start, _)| *start == at)
    {
        let mut bytes = original.clone();
        bytes[..BREAKPOINT.len()].copy_from_slice(&BREAKPOINT);
        memory.write(at, &bytes)?;
    }
    Ok(())
}

/// Is this a library that moves frames about? Greenlet (of gevent, eventlet, SQLAlchemy) is the one in wide use.
pub(super) fn copies_stacks(path: &Path) -> bool {
    path.file_name()
        .and_then(|name| name.to_str())
        .is_some_and(|name| name.contains("_greenlet") || name.starts_with("greenlet."))
}

/// Looks for libraries that have been mapped since the last time.
pub fn libraries(pid: i32, space: &mut Space, context: &mut Work<'_>) -> Result<()> {
    let maps = maps::read(pid)?;
    let memory = Memory::open(pid)?;
    let new: Vec<_> = file_mappings(&maps)
        .filter(|m| !space.seen.contains(&Seen::from(*m)))
        .cloned()
        .collect();
    if context.modules.probes.want_maps() {
        for mapping in &new {
            context.session.log_map(pid, mapping)?;
        }
    }
    let now: Vec<_> = file_mappings(&maps).map(Seen::from).collect();
    for gone in std::mem::replace(&mut space.seen, now) {
        if !space.seen.contains(&gone) {
            space.forget(gone);
        }
    }
    if space.stopped {
        return Ok(());
    }
    if let Some(copier) = new.iter().find(|mapping| copies_stacks(&mapping.path)) {
        stop(pid, space)?;
        let text = format!(
            "{} copies pieces of stacks away and back, which traced frames do not survive: the recording of this process \
             ends here",
            copier.path.display()
        );
        context
            .session
            .log(&json!({"remark": {"pid": pid, "text": text}}))?;
        return Ok(());
    }
    let mut files = Vec::new();
    for mapping in new {
        let Some((base, capacity)) = Some(space.islands[1]).filter(|island| island.1 != 0) else {
            continue;
        };
        let real = real_path(pid, &mapping.path);
        let image = match Image::open(&real, mapping.path.clone()) {
            Ok(image) => Rc::new(image),
            Err(error) if context.selection.module(&mapping.path, false) => {
                let text = format!("{}: {error:#}; it is not traced", mapping.path.display());
                context
                    .session
                    .log(&json!({"remark": {"pid": pid, "text": text}}))?;
                continue;
            }
            Err(_) => continue,
        };
        let Some(bias) = image.bias(mapping.offset, mapping.start) else {
            continue;
        };
        let Ok(version) = Version::of(&real) else {
            continue;
        };
        files.push((Rc::clone(&image), bias));
        let key = (version, bias);
        if let Some(patches) = space.patched.get(&key).cloned() {
            apply(&memory, &image, bias, &patches, space)?;
            continue;
        }
        let used = space.used[1];
        let mut island = Island::resume(base, capacity, used);
        let mut patches = Patches::default();
        let probed = context.modules.probes.concern(&image);
        let wanted = probed || context.selection.module(&mapping.path, false);
        let chosen = wanted.then(|| {
            let (selection, session) = (context.selection, &mut *context.session);
            let modules = &mut *context.modules;
            modules.get(&real, &mapping.path, selection, false, session)
        });
        match chosen {
            Some(Ok(module)) => {
                let mut spots = Spots::new(pid, space.syscall, space);
                patch(
                    &module,
                    bias,
                    &mut island,
                    context,
                    &mut |range| spots.find(range),
                    space.extra != hodo_patch::Raise::default(),
                    &mut patches,
                )?;
                space.spots = spots.finish()?;
            }
            Some(Err(error)) => context.session.log(&json!({"remark": {"pid": pid, "text":
                format!("{}: {error:#}; it is not traced", mapping.path.display())}}))?,
            None => {}
        }
        hooks::add(&image, bias, &mut island, space, &mut patches);
        tell_failures(&image, &patches, context)?;
        space.used[1] = write_island(&memory, &island, used)?;
        apply(&memory, &image, bias, &patches, space)?;
        space.patched.insert(key, Rc::new(patches));
        space.stubs[1].extend(&island);
    }
    keys::mapped(pid, &memory, &files, space, context)
}
