//! Preparing a program for tracing: the `events` file and the islands are mapped, the sites are patched.
//!
//! At exec the program has one thread, stopped before its first instruction. Libraries are patched when the dynamic
//! linker says that they are mapped, before any of their code has run.

mod attach;
mod change;
mod kept;
mod keys;
mod libraries;
mod mapping;
mod places;

use std::path::PathBuf;
use std::rc::Rc;

use anyhow::{Context, Result, bail};
use hodo_module::image::Seen;
use hodo_module::{Chosen, Image, Module};
use hodo_patch::{Island, Patches, Places, Raise, Traced, TracedCall, Used};
use hodo_ptrace as ptrace;
use hodo_ptrace::arch::SYSTEM_CALL;
use hodo_ptrace::maps;
use hodo_ptrace::maps::Mapping;
use hodo_ptrace::pass_fd;
use hodo_ptrace::{Memory, Syscalls, arch};

use crate::hooks;
use crate::ledger::Ledger;
use crate::limits::Lifted;
use crate::linker;
use crate::recorder::Recorder;
use crate::site_writer::apply;
use crate::space::{Sites, Space};
use crate::trampolines::Spots;
use crate::unsupported;
pub use attach::{Prepared, Wanted, prepare};
pub use change::{Change, build};
pub use libraries::libraries;
pub use mapping::private_page;
use mapping::{extent, map_events, map_island, map_shadows, map_workshop};
use places::program_place;

/// A program and its island lie within so many bytes: a little less than a jump can bridge.
const REACH: u64 = 0x7000_0000;
/// The lowest address that may be mapped, with the usual `vm.mmap_min_addr`.
const LOWEST: u64 = 64 << 10;
/// Bytes of the trace that are mapped at least.
const SMALLEST: u64 = 64 << 20;
/// Distance between the dynamic linker and the island for libraries, which are mapped downwards from it.
const LIBRARY_ROOM: u64 = 1 << 30;
/// Bytes of the island for libraries.
const LIBRARY_ISLAND: u64 = 512 << 20;

fn auxv(pid: i32, key: u64) -> Option<u64> {
    let bytes = std::fs::read(format!("/proc/{pid}/auxv")).ok()?;
    bytes.chunks_exact(16).find_map(|pair| {
        let word = |i: usize| u64::from_le_bytes(pair[i..i + 8].try_into().expect("eight bytes"));
        (word(0) == key).then(|| word(8))
    })
}

/// Why the program that `pid` has just begun to execute must run without a tracer.
pub fn set_aside(pid: i32, recorder: &mut dyn Recorder) -> Option<&'static str> {
    let exe = PathBuf::from(format!("/proc/{pid}/exe"));
    let path = std::fs::read_link(&exe).ok()?;
    let module = recorder.module(&exe, &path, true);
    unsupported::reason(&*module.ok()?)
}

/// Prepares the program that `pid` has just begun to execute. `before`: by how much limits were raised in the process that
/// executed.
///
/// # Errors
/// Why it cannot be traced; it can run as it is.
pub fn program(pid: i32, before: Raise, recorder: &mut dyn Recorder) -> Result<(Space, Sites)> {
    ptrace::leave_exec(pid)?;
    let limits = Lifted::new(pid, before);
    let exe = PathBuf::from(format!("/proc/{pid}/exe"));
    let path = std::fs::read_link(&exe).unwrap_or_else(|_| exe.clone());
    let module = recorder.module(&exe, &path, true)?;
    let memory = Memory::open(pid)?;
    let maps = maps::read(pid)?;
    let entry = auxv(pid, 9).context("no entry point in the auxiliary vector")?;
    let linker = auxv(pid, 7).filter(|&base| base != 0);
    let bias = entry.wrapping_sub(module.image.entry());
    for mapping in file_mappings(&maps) {
        recorder.log_map(pid, mapping)?;
    }
    let mut space = Space {
        debugger: module
            .plan
            .libcalls
            .iter()
            .any(|call| call.name == "ptrace"),
        ..Space::default()
    };

    // Without a better place, the first system calls are made on the first instruction.
    let at = ptrace::regs(pid)?.pc();
    let mut first = SYSTEM_CALL;
    memory.read(at, &mut first)?;
    let begun = Syscalls::begin_anywhere(pid, &memory, &maps).or_else(|_| {
        memory.write(at, &SYSTEM_CALL)?;
        Syscalls::begin(pid, at)
    })?;
    let budget = limits.budget();
    let mapped = map_all(
        &begun, &memory, &maps, &module, bias, linker, budget, recorder, &mut space,
    );
    let ended = begun.end();
    let mut now = first;
    memory.read(at, &mut now)?;
    if now != first {
        memory.write(at, &first)?;
    }
    mapped?;
    ended?;
    arch::forget_block(pid)?;
    let shadows = space.shadows.iter().map(|shadow| shadow.1).sum();
    let islands: u64 = space.islands.iter().map(|island| island.1).sum();
    recorder.log_islands(pid, &space.islands)?;
    let ledger = space.ledger.region().1;
    space.extra = limits.settle(space.events.1 + islands + shadows + ledger, shadows);
    space.seen = file_mappings(&maps).map(Seen::from).collect();

    let signals = maps::signal_return(&memory, &maps);
    let mut island = Island::new(space.islands[0].0, space.islands[0].1, signals);
    space.syscall = island.syscall();
    space.ret = island.ret();
    // The agent is there first: it has the instruction on which system calls are made from now on.
    memory.write(island.base, &island.code)?;
    let mut patches = Patches::default();
    let mut spots = Spots::new(pid, space.syscall, &space);
    patch(
        &module,
        bias,
        &mut island,
        recorder,
        &mut |range| spots.find(range),
        space.extra != Raise::default(),
        &mut patches,
    )?;
    space.spots = spots.finish()?;
    hooks::add(&module.image, bias, &mut island, &mut space, &mut patches);
    space.watch.always |= module.probed.unwatched;
    tell_failures(&module.image, &patches, recorder)?;
    let announced = match linker {
        Some(base) => linker::linker_breakpoint(pid, base, &maps)?,
        None => None,
    };
    space.used[0] = write_island(&memory, &island, Used::default())?;
    space.stubs[0].extend(&island);
    let mut sites = Sites {
        image: Rc::clone(&module.image),
        bias,
        patches,
        linker: None,
    };
    if space.islands[1].1 != 0 {
        let mut island = Island::new(space.islands[1].0, space.islands[1].1, signals);
        let place =
            announced.map(|linker| linker::announcement(linker.at, &memory, &mut island, &[]));
        space.used[1] = write_island(&memory, &island, Used::default())?;
        sites.linker = announced.zip(place);
    }
    if let Some(base) = linker {
        // The dynamic linker itself is looked at again, as a library.
        space
            .seen
            .retain(|seen| seen.start < base || seen.start > base + (16 << 20));
    }
    Ok((space, sites))
}

