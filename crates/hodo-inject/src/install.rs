//! Installs a recording in an address space: stubs are built in islands, and jumps to them are written over code.
//!
//! This happens at four moments (`Moment`), and one function, `install`, does it. Each moment finds the files
//! ([`program`], [`libraries`], [`prepare`], [`build`]), lets their stubs be built, and writes them when the process is
//! stopped:
//!
//! | moment | the process | written |
//! |---|---|---|
//! | exec | has one thread, stopped before its first instruction | islands at once; the program's sites when the dynamic linker has announced the libraries |
//! | dlopen | the thread that loads is stopped, and none of the libraries' code has run | at once |
//! | attach | runs | when all its threads are stopped ([`Prepared`]) |
//! | change | runs, and is recorded already | when all its threads are stopped ([`Change`]) |

mod attach;
mod build;
mod call_sites;
mod change;
mod exec;
mod kept;
mod keys;
mod libraries;
mod mapping;
mod places;

use std::rc::Rc;
use std::time::Duration;

use anyhow::{Result, bail};
use hodo_abi::Span;
use hodo_module::image::{Segment, Version};
use hodo_module::{Image, Module};
use hodo_patch::{Copied, Island, Patches, Raise, Refusal, Used};
use hodo_ptrace::TargetAddr;
use hodo_ptrace::auxv;
use hodo_ptrace::maps;
use hodo_ptrace::maps::Mapping;
use hodo_ptrace::signals::go_on;
use hodo_ptrace::{Memory, Stopped};

use crate::arch::ISLANDS;
use crate::hooks;
use crate::ledger::Page;
use crate::linker;
use crate::recorder::Recorder;
use crate::site_writer::{follow, lead};
use crate::space::{Instructions, Loaded, Space};
use crate::trampolines::Trampolines;
pub use attach::{Prepared, Wanted, prepare};
pub use change::{Change, build};
pub use exec::{program, set_aside};
pub use libraries::libraries;
pub use mapping::{is_left_over, private_page};

/// The maximum distance between a program and its island in bytes: a little less than a jump can reach.
const REACH: u64 = ISLANDS.jump;
/// The lowest address that may be mapped, with the usual `vm.mmap_min_addr`.
const LOWEST: u64 = 64 << 10;
/// The minimum size of the trace that is mapped, in bytes.
const SMALLEST: u64 = 64 << 20;
/// Distance between the dynamic linker and the island for libraries, which are mapped below the linker.
const LIBRARY_ROOM: u64 = ISLANDS.libraries;
/// Bytes of the island for libraries.
const LIBRARY_ISLAND: u64 = ISLANDS.island;

/// The island of the program, and that of the libraries.
const PROGRAM: usize = 0;
const LIBRARIES: usize = 1;

/// When something is installed, and the state of the process at that time.
#[derive(Debug)]
enum Moment<'a> {
    /// A program has been executed. Its thread is stopped.
    Exec(Stopped),
    /// The dynamic linker has mapped libraries. This thread is stopped.
    Load(Stopped),
    /// hodo is about to attach to a process, which is running and has these mappings.
    Attach(&'a [Mapping]),
    /// A process gets the stubs for other settings. It is running, and has these mappings.
    Change(&'a [Mapping], &'a Rc<str>),
}

impl Moment<'_> {
    /// Where jumps can be put. If the process is running, places are only chosen.
    fn trampolines(&self, space: &Space) -> Trampolines {
        match *self {
            Self::Exec(thread) | Self::Load(thread) => {
                Trampolines::new(thread, TargetAddr(space.syscall_place()), space)
            }
            Self::Attach(maps) | Self::Change(maps, _) => Trampolines::choose(space, maps.to_vec()),
        }
    }

    /// What was built for a file earlier and is still in its island.
    fn known(&self, file: &File, space: &Space) -> Option<Rc<Patches>> {
        match *self {
            Self::Exec(_) | Self::Attach(_) => None,
            Self::Load(_) => space.patched(&file.place()).cloned(),
            Self::Change(_, settings) => space.made(settings, file.place()).cloned(),
        }
    }

    /// Whether functions of the file are hooked. A change does not touch hooks.
    fn hooks(&self) -> bool {
        !matches!(self, Self::Change(..))
    }
}

/// A mapped file, and what is wanted from it.
#[derive(Debug)]
struct File {
    image: Rc<Image>,
    version: Version,
    /// Runtime minus link-time address.
    bias: u64,
    /// If there is none, nothing of it is traced. Its functions may still be hooked.
    module: Option<Rc<Module>>,
    /// [`PROGRAM`] or [`LIBRARIES`].
    island: usize,
}

impl File {
    fn place(&self) -> Loaded {
        (self.version, self.bias)
    }
}

