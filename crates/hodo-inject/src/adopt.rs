//! Adopts a process that a killed hodo has left changed: reads its ledger, with which it can be restored.

use std::ops::Range;
use std::rc::Rc;

use anyhow::{Context, Result};

use crate::arch::WAIT;
use crate::ledger::{Entry, Found, Patched};
use crate::site_writer::holding_place;
use crate::space::Space;
use crate::space::keys::Keys;
use hodo_module::Image;
use hodo_module::image::{Placed, Seen};
use hodo_module::mapped::of_mapping;
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
    space.end();
    space.set_ledger(ledger);
    let maps = maps::read(pid)?;
    let is_there = |seen: &Seen| {
        let mut there = maps.iter().filter(|m| m.inode == seen.inode);
        there.any(|m| m.start < seen.end && seen.start < m.end)
    };
    let (there, gone) = space.seen().iter().copied().partition(is_there);
    space.set_seen(there);
    for gone in Vec::into_iter(gone) {
        forget(gone, &mut space, &mut files);
    }
    for file in files.iter().filter_map(|file| place(pid, file, &maps)) {
        space.written_mut().add_file(file);
    }
    held(pid, &memory, &maps, &mut space);
    Ok(space)
}

/// Applies an entry to the address space, as the hodo did that wrote the entry.
fn replay(entry: Entry, space: &mut Space, files: &mut Vec<Changed>) {
    match entry {
        Entry::State(state) => {
            let now: Vec<Seen> = state.files().collect();
            for gone in space.set_seen(now) {
                if !space.seen().contains(&gone) {
                    forget(gone, space, files);
                }
            }
            space.put_state(&state);
            *space.keys_mut() = Keys::held_by_another(&[], &state.keys);
        }
        Entry::Patched(patched) => add(&patched, space, files),
        Entry::Original(at, bytes) => space.written_mut().add_original(at, bytes.0),
        Entry::Reverted(stay) => space.keep_only(&stay.into_iter().collect()),
        Entry::Lowered => space.is_reverted(),
        Entry::Unmapped(at) => space.layout_mut().is_unmapped(at),
        Entry::Mapped(region) => space.layout_mut().is_announced(region.into()),
    }
}

fn add(patched: &Patched, space: &mut Space, files: &mut Vec<Changed>) {
    let patches = patched.patches();
    let written = space.written_mut();
    for (at, bytes) in patched.originals() {
        written.add_original(at, bytes);
    }
    for &at in &patches.semaphores {
        written.add_semaphore(at);
    }
    written.add(&patches);
    written.add_stubs(patched.stubs());
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
    for &start in space.written().unwinding() {
        let at = holding_place(memory, space, start);
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
    space.written_mut().set_held(held);
    let keys: Vec<u64> = space.keys().all().collect();
    if !keys.is_empty() {
        let code = maps.iter().filter(|m| m.executable && m.inode != 0);
        let starts: Vec<u64> = code.map(|mapping| mapping.start).collect();
        let files = starts.into_iter().filter_map(|start| {
            let (image, bias): (Image, u64) = image(start)?;
            Some((Rc::new(image), bias))
        });
        let files: Vec<_> = files.collect();
        *space.keys_mut() = Keys::held_by_another(&files, &keys);
    }
}
