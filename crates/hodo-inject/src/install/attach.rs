//! Prepares to attach to a running process: everything is chosen and built in advance, so that the process is stopped
//! only while memory is mapped and written.

use std::collections::HashSet;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use hodo_abi::Span;
use hodo_codegen::arena::highest_gap;
use hodo_module::Module;
use hodo_module::image::{Seen, Version};
use hodo_module::mapped::{of_mapping, program_path};
use hodo_patch::{Announcement, Copied, Patches};
use hodo_ptrace::auxv;
use hodo_ptrace::limits;
use hodo_ptrace::maps;
use hodo_ptrace::maps::Mapping;
use hodo_ptrace::pass_fd::SCRATCH;
use hodo_ptrace::signals::go_on;
use hodo_ptrace::{Memory, Syscalls, TargetAddr};

use super::call_sites::CallSites;
use super::libraries::{OTHERS, copies_stacks, rank};
use super::mapping::{extent, map_events, map_island, map_scratch_page, map_shadows};
use super::places::program_place;
use super::{
    File, Installation, LIBRARIES, LIBRARY_ISLAND, LIBRARY_ROOM, Moment, PROGRAM, Piece, REACH,
    auxv_of_running, calls_ptrace, file_mappings, install, is_loaded, new_islands,
};
use crate::arch::ISLANDS;
use crate::ledger::{Entry, Ledger};
use crate::linker::{ANNOUNCING, announcement, arm_linker, linker_breakpoint};
use crate::lock::SetAside;
use crate::recorder::Recorder;
use crate::space::{Linker, Space};
use crate::unsupported;

/// What is found out about a process before it is stopped.
#[derive(Debug)]
pub struct Wanted {
    pid: i32,
    /// Its program.
    module: Rc<Module>,
    version: Version,
    /// The bias of its program: runtime minus link-time addresses.
    bias: u64,
    /// Where the dynamic linker is.
    linker: Option<u64>,
}

/// Everything that will be mapped into a process and written over its code.
#[derive(Debug)]
pub struct Prepared {
    /// What will be known about the address space.
    pub space: Space,
    wanted: Wanted,
    installation: Installation,
    /// The mapped code when this was made.
    code: Vec<Mapping>,
    /// Where the first stack ends.
    stack: Option<u64>,
    /// Where the dynamic linker announces libraries, and what will be there.
    linker: Option<(Linker, Option<Announcement>)>,
}

/// A mapping that does not exist yet.
fn future(place: Span) -> Mapping {
    Mapping {
        start: place.start,
        end: place.end,
        writable: false,
        executable: true,
        shared: false,
        offset: 0,
        device: 0,
        inode: 0,
        path: PathBuf::new(),
        deleted: false,
    }
}

/// The program that a process executes.
fn exe_of(pid: i32) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/exe"))
}

impl Wanted {
    /// Inspects a process.
    ///
    /// # Errors
    /// Why it cannot be traced.
    pub fn new(pid: i32, recorder: &mut dyn Recorder) -> Result<Self> {
        /// It may execute another program at any moment.
        const TRIES: u32 = 10;
        for _ in 1..TRIES {
            let wanted = Self::of_now(pid, recorder)?;
            if Version::of(&exe_of(pid))? == wanted.version {
                return Ok(wanted);
            }
        }
        Self::of_now(pid, recorder)
    }

    /// What is wanted in it, if it does not execute another program meanwhile.
    fn of_now(pid: i32, recorder: &mut dyn Recorder) -> Result<Self> {
        let exe = exe_of(pid);
        let version = Version::of(&exe)?;
        let path = program_path(pid).with_context(|| format!("reading {}", exe.display()))?;
        let module = recorder.module(&exe, &path, true)?;
        if let Some(reason) = unsupported::reason(&module) {
            bail!("{reason}; {} cannot be traced", path.display());
        }
        let entry = auxv_of_running(pid, libc::AT_ENTRY)
            .context("no entry point in the auxiliary vector")?;
        let linker = auxv::value(pid, libc::AT_BASE).filter(|&base| base != 0);
        let bias = entry.wrapping_sub(module.image.entry());
        Ok(Self {
            pid,
            module,
            version,
            bias,
            linker,
        })
    }

