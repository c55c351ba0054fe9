//! Preparing a program for tracing: the `events` file and the islands are mapped, the sites are patched.
//!
//! At exec the program has one thread, stopped before its first instruction. Libraries are patched when the dynamic
//! linker says that they are mapped, before any of their code has run.

mod changes;
mod kept;
pub mod keys;
mod libraries;
mod mapping;
mod places;
mod running;

use hodo_ptrace::arch;
use std::collections::HashSet;
use std::path::PathBuf;
use std::rc::Rc;

use anyhow::{Context, Result, bail};
use hodo_patch::{Island, Patches, Places, Raise, Recording, Traced, TracedCall, Used};
use serde_json::json;

pub use changes::{Change, build};
pub use libraries::libraries;
pub use mapping::private_page;
use mapping::{extent, map_events, map_island, map_shadows, map_workshop};
use places::program_place;
pub use running::{Prepared, Wanted, prepare};

use crate::aside;
use crate::hooks;
use crate::ledger::{Entry, Ledger};
use crate::limits::Lifted;
use crate::machine::WAIT;
use crate::modules::Modules;
use crate::select::Selection;
use crate::session::Session;
use crate::space::{Sites, Space};
use crate::spots::Spots;
use hodo_module::Module;
use hodo_module::image::{Placed, Seen};
use hodo_module::{Chosen, Image};
use hodo_ptrace as ptrace;
use hodo_ptrace::arch::{BREAKPOINT, SYSTEM_CALL};
use hodo_ptrace::maps;
use hodo_ptrace::maps::Mapping;
use hodo_ptrace::pass_fd;
use hodo_ptrace::{Memory, Syscalls};

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

/// What an instrumentation needs to know and to change.
pub struct Work<'a> {
    /// The files.
    pub modules: &'a mut Modules,
    /// The trace.
    pub session: &'a mut Session,
    /// What is traced.
    pub selection: &'a Selection,
    /// How it is recorded.
    pub recording: Recording,
}

fn auxv(pid: i32, key: u64) -> Option<u64> {
    let bytes = std::fs::read(format!("/proc/{pid}/auxv")).ok()?;
    bytes.chunks_exact(16).find_map(|pair| {
        let word = |i: usize| u64::from_le_bytes(pair[i..i + 8].try_into().expect("eight bytes"));
        (word(0) == key).then(|| word(8))
    })
}

