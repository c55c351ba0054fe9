//! What is known about an address space, and what in it is ours.

pub mod keys;
mod layout;
mod moved;
mod state;
mod trap_blocks;
mod written;

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::rc::Rc;

use anyhow::Result;
use hodo_abi::Span;
use hodo_patch::{Announcement, Patches, Raise, TrapHandler, Used};

use crate::arch;
use crate::ledger::{Bytes, Entry, Ledger, Patched};
use hodo_module::image::{Image, Placed, Seen, Version};
use hodo_ptrace::Memory;
use hodo_ptrace::TargetAddr;
use hodo_ptrace::stops::bit;

pub use hodo_codegen::statemap::AppPoint;
pub use moved::Moved;

pub(crate) use layout::Layout;
pub(crate) use trap_blocks::TrapBlocks;
pub(crate) use written::Written;

use keys::Keys;

/// The signals by which a thread stops to announce libraries: they are nothing to a program that has no handler.
const NOTHING: [i32; 3] = [libc::SIGURG, libc::SIGWINCH, libc::SIGCHLD];

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

    /// What is known of the file with other stubs.
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
    /// What of ours is mapped.
    layout: Layout,
    /// What was written over code.
    written: Written,
    /// Static keys, if events are wanted.
    keys: Keys,
    /// What the process's own ledger contains of all this.
    ledger: Ledger,
    /// The handler that leads threads past breakpoints if hodo is killed.
    trap_handler: Option<TrapHandler>,
    /// The handler's data about them.
    trap_blocks: TrapBlocks,
    /// Where the dynamic linker announces libraries and has our breakpoint.
    linker_stop: Option<u64>,
    /// What replaces this breakpoint, if that is possible.
    announcement: Option<Announcement>,
    /// Where threads stop before system calls that would affect us, and the functions that make these calls.
    asked: Vec<(u64, u64)>,
    /// What to write over the program's code when the dynamic linker has announced the first libraries.
    sites_to_come: Option<Rc<Sites>>,
    /// Files that were seen mapped.
    seen: Vec<Seen>,
    /// What was written into libraries, by file and bias: a library that is loaded again gets its old stubs.
    patched: HashMap<Loaded, Rc<Patches>>,
    /// What was built for changes of the settings, by settings and file.
    made: HashMap<(Rc<str>, Loaded), Rc<Patches>>,
    /// Two instructions in our island.
    instructions: Instructions,
    /// How much of each island is in use.
    used: [Used; 2],
    /// Whether `_dl_find_object` is hooked.
    finds_objects: bool,
    /// Whether tracing has ended in this process.
    ended: bool,
    /// Whether a thread may not read the time counter.
    untimed: bool,
    /// Whether the program uses `ptrace`.
    debugger: bool,
    /// By how much limits are raised.
    raised: Raise,
    /// The address of a control block for several threads, through which nothing is recorded, once that was needed.
    mute: Option<u64>,
    /// How system calls without probes are recorded.
    watch: Watch,
}