    /// Whether the dynamic linker is at work: its list of libraries then differs from what is mapped.
    pub fn is_loading(&self, memory: &Memory) -> bool {
        const DT_DEBUG: u64 = 21;
        let state = || -> Option<u64> {
            let section = self.module.image.dynamic()?;
            let at = section.start;
            let mut bytes = vec![0; usize::try_from(section.len().min(1 << 16)).ok()?];
            memory
                .read(TargetAddr(at.wrapping_add(self.bias)), &mut bytes)
                .ok()?;
            let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap_or_default());
            let debug = bytes
                .chunks_exact(16)
                .find(|entry| word(&entry[..8]) == DT_DEBUG)
                .map(|entry| word(&entry[8..]))
                .filter(|&at| at != 0)?;
            // struct r_debug: version, map, brk, state.
            memory.read_u64(TargetAddr(debug + 24)).ok()
        };
        state().is_some_and(|state| state as u32 != 0)
    }
}

/// Chooses places, and builds what will be there. `None`: libraries came or went in the meantime.
///
/// # Errors
/// Why it cannot be traced.
pub fn prepare(wanted: Wanted, recorder: &mut dyn Recorder) -> Result<Option<Prepared>> {
    let pid = wanted.pid;
    let memory = Memory::open(pid)?;
    let mut maps = maps::read(pid)?;
    let code: Vec<Mapping> = file_mappings(&maps).cloned().collect();
    let mut stacks = maps.iter().filter(|m| m.path.as_os_str() == "[stack]");
    let stack = stacks.next_back().map(|mapping| mapping.end);
    if let Some(copier) = code.iter().find(|mapping| copies_stacks(&mapping.path)) {
        bail!(
            "{} copies pieces of stacks away and back, which breaks traced frames",
            copier.path.display()
        );
    }
    let mut space = Space::new(calls_ptrace(&wanted.module));
    choose_islands(&wanted, &mut maps, recorder, &mut space)?;
    let islands = new_islands(&memory, &maps, &mut space);
    go_on()?;
    let files = files(&wanted, (&code, &maps), recorder)?;
    let mapped: Vec<_> = files
        .iter()
        .map(|f| (Rc::clone(&f.image), f.bias))
        .collect();
    let installation = install(&Moment::Attach(&maps), files, islands, &mut space, recorder)?;
    installation.remember(&mut space);
    let sites = CallSites::read(
        &memory,
        mapped.iter().map(|(image, bias)| (&**image, *bias)),
    )?;
    for piece in &installation.pieces {
        sites.check(piece)?;
        if !is_steady(pid, &code, || is_as_in_file(&memory, piece))? {
            return Ok(None);
        }
    }
    if let Some(base) = wanted.linker {
        let linker = linker_breakpoint(pid, base, &maps)?;
        space.set_linker_stop(linker.map(|linker| linker.at), None);
    }
    space.set_seen(code.iter().map(Seen::from).collect());
    super::keys::add(&mapped, &mut space, recorder);
    Ok(Some(Prepared {
        space,
        wanted,
        installation,
        code,
        stack,
        linker: None,
    }))
}

/// Chooses where islands will be, and adds them to the mappings.
fn choose_islands(
    wanted: &Wanted,
    maps: &mut Vec<Mapping>,
    recorder: &dyn Recorder,
    space: &mut Space,
) -> Result<()> {
    let add = |island: Span, maps: &mut Vec<Mapping>| {
        let at = maps.partition_point(|m| m.start < island.start);
        maps.insert(at, future(island));
        island
    };
    let program = program_place(&wanted.module, wanted.bias, (maps, None), true, recorder)?;
    space.layout_mut().set_island(PROGRAM, add(program, maps));
    if let Some(base) = wanted.linker {
        let limit = limits::get(wanted.pid, libc::RLIMIT_STACK).ok();
        let limit = limit.map(|limit| limit.soft);
        let stack = limit.filter(|&limit| limit != libc::RLIM_INFINITY);
        let libraries = library_place(maps, base, stack)
            .context("there is no room for an island near the libraries")?;
        space
            .layout_mut()
            .set_island(LIBRARIES, add(libraries, maps));
    }
    Ok(())
}

