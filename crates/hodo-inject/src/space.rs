//! What is known about an address space, and what in it is ours.

pub mod keys;
mod moved;
mod state;
mod trap_blocks;

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

use anyhow::Result;
use hodo_abi::Span;
use hodo_patch::{Announcement, Copies, Lead, Patches, Raise, TrapHandler, Used};
use hodo_trace::format::SHADOW_DISTANCE;

use crate::arch::{self, WAIT};
use crate::ledger::{Bytes, Entry, Ledger, Page, Patched};
use crate::stubs::Stubs;
use hodo_module::image::{Image, Placed, Seen, Version};
use hodo_ptrace::Memory;
use hodo_ptrace::TargetAddr;
use hodo_ptrace::arch::SCRATCH_PAGE;

pub use hodo_codegen::statemap::AppPoint;
pub use moved::Moved;

use keys::Keys;
use trap_blocks::TrapBlocks;

/// The dynamic linker of a process.
#[derive(Debug, Clone, Copy)]
pub struct Linker {
    /// Where it announces new libraries.
    pub at: u64,
    /// Where it stores the state of its list of libraries.
    pub state: Option<u64>,
}

/// What will be written over the code of a program that has just started.
#[derive(Debug)]
pub struct Sites {
    /// The file.
    pub image: Rc<Image>,
    /// Runtime minus link-time address.
    pub bias: u64,
    /// What to write.
    pub patches: Patches,
    /// Where the dynamic linker announces libraries, and what will be there.
    pub linker: Option<(Linker, Option<Announcement>)>,
}

impl Sites {
    /// Whether these can wait until the dynamic linker has announced the libraries. These contain functions that
    /// unwinders call, which then know the stubs of sites. The program runs nothing before that.
    pub fn can_wait(&self) -> bool {
        self.linker
            .is_some_and(|(linker, _)| linker.state.is_some())
            && !self.image.has_resolvers()
    }

    /// The same for other stubs of the file.
    pub fn with_patches(&self, patches: Patches) -> Self {
        Self {
            image: Rc::clone(&self.image),
            bias: self.bias,
            patches,
            linker: self.linker,
        }
    }

    /// Whether the dynamic linker is about to add to its list of libraries.
    pub fn is_adding(&self, memory: &Memory) -> bool {
        /// A value of `r_state` in `struct r_debug`.
        const ADDING: u64 = 1;
        let state = self.linker.and_then(|(linker, _)| linker.state);
        let state = state.and_then(|at| memory.read_u64(TargetAddr(at)).ok());
        state.is_some_and(|state| state & 0xFFFF_FFFF == ADDING)
    }
}

/// A file's code, and where it is.
pub type Loaded = (Version, u64);

/// An address space that several threads share.
pub type SharedSpace = Rc<RefCell<Space>>;

