//! The libraries of an address space: when the dynamic linker maps some, and what is done with them.

use crate::space::Linker;
use std::path::Path;
use std::rc::Rc;

use anyhow::{Context, Result};
use hodo_patch::{Announcement, Island, Patches};
use serde_json::json;

use super::{Work, apply, file_mappings, keys, patch, stop, tell_failures, write_island};
use crate::hooks;
use crate::machine;
use crate::space::Space;
use crate::spots::Spots;
use hodo_module::image::{Image, Version};
use hodo_module::image::{Seen, real_path};
use hodo_ptrace::Memory;
use hodo_ptrace::arch::BREAKPOINT;
use hodo_ptrace::maps;
use hodo_ptrace::maps::Mapping;

/// Where the dynamic linker announces new libraries.
pub(super) fn linker_breakpoint(pid: i32, base: u64, maps: &[Mapping]) -> Result<Option<Linker>> {
    /// Of `r_state` in a `struct r_debug`.
    const STATE: u64 = 24;
    let Some(mapping) = maps.iter().find(|m| m.start <= base && base < m.end) else {
        return Ok(None);
    };
    let image = Image::open(&real_path(pid, &mapping.path), mapping.path.clone())?;
    let [symbol, list] = image.symbols(&["_dl_debug_state", "_r_debug"]);
    let (symbol, _) = symbol
        .with_context(|| format!("{} does not announce libraries", mapping.path.display()))?;
    let state = list.map(|(list, _)| base.wrapping_add(list) + STATE);
    Ok(Some(Linker {
        at: base.wrapping_add(symbol),
        state,
    }))
}

/// What is to be where the dynamic linker announces new libraries: a way to code in this island, if there can be one, which does
/// not stop when no recorder is there any more. The island must be written after that.
pub(super) fn announcement(
    at: u64,
    memory: &Memory,
    island: &mut Island,
    taken: &[&Patches],
) -> Option<Announcement> {
    let is_free = has_room(memory, at) && !taken.iter().any(|patches| takes_room(at, patches));
    is_free.then(|| island.add_announcement(at)).flatten()
}

/// Sets the breakpoint where the dynamic linker announces new libraries, or what stops there in its place.
pub(super) fn arm_linker(
    Linker { at, state }: Linker,
    memory: &Memory,
    announcement: Option<Announcement>,
    space: &mut Space,
) -> Result<()> {
    let jump = announcement.map(|announcement| announcement.jump.to_vec());
    let bytes = jump.unwrap_or_else(|| BREAKPOINT.to_vec());
    let mut original = vec![0; bytes.len()];
    memory.read(at, &mut original)?;
    space.r_brk = Some(at);
    space.announcement = announcement;
    space.note(memory)?;
    space.note_original(memory, at, original)?;
    memory.write(at, &bytes)?;
    space.watch.state = state;
    Ok(())
}

/// Bytes that are written at most where the dynamic linker announces libraries.
pub(super) const ANNOUNCING: u64 = 5;

/// Is this a function that only returns, and is there padding after it?
fn has_room(memory: &Memory, at: u64) -> bool {
    let mut code = [0; ANNOUNCING as usize];
    memory.read(at, &mut code).is_ok() && machine::only_returns(at, code)
}

/// Do patches need what comes after the first byte?
fn takes_room(at: u64, patches: &Patches) -> bool {
    let mut writes = patches.writes.iter();
    writes.any(|(start, bytes)| *start < at + ANNOUNCING && at + 1 < start + bytes.len() as u64)
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

/// Is this a C library, or its dynamic linker?
fn is_libc(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| {
        ["libc.so", "libc-", "ld-"]
            .iter()
            .any(|begin| name.starts_with(begin))
    })
}

/// Looks for libraries that have been mapped since the last time.
pub fn libraries(pid: i32, space: &mut Space, context: &mut Work<'_>) -> Result<()> {
    let maps = maps::read(pid)?;
    let memory = Memory::open(pid)?;
    let mut new: Vec<_> = file_mappings(&maps)
        .filter(|m| !space.seen.contains(&Seen::from(*m)))
        .cloned()
        .collect();
    // Unwinders ask functions of these: what others get leads nowhere that they do not know of.
    new.sort_by_key(|mapping| !is_libc(&mapping.path));
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
            "{} copies pieces of stacks away and back, which breaks traced frames: the recording of this process \
             ends here",
            copier.path.display()
        );
        context
            .session
            .log(&json!({"remark": {"pid": pid, "text": text}}))?;
        return Ok(());
    }
    let mut files = Vec::new();
    // Most of the time that large islands take goes into their memory: one serves for all.
    let mut code = Vec::new();
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
            space.note_patches(&memory, (&image, bias), &patches)?;
            apply(&memory, &image, bias, &patches, space)?;
            continue;
        }
        let used = space.used[1];
        let mut island = Island::resume_in(std::mem::take(&mut code), base, capacity, used);
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
                space.watch.always |= module.probed.unwatched;
            }
            Some(Err(error)) => context.session.log(&json!({"remark": {"pid": pid, "text":
                format!("{}: {error:#}; it is not traced", mapping.path.display())}}))?,
            None => {}
        }
        hooks::add(&image, bias, &mut island, space, &mut patches);
        tell_failures(&image, &patches, context)?;
        space.used[1] = write_island(&memory, &island, used)?;
        space.stubs[1].extend(&island);
        code = island.into_code();
        space.note_patches(&memory, (&image, bias), &patches)?;
        apply(&memory, &image, bias, &patches, space)?;
        space.patched.insert(key, Rc::new(patches));
    }
    keys::mapped(pid, &memory, &files, space, context)
}