/// The program and the mapped libraries, with what is wanted from them. `code`: what of `maps` is code of files.
fn files(
    wanted: &Wanted,
    (code, maps): (&[Mapping], &[Mapping]),
    recorder: &mut dyn Recorder,
) -> Result<Vec<File>> {
    let pid = wanted.pid;
    let program = File {
        image: Rc::clone(&wanted.module.image),
        version: wanted.version,
        bias: wanted.bias,
        module: Some(Rc::clone(&wanted.module)),
        island: PROGRAM,
    };
    let mut files = vec![program];
    let own = extent(&wanted.module, wanted.bias);
    let mut seen = HashSet::new();
    for mapping in code.iter().filter(|m| !own.contains(&m.start)) {
        go_on()?;
        if wanted.linker.is_none() {
            continue;
        }
        let is_named =
            recorder.probes_path(&mapping.path) || recorder.selects_library(&mapping.path);
        let (real, image) = match of_mapping(pid, mapping) {
            Ok(found) => found,
            // Unwinders ask functions of these, which would not know of traced frames.
            Err(error) if rank(&mapping.path) < OTHERS => return Err(error),
            Err(error) => {
                if is_named {
                    let text = format!("{error:#}; it is not traced");
                    recorder.remark(pid, &text)?;
                    hodo_ptrace::warn_user!("hodo: {pid}: {text}");
                }
                continue;
            }
        };
        let Some(bias) = image.bias(mapping.offset, mapping.start) else {
            continue;
        };
        if !is_loaded(&image, bias, mapping, maps) {
            continue;
        }
        let Ok(version) = Version::of(&real) else {
            continue;
        };
        if !seen.insert((version, bias)) {
            continue;
        }
        let module = (is_named || recorder.probes(&image))
            .then(|| recorder.module(&real, &mapping.path, false))
            .transpose()?;
        if let Some(reason) = recorder.unplaced_in(&mapping.path) {
            bail!("{}: {reason}", mapping.path.display());
        }
        files.push(File {
            image: match &module {
                Some(module) => Rc::clone(&module.image),
                None => Rc::new(image),
            },
            version,
            bias,
            module,
            island: LIBRARIES,
        });
    }
    Ok(files)
}

/// How large the island for libraries may be.
const SIZES: [u64; 3] = [LIBRARY_ISLAND, LIBRARY_ISLAND / 4, LIBRARY_ISLAND / 16];

/// Where the island for libraries can be. Room for later libraries is left above it, if there is any. `stack`: how
/// large the first stack may become, if it has a limit.
fn library_place(maps: &[Mapping], base: u64, stack: Option<u64>) -> Option<Span> {
    let top = base.saturating_sub(LIBRARY_ROOM);
    let usual = top.saturating_sub(ISLANDS.slack + LIBRARY_ISLAND)..top;
    let any = base.saturating_sub(REACH)..base;
    let [most, some, least] = SIZES;
    let sizes = [most, most, some, least];
    let ranges = [usual, any.clone(), any.clone(), any];
    sizes
        .into_iter()
        .zip(ranges)
        .find_map(|(size, range)| {
            Some(Span::at(
                highest_gap(maps.iter().map(Mapping::span), range, size, ISLANDS.align)?,
                size,
            ))
        })
        .or_else(|| place_above(maps, base, stack))
}

/// A place above the libraries, where the kernel maps nothing, but toward which the first stack grows: for programs
/// whose own memory fills everything within reach below.
fn place_above(maps: &[Mapping], base: u64, stack: Option<u64>) -> Option<Span> {
    /// What is left for the stack, which may be allowed to become larger later on,
    const MUCH: u64 = 512 << 20;
    /// or at least: as much as the kernel leaves (`mmap_base`, mm/util.c).
    const LEAST: u64 = 128 << 20;
    let first = maps.iter().find(|m| m.path.as_os_str() == "[stack]")?;
    let end = |room: u64| first.end.saturating_sub(room).min(first.start);
    let stack = stack.unwrap_or(MUCH);
    let mut ends = [MUCH, LEAST].map(|room| end(room.max(stack))).into_iter();
    ends.find_map(|end| place_up_to(maps, base, end))
}

/// The lowest place above the libraries that ends there at most.
fn place_up_to(maps: &[Mapping], base: u64, end: u64) -> Option<Span> {
    const ALIGN: u64 = 64 << 10;
    let within = base.saturating_add(REACH).min(end);
    let starts = (maps.iter().map(|m| m.end.next_multiple_of(ALIGN))).filter(|&at| at > base);
    SIZES.into_iter().find_map(|size| {
        let is_free = |&at: &u64| {
            at.checked_add(size).is_some_and(|end| {
                end <= within
                    && highest_gap(maps.iter().map(Mapping::span), at..end, size, ALIGN).is_some()
            })
        };
        starts.clone().find(is_free).map(|at| Span::at(at, size))
    })
}