/// What is known about an address space.
///
/// Only this crate changes it. It guarantees:
/// * Everything that is written over code is recorded here with its original bytes *before* it is written, and in the
///   process's ledger, if there is one: so it can be undone at any moment, also by another hodo.
/// * Everything that is mapped is recorded here, so that [`Self::regions`] returns all that has to be unmapped.
/// * What was written into code that is no longer mapped is forgotten ([`Self::forget`]).
/// * A forked process starts with the same contents ([`Self::forked`]); from then on, the two are different spaces.
#[derive(Debug, Clone, Default)]
pub struct Space {
    /// Where the `events` file is mapped, and how much of it.
    pub(crate) events: Span,
    /// Where counters and histograms are mapped.
    pub(crate) counters: Vec<Span>,
    /// Islands: of the program, and of the libraries.
    pub(crate) islands: [Span; 2],
    /// Address ranges whose shadow is mapped as a whole.
    pub(crate) shadows: [Span; 2],
    /// Breakpoints, and the stubs to which they lead.
    pub(crate) traps: HashMap<u64, u64>,
    /// The handler that leads threads past them if hodo is killed.
    pub(crate) trap_handler: Option<TrapHandler>,
    /// The handler's data about them.
    pub(crate) trap_blocks: TrapBlocks,
    /// Our instructions that read memory which may not be there, and where to continue then.
    pub(crate) faults: HashMap<u64, u64>,
    /// Jumps and the stubs that they lead to.
    pub(crate) sites: Vec<Lead>,
    /// Our code in the program or on the way there: see [`hodo_patch::Patches::ways`].
    pub(crate) ways: Vec<Span>,
    /// Code in islands that control leaves through some of that: see [`hodo_patch::Patches::leaving`].
    pub(crate) leaving: Vec<Span>,
    /// Counters of USDT probes that were raised.
    pub(crate) semaphores: Vec<u64>,
    /// Static keys, if events are wanted.
    pub(crate) keys: Keys,
    /// Original bytes of everything that was written over code, with addresses.
    pub(crate) originals: Vec<(u64, Vec<u8>)>,
    /// Where the dynamic linker announces libraries and has our breakpoint.
    pub(crate) r_brk: Option<u64>,
    /// What replaces this breakpoint, if that is possible.
    pub(crate) announcement: Option<Announcement>,
    /// What to write over the program's code when the dynamic linker has announced the first libraries.
    pub(crate) sites_to_come: Option<Rc<Sites>>,
    /// Files that were seen mapped.
    pub(crate) seen: Vec<Seen>,
    /// What was written into libraries, by file and bias: a library that is loaded again gets its old stubs.
    pub(crate) patched: HashMap<(Version, u64), Rc<Patches>>,
    /// What was built for changes of the settings, by settings and file.
    pub(crate) made: HashMap<(Rc<str>, Loaded), Rc<Patches>>,
    /// The address of the page in which threads work, if this instruction set needs one.
    pub(crate) scratch_page: u64,
    /// The address of one of our instructions that makes system calls.
    pub(crate) syscall: u64,
    /// The address of one of our instructions that returns.
    pub(crate) ret: u64,
    /// How much of each island is in use.
    pub(crate) used: [Used; 2],
    /// Whether `_dl_find_object` is hooked.
    pub(crate) find_object: bool,
    /// What hooks have written. It stays when tracing ends, because open frames still return through stubs.
    pub(crate) hooks: Vec<(u64, Vec<u8>)>,
    /// Whether tracing has ended in this process.
    pub(crate) stopped: bool,
    /// Whether a thread may not read the time counter.
    pub(crate) untimed: bool,
    /// Functions of unwinders.
    pub(crate) unwinders: Vec<Span>,
    /// Where the unwinding of exceptions begins.
    pub(crate) unwinding: Vec<u64>,
    /// Where threads are held for a moment, and the original code there.
    pub(crate) held: Vec<(u64, [u8; WAIT.len()])>,
    /// Whether the program uses `ptrace`.
    pub(crate) debugger: bool,
    /// Pages for the jumps of punned sites.
    pub(crate) trampolines: Vec<Page>,
    /// By how much limits are raised.
    pub(crate) extra: Raise,
    /// The stubs in each island.
    pub(crate) stubs: [Stubs; 2],
    /// Where displaced instructions are now. Children share this with their parents.
    pub(crate) copies: Rc<Copies>,
    /// The files whose code was changed.
    pub(crate) files: Vec<Placed>,
    /// Which instructions in islands stand for which of the program, once that was needed.
    pub(crate) moved: Option<Rc<Moved>>,
    /// The address of a control block for several threads, through which nothing is recorded, once that was needed.
    pub(crate) mute: Option<u64>,
    /// Pages for control blocks that are in no file.
    pub(crate) private: Vec<Span>,
    /// How system calls without probes are recorded.
    pub(crate) watch: Watch,
    /// What the process's own ledger contains of all this.
    pub(crate) ledger: Ledger,
    /// Mappings that another hodo was about to make.
    pub(crate) mapped: Vec<Span>,
    /// The starts of mappings that are already gone.
    pub(crate) unmapped: BTreeSet<u64>,
}

/// Which system calls are recorded by stopping threads at each one, as a debugger does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Watch {
    /// Where the dynamic linker stores the state of its list of libraries.
    pub state: Option<u64>,
    /// The dynamic linker is at work for the first time. It makes some of its system calls through code of libraries
    /// that it has not announced yet.
    pub starting: bool,
    /// There are system call instructions for which no probe was possible.
    pub always: bool,
}

/// What the recording asks an address space, and tells it.
impl Space {
    /// Where the trace is mapped, and how much of it.
    pub fn trace(&self) -> Span {
        self.events
    }

    /// Whether this address is in the trace.
    pub fn is_in_trace(&self, at: u64) -> bool {
        self.events.contains(at)
    }

    /// Islands, of the program and of the libraries.
    pub fn islands(&self) -> [Span; 2] {
        self.islands
    }

