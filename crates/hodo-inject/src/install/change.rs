//! Changes what is recorded of a process: other sites, with stubs for them.
//!
//! All stubs stay where they are, because open frames return through them, and threads may still be in them. The new
//! ones are built while the process runs. While it is stopped, they are written into unused room, and the sites are
//! changed.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::PathBuf;
use std::rc::Rc;

use anyhow::{Context, Result, bail};
use hodo_abi::Span;
use hodo_module::image::Version;
use hodo_module::mapped::{of_mapping, program_path};
use hodo_patch::{Copied, Patches};
use hodo_ptrace::auxv;
use hodo_ptrace::maps;
use hodo_ptrace::maps::Mapping;
use hodo_ptrace::{Memory, Stopped, Syscalls};

use super::call_sites::CallSites;
use super::mapping::{extent, map_island};
use super::{
    File, Installation, LIBRARIES, Moment, PROGRAM, Piece, file_mappings, install, is_loaded,
};
use crate::ledger::Entry;
use crate::ledger::Page;
use crate::recorder::Recorder;
use crate::site_writer::{apply, put_back_except};
use crate::space::{Loaded, Space};
use crate::trap_handler;

/// Everything that changes in an address space.
#[derive(Debug)]
pub struct Change {
    installation: Installation,
    // This must not have changed since the change was built.
    seen: usize,
    used: [hodo_patch::Used; 2],
    program: Loaded,
    settings: Rc<str>,
}

/// Builds what is needed for other settings; nothing is written yet. `settings` differs for all settings that need
/// different stubs.
///
/// # Errors
/// Why that is not possible; nothing is changed then.
pub fn build(
    tid: i32,
    space: &mut Space,
    recorder: &mut dyn Recorder,
    settings: &Rc<str>,
) -> Result<Change> {
    let memory = Memory::open(tid)?;
    let maps = maps::read(tid)?;
    let (program, files) = files(tid, &maps, space, recorder)?;
    let moment = Moment::Change(&maps, settings);
    let installation = install(&moment, files, [None, None], space, recorder)?;
    let sites = call_sites(tid, &memory, &maps, &installation)?;
    for piece in installation.pieces.iter().filter(|piece| piece.new) {
        sites.check(piece)?;
    }
    check(&memory, space, &installation)?;
    Ok(Change {
        installation,
        seen: space.seen().len(),
        used: space.used(),
        program,
        settings: Rc::clone(settings),
    })
}

/// The call sites in the process, which may have come since it was looked at.
fn call_sites(
    tid: i32,
    memory: &Memory,
    maps: &[Mapping],
    installation: &Installation,
) -> Result<CallSites> {
    let named = |mapping: &&Mapping| {
        let name = mapping.path.file_name();
        name.is_some_and(|name| name.as_encoded_bytes().starts_with(b"libhodo_ftrace"))
    };
    // Libraries that cannot be read were reported when they were mapped.
    let library = file_mappings(maps).find(named).and_then(|mapping| {
        let (_, image) = of_mapping(tid, mapping).ok()?;
        let bias = image.bias(mapping.offset, mapping.start)?;
        Some((image, bias))
    });
    let files = installation.pieces.iter().map(|piece| &piece.file);
    let files = files.map(|file| (&*file.image, file.bias));
    let library = library.iter().map(|(image, bias)| (image, *bias));
    CallSites::read(memory, files.chain(library))
}

/// The program, and the files of which something will be traced.
fn files(
    tid: i32,
    maps: &[Mapping],
    space: &Space,
    recorder: &mut dyn Recorder,
) -> Result<(Loaded, Vec<File>)> {
    let exe = PathBuf::from(format!("/proc/{tid}/exe"));
    let path = program_path(tid).with_context(|| format!("reading {}", exe.display()))?;
    let module = recorder.module(&exe, &path, true)?;
    let entry =
        auxv::value(tid, libc::AT_ENTRY).context("no entry point in the auxiliary vector")?;
    let bias = entry.wrapping_sub(module.image.entry());
    let own = extent(&module, bias);
    let program = File {
        image: Rc::clone(&module.image),
        version: Version::of(&exe)?,
        bias,
        module: Some(module),
        island: PROGRAM,
    };
    let place = program.place();
    let mut files = vec![program];
    let mut seen = HashSet::new();
    let libraries = file_mappings(maps).filter(|m| !own.contains(&m.start));
    for mapping in libraries.filter(|_| !space.islands()[LIBRARIES].is_empty()) {
        if !recorder.selects_library(&mapping.path) {
            continue;
        }
        // Files that cannot be read were reported when they were mapped.
        let Ok((real, image)) = of_mapping(tid, mapping) else {
            continue;
        };
        let (Some(bias), Ok(version)) = (
            image.bias(mapping.offset, mapping.start),
            Version::of(&real),
        ) else {
            continue;
        };
        if is_loaded(&image, bias, mapping, maps) && seen.insert((version, bias)) {
            let module = recorder.module(&real, &mapping.path, false)?;
            files.push(File {
                image: Rc::clone(&module.image),
                version,
                bias,
                module: Some(module),
                island: LIBRARIES,
            });
        }
    }
    Ok((place, files))
}