/// What will be written over the code of one file.
#[derive(Debug)]
struct Piece {
    file: File,
    patches: Rc<Patches>,
    /// It was built now, so its copies are not known yet.
    new: bool,
}

impl Piece {
    /// The link-time address of the first site whose code is neither that of the file nor ours. `is_ours` returns that
    /// for this many bytes at an address.
    ///
    /// # Errors
    /// If it cannot be read.
    fn differs(
        &self,
        memory: &Memory,
        is_ours: impl Fn(u64, usize) -> bool,
    ) -> Result<Option<u64>> {
        let File { image, bias, .. } = &self.file;
        for (at, bytes) in &self.patches.writes {
            let link = at.wrapping_sub(*bias);
            let Some(code) = image.at(link..link.wrapping_add(bytes.len() as u64)) else {
                continue;
            };
            if is_ours(*at, bytes.len()) {
                continue;
            }
            let mut now = vec![0; code.len()];
            memory.read(TargetAddr(*at), &mut now)?;
            let is_other =
                |index: usize| now[index] != code[index] && !is_ours(at + index as u64, 1);
            if (0..code.len()).any(is_other) {
                return Ok(Some(link));
            }
        }
        Ok(None)
    }
}

/// What was built for an address space, and will be written into it.
#[derive(Debug)]
struct Installation {
    pieces: Vec<Piece>,
    /// The islands with additions.
    islands: [Option<Island>; 2],
    /// Pages to be mapped for jumps.
    pages: Vec<u64>,
    /// The pages for jumps that will then exist.
    trampolines: Vec<Page>,
}

/// Builds what files get. Nothing is written over their code, but pages may be mapped at exec and when libraries are
/// loaded.
///
/// `islands` are the new ones. Others continue where they end.
fn install(
    moment: &Moment<'_>,
    files: Vec<File>,
    mut islands: [Option<Island>; 2],
    space: &mut Space,
    recorder: &mut dyn Recorder,
) -> Result<Installation> {
    let mut trampolines = moment.trampolines(space);
    let mut pieces = Vec::new();
    for file in files {
        if let Moment::Attach(_) = moment {
            go_on()?;
        }
        if let Some(patches) = moment.known(&file, space) {
            pieces.push(Piece {
                file,
                patches,
                new: false,
            });
            continue;
        }
        let region = space.islands()[file.island];
        let used = space.used()[file.island];
        let island = islands[file.island]
            .get_or_insert_with(|| Island::resume(region.start, region.len(), used));
        let mut patches = Patches::default();
        if let Some(module) = &file.module {
            let raised = space.raised() != Raise::default();
            build::stubs(
                module,
                file.bias,
                island,
                recorder,
                &mut |range| trampolines.find(range),
                raised,
                &mut patches,
            )?;
            space.watch_always(module.probed.unwatched);
        }
        space.trap_blocks_mut().add(island, &patches.traps);
        if moment.hooks() {
            hooks::add(&file.image, file.bias, island, space, &mut patches);
            build::tell_failures(&file.image, &patches, recorder)?;
        } else if patches
            .failed
            .iter()
            .any(|(_, reason)| *reason == Refusal::Full)
        {
            bail!(
                "there is no room for more stubs in {}; a recording started with -g reserves more",
                file.image.path.display()
            );
        }
        pieces.push(Piece {
            file,
            patches: Rc::new(patches),
            new: true,
        });
    }
    Ok(Installation {
        pieces,
        islands,
        pages: trampolines.chosen(),
        trampolines: trampolines.finish()?,
    })
}

impl Installation {
    /// Ranges of code that will be changed: no thread may be inside one of them.
    fn ranges(&self) -> Vec<Span> {
        let writes = (self.pieces.iter()).flat_map(|piece| &piece.patches.writes);
        let ranges = writes.map(|(at, bytes)| Span::at(*at, bytes.len() as u64));
        let mut ranges: Vec<_> = ranges.collect();
        ranges.sort_unstable();
        ranges
    }

    /// Where displaced instructions will be.
    fn copies(&self) -> Vec<Copied> {
        let copies = (self.pieces.iter()).flat_map(|piece| piece.patches.copies.iter());
        let mut copies: Vec<_> = copies.collect();
        copies.sort_unstable_by_key(|copied| (copied.original, copied.call));
        copies
    }

    /// Writes the additions to islands. No code leads there yet.
    fn write_islands(&self, memory: &Memory, space: &mut Space) -> Result<()> {
        for (index, island) in self.islands.iter().enumerate() {
            if let Some(island) = island {
                let used = write_island(memory, island, space.used()[index])?;
                space.set_used(index, used);
                space.written_mut().extend_stubs(index, island);
            }
        }
        Ok(())
    }