/// The addresses of two instructions of ours.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Instructions {
    /// Makes system calls.
    pub(crate) syscall: u64,
    /// Returns.
    pub(crate) ret: u64,
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
        self.layout.trace()
    }

    /// Whether this address is in the trace.
    pub fn is_in_trace(&self, at: u64) -> bool {
        self.layout.trace().contains(at)
    }

    /// Islands, of the program and of the libraries.
    pub fn islands(&self) -> [Span; 2] {
        self.layout.islands()
    }

    /// Address ranges whose shadow is mapped as a whole.
    pub fn shadows(&self) -> [Span; 2] {
        self.layout.shadows()
    }

    /// The page in which threads work; 0 if this instruction set needs none.
    pub fn scratch_page(&self) -> u64 {
        self.layout.scratch_page()
    }

    /// One of our instructions that makes system calls.
    pub fn syscall_place(&self) -> u64 {
        self.instructions.syscall
    }

    /// One of our instructions that returns.
    pub fn return_place(&self) -> u64 {
        self.instructions.ret
    }

    /// The stub to which the breakpoint at an address leads.
    pub fn stub_at(&self, at: u64) -> Option<u64> {
        self.written.trap(at)
    }

    /// If a function stops at this breakpoint before a system call that would affect us: its address.
    pub fn asks_at(&self, at: u64) -> Option<u64> {
        let stop = self.asked.iter().find(|(stop, _)| *stop == at);
        stop.map(|&(_, function)| function)
    }

    /// By how much limits are raised.
    pub fn raised(&self) -> Raise {
        self.raised
    }

    /// Whether the recording has ended in this process.
    pub fn has_ended(&self) -> bool {
        self.ended
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

    /// Notes whether the dynamic linker is about to add to its list of libraries.
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
        self.layout.add_private(pages);
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
        self.written.semaphores_are_lowered();
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
        self.layout.holds(at)
    }

    /// Whether this is the breakpoint by which the dynamic linker announces libraries.
    pub fn announces(&self, at: u64) -> bool {
        self.announcement.is_none() && self.linker_stop == Some(at)
    }

    /// Whether a stopped thread at this address is about to stop because the dynamic linker announces libraries.
    pub fn awaits_announcement(&self, tid: i32, pc: u64) -> bool {
        let pending = hodo_ptrace::pending(tid);
        let mut signals = NOTHING.iter().filter(|&&signal| pending & bit(signal) != 0);
        signals.any(|&signal| self.announced(pc, signal))
    }

    /// Whether a thread at this address has stopped by this signal because the dynamic linker announces libraries.
    pub fn announced(&self, pc: u64, signal: i32) -> bool {
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
        self.written.ways().iter().any(|way| way.contains(at))
    }

    /// Whether it is in the bytes that hooks have written, which stay longer.
    pub fn is_in_hook(&self, at: u64) -> bool {
        let inside =
            |(start, bytes): &(u64, Vec<u8>)| (start + 1..start + bytes.len() as u64).contains(&at);
        self.written.hooks().iter().any(inside)
    }

    /// Whether that code must stay until the thread at this address is somewhere else.
    pub fn needs_ways(&self, at: u64) -> bool {
        let (ways, leaving) = (self.written.ways(), self.written.leaving());
        ways.iter().chain(leaving).any(|way| way.contains(at))
    }

    /// The target of the jump in a slot after a function, if the address is that of such a jump. It will be removed.
    pub fn slot(&self, memory: &Memory, at: u64) -> Option<u64> {
        if !self.written.begins(at) || self.written.sites().iter().any(|site| site.at == at) {
            return None;
        }
        arch::jump_at(memory, at).filter(|&to| self.holds(to))
    }

    /// The file at an address whose code was changed, and the address in it.
    pub fn file_at(&self, at: u64) -> Option<(&Image, u64)> {
        self.written.file_at(at)
    }

    /// The files whose code was changed.
    pub fn changed_files(&self) -> &[Placed] {
        self.written.files()
    }

    /// The addresses at which something was written over code.
    pub fn changed_places(&self) -> HashSet<u64> {
        let originals = self.written.originals().iter();
        originals.map(|&(at, _)| at).collect()
    }

    /// Whether this is where a hook's code continues after a call. `memory` is that of the process.
    pub fn hook_awaits(&self, memory: &Memory, at: u64) -> bool {
        /// No hook is longer than this.
        const LONGEST: u64 = 1024;
        let starts = (self.written.hooks().iter())
            .filter_map(|(from, bytes)| arch::jump_target(*from, bytes));
        let is_stub = (self.written.stubs().iter()).any(|stubs| stubs.is_inside(at));
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
        let island = self.layout.islands()[1];
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
        let mut regions = self.layout.regions(memory);
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
        let stubs = self.written.stubs();
        let all = [0, 1].map(|island| stubs[island].all());
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
        self.written.add_original(at, original);
        Ok(())
    }

    /// All patches were undone except those at these addresses; stubs and copies stay.
    pub fn keep_only(&mut self, stay: &BTreeSet<u64>) {
        self.written.keep_only(stay, |at| self.layout.holds(at));
    }

    /// Forgets what was written into code that is gone.
    pub fn forget(&mut self, gone: Seen) {
        let next = self.seen.iter().map(|seen| seen.start);
        let next = next.filter(|&start| start > gone.start).min();
        self.written.forget(&gone, next.unwrap_or(u64::MAX));
        self.keys.forget(gone.start);
    }
}

