//! Changing what is recorded of a process that is recorded already: other sites, other stubs for them.
//!
//! All stubs stay where they are, for frames that are open return through them, and threads go on in them. The new ones are
//! built while the process runs; while it is stopped, they are written into room that nobody uses, and the sites change.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::PathBuf;
use std::rc::Rc;

use anyhow::{Context, Result, bail};
use hodo_patch::{Copied, Island, Patches};

use super::{auxv, extent, file_mappings, map_island, patch, write_island};
use crate::ledger::Entry;
use crate::recorder::Recorder;
use crate::site_writer::{apply, put_back};
use crate::space::Loaded;
use crate::space::Space;
use crate::trampolines::Spots;
use hodo_module::Module;
use hodo_module::image::of_mapping;
use hodo_module::image::{Image, Version};
use hodo_ptrace::maps;
use hodo_ptrace::{Memory, Syscalls};

/// What was built for a file, under certain settings.
#[derive(Debug)]
struct Piece {
    image: Rc<Image>,
    place: Loaded,
    patches: Rc<Patches>,
    /// It was built for this change: its copies are not known yet.
    new: bool,
}

/// All that changes in an address space.
#[derive(Debug)]
pub struct Change {
    pieces: Vec<Piece>,
    /// Pages that are to be mapped for jumps.
    pages: Vec<u64>,
    spots: Vec<(u64, u64)>,
    /// What must not have changed since this was built.
    seen: usize,
    used: [hodo_patch::Used; 2],
    program: Loaded,
    /// With the new stubs.
    islands: [Option<Island>; 2],
    settings: Rc<str>,
}

/// Builds what is needed for other settings; nothing is written yet. `settings` is different for whatever makes other stubs.
///
/// # Errors
/// Why that cannot be; nothing is changed then.
pub fn build(
    tid: i32,
    space: &Space,
    recorder: &mut dyn Recorder,
    settings: &Rc<str>,
) -> Result<Change> {
    let memory = Memory::open(tid)?;
    let maps = maps::read(tid)?;
    let mut islands: [Option<Island>; 2] = [None, None];
    let mut pieces = Vec::new();
    let mut chosen = Vec::new();
    let mut spots = Spots::choose(space, maps.clone());
    let exe = PathBuf::from(format!("/proc/{tid}/exe"));
    let program = std::fs::read_link(&exe).with_context(|| format!("reading {}", exe.display()))?;
    let module = recorder.module(&exe, &program, true)?;
    let entry = auxv(tid, 9).context("no entry point in the auxiliary vector")?;
    let bias = entry.wrapping_sub(module.image.entry());
    let own = extent(&module, bias);
    let main = (Version::of(&exe)?, bias);
    chosen.push((main, 0, module));
    let mut seen = HashSet::new();
    let libraries = file_mappings(&maps).filter(|m| !own.contains(&m.start));
    for mapping in libraries.filter(|_| space.islands[1].1 != 0) {
        if !recorder.selects_library(&mapping.path) {
            continue;
        }
        // What cannot be read was told of when it was mapped.
        let Ok((real, image)) = of_mapping(tid, mapping) else {
            continue;
        };
        let (Some(bias), Ok(version)) = (
            image.bias(mapping.offset, mapping.start),
            Version::of(&real),
        ) else {
            continue;
        };
        if seen.insert((version, bias)) {
            let module = recorder.module(&real, &mapping.path, false)?;
            chosen.push(((version, bias), 1, module));
        }
    }
    for (place, index, module) in chosen {
        if let Some(patches) = space.made.get(&(Rc::clone(settings), place)) {
            pieces.push(Piece {
                image: Rc::clone(&module.image),
                place,
                patches: Rc::clone(patches),
                new: false,
            });
            continue;
        }
        let island = islands[index].get_or_insert_with(|| {
            Island::resume(
                space.islands[index].0,
                space.islands[index].1,
                space.used[index],
            )
        });
        let patches = build_one(&module, place.1, island, recorder, &mut spots)?;
        pieces.push(Piece {
            image: Rc::clone(&module.image),
            place,
            patches: Rc::new(patches),
            new: true,
        });
    }
    for piece in pieces.iter().filter(|piece| piece.new) {
        is_as_in_file(&memory, space, piece)?;
    }
    let pages = spots.chosen();
    Ok(Change {
        pieces,
        pages,
        spots: spots.finish()?,
        seen: space.seen.len(),
        used: space.used,
        program: main,
        islands,
        settings: Rc::clone(settings),
    })
}

fn build_one(
    module: &Module,
    bias: u64,
    island: &mut Island,
    recorder: &mut dyn Recorder,
    spots: &mut Spots,
) -> Result<Patches> {
    let mut patches = Patches::default();
    patch(
        module,
        bias,
        island,
        recorder,
        &mut |range| spots.find(range),
        false,
        &mut patches,
    )?;
    if patches
        .failed
        .iter()
        .any(|(_, reason)| reason.contains("is full"))
    {
        bail!(
            "there is no room for more stubs in {}; a recording started with -g reserves more",
            module.image.path.display()
        );
    }
    Ok(patches)
}