    /// Whether the dynamic linker's own jump must be replaced by a breakpoint because of what will be written.
    fn has_to_make_room(&self, space: &Space) -> bool {
        let mut pieces = self.pieces.iter();
        pieces.any(|piece| linker::has_to_make_room(&piece.patches, space))
    }

    /// Records in the process's ledger what [`Self::write_sites`] will change.
    fn note(&self, memory: &Memory, space: &mut Space) -> Result<()> {
        self.pieces.iter().try_for_each(|piece| {
            let file = (&*piece.file.image, piece.file.bias);
            space.note_patches(memory, file, &piece.patches)
        })
    }

    /// Writes over the code. Bytes that lead nowhere else come first, for all files: if hodo is killed in the middle,
    /// everything written so far can be executed.
    fn write_sites(&self, memory: &Memory, space: &mut Space) -> Result<()> {
        for Piece { file, patches, .. } in &self.pieces {
            lead(memory, &file.image, file.bias, patches, space)?;
        }
        for Piece { file, patches, .. } in &self.pieces {
            follow(memory, &file.image, file.bias, patches, space)?;
        }
        Ok(())
    }

    /// Remembers what libraries got, in case they are loaded again.
    fn remember(&self, space: &mut Space) {
        let libraries = (self.pieces.iter()).filter(|piece| piece.file.island == LIBRARIES);
        for piece in libraries {
            space.add_patched(piece.file.place(), Rc::clone(&piece.patches));
        }
    }

    /// What was built for one file.
    fn into_patches(self) -> Patches {
        let patches = self.pieces.into_iter().next().map(|piece| piece.patches);
        patches.map(Rc::unwrap_or_clone).unwrap_or_default()
    }
}

/// New islands, if the space has places for them. The program's island contains the agent.
fn new_islands(memory: &Memory, maps: &[Mapping], space: &mut Space) -> [Option<Island>; 2] {
    let signals = maps::signal_return(memory, maps);
    let island = |at: Span| (!at.is_empty()).then(|| Island::new(at.start, at.len(), signals));
    let mut islands = space.islands().map(island);
    if let Some(program) = &mut islands[PROGRAM] {
        let handler = program.add_trap_handler();
        let code = Instructions {
            syscall: program.syscall(),
            ret: program.ret(),
        };
        space.set_island_code(handler, code);
        // Hooks are made before it is known what the linker gets.
        if !hodo_patch::announces() && !space.islands()[LIBRARIES].is_empty() {
            space.trap_blocks_mut().need();
        }
    }
    islands
}

/// Whether a program calls `ptrace`, judged by its imports.
fn calls_ptrace(module: &Module) -> bool {
    let mut calls = module.plan.libcalls.iter();
    calls.any(|call| call.name == "ptrace")
}

/// A value of a running process's auxiliary vector. If it is about to execute a program, it has no auxiliary vector for
/// a moment.
fn auxv_of_running(pid: i32, key: u64) -> Option<u64> {
    const TRIES: u32 = 200;
    const PAUSE: Duration = Duration::from_millis(5);
    let mut tries = (0..TRIES).map(|number| {
        if number > 0 {
            std::thread::sleep(PAUSE);
        }
        auxv::value(pid, key)
    });
    tries.find_map(|found| found)
}

/// Whether the file of a mapping is loaded at a bias: each of its segments begins where it would then be. If not, only
/// a part of its code is mapped there, as by V8, which maps its code twice so that calls reach it. What is written into
/// a loaded file would hit other memory.
fn is_loaded(image: &Image, bias: u64, mapping: &Mapping, maps: &[Mapping]) -> bool {
    let begins = |segment: &Segment| {
        let at = bias.wrapping_add(segment.addr) & !4095;
        let index = maps.partition_point(|m| m.end <= at);
        maps.get(index).is_some_and(|found| {
            let offset = (segment.offset & !4095).wrapping_add(found.start.wrapping_sub(at));
            let is_file = (found.device, found.inode) == (mapping.device, mapping.inode)
                && found.offset == offset;
            // Some programs move their code to larger pages of their own.
            let is_moved = found.inode == 0 && found.executable && segment.executable;
            found.start <= at && (is_file || is_moved)
        })
    };
    image
        .segments
        .iter()
        .filter(|segment| segment.size > 0)
        .all(begins)
}

fn file_mappings(maps: &[Mapping]) -> impl Iterator<Item = &Mapping> {
    maps.iter()
        .filter(|m| m.executable && m.inode != 0 && m.path.is_absolute())
}

/// Writes the additions to an island.
fn write_island(memory: &Memory, island: &Island, since: Used) -> Result<Used> {
    for (at, bytes) in island.added(since) {
        memory.write(TargetAddr(at), &bytes)?;
    }
    Ok(island.used())
}
