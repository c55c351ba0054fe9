//! The libraries of an address space: when the dynamic linker maps some, and what is done with them.

use std::path::Path;
use std::rc::Rc;

use anyhow::Result;
use hodo_patch::{Island, Patches};

use super::{file_mappings, keys, patch, tell_failures, write_island};
use crate::hooks;
use crate::recorder::Recorder;
use crate::site_writer::{apply, stop};
use crate::space::Space;
use crate::trampolines::Spots;
use hodo_module::image::{Image, Version};
use hodo_module::image::{Seen, real_path};
use hodo_ptrace::Memory;
use hodo_ptrace::maps;

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
pub fn libraries(pid: i32, space: &mut Space, recorder: &mut dyn Recorder) -> Result<()> {
    let maps = maps::read(pid)?;
    let memory = Memory::open(pid)?;
    let mut new: Vec<_> = file_mappings(&maps)
        .filter(|m| !space.seen.contains(&Seen::from(*m)))
        .cloned()
        .collect();
    // Unwinders ask functions of these: what others get leads nowhere that they do not know of.
    new.sort_by_key(|mapping| !is_libc(&mapping.path));
    for mapping in &new {
        recorder.log_map(pid, mapping)?;
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
        recorder.remark(pid, &text)?;
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
            Err(error) if recorder.selects_library(&mapping.path) => {
                let text = format!("{}: {error:#}; it is not traced", mapping.path.display());
                recorder.remark(pid, &text)?;
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
        let probed = recorder.probes(&image);
        let wanted = probed || recorder.selects_library(&mapping.path);
        let chosen = wanted.then(|| recorder.module(&real, &mapping.path, false));
        match chosen {
            Some(Ok(module)) => {
                let mut spots = Spots::new(pid, space.syscall, space);
                patch(
                    &module,
                    bias,
                    &mut island,
                    recorder,
                    &mut |range| spots.find(range),
                    space.extra != hodo_patch::Raise::default(),
                    &mut patches,
                )?;
                space.spots = spots.finish()?;
                space.watch.always |= module.probed.unwatched;
            }
            Some(Err(error)) => recorder.remark(
                pid,
                &format!("{}: {error:#}; it is not traced", mapping.path.display()),
            )?,
            None => {}
        }
        hooks::add(&image, bias, &mut island, space, &mut patches);
        tell_failures(&image, &patches, recorder)?;
        space.used[1] = write_island(&memory, &island, used)?;
        space.stubs[1].extend(&island);
        code = island.into_code();
        space.note_patches(&memory, (&image, bias), &patches)?;
        apply(&memory, &image, bias, &patches, space)?;
        space.patched.insert(key, Rc::new(patches));
    }
    keys::mapped(pid, &memory, &files, space, recorder)
}