/// Is the code at the sites that of the file, or what was written there for the recording?
fn is_as_in_file(memory: &Memory, space: &Space, piece: &Piece) -> Result<()> {
    let ours: HashMap<u64, usize> = space
        .originals
        .iter()
        .map(|(at, bytes)| (*at, bytes.len()))
        .collect();
    for (at, bytes) in &piece.patches.writes {
        let end = at + bytes.len() as u64;
        let bias = piece.place.1;
        let Some(file) = (piece.image).at(at.wrapping_sub(bias)..end.wrapping_sub(bias)) else {
            continue;
        };
        if ours.get(at).is_some_and(|&len| len >= bytes.len()) {
            continue;
        }
        let mut now = vec![0; file.len()];
        memory.read(*at, &mut now)?;
        // Neighbours may be ours.
        let changed = (0..file.len()).any(|index| {
            let byte = at + index as u64;
            now[index] != file[index]
                && !(byte.saturating_sub(16)..=byte).any(|start| {
                    ours.get(&start)
                        .is_some_and(|&len| byte - start < len as u64)
                })
        });
        if changed {
            bail!(
                "the code of {} at {:#x} differs from its file: something else has changed it",
                piece.image.path.display(),
                at.wrapping_sub(bias)
            );
        }
    }
    Ok(())
}

impl Change {
    /// Whether the process is still as it was when this was built: it may have loaded libraries, or be executing another
    /// program.
    pub fn holds(&self, tid: i32, space: &Space) -> bool {
        let exe = PathBuf::from(format!("/proc/{tid}/exe"));
        self.seen == space.seen.len()
            && self.used == space.used
            && Version::of(&exe).is_ok_and(|version| version == self.program.0)
    }

    /// Ranges of code that will be changed: a thread must not be inside of one of them.
    pub fn ranges(&self) -> Vec<(u64, u64)> {
        let writes = self.pieces.iter().flat_map(|piece| &piece.patches.writes);
        let mut ranges: Vec<_> = writes
            .map(|(at, bytes)| (*at, at + bytes.len() as u64))
            .collect();
        ranges.sort_unstable();
        ranges
    }

    /// Where displaced instructions will be.
    pub fn copies(&self) -> Vec<Copied> {
        let copies = self
            .pieces
            .iter()
            .flat_map(|piece| piece.patches.copies.iter());
        let mut copies: Vec<_> = copies.collect();
        copies.sort_unstable_by_key(|copied| (copied.original, copied.call));
        copies
    }

    /// Does it, while all threads are stopped. Tells whether `tid` is found stopped with its whole process, if it had to work for it.
    ///
    /// # Errors
    /// If the process's memory is not to be had.
    pub fn make(self, tid: i32, space: &mut Space) -> Result<Option<bool>> {
        let memory = Memory::open(tid)?;
        let mut group = None;
        if !self.pages.is_empty() {
            let maps = maps::read(tid)?;
            let calls = Syscalls::begin_anywhere(tid, &memory, &maps)?;
            let mapped = self
                .pages
                .iter()
                .try_for_each(|&page| map_island(&calls, page, 4096).map(drop));
            group = Some(calls.end_in_stop()?);
            mapped?;
        }
        space.spots = self.spots;
        for (index, island) in self.islands.iter().enumerate() {
            if let Some(island) = island {
                space.used[index] = write_island(&memory, island, space.used[index])?;
                space.stubs[index].extend(island);
            }
        }
        let stay: BTreeSet<u64> = space
            .hooks
            .iter()
            .map(|hook| hook.0)
            .chain(space.r_brk)
            .collect();
        let (kept, gone) = std::mem::take(&mut space.originals)
            .into_iter()
            .partition(|(at, _)| stay.contains(at));
        space.originals = gone;
        let back = put_back(&memory, space);
        let gone = std::mem::replace(&mut space.originals, kept);
        if let Err(error) = back {
            space.originals.extend(gone);
            return Err(error);
        }
        space.keep_only(&stay);
        let reverted = Entry::Reverted(stay.into_iter().collect());
        space.ledger.note(&memory, &reverted)?;
        let mut hooks = std::mem::take(&mut space.patched);
        for piece in self.pieces {
            let bias = piece.place.1;
            let patches = Rc::clone(&piece.patches);
            if piece.place == self.program
                && let Some(earlier) = space.sites_to_come.take()
            {
                // It still waits for the libraries, and so do the new sites. They are not in use yet, and so are not kept as made.
                let sites = earlier.with_patches(Patches::clone(&patches));
                space.sites_to_come = Some(Rc::new(sites));
                continue;
            }
            let mut writes = Patches::clone(&patches);
            if !piece.new {
                writes.copies.clear();
            }
            space.note_patches(&memory, (&piece.image, bias), &writes)?;
            apply(&memory, &piece.image, bias, &writes, space)?;
            // A library that is loaded again gets all of it.
            if let Some(earlier) = hooks.remove(&piece.place) {
                let mut all = Patches::clone(&patches);
                all.writes.extend(earlier.hooks.iter().cloned());
                all.hooks.extend(earlier.hooks.iter().cloned());
                space.patched.insert(piece.place, Rc::new(all));
            }
            space
                .made
                .insert((Rc::clone(&self.settings), piece.place), patches);
        }
        // Of the others nothing is left in `patched`: one that is loaded again is looked at again.
        Ok(group)
    }
}
