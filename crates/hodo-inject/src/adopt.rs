//! Adopts a process that a killed hodo has left changed: reads its ledger, with which it can be restored.

use std::ops::Range;
use std::rc::Rc;

use anyhow::{Context, Result};
use hodo_patch::Lead;

use crate::arch::WAIT;
use crate::ledger::{Entry, Found, Patched};
use crate::space::Space;
use crate::space::keys::Keys;
use hodo_module::Image;
use hodo_module::image::{Placed, Seen, of_mapping};
use hodo_ptrace::Memory;
use hodo_ptrace::TargetAddr;
use hodo_ptrace::maps;
use hodo_ptrace::maps::Mapping;
use hodo_ptrace::processes::named;

/// A file whose code was changed, according to the ledger.
struct Changed {
    range: Range<u64>,
    bias: u64,
}

/// The address space of a stopped process, according to its ledger.
///
/// # Errors
/// If the ledger cannot be used.
pub fn space(pid: i32, found: &Found) -> Result<Space> {
    let memory = Memory::open(pid)?;
    let read = found.read(&memory);
    let (ledger, entries) = read.with_context(|| format!("process {}", named(pid)))?;
    let mut space = Space::default();
    let mut files: Vec<Changed> = Vec::new();
    for entry in entries {
        replay(entry, &mut space, &mut files);
    }
    // From here on, no library gets new patches.
    space.stopped = true;
    space.ledger = ledger;
    let maps = maps::read(pid)?;
    let is_there = |seen: &Seen| {
        let mut there = maps.iter().filter(|m| m.inode == seen.inode);
        there.any(|m| m.start < seen.end && seen.start < m.end)
    };
    for gone in std::mem::take(&mut space.seen) {
        match is_there(&gone) {
            true => space.seen.push(gone),
            false => forget(gone, &mut space, &mut files),
        }
    }
    for file in files {
        space.files.extend(place(pid, &file, &maps));
    }
    held(pid, &memory, &maps, &mut space);
    Ok(space)
}

/// Applies an entry to the address space, as the hodo did that wrote the entry.
fn replay(entry: Entry, space: &mut Space, files: &mut Vec<Changed>) {
    match entry {
        Entry::State(state) => {
            let now: Vec<Seen> = state.files().collect();
            for gone in std::mem::replace(&mut space.seen, now) {
                if !space.seen.contains(&gone) {
                    forget(gone, space, files);
                }
            }
            space.put_state(&state);
            // Nothing of this is unmapped before everything is.
            space.unmapped.clear();
            space.keys = Keys::held_by_another(&[], &state.keys);
        }
        Entry::Patched(patched) => add(&patched, space, files),
        Entry::Original(at, bytes) => space.originals.push((at, bytes.0)),
        Entry::Reverted(stay) => space.keep_only(&stay.into_iter().collect()),
        Entry::Lowered => {
            space.semaphores.clear();
            space.keys.let_go();
        }
        Entry::Unmapped(at) => {
            space.mapped.retain(|mapping| mapping.start != at);
            space.unmapped.insert(at);
        }
        Entry::Mapped(region) => space.mapped.push(region.into()),
    }
}

fn add(patched: &Patched, space: &mut Space, files: &mut Vec<Changed>) {
    space.originals.extend(patched.originals());
    let patches = patched.patches();
    let pair = |lead: Lead| (lead.at, lead.to);
    space.traps.extend(patches.traps.into_iter().map(pair));
    space.faults.extend(patches.faults.into_iter().map(pair));
    space.sites.extend(patches.sites);
    space.ways.extend(patches.ways);
    space.leaving.extend(patches.leaving);
    space.semaphores.extend(patches.semaphores);
    space.hooks.extend(patches.hooks);
    Rc::make_mut(&mut space.copies).extend(patches.copies.iter());
    for (known, new) in space.stubs.iter_mut().zip(patched.stubs()) {
        known.add(&new);
    }
    if patched.has_copies() {
        files.push(Changed {
            range: patched.range.clone(),
            bias: patched.bias,
        });
    }
}

/// The code of a file is no longer mapped.
fn forget(gone: Seen, space: &mut Space, files: &mut Vec<Changed>) {
    space.forget(gone);
    files.retain(|file| {
        !file.range.contains(&gone.start) && !(gone.start..gone.end).contains(&file.range.start)
    });
}

/// The file that is mapped there. `None` if it can no longer be read: its frames are then found by what their stubs
/// know.
fn place(pid: i32, file: &Changed, maps: &[Mapping]) -> Option<Placed> {
    let is_it = |m: &&Mapping| m.executable && m.inode != 0 && file.range.contains(&m.start);
    let mapping = maps.iter().find(is_it)?;
    let (_, image) = of_mapping(pid, mapping).ok()?;
    (image.bias(mapping.offset, mapping.start)? == file.bias).then(|| Placed {
        range: file.range.clone(),
        bias: file.bias,
        image: Rc::new(image),
    })
}

/// State that holds only for a while: threads that wait where the unwinding of exceptions begins, and static keys.
fn held(pid: i32, memory: &Memory, maps: &[Mapping], space: &mut Space) {
    let image = |at: u64| {
        let index = maps.partition_point(|mapping| mapping.end <= at);
        let mapping = maps.get(index).filter(|m| m.start <= at && m.inode != 0)?;
        let (_, image) = of_mapping(pid, mapping).ok()?;
        let bias = image.bias(mapping.offset, mapping.start)?;
        Some((image, bias))
    };
    let mut held = Vec::new();
    for &at in &space.unwinding {
        let mut code = WAIT.map(|_| 0);
        if memory.read(TargetAddr(at), &mut code).is_err() || code != WAIT {
            continue;
        }
        let original = image(at).and_then(|(image, bias)| {
            let addr = at.wrapping_sub(bias);
            let code = image.at(addr..addr + WAIT.len() as u64)?;
            code.try_into().ok()
        });
        held.extend(original.map(|original| (at, original)));
    }
    space.held = held;
    let keys: Vec<u64> = space.keys.all().collect();
    if !keys.is_empty() {
        let code = maps.iter().filter(|m| m.executable && m.inode != 0);
        let starts: Vec<u64> = code.map(|mapping| mapping.start).collect();
        let files = starts.into_iter().filter_map(|start| {
            let (image, bias): (Image, u64) = image(start)?;
            Some((Rc::new(image), bias))
        });
        let files: Vec<_> = files.collect();
        space.keys = Keys::held_by_another(&files, &keys);
    }
}
