//! What one file gets in an island: its stubs and detours.

use anyhow::{Result, bail};
use hodo_module::{Chosen, Image, Module};
use hodo_patch::{Island, Patches, Places, Traced, TracedCall};

use super::kept;
use crate::recorder::Recorder;

/// Builds the stubs of a module. `raised`: limits were raised.
pub(super) fn stubs(
    module: &Module,
    bias: u64,
    island: &mut Island,
    recorder: &mut dyn Recorder,
    places: &mut Places<'_>,
    raised: bool,
    patches: &mut Patches,
) -> Result<()> {
    let image = hodo_patch::Image {
        bias,
        code: &|range| module.image.at(range),
    };
    let timed = recorder.recording().timed;
    if let Some(events) = &module.probed.syscalls
        && let Err(reason) = island.add_syscalls(events, timed, patches)
    {
        bail!("{}: {reason}", module.image.path.display());
    }
    if recorder.traces_stacks()
        && !module.probed.sites.is_empty()
        && let Err(reason) = island.add_stack(patches)
    {
        bail!("{}: {reason}", module.image.path.display());
    }
    let first = module.first_id();
    let slot = kept::place(module, recorder, island.kept_for(bias, first));
    let mut put = |kept: &[u8]| island.add_kept(kept, image, first, places, patches);
    let was_put = slot.as_ref().and_then(|slot| slot.read(&mut put));
    if was_put == Some(true) {
        // Nothing else is built for it: without probes, there are no semaphores.
        return Ok(());
    }
    // What is kept but cannot be used here is not made again, only to be replaced the next time.
    let slot = slot.filter(|_| was_put.is_none());
    let traced = |chosen: &Chosen| Traced {
        function: &module.plan.functions[chosen.index],
        id: chosen.id,
        filter: chosen.filter,
    };
    let functions: Vec<_> = module
        .functions
        .iter()
        .map(traced)
        // The other stubs are in the detours of their probes.
        .filter(|traced| !module.probed.functions.contains_key(&traced.function.addr))
        .collect();
    let libcalls: Vec<_> = module
        .libcalls
        .iter()
        .map(|chosen| TracedCall {
            site: &module.plan.libcalls[chosen.index],
            id: chosen.id,
            filter: chosen.filter,
        })
        .collect();
    let mut regions = module.probed.regions(raised);
    for region in &mut regions {
        let function = module.probed.functions.get(&region.site.displaced.start);
        region.function = function.map(traced);
    }
    let sites = hodo_patch::Sites {
        functions: &functions,
        libcalls: &libcalls,
        // If only probes are wanted, profiling functions are called as always.
        nops: match module.probed.sites.is_empty() || !module.functions.is_empty() {
            true => &module.plan.nops,
            false => &[],
        },
        regions: &regions,
    };
    let recording = recorder.recording();
    match slot {
        None => island.add_module(sites, image, recording, places, patches),
        Some(slot) => {
            let made = island.add_and_keep(sites, image, recording, first, places, patches);
            if let Some(stubs) = made {
                slot.write(&module.image, stubs);
            }
        }
    }

    let semaphores = module.probed.semaphores.iter();
    patches
        .semaphores
        .extend(semaphores.map(|at| at.wrapping_add(bias)));
    Ok(())
}

/// Reports what could not be changed in a module.
pub(super) fn tell_failures(
    image: &Image,
    patches: &Patches,
    recorder: &mut dyn Recorder,
) -> Result<()> {
    if let Some((addr, reason)) = patches.failed.first() {
        let text = format!(
            "{}: {} functions or calls are not traced after all; the first, at {addr:x}: {reason}",
            image.path.display(),
            patches.failed.len()
        );
        recorder.remark(0, &text)?;
    }
    Ok(())
}