    /// Address ranges whose shadow is mapped as a whole.
    pub fn shadows(&self) -> [Span; 2] {
        self.shadows
    }

    /// The page in which threads work; 0 if this instruction set needs none.
    pub fn scratch_page(&self) -> u64 {
        self.scratch_page
    }

    /// One of our instructions that makes system calls.
    pub fn syscall_place(&self) -> u64 {
        self.syscall
    }

    /// One of our instructions that returns.
    pub fn return_place(&self) -> u64 {
        self.ret
    }

    /// The stub to which the breakpoint at an address leads.
    pub fn stub_at(&self, at: u64) -> Option<u64> {
        self.traps.get(&at).copied()
    }

    /// By how much limits are raised.
    pub fn raised(&self) -> Raise {
        self.extra
    }

    /// Whether the recording has ended in this process.
    pub fn has_ended(&self) -> bool {
        self.stopped
    }

    /// Whether the program uses `ptrace`.
    pub fn is_debugger(&self) -> bool {
        self.debugger
    }

    /// Whether our code announces libraries, not a breakpoint.
    pub fn has_announcement(&self) -> bool {
        self.announcement.is_some()
    }

    /// What to write over the program's code when the dynamic linker has announced the first libraries.
    pub fn sites_to_come(&self) -> Option<Rc<Sites>> {
        self.sites_to_come.clone()
    }

    /// Sets that.
    pub fn set_sites_to_come(&mut self, sites: Option<Rc<Sites>>) {
        self.sites_to_come = sites;
    }

    /// How system calls without probes are recorded.
    pub fn watch(&self) -> Watch {
        self.watch
    }

    /// Tells whether the dynamic linker is about to add to its list of libraries.
    pub fn linker_is_adding(&mut self, adding: bool) {
        self.watch.starting = adding;
        if !adding {
            // From here on, no library's code runs before the linker has announced the library.
            self.watch.state = None;
        }
    }

    /// Whether a thread may not read the time counter.
    pub fn is_untimed(&self) -> bool {
        self.untimed
    }

    /// From here on, no thread reads the time counter. Returns whether that was known already.
    pub fn set_untimed(&mut self) -> bool {
        std::mem::replace(&mut self.untimed, true)
    }

    /// The address of a control block for several threads, through which nothing is recorded.
    pub fn mute_block(&self) -> Option<u64> {
        self.mute
    }

    /// Sets that.
    pub fn set_mute_block(&mut self, at: u64) {
        self.mute = Some(at);
    }

    /// Notes pages for control blocks that are in no file.
    pub fn add_private(&mut self, pages: Span) {
        self.private.push(pages);
    }

    /// Whether a thread is currently switching static keys. `memory` is that of the process.
    pub fn is_switching_keys(&self, tid: i32, memory: &Memory) -> bool {
        self.keys.is_busy(tid, memory)
    }

    /// From here on, static keys stay as they are.
    pub fn let_keys_go(&mut self) {
        self.keys.let_go();
    }

    /// The code was restored: counters of USDT probes are lowered only once, and hodo no longer holds any keys.
    pub fn is_reverted(&mut self) {
        self.semaphores.clear();
        self.keys.let_go();
    }

    /// The space of a process that this one has forked. If it cannot be inspected, or is gone, it is the same as its
    /// maker's.
    pub fn forked(&self, memory: Result<Memory>) -> Self {
        let mut own = self.clone();
        let _ = memory.and_then(|memory| own.ledger.is_forked(&memory));
        own
    }
}

impl Space {
    /// Whether this address is in our executable memory.
    pub fn holds(&self, at: u64) -> bool {
        self.islands.iter().any(|island| island.contains(at))
            || Span::at(self.scratch_page, SCRATCH_PAGE).contains(at)
            || (self.trampolines.iter()).any(|page| page.span().contains(at))
    }

    /// Whether this is the breakpoint by which the dynamic linker announces libraries.
    pub fn announces(&self, at: u64) -> bool {
        self.announcement.is_none() && self.r_brk == Some(at)
    }

    /// Whether a thread at this address has stopped by this signal because the dynamic linker announces libraries.
    pub fn announced(&self, pc: u64, signal: i32) -> bool {
        const NOTHING: [i32; 3] = [libc::SIGURG, libc::SIGWINCH, libc::SIGCHLD];
        self.announcement.is_some_and(|announcement| match signal {
            libc::SIGTRAP => announcement.breakpoint == pc,
            signal => announcement.signal == pc && NOTHING.contains(&signal),
        })
    }