impl Sites {
    /// Has the dynamic linker announce libraries, once the thread has its control block.
    ///
    /// # Errors
    /// If the process's memory cannot be accessed.
    pub fn arm_linker(&self, pid: i32, space: &mut Space) -> Result<()> {
        match self.linker {
            // Unwinders in libraries that nobody announces would not find their way through traced frames.
            Some((linker, announcement)) => {
                linker::arm_linker(linker, &Memory::open(pid)?, announcement, space)
            }
            None => Ok(()),
        }
    }

    /// Writes over the program's code, once unwinders know of what that leads to.
    ///
    /// # Errors
    /// If the process's memory cannot be accessed.
    pub fn write(&self, pid: i32, space: &mut Space, recorder: &mut dyn Recorder) -> Result<()> {
        let memory = Memory::open(pid)?;
        space.note_patches(&memory, (&self.image, self.bias), &self.patches)?;
        apply(&memory, &self.image, self.bias, &self.patches, space)?;
        let file = (Rc::clone(&self.image), self.bias);
        keys::mapped(pid, &memory, &[file], space, recorder)
    }
}

fn file_mappings(maps: &[Mapping]) -> impl Iterator<Item = &Mapping> {
    maps.iter()
        .filter(|m| m.executable && m.inode != 0 && m.path.is_absolute())
}

#[expect(
    clippy::too_many_arguments,
    reason = "one call, split off for its error path"
)]
fn map_all(
    calls: &Syscalls,
    memory: &Memory,
    maps: &[Mapping],
    module: &Module,
    bias: u64,
    linker: Option<u64>,
    budget: Option<u64>,
    recorder: &dyn Recorder,
    space: &mut Space,
) -> Result<()> {
    let sp = ptrace::regs(calls.tid())?.sp();
    space.ledger = Ledger::map(calls, memory, budget.is_some())?;
    map_events(calls, memory, pass_fd::below(sp), budget, recorder, space)?;
    let program = extent(module, bias);
    space.shadows = map_shadows(calls, sp, linker, program, (memory, &space.ledger))?;
    space.workshop = map_workshop(calls)?;
    let (place, need) = program_place(module, bias, maps, budget.is_none(), recorder)?;
    space.islands[0] = (map_island(calls, place, need)?, need);
    if let Some(base) = linker {
        let top = base.saturating_sub(LIBRARY_ROOM);
        let size = budget.map_or(LIBRARY_ISLAND, |budget| {
            (budget & !0xF_FFFF).clamp(1 << 20, LIBRARY_ISLAND)
        });
        // Without it, libraries could not be told about the program's stubs, and exceptions would not find their way.
        let place = maps::find_gap(maps, top - (64 << 20) - size..top, size)
            .context("there is no room for an island near the libraries")?;
        space.islands[1] = (map_island(calls, place, size)?, size);
    }
    Ok(())
}

/// Writes what an island has more than earlier.
fn write_island(memory: &Memory, island: &Island, since: Used) -> Result<Used> {
    for (at, bytes) in island.added(since) {
        memory.write(at, &bytes)?;
    }
    Ok(island.used())
}

/// Builds the stubs of a module. `raised`: limits are.
fn patch(
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
    let slot = kept::place(module, recorder);
    let first = module.first_id();
    let mut put = |kept: &[u8]| island.add_kept(kept, image, first, places, patches);
    if let Some(true) = slot.as_ref().and_then(|slot| slot.read(&mut put)) {
        // Nothing else is made of it: without probes, there are no semaphores.
        return Ok(());
    }
    let traced = |chosen: &Chosen| Traced {
        function: &module.plan.functions[chosen.index],
        id: chosen.id,
        filter: chosen.filter,
    };
    let functions: Vec<_> = module
        .functions
        .iter()
        .map(traced)
        // The stubs of others are in the detours of their probes.
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
        // Where nothing but probes is wanted, profiling functions are called as ever.
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

/// Tells of what could not be changed in a module.
fn tell_failures(image: &Image, patches: &Patches, recorder: &mut dyn Recorder) -> Result<()> {
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