/// Checks that the code at the new sites is that of the files, or what the recording has written there.
fn check(memory: &Memory, space: &Space, installation: &Installation) -> Result<()> {
    /// No patch is longer than this.
    const LONGEST: u64 = 16;
    let originals = space.written().originals().iter();
    let ours: HashMap<u64, usize> = originals.map(|(at, bytes)| (*at, bytes.len())).collect();
    let is_ours = |at: u64, len: usize| {
        (at.saturating_sub(LONGEST)..=at).any(|start| {
            let own = ours.get(&start);
            own.is_some_and(|&own| at - start + len as u64 <= own as u64)
        })
    };
    for piece in installation.pieces.iter().filter(|piece| piece.new) {
        if let Some(at) = piece.differs(memory, is_ours)? {
            bail!(
                "the code of {} at {at:#x} differs from its file: something else has changed it",
                piece.file.image.path.display(),
            );
        }
    }
    Ok(())
}

impl Change {
    /// Whether the process is still in the state for which this was built: it may have loaded libraries, or be
    /// executing another program.
    pub fn holds(&self, tid: i32, space: &Space) -> bool {
        let exe = PathBuf::from(format!("/proc/{tid}/exe"));
        self.seen == space.seen().len()
            && self.used == space.used()
            && Version::of(&exe).is_ok_and(|version| version == self.program.0)
    }

    /// Ranges of code that will be changed: no thread may be inside one of them.
    pub fn ranges(&self) -> Vec<Span> {
        self.installation.ranges()
    }

    /// Where displaced instructions will be.
    pub fn copies(&self) -> Vec<Copied> {
        self.installation.copies()
    }

    /// Makes the change, while all threads are stopped. Returns whether `worker` was found stopped together with its
    /// whole process, if it had to make system calls.
    ///
    /// # Errors
    /// If the process's memory cannot be accessed.
    pub fn make(self, worker: Stopped, space: &mut Space) -> Result<Option<bool>> {
        let memory = worker.memory()?;
        let group = map_pages(worker, &memory, &self.installation.pages)?;
        space
            .layout_mut()
            .set_trampolines(&self.installation.trampolines);
        self.installation.write_islands(&memory, space)?;
        if self.installation.has_to_make_room(space) {
            space.trap_blocks_mut().need();
        }
        let group = trap_handler::prepare_in_stop(worker, space)?.or(group);
        revert_all(&memory, space)?;
        let mut hooks = space.take_patched();
        for piece in self.installation.pieces {
            let place = piece.file.place();
            if place == self.program
                && let Some(earlier) = space.sites_to_come()
            {
                // The program still waits for the libraries, and so do the new sites. They are not in use yet, and so
                // are not remembered as built.
                let sites = earlier.with_patches(Patches::clone(&piece.patches));
                space.set_sites_to_come(Some(Rc::new(sites)));
                continue;
            }
            write(&memory, &piece, space)?;
            // A library that is loaded again gets all of it.
            if let Some(earlier) = hooks.remove(&place) {
                let mut all = Patches::clone(&piece.patches);
                all.writes.extend(earlier.hooks.iter().cloned());
                all.hooks.extend(earlier.hooks.iter().cloned());
                space.add_patched(place, Rc::new(all));
            }
            space.add_made(&self.settings, place, piece.patches);
        }
        // `patched` has nothing for the other files, so one that is loaded again is inspected again.
        Ok(group)
    }
}

/// Maps pages for jumps.
fn map_pages(worker: Stopped, memory: &Memory, pages: &[u64]) -> Result<Option<bool>> {
    if pages.is_empty() {
        return Ok(None);
    }
    let maps = maps::read(worker.tid())?;
    let calls = Syscalls::begin_anywhere(worker, memory, &maps)?;
    let mut pages = pages.iter();
    let mapped = pages.try_for_each(|&page| map_island(&calls, Span::at(page, Page::SIZE)));
    let group = calls.end_in_stop()?;
    mapped?;
    Ok(Some(group))
}

/// Restores the original bytes at all sites. Hooks stay, as does the code that announces libraries.
fn revert_all(memory: &Memory, space: &mut Space) -> Result<()> {
    let hooks = space.written().hooks().iter().map(|hook| hook.0);
    let stay: BTreeSet<u64> = hooks.chain(space.linker_stop()).collect();
    put_back_except(memory, space, &stay)?;
    space.keep_only(&stay);
    let reverted = Entry::Reverted(stay.into_iter().collect());
    space.ledger().note(memory, &reverted)
}

/// Writes the sites of one file. If this was built for an earlier change, its copies are known.
fn write(memory: &Memory, piece: &Piece, space: &mut Space) -> Result<()> {
    let File { image, bias, .. } = &piece.file;
    let mut writes = Patches::clone(&piece.patches);
    if !piece.new {
        writes.copies.clear();
    }
    space.note_patches(memory, (image, *bias), &writes)?;
    apply(memory, image, *bias, &writes, space)
}