/// Why the program that `pid` has just begun to execute must run without a tracer.
pub fn set_aside(pid: i32, context: &mut Work<'_>) -> Option<&'static str> {
    let exe = PathBuf::from(format!("/proc/{pid}/exe"));
    let path = std::fs::read_link(&exe).ok()?;
    let (selection, session) = (context.selection, &mut *context.session);
    let module = context.modules.get(&exe, &path, selection, true, session);
    aside::reason(&*module.ok()?)
}

/// Prepares the program that `pid` has just begun to execute. `before`: by how much limits were raised in the process that
/// executed.
///
/// # Errors
/// Why it cannot be traced; it can run as it is.
pub fn program(pid: i32, before: Raise, context: &mut Work<'_>) -> Result<(Space, Sites)> {
    ptrace::leave_exec(pid)?;
    let limits = Lifted::new(pid, before);
    let exe = PathBuf::from(format!("/proc/{pid}/exe"));
    let path = std::fs::read_link(&exe).unwrap_or_else(|_| exe.clone());
    let module = context
        .modules
        .get(&exe, &path, context.selection, true, context.session)?;
    let memory = Memory::open(pid)?;
    let maps = maps::read(pid)?;
    let entry = auxv(pid, 9).context("no entry point in the auxiliary vector")?;
    let linker = auxv(pid, 7).filter(|&base| base != 0);
    let bias = entry.wrapping_sub(module.image.entry());
    if context.modules.probes.want_maps() {
        for mapping in file_mappings(&maps) {
            context.session.log_map(pid, mapping)?;
        }
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
        &begun, &memory, &maps, &module, bias, linker, budget, context, &mut space,
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
    if context.modules.probes.want_maps() {
        context.session.log_islands(pid, &space.islands)?;
    }
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
        context,
        &mut |range| spots.find(range),
        space.extra != Raise::default(),
        &mut patches,
    )?;
    space.spots = spots.finish()?;
    hooks::add(&module.image, bias, &mut island, &mut space, &mut patches);
    space.watch.always |= module.probed.unwatched;
    tell_failures(&module.image, &patches, context)?;
    let announced = match linker {
        Some(base) => libraries::linker_breakpoint(pid, base, &maps)?,
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
            announced.map(|linker| libraries::announcement(linker.at, &memory, &mut island, &[]));
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
                libraries::arm_linker(linker, &Memory::open(pid)?, announcement, space)
            }
            None => Ok(()),
        }
    }

    /// Writes over the program's code, once unwinders know of what that leads to.
    ///
    /// # Errors
    /// If the process's memory cannot be accessed.
    pub fn write(&self, pid: i32, space: &mut Space, context: &mut Work<'_>) -> Result<()> {
        let memory = Memory::open(pid)?;
        space.note_patches(&memory, (&self.image, self.bias), &self.patches)?;
        apply(&memory, &self.image, self.bias, &self.patches, space)?;
        let file = (Rc::clone(&self.image), self.bias);
        keys::mapped(pid, &memory, &[file], space, context)
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
    context: &Work<'_>,
    space: &mut Space,
) -> Result<()> {
    let sp = ptrace::regs(calls.tid())?.sp();
    space.ledger = Ledger::map(calls, memory, budget.is_some())?;
    map_events(calls, memory, pass_fd::below(sp), budget, context, space)?;
    let program = extent(module, bias);
    space.shadows = map_shadows(calls, sp, linker, program, (memory, &space.ledger))?;
    space.workshop = map_workshop(calls)?;
    let (place, need) = program_place(module, bias, maps, budget.is_none(), context)?;
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
    context: &mut Work<'_>,
    places: &mut Places<'_>,
    raised: bool,
    patches: &mut Patches,
) -> Result<()> {
    let image = hodo_patch::Image {
        bias,
        code: &|range| module.image.at(range),
    };
    let timed = context.recording.timed;
    if let Some(events) = &module.probed.syscalls
        && let Err(reason) = island.add_syscalls(events, timed, patches)
    {
        bail!("{}: {reason}", module.image.path.display());
    }
    if context.modules.probes.trace_stacks()
        && !module.probed.sites.is_empty()
        && let Err(reason) = island.add_stack(patches)
    {
        bail!("{}: {reason}", module.image.path.display());
    }
    let slot = kept::place(module, context);
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
    let recording = context.recording;
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
fn tell_failures(image: &Image, patches: &Patches, context: &mut Work<'_>) -> Result<()> {
    if let Some((addr, reason)) = patches.failed.first() {
        let text = format!(
            "{}: {} functions or calls are not traced after all; the first, at {addr:x}: {reason}",
            image.path.display(),
            patches.failed.len()
        );
        context
            .session
            .log(&json!({"remark": {"pid": 0, "text": text}}))?;
    }
    Ok(())
}

/// What is not farther apart is written at once: sites of one page mostly are.
const TOGETHER: u64 = 2048;

/// Writes patches. What leads nowhere else is there first, then the hooks by which unwinders find their way: if hodo is killed in the midst of it,
/// all that is written can be executed.
fn apply(
    memory: &Memory,
    image: &Rc<Image>,
    bias: u64,
    patches: &Patches,
    space: &mut Space,
) -> Result<()> {
    lead(memory, image, bias, patches, space)?;
    follow(memory, image, bias, patches, space)
}

/// The first part of [`apply`]: the hooks, and what is in places of our own.
fn lead(
    memory: &Memory,
    image: &Rc<Image>,
    bias: u64,
    patches: &Patches,
    space: &mut Space,
) -> Result<()> {
    libraries::make_room(memory, patches, space)?;
    let own = |(at, bytes): &&(u64, Vec<u8>)| {
        let start = at.wrapping_sub(bias);
        image.at(start..start + bytes.len() as u64).is_none()
    };
    write(
        memory,
        image,
        bias,
        patches.writes.iter().filter(own),
        space,
    )?;
    write(memory, image, bias, patches.hooks.iter(), space)
}

/// The rest of [`apply`].
fn follow(
    memory: &Memory,
    image: &Rc<Image>,
    bias: u64,
    patches: &Patches,
    space: &mut Space,
) -> Result<()> {
    let hooks: HashSet<u64> = patches.hooks.iter().map(|hook| hook.0).collect();
    let rest = |(at, bytes): &&(u64, Vec<u8>)| {
        let start = at.wrapping_sub(bias);
        !hooks.contains(at) && image.at(start..start + bytes.len() as u64).is_some()
    };
    write(
        memory,
        image,
        bias,
        patches.writes.iter().filter(rest),
        space,
    )?;
    for &at in &patches.semaphores {
        count(memory, at, 1)?;
        space.semaphores.push(at);
    }
    space.traps.extend(patches.traps.iter().copied());
    space.faults.extend(patches.faults.iter().copied());
    space.sites.extend(patches.sites.iter().copied());
    space.ways.extend(patches.ways.iter().copied());
    space.leaving.extend(patches.leaving.iter().copied());
    space.hooks.extend(patches.hooks.iter().cloned());
    if !patches.copies.is_empty() {
        Rc::make_mut(&mut space.copies).extend(patches.copies.iter());
        space.moved = None;
        let start = image.segments.first().map_or(0, |segment| segment.addr);
        space.files.push(Placed {
            range: start.wrapping_add(bias)..image.end.wrapping_add(bias),
            bias,
            image: Rc::clone(image),
        });
    }
    Ok(())
}

/// Writes over code, neighbours together.
fn write<'a>(
    memory: &Memory,
    image: &Rc<Image>,
    bias: u64,
    writes: impl Iterator<Item = &'a (u64, Vec<u8>)>,
    space: &mut Space,
) -> Result<()> {
    let mut writes: Vec<_> = writes.collect();
    writes.sort();
    let mut writes = writes.into_iter().peekable();
    while let Some((start, first)) = writes.next() {
        let start = *start;
        let original = |range: std::ops::Range<u64>| {
            image
                .at(range.start.wrapping_sub(bias)..range.end.wrapping_sub(bias))
                .context("a site lies outside of the file")
        };
        let mut end = start + first.len() as u64;
        let Ok(old) = original(start..end) else {
            // A place of our own: nothing was there.
            memory.write(start, first)?;
            continue;
        };
        let mut group = vec![(start, first)];
        space.originals.push((start, old.to_vec()));
        let near = |end: u64, next: u64, len: usize| {
            next >= end && next - end < TOGETHER && original(next..next + len as u64).is_ok()
        };
        while let Some((next, more)) = writes.next_if(|(next, more)| near(end, *next, more.len())) {
            end = next + more.len() as u64;
            space
                .originals
                .push((*next, original(*next..end)?.to_vec()));
            group.push((*next, more));
        }
        let mut bytes = vec![0; (end - start) as usize];
        if group.len() > 1 {
            // What is between them stays as it is, not as the file has it: the program may have switched static branches.
            memory.read(start, &mut bytes)?;
        }
        for (at, new) in group {
            bytes[(at - start) as usize..][..new.len()].copy_from_slice(new);
        }
        // Between the sites there may be the linker's breakpoint.
        if let Some(at) =
            (space.r_brk).filter(|at| (start..end).contains(at) && space.announcement.is_none())
        {
            bytes[(at - start) as usize..][..BREAKPOINT.len()].copy_from_slice(&BREAKPOINT);
        }
        memory.write(start, &bytes)?;
    }
    Ok(())
}

