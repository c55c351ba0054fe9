//! A program that has just been executed: it has one thread, stopped before its first instruction.

use std::path::PathBuf;
use std::rc::Rc;

use anyhow::{Context, Result};
use hodo_abi::Span;
use hodo_codegen::arena::highest_gap;
use hodo_module::Module;
use hodo_module::image::{Seen, Version};
use hodo_module::mapped::program_path;
use hodo_patch::Raise;
use hodo_ptrace::TargetAddr;
use hodo_ptrace::arch::SYSTEM_CALL;
use hodo_ptrace::auxv;
use hodo_ptrace::maps;
use hodo_ptrace::maps::Mapping;
use hodo_ptrace::pass_fd;
use hodo_ptrace::{Memory, Stopped, Syscalls, start_of_heap};

use super::mapping::{extent, map_events, map_island, map_scratch_page, map_shadows};
use super::places::program_place;
use super::{
    File, LIBRARIES, LIBRARY_ISLAND, LIBRARY_ROOM, Moment, PROGRAM, calls_ptrace, file_mappings,
    install, keys, new_islands,
};
use crate::arch::ISLANDS;
use crate::ledger::Ledger;
use crate::limits::Lifted;
use crate::linker;
use crate::linker::announcement;
use crate::recorder::Recorder;
use crate::site_writer::apply;
use crate::space::{Sites, Space};
use crate::trap_handler;
use crate::unsupported;

/// Why the program that `pid` has just started to execute must run without a tracer, if so.
pub fn set_aside(pid: i32, recorder: &mut dyn Recorder) -> Option<&'static str> {
    let exe = PathBuf::from(format!("/proc/{pid}/exe"));
    let path = program_path(pid).ok()?;
    recorder.observes(pid);
    let module = recorder.module(&exe, &path, true);
    unsupported::reason(&*module.ok()?)
}

/// Prepares the program that a stopped thread has just started to execute. `before`: by how much limits were raised in
/// the process that executed it.
///
/// # Errors
/// Why it cannot be traced; it can run as it is.
pub fn program(
    thread: Stopped,
    before: Raise,
    recorder: &mut dyn Recorder,
) -> Result<(Space, Sites)> {
    let pid = thread.tid();
    thread.leave_exec()?;
    let limits = Lifted::new(pid, before);
    let begun = Begun::look(thread, recorder)?;
    for mapping in file_mappings(&begun.maps) {
        recorder.log_map(pid, mapping)?;
    }
    let mut space = Space::new(calls_ptrace(&begun.module));
    begun.map(limits.budget(), recorder, &mut space)?;
    thread.forget_block()?;
    let shadows = space.shadows().iter().map(|shadow| shadow.len()).sum();
    recorder.log_islands(pid, &space.islands())?;
    let mapped = space.layout().size() + space.ledger().region().len();
    space.set_raised(limits.settle(mapped, shadows));
    space.set_seen(file_mappings(&begun.maps).map(Seen::from).collect());
    let sites = begun.install(recorder, &mut space)?;
    if let Some(base) = begun.linker {
        // The dynamic linker itself will be inspected again, as a library.
        let linker = base..=base + (16 << 20);
        let others = space.seen().iter().copied();
        let others = others.filter(|seen| !linker.contains(&seen.start));
        space.set_seen(others.collect());
    }
    Ok((space, sites))
}

/// A program that has just been executed.
struct Begun {
    thread: Stopped,
    memory: Memory,
    maps: Vec<Mapping>,
    exe: PathBuf,
    module: Rc<Module>,
    bias: u64,
    /// Where the dynamic linker is.
    linker: Option<u64>,
}

impl Begun {
    fn look(thread: Stopped, recorder: &mut dyn Recorder) -> Result<Self> {
        let pid = thread.tid();
        let exe = PathBuf::from(format!("/proc/{pid}/exe"));
        let path = program_path(pid).unwrap_or_else(|_| exe.clone());
        recorder.observes(pid);
        let module = recorder.module(&exe, &path, true)?;
        let entry =
            auxv::value(pid, libc::AT_ENTRY).context("no entry point in the auxiliary vector")?;
        Ok(Self {
            thread,
            memory: thread.memory()?,
            maps: maps::read(pid)?,
            exe,
            bias: entry.wrapping_sub(module.image.entry()),
            module,
            linker: auxv::value(pid, libc::AT_BASE).filter(|&base| base != 0),
        })
    }