/// Inspects mapped code. Returns whether it has stayed mapped: otherwise the code that was seen may be another
/// library's.
fn is_steady(pid: i32, code: &[Mapping], look: impl Fn() -> Result<()>) -> Result<bool> {
    for _ in 0..3 {
        if look().is_ok() {
            return Ok(true);
        }
        if !file_mappings(&maps::read(pid)?).eq(code) {
            return Ok(false);
        }
        // It may have come back in the meantime.
        std::thread::sleep(Duration::from_millis(3));
    }
    look().map(|()| true)
}

/// Checks that nobody else has changed the code at the sites.
fn is_as_in_file(memory: &Memory, piece: &Piece) -> Result<()> {
    match piece.differs(memory, |_, _| false)? {
        None => Ok(()),
        Some(at) => bail!(
            "the code of {} at {at:#x} differs from its file: something else has changed it (a debugger, another tracer, or \
             the file was replaced in place)",
            piece.file.image.path.display(),
        ),
    }
}

impl Prepared {
    /// Whether the mapped code is still the same.
    pub fn holds(&self) -> Result<bool> {
        let maps = maps::read(self.wanted.pid)?;
        Ok(file_mappings(&maps).eq(&self.code))
    }

    /// Whether the dynamic linker is at work.
    pub fn is_loading(&self, memory: &Memory) -> bool {
        self.wanted.is_loading(memory)
    }

    /// Whether a thread is currently switching static keys.
    pub fn is_switching(&self, memory: &Memory) -> bool {
        self.space.keys().is_busy(self.wanted.pid, memory)
    }

    /// Waits for a while, with threads running, until none is.
    pub fn wait_for_switching(&self, memory: &Memory) {
        self.space.keys().wait_until_free(self.wanted.pid, memory);
    }

    /// Ranges of the program's code that will be changed: no thread may be inside one of them.
    pub fn ranges(&self) -> Vec<Span> {
        let mut ranges = self.installation.ranges();
        ranges.extend(self.space.linker_stop().map(|at| Span::at(at, ANNOUNCING)));
        ranges.sort_unstable();
        ranges
    }

    /// Where displaced instructions will be.
    pub fn copies(&self) -> Vec<Copied> {
        self.installation.copies()
    }

    /// Logs what is mapped where, if a reader needs that.
    ///
    /// # Errors
    /// If the log cannot be written.
    pub fn log(&self, islands: &[Span], recorder: &mut dyn Recorder) -> Result<()> {
        for mapping in &self.code {
            recorder.log_map(self.wanted.pid, mapping)?;
        }
        recorder.log_islands(self.wanted.pid, islands)
    }

    /// Maps everything, while all threads are stopped.
    ///
    /// # Errors
    /// If there is no room for it (any more). The space then contains what was mapped.
    pub fn map(
        &mut self,
        calls: &Syscalls,
        memory: &Memory,
        recorder: &dyn Recorder,
    ) -> Result<()> {
        let locks = SetAside::of(calls)?;
        let mapped = self.map_all(calls, memory, recorder);
        mapped.and(locks.map_or(Ok(()), |locks| locks.restore(calls)))
    }

    fn map_all(
        &mut self,
        calls: &Syscalls,
        memory: &Memory,
        recorder: &dyn Recorder,
    ) -> Result<()> {
        let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let rw = libc::PROT_READ | libc::PROT_WRITE;
        let size = 2 * SCRATCH;
        self.space
            .set_ledger(Ledger::map(calls, memory, false, self.wanted.linker)?);
        let scratch = calls
            .mmap(TargetAddr(0), size, rw, anonymous, None)?
            .addr()
            .context("a page of memory in the process")?;
        self.space
            .ledger()
            .note(memory, &Entry::Mapped(Span::at(scratch.0, size).into()))?;
        let mapped = map_events(
            calls,
            memory,
            scratch,
            (None, self.wanted.linker),
            recorder,
            &mut self.space,
        );
        self.space
            .ledger()
            .note(memory, &Entry::Unmapped(scratch.0))?;
        calls.munmap(scratch, size)?;
        mapped?;
        // From here on, mappings are recorded in the ledger, in case nobody removes them.
        self.space.note(memory)?;
        // The thread may be in a handler on another stack.
        let sp = match self.stack {
            Some(end) => end - 16,
            None => calls.thread().regs()?.sp(),
        };
        let program = extent(&self.wanted.module, self.wanted.bias);
        let space = &mut self.space;
        let islands = space.layout_mut().take_islands();
        let ledger = (memory, space.ledger());
        let shadows = map_shadows(calls, sp, self.wanted.linker, program, ledger)?;
        space.layout_mut().set_shadows(shadows);
        let page = map_scratch_page(calls)?;
        space.layout_mut().set_scratch_page(page);
        space.note(memory)?;
        for (index, island) in islands.into_iter().enumerate() {
            if !island.is_empty() {
                let entry = Entry::Mapped(island.into());
                space.ledger().note(memory, &entry)?;
                map_island(calls, island)?;
                space.layout_mut().set_island(index, island);
            }
        }
        for &page in &self.installation.trampolines {
            let entry = Entry::Mapped(page.span().into());
            space.ledger().note(memory, &entry)?;
            map_island(calls, page.span())?;
            space.layout_mut().add_trampoline(page);
        }
        Ok(())
    }