/// Puts the original bytes back into the code of a process, but for the hooks.
pub fn revert(pid: i32, space: &Space) -> Result<()> {
    let memory = Memory::open(pid)?;
    put_back(&memory, space)?;
    write_hooks(&memory, space)
}

fn write_hooks(memory: &Memory, space: &Space) -> Result<()> {
    for (at, bytes) in &space.hooks {
        memory.write(*at, bytes)?;
    }
    Ok(())
}

/// Puts the original bytes back where hooks are, in a process whose threads are stopped.
///
/// # Errors
/// If the process's memory cannot be accessed.
pub fn remove_hooks(memory: &Memory, space: &Space) -> Result<()> {
    for (at, hook) in &space.hooks {
        let mut code = vec![0; hook.len()];
        // Its library may have been unloaded meanwhile, and another one be there.
        if memory.read(*at, &mut code).is_err() || code != *hook {
            continue;
        }
        // The oldest bytes win.
        for (start, bytes) in space.originals.iter().rev() {
            for (byte, at) in code.iter_mut().zip(*at..) {
                let index = at.checked_sub(*start);
                let original = index.and_then(|index| bytes.get(usize::try_from(index).ok()?));
                *byte = original.copied().unwrap_or(*byte);
            }
        }
        memory.write(*at, &code)?;
    }
    Ok(())
}