    /// Whether this is in the code that announces libraries.
    pub fn is_announcing(&self, pc: u64) -> bool {
        self.announcement
            .is_some_and(|announcement| announcement.code.contains(pc))
    }

    /// Whether this address is in our code that leads from the program or back, where a thread is at no instruction of
    /// the program.
    pub fn is_on_the_way(&self, at: u64) -> bool {
        self.ways.iter().any(|way| way.contains(at))
    }

    /// The same for the bytes that hooks have written, which stay longer.
    pub fn is_in_hook(&self, at: u64) -> bool {
        let inside =
            |(start, bytes): &(u64, Vec<u8>)| (start + 1..start + bytes.len() as u64).contains(&at);
        self.hooks.iter().any(inside)
    }

    /// Whether that code must stay until the thread at this address is somewhere else.
    pub fn needs_ways(&self, at: u64) -> bool {
        let mut ways = self.ways.iter().chain(&self.leaving);
        ways.any(|way| way.contains(at))
    }

    /// The target of the jump in a slot after a function, if the address is that of such a jump. It will be removed.
    pub fn slot(&self, memory: &Memory, at: u64) -> Option<u64> {
        if !self.originals.iter().any(|&(start, _)| start == at)
            || self.sites.iter().any(|site| site.at == at)
        {
            return None;
        }
        arch::jump_at(memory, at).filter(|&to| self.holds(to))
    }

    /// The file at an address whose code was changed, and the address in it.
    pub fn file_at(&self, at: u64) -> Option<(&Image, u64)> {
        let file = self.files.iter().find(|file| file.range.contains(&at))?;
        Some((&file.image, at.wrapping_sub(file.bias)))
    }

    /// Whether this is where a hook's code continues after a call. `memory` is that of the process.
    pub fn hook_awaits(&self, memory: &Memory, at: u64) -> bool {
        /// No hook is longer than this.
        const LONGEST: u64 = 1024;
        let starts =
            (self.hooks.iter()).filter_map(|(from, bytes)| arch::jump_target(*from, bytes));
        let is_stub = self.stubs.iter().any(|stubs| stubs.is_inside(at));
        !is_stub
            && starts
                .into_iter()
                .any(|start| at.wrapping_sub(start) < LONGEST)
            && arch::follows_call(memory, at)
    }

    /// Where words of a stack may be addresses of code: in the program and in the libraries, with room for libraries
    /// that are mapped later. The island of the libraries is within 2 GiB of their code.
    pub fn code_ranges(&self) -> [Span; 2] {
        const AROUND: u64 = 4 << 30;
        let files = (self.seen.iter()).map(|file| Span::from(file.start..file.end));
        let mut program = files.clone().min().unwrap_or_default();
        for file in files {
            if file.start < program.start.saturating_add(AROUND) {
                program.end = program.end.max(file.end);
            }
        }
        let island = self.islands[1];
        let libraries = match island.is_empty() {
            true => Span::EMPTY,
            false => Span::at(
                island.start.saturating_sub(AROUND),
                island.len() + 2 * AROUND,
            ),
        };
        [program, libraries]
    }