    /// Maps everything that is needed. For lack of a better place, the first instruction is used for the first system
    /// calls.
    fn map(&self, budget: Option<u64>, recorder: &dyn Recorder, space: &mut Space) -> Result<()> {
        let memory = &self.memory;
        let at = self.thread.regs()?.pc();
        let mut first = SYSTEM_CALL;
        memory.read(TargetAddr(at), &mut first)?;
        let calls = Syscalls::begin_anywhere(self.thread, memory, &self.maps).or_else(|_| {
            memory.write(TargetAddr(at), &SYSTEM_CALL)?;
            Syscalls::begin(self.thread, TargetAddr(at))
        })?;
        let mapped = self.map_all(&calls, budget, recorder, space);
        let ended = calls.end();
        let mut now = first;
        memory.read(TargetAddr(at), &mut now)?;
        if now != first {
            memory.write(TargetAddr(at), &first)?;
        }
        mapped.and(ended)
    }

    fn map_all(
        &self,
        calls: &Syscalls,
        budget: Option<u64>,
        recorder: &dyn Recorder,
        space: &mut Space,
    ) -> Result<()> {
        let (memory, maps) = (&self.memory, &self.maps);
        let sp = calls.thread().regs()?.sp();
        space.set_ledger(Ledger::map(calls, memory, budget.is_some(), self.linker)?);
        let limits = (budget, self.linker);
        map_events(calls, memory, pass_fd::below(sp), limits, recorder, space)?;
        let program = extent(&self.module, self.bias);
        let ledger = (memory, space.ledger());
        let shadows = map_shadows(calls, sp, self.linker, program, ledger)?;
        space.layout_mut().set_shadows(shadows);
        let page = map_scratch_page(calls)?;
        space.layout_mut().set_scratch_page(page);
        let room = budget.is_none();
        let heap = start_of_heap(calls.thread().tid());
        let place = program_place(&self.module, self.bias, (maps, heap), room, recorder)?;
        map_island(calls, place)?;
        space.layout_mut().set_island(PROGRAM, place);
        if let Some(base) = self.linker {
            let top = base.saturating_sub(LIBRARY_ROOM);
            let size = budget.map_or(LIBRARY_ISLAND, |budget| {
                (budget & !0xF_FFFF).clamp(1 << 20, LIBRARY_ISLAND)
            });
            // Without it, hooks in libraries could not announce the program's stubs, and exceptions could not be
            // unwound through them.
            let near = top - ISLANDS.slack - size..top;
            let place = highest_gap(maps.iter().map(Mapping::span), near, size, ISLANDS.align)
                .context("there is no room for an island near the libraries")?;
            let place = Span::at(place, size);
            map_island(calls, place)?;
            space.layout_mut().set_island(LIBRARIES, place);
        }
        Ok(())
    }

    /// Writes the islands. The program's sites wait.
    fn install(&self, recorder: &mut dyn Recorder, space: &mut Space) -> Result<Sites> {
        let memory = &self.memory;
        let islands = new_islands(memory, &self.maps, space);
        // The agent is written first: it contains the instruction that makes system calls from now on.
        if let Some(island) = &islands[0] {
            memory.write(TargetAddr(island.base), &island.code)?;
        }
        let program = File {
            image: Rc::clone(&self.module.image),
            version: Version::of(&self.exe)?,
            bias: self.bias,
            module: Some(Rc::clone(&self.module)),
            island: PROGRAM,
        };
        let moment = Moment::Exec(self.thread);
        let mut installation = install(&moment, vec![program], islands, space, recorder)?;
        let announced = match self.linker {
            Some(base) => linker::linker_breakpoint(self.thread.tid(), base, &self.maps)?,
            None => None,
        };
        let mut linker = None;
        if let Some(island) = &mut installation.islands[LIBRARIES] {
            let place = announced.map(|linker| announcement(linker.at, memory, island, &[], space));
            linker = announced.zip(place);
        }
        space
            .layout_mut()
            .set_trampolines(&installation.trampolines);
        installation.write_islands(memory, space)?;
        trap_handler::prepare(self.thread, space)?;
        Ok(Sites {
            image: Rc::clone(&self.module.image),
            bias: self.bias,
            patches: installation.into_patches(),
            linker,
        })
    }
}

impl Sites {
    /// Makes the dynamic linker announce libraries, once the thread has its control block.
    ///
    /// # Errors
    /// If the process's memory cannot be accessed.
    pub fn arm_linker(&self, pid: i32, space: &mut Space) -> Result<()> {
        match self.linker {
            // If libraries are not announced, unwinders in them cannot find their way through traced frames.
            Some((linker, announcement)) => {
                linker::arm_linker(linker, &Memory::open(pid)?, announcement, space)
            }
            None => Ok(()),
        }
    }

    /// Writes over the program's code, once unwinders know the stubs to which it leads.
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