/// For the modules of this crate that map and write.
impl Space {
    /// Of a program that may use `ptrace`.
    pub(crate) fn new(debugger: bool) -> Self {
        Self {
            debugger,
            ..Self::default()
        }
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(crate) fn layout_mut(&mut self) -> &mut Layout {
        &mut self.layout
    }

    pub(crate) fn written(&self) -> &Written {
        &self.written
    }

    pub(crate) fn written_mut(&mut self) -> &mut Written {
        &mut self.written
    }

    pub(crate) fn keys(&self) -> &Keys {
        &self.keys
    }

    pub(crate) fn keys_mut(&mut self) -> &mut Keys {
        &mut self.keys
    }

    pub(crate) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    pub(crate) fn set_ledger(&mut self, ledger: Ledger) {
        self.ledger = ledger;
    }

    pub(crate) fn trap_handler(&self) -> Option<TrapHandler> {
        self.trap_handler
    }

    pub(crate) fn trap_blocks(&self) -> TrapBlocks {
        self.trap_blocks
    }

    pub(crate) fn trap_blocks_mut(&mut self) -> &mut TrapBlocks {
        &mut self.trap_blocks
    }

    /// The program's island exists: its handler and two of its instructions can be used.
    pub(crate) fn set_island_code(&mut self, handler: Option<TrapHandler>, code: Instructions) {
        self.trap_handler = handler;
        self.instructions = code;
    }

    /// The hook of this function stops there before a system call that would affect us.
    pub(crate) fn add_asked(&mut self, stop: u64, function: u64) {
        self.asked.push((stop, function));
    }

    /// Where the dynamic linker announces libraries and has our breakpoint.
    pub(crate) fn linker_stop(&self) -> Option<u64> {
        self.linker_stop
    }

    /// What replaces this breakpoint.
    pub(crate) fn announcement(&self) -> Option<Announcement> {
        self.announcement
    }

    pub(crate) fn set_linker_stop(&mut self, at: Option<u64>, by: Option<Announcement>) {
        self.linker_stop = at;
        self.announcement = by;
    }

    /// Sets where the dynamic linker stores the state of its list of libraries.
    pub(crate) fn watch_linker(&mut self, state: Option<u64>) {
        self.watch.state = state;
    }

    /// There may be system call instructions for which no probe was possible.
    pub(crate) fn watch_always(&mut self, unwatched: bool) {
        self.watch.always |= unwatched;
    }

    pub(crate) fn seen(&self) -> &[Seen] {
        &self.seen
    }

    /// Sets the files that are mapped now. Returns those that were.
    pub(crate) fn set_seen(&mut self, now: Vec<Seen>) -> Vec<Seen> {
        std::mem::replace(&mut self.seen, now)
    }

    /// What was written into a library that may be loaded again.
    pub(crate) fn patched(&self, place: &Loaded) -> Option<&Rc<Patches>> {
        self.patched.get(place)
    }

    pub(crate) fn add_patched(&mut self, place: Loaded, patches: Rc<Patches>) {
        self.patched.insert(place, patches);
    }

    /// Forgets what was written into libraries. Returns it.
    pub(crate) fn take_patched(&mut self) -> HashMap<Loaded, Rc<Patches>> {
        std::mem::take(&mut self.patched)
    }

    /// What was built for a file with these settings.
    pub(crate) fn made(&self, settings: &Rc<str>, place: Loaded) -> Option<&Rc<Patches>> {
        self.made.get(&(Rc::clone(settings), place))
    }

    pub(crate) fn add_made(&mut self, settings: &Rc<str>, place: Loaded, patches: Rc<Patches>) {
        self.made.insert((Rc::clone(settings), place), patches);
    }

    /// How much of each island is in use.
    pub(crate) fn used(&self) -> [Used; 2] {
        self.used
    }

    pub(crate) fn set_used(&mut self, index: usize, used: Used) {
        self.used[index] = used;
    }

    /// Whether `_dl_find_object` is hooked.
    pub(crate) fn finds_objects(&self) -> bool {
        self.finds_objects
    }

    pub(crate) fn set_finds_objects(&mut self) {
        self.finds_objects = true;
    }

    pub(crate) fn set_raised(&mut self, raised: Raise) {
        self.raised = raised;
    }

    /// From here on, no code gets new patches.
    pub(crate) fn end(&mut self) {
        self.ended = true;
    }
}