    /// All memory that was mapped for the recording. `memory` is that of the process.
    pub fn regions(&self, memory: &Memory) -> Vec<Span> {
        const PIECE: u64 = 1 << 20;
        let mut regions = Vec::new();
        // The agent lists the pieces that it maps after the first shadow. They are unmapped before the list is.
        let first = self.shadows[0];
        let mut list = vec![0; 4096];
        if !first.is_empty()
            && memory
                .read(TargetAddr(first.end - SHADOW_DISTANCE), &mut list)
                .is_ok()
        {
            let words = list.chunks_exact(8);
            let pieces = words.map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()));
            // A number that is not such a multiple was not written by the agent.
            let mapped = pieces.filter(|&at| at != 0 && at.is_multiple_of(PIECE));
            regions.extend(mapped.map(|at| Span::at(at, PIECE)));
        }
        regions.extend(&self.mapped);
        regions.push(self.events);
        regions.extend(&self.counters);
        regions.extend(self.islands);
        regions.extend(self.trampolines.iter().map(|page| page.span()));
        regions.extend(&self.private);
        regions
            .extend((self.scratch_page != 0).then_some(Span::at(self.scratch_page, SCRATCH_PAGE)));
        for shadow in self.shadows.into_iter().filter(|shadow| !shadow.is_empty()) {
            regions.push(Span::at(
                shadow.start - SHADOW_DISTANCE,
                shadow.len() + 4096,
            ));
        }
        regions.retain(|region| !region.is_empty() && !self.unmapped.contains(&region.start));
        // While anything of hodo is there, it has to be known.
        regions.extend(Some(self.ledger.region()).filter(|region| !region.is_empty()));
        regions
    }

    /// Records in the process's ledger what is known, except for patches.
    ///
    /// # Errors
    /// If its memory cannot be written.
    pub fn note(&mut self, memory: &Memory) -> Result<()> {
        if self.ledger.region().is_empty() {
            return Ok(());
        }
        let state = self.state();
        self.ledger.note_state(memory, state)
    }

    /// Records that patches are about to be written over the code of a file. The stubs to which they lead are known.
    ///
    /// # Errors
    /// If the process's memory cannot be written.
    pub fn note_patches(
        &mut self,
        memory: &Memory,
        (image, bias): (&Image, u64),
        patches: &Patches,
    ) -> Result<()> {
        if self.ledger.region().is_empty() {
            return Ok(());
        }
        self.note(memory)?;
        if *patches == Patches::default() {
            return Ok(());
        }
        let start = image.segments.first().map_or(0, |segment| segment.addr);
        let range = start.wrapping_add(bias)..image.end.wrapping_add(bias);
        let mut writes: Vec<_> = patches.writes.iter().collect();
        writes.sort_unstable();
        let originals = writes.into_iter().filter_map(|(at, bytes)| {
            let addr = at.wrapping_sub(bias);
            Some((*at, image.at(addr..addr.wrapping_add(bytes.len() as u64))?))
        });
        let all = [0, 1].map(|island| self.stubs[island].all());
        let known = self.ledger.count_stubs(all.map(<[_]>::len));
        let new = [0, 1].map(|island| all[island].get(known[island]..).unwrap_or_default());
        let patched = Patched::new((range, bias), originals, patches, new);
        self.ledger.note(memory, &Entry::Patched(patched))
    }

    /// Records the bytes that are about to be changed.
    ///
    /// # Errors
    /// If the process's memory cannot be written.
    pub fn note_original(&mut self, memory: &Memory, at: u64, original: Vec<u8>) -> Result<()> {
        let entry = Entry::Original(at, Bytes(original.clone()));
        self.ledger.note(memory, &entry)?;
        self.originals.push((at, original));
        Ok(())
    }

    /// All patches were undone except those at these addresses; stubs and copies stay.
    pub fn keep_only(&mut self, stay: &BTreeSet<u64>) {
        self.originals.retain(|(at, _)| stay.contains(at));
        self.traps.retain(|at, _| stay.contains(at));
        self.sites.retain(|site| stay.contains(&site.at));
        // Code that leads into islands is gone except for hooks, as is code that leads out of them; no thread is there.
        let ways = std::mem::take(&mut self.ways).into_iter();
        let stays = |way: &Span| stay.contains(&(way.start - 1)) || self.holds(way.start);
        self.ways = ways.filter(stays).collect();
        self.leaving.clear();
        self.moved = None;
    }

    /// Forgets what was written into code that is gone.
    pub fn forget(&mut self, gone: Seen) {
        let inside = |at: u64| (gone.start..gone.end).contains(&at);
        // The data of a file lies after its code, and before the code of the next one.
        let next = self.seen.iter().map(|seen| seen.start);
        let next = next.filter(|&start| start > gone.start).min();
        let own = gone.start..next.unwrap_or(u64::MAX);
        self.semaphores.retain(|at| !own.contains(at));
        self.traps.retain(|&at, _| !inside(at));
        self.sites.retain(|site| !inside(site.at));
        self.ways.retain(|way| !inside(way.start));
        self.unwinders.retain(|function| !inside(function.start));
        self.unwinding.retain(|&at| !inside(at));
        self.held.retain(|&(at, _)| !inside(at));
        self.hooks.retain(|(at, _)| !inside(*at));
        self.originals.retain(|&(at, _)| !inside(at));
        Rc::make_mut(&mut self.copies).retain(|copied| !inside(copied.original));
        self.moved = None;
        self.keys.forget(gone.start);
        self.files
            .retain(|file| !inside(file.range.start) && !(file.range.contains(&gone.start)));
    }
}