    /// Writes hodo's own memory, while all threads are stopped. No code leads there yet.
    ///
    /// # Errors
    /// If the memory cannot be accessed.
    pub fn write_islands(&mut self, memory: &Memory) -> Result<()> {
        let space = &mut self.space;
        let installation = &mut self.installation;
        let island = installation.islands[LIBRARIES].as_mut();
        if let (Some(at), Some(island)) = (space.linker_stop(), island) {
            space.set_linker_stop(None, None);
            let taken: Vec<&Patches> = installation.pieces.iter().map(|p| &*p.patches).collect();
            let linker = Linker { at, state: None };
            self.linker = Some((linker, announcement(at, memory, island, &taken, space)));
        }
        installation.write_islands(memory, space)?;
        installation.note(memory, space)
    }

    /// Writes over the code, while all threads are stopped and have their control blocks.
    ///
    /// # Errors
    /// If the memory cannot be accessed.
    pub fn write_sites(&mut self, memory: &Memory, space: &mut Space) -> Result<()> {
        self.installation.write_sites(memory, space)?;
        if let Some((at, announcement)) = self.linker {
            arm_linker(at, memory, announcement, space)?;
        }
        space.keys_mut().hold(memory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A mapping at this range.
    fn mapped(range: std::ops::Range<u64>, name: &str) -> Mapping {
        Mapping {
            start: range.start,
            end: range.end,
            writable: true,
            executable: false,
            shared: false,
            offset: 0,
            device: 0,
            inode: 0,
            path: PathBuf::from(name),
            deleted: false,
        }
    }

    #[test]
    fn the_island_of_libraries_is_below_them_or_else_above() {
        const LIBRARIES: u64 = 0x7f12_3400_0000;
        const END: u64 = LIBRARIES + (16 << 20);
        // With this many bytes of the program's own memory below the libraries, and a stack this far above their end.
        // The stack may become as large as `limit`.
        let limited = |below: u64, stack: u64, limit: Option<u64>| {
            let stack = END + stack;
            let maps = [
                mapped(LIBRARIES - below..LIBRARIES, ""),
                mapped(LIBRARIES..END, "/lib/libc.so.6"),
                mapped(stack - (1 << 20)..stack, "[stack]"),
                mapped(0xffff_ffff_ff60_0000..0xffff_ffff_ff60_1000, "[vsyscall]"),
            ];
            library_place(&maps, LIBRARIES, limit)
        };
        let place = |below, stack| limited(below, stack, Some(8 << 20));
        let found = place(1 << 20, 8 << 30).unwrap();
        assert_eq!(found.len(), LIBRARY_ISLAND);
        assert!(found.end <= LIBRARIES - LIBRARY_ROOM, "{found:?}");
        assert!(LIBRARIES - found.start <= REACH, "{found:?}");
        let above = |size| Some(Span::at(END, size));
        assert_eq!(place(5 << 30, 8 << 30), above(LIBRARY_ISLAND));
        // The stack may grow.
        let fits = |size: &u64| *size <= 700 << 20 >> 1;
        let next = SIZES.into_iter().find(fits).unwrap_or_default();
        assert_eq!(place(5 << 30, 700 << 20), above(next));
        // The kernel chooses its place at random, which may be closer.
        let fits = |size: &u64| *size <= 172 << 20;
        let next = SIZES.into_iter().find(fits).unwrap_or_default();
        assert_eq!(place(5 << 30, 300 << 20), above(next));
        assert_eq!(place(5 << 30, 100 << 20), None);
        // It is never in the way of a stack.
        assert_eq!(limited(5 << 30, 300 << 20, Some(299 << 20)), None);
        assert_eq!(limited(5 << 30, 8 << 30, Some(8 << 30)), None);
        assert_eq!(limited(5 << 30, 300 << 20, None), None);
    }
}
