//! The libraries of an address space: when the dynamic linker maps some, and what is done then.

use std::path::Path;
use std::rc::Rc;

use anyhow::Result;
use hodo_module::image::{Seen, Version};
use hodo_module::mapped::of_mapping;
use hodo_patch::Island;
use hodo_ptrace::Stopped;
use hodo_ptrace::maps;
use hodo_ptrace::maps::Mapping;

use super::{File, LIBRARIES, Moment, file_mappings, install, is_loaded, keys};
use crate::recorder::Recorder;
use crate::site_writer::stop;
use crate::space::Space;
use crate::trap_handler;

/// Whether this library moves frames about. Greenlet (of gevent, eventlet, SQLAlchemy) is the one in wide use.
pub(super) fn copies_stacks(path: &Path) -> bool {
    path.file_name()
        .and_then(|name| name.to_str())
        .is_some_and(|name| name.contains("_greenlet") || name.starts_with("greenlet."))
}

/// The rank of files that are neither dynamic linkers nor C libraries.
pub(super) const OTHERS: usize = 2;

/// The rank of a file among those that are mapped at once: dynamic linkers, then C libraries, then all others.
pub(super) fn rank(path: &Path) -> usize {
    let name = path.file_name().and_then(|name| name.to_str());
    let begins = |begin: &&[&str]| {
        name.is_some_and(|name| begin.iter().any(|begin| name.starts_with(begin)))
    };
    let ranks: [&[&str]; OTHERS] = [&["ld-"], &["libc.so", "libc-"]];
    ranks.iter().position(begins).unwrap_or(OTHERS)
}

/// Looks for libraries that have been mapped since the last time, and installs what they get. Their code has not run
/// yet.
///
/// # Errors
/// If the process's memory cannot be accessed.
pub fn libraries(thread: Stopped, space: &mut Space, recorder: &mut dyn Recorder) -> Result<()> {
    let pid = thread.tid();
    let maps = maps::read(pid)?;
    let new = new_code(&maps, space);
    for mapping in &new {
        recorder.log_map(pid, mapping)?;
    }
    let now: Vec<_> = file_mappings(&maps).map(Seen::from).collect();
    for gone in space.set_seen(now) {
        if !space.seen().contains(&gone) {
            space.forget(gone);
        }
    }
    if space.has_ended() {
        return Ok(());
    }
    if let Some(copier) = new.iter().find(|mapping| copies_stacks(&mapping.path)) {
        stop(pid, space)?;
        let text = format!(
            "{} copies pieces of stacks away and back, which breaks traced frames: the recording of this process \
             ends here",
            copier.path.display()
        );
        return recorder.remark(pid, &text);
    }
    if !new.is_empty() {
        recorder.observes(pid);
    }
    let memory = thread.memory()?;
    let mut files = Vec::new();
    // Most of the time that large islands take is spent on their memory, so one buffer serves for all.
    let mut code = Vec::new();
    for mapping in new {
        let Some(file) = look(pid, (&mapping, &maps), space, recorder)? else {
            continue;
        };
        files.push((Rc::clone(&file.image), file.bias));
        let region = space.islands()[LIBRARIES];
        let used = space.used()[LIBRARIES];
        let island = Island::resume_in(std::mem::take(&mut code), region.start, region.len(), used);
        let islands = [None, Some(island)];
        let mut done = install(&Moment::Load(thread), vec![file], islands, space, recorder)?;
        space.layout_mut().set_trampolines(&done.trampolines);
        done.write_islands(&memory, space)?;
        if done.has_to_make_room(space) {
            space.trap_blocks_mut().need();
        }
        trap_handler::prepare(thread, space)?;
        done.note(&memory, space)?;
        done.write_sites(&memory, space)?;
        done.remember(space);
        code = done.islands[LIBRARIES]
            .take()
            .map_or_else(Vec::new, Island::into_code);
    }
    keys::mapped(pid, &memory, &files, space, recorder)
}

/// The mapped code of files that was not there the last time.
fn new_code(maps: &[Mapping], space: &Space) -> Vec<Mapping> {
    let mut new: Vec<_> = file_mappings(maps)
        .filter(|m| !space.seen().contains(&Seen::from(*m)))
        .cloned()
        .collect();
    // Unwinders ask functions of linkers and C libraries, which must know the stubs of all other files first. And what
    // C libraries get depends on whether the linker gets a breakpoint.
    new.sort_by_key(|mapping| rank(&mapping.path));
    new
}

/// Reads a library. `None` if nothing can be installed in it.
fn look(
    pid: i32,
    (mapping, maps): (&Mapping, &[Mapping]),
    space: &Space,
    recorder: &mut dyn Recorder,
) -> Result<Option<File>> {
    if space.islands()[LIBRARIES].is_empty() {
        return Ok(None);
    }
    let path = &mapping.path;
    let untraced = |error| format!("{error:#}; it is not traced");
    let (real, image) = match of_mapping(pid, mapping) {
        Ok((real, image)) => (real, Rc::new(image)),
        Err(error) if recorder.selects_library(path) => {
            recorder.remark(pid, &untraced(error))?;
            return Ok(None);
        }
        Err(_) => return Ok(None),
    };
    let version = Version::of(&real).ok();
    let Some((bias, version)) = image.bias(mapping.offset, mapping.start).zip(version) else {
        return Ok(None);
    };
    if !is_loaded(&image, bias, mapping, maps) {
        return Ok(None);
    }
    let mut file = File {
        image,
        version,
        bias,
        module: None,
        island: LIBRARIES,
    };
    // A library that is loaded again is not inspected again.
    let is_known = space.patched(&file.place()).is_some();
    if !is_known && (recorder.probes(&file.image) || recorder.selects_library(path)) {
        match recorder.module(&real, path, false) {
            Ok(module) => file.module = Some(module),
            Err(error) => recorder.remark(pid, &untraced(error))?,
        }
    }
    Ok(Some(file))
}