/// Has the threads of a process, which are stopped, wait where the unwinding of exceptions begins, unless one is at the midst of
/// these instructions: they are at `places`.
pub fn hold(memory: &Memory, space: &mut Space, places: &[u64]) {
    let mut held = Vec::new();
    for &at in &space.unwinding {
        let mut code = WAIT.map(|_| 0);
        let end = at + code.len() as u64;
        let is_hook =
            |(start, bytes): &(u64, Vec<u8>)| *start < end && at < start + bytes.len() as u64;
        // Its library may have been unloaded.
        if !places.iter().any(|place| (at + 1..end).contains(place))
            && !space.hooks.iter().any(is_hook)
            && memory.read(at, &mut code).is_ok()
        {
            held.push((at, code));
        }
    }
    space.held = held;
    for (at, _) in &space.held {
        // Who is not held comes later, perhaps.
        let _ = memory.write(*at, &WAIT);
    }
}

/// Ends that. Threads may run.
pub fn release(memory: &Memory, space: &Space) {
    for (at, original) in &space.held {
        let mut code = WAIT.map(|_| 0);
        if memory.read(*at, &mut code).is_ok() && code == WAIT {
            // What cannot be written is not there any more.
            let _ = memory.write(*at, original);
        }
    }
}

/// Changes how often a USDT probe is wanted.
fn count(memory: &Memory, at: u64, change: i16) -> Result<()> {
    let mut wanted = [0; 2];
    memory.read(at, &mut wanted)?;
    // It may be lowered for one who was killed before raising it.
    let wanted = u16::from_le_bytes(wanted).saturating_add_signed(change);
    memory.write(at, &wanted.to_le_bytes())
}

fn lower_semaphores(memory: &Memory, space: &Space) -> Result<()> {
    if !space.semaphores.is_empty() || space.keys.all().next().is_some() {
        space.ledger.note(memory, &Entry::Lowered)?;
    }
    for &at in &space.semaphores {
        // Its library may be unloaded meanwhile.
        let _ = count(memory, at, -1);
    }
    Ok(())
}

/// Puts all original bytes back into the code of a process whose threads are stopped.
pub fn put_back(memory: &Memory, space: &Space) -> Result<()> {
    release(memory, space);
    lower_semaphores(memory, space)?;
    const PAGE: u64 = 4096;
    let mut originals: Vec<_> = space.originals.iter().collect();
    // What was written last is what is put back first: the oldest bytes win.
    originals.reverse();
    originals.sort_by_key(|(at, _)| at / PAGE);
    for page in originals.chunk_by(|a, b| a.0 / PAGE == b.0 / PAGE) {
        let start = page[0].0 & !(PAGE - 1);
        let end = page.iter().map(|(at, bytes)| at + bytes.len() as u64).max();
        let end = end.unwrap_or(start).max(start + PAGE);
        let mut content = vec![0; (end - start) as usize];
        if memory.read(start, &mut content).is_err() {
            // Unloaded meanwhile.
            continue;
        }
        for (at, bytes) in page {
            content[(at - start) as usize..][..bytes.len()].copy_from_slice(bytes);
        }
        memory.write(start, &content)?;
    }
    space.keys.release(memory);
    Ok(())
}

/// Ends the tracing of a process while its threads run: every site becomes a breakpoint first, which leads to its stub
/// as the jump did, and then gets its original bytes back.
fn stop(pid: i32, space: &mut Space) -> Result<()> {
    let memory = Memory::open(pid)?;
    // Branches cannot be changed while threads run: tracepoints stay as they are.
    space.keys.let_go();
    for &(site, stub) in &space.sites {
        space.traps.insert(site, stub);
        memory.write(site, &BREAKPOINT)?;
    }
    lower_semaphores(&memory, space)?;
    // Each on its own: what is between them, the program may be changing itself. The oldest bytes win.
    for (at, bytes) in space.originals.iter().rev() {
        // Its library may be unloaded meanwhile.
        let _ = memory.write(*at, bytes);
    }
    write_hooks(&memory, space)?;
    space.semaphores.clear();
    // The linker goes on telling of libraries; nothing is done about them.
    match (space.r_brk, space.announcement) {
        (Some(at), Some(announcement)) => memory.write(at, &announcement.jump)?,
        (Some(at), None) => memory.write(at, &BREAKPOINT)?,
        _ => {}
    }
    space.stopped = true;
    Ok(())
}
