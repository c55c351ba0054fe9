//! An address space whose code is executed from the cache.

mod blocks;
mod cache;
mod code;
mod cut;
mod fetched;
mod files;
mod flags;
mod hot;
mod marked;
mod opened;
mod own;
mod prepare;
mod rights;
mod soft;
mod stops;

use rustc_hash::{FxHashMap, FxHashSet};
use std::cell::{Ref, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use anyhow::{Context, Result};
use hodo_abi::Span;
use hodo_codegen::statemap::AppPoint;
use hodo_isa::native::asm::SYSTEM_CALL;
use hodo_ptrace::maps::{self, Mapping};
use hodo_ptrace::{Stopped, Syscalls, TargetAddr, look_into, start_of_heap};

use crate::block::Block;
use crate::changes::{Changes, Check};
use crate::kept::Kept;
use crate::known::Known;
use crate::marks::Marks;
use crate::native::{Native, block};
use crate::numbers::Identify;
use crate::passes::InSlots;
use crate::places::{self, AWAY, REGION};
use crate::profile::Profile;
use crate::protected::Protected;
use crate::recorder::Recorder;
use crate::region::{Region, STEP};
use crate::spans::Spans;
use crate::table;
use crate::targets::Targets;
use crate::translate::{Exit, Request, Saved, Stage, Translation, translate};
use crate::written::{self, Writer, map, open};
use blocks::Blocks;
use cache::Cache;
use code::Code;
use fetched::Fetched;
use files::Files;
use flags::Flags;
use marked::Marked;
use stops::Stops;

pub(crate) use rights::stripped;

/// Room that one translation needs at most.
pub(crate) const ROOM: u64 = 1 << 20;
/// The maximum number of instructions that are translated for one request,
pub(crate) const MOST: usize = 100;
/// and for one in code that may change,
const MOST_SOFT: usize = 300;
const PAGE: u64 = 4096;
/// All addresses of programs.
pub(crate) const EVERYWHERE: Span = Span {
    start: 0,
    end: u64::MAX,
};

/// Where a thread is that is in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// In front of an instruction of the program, with the program's state.
    At(AppPoint),
    /// Inside the code for an instruction of the program.
    Inside(u64, Saved),
}

/// Why a thread stops at a breakpoint of the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The program's instruction that comes next is not translated.
    Exit(u64),
    /// The program's instruction that comes next is not what it was when it was translated.
    Changed(Check),
    /// It is about to make a watched system call, by this instruction.
    Call(u64),
    /// The target of a branch is not in the table. It continues here when it is known.
    Miss(u64),
}

/// An address space.
#[derive(Debug)]
pub(crate) struct Process {
    memory: Writer,
    code: Code,
    /// Marks of pages with code that may change.
    marks: RefCell<Marks>,
    /// Checks of code that may change.
    changes: Changes,
    /// Pages of such code that the program cannot write to.
    protected: Protected,
    /// Threads that are not traced and have this memory: as long as there are some, its own code can be executed.
    lent: FxHashSet<i32>,
    /// Its own code can be executed,
    is_open: bool,
    /// or could be when hodo had written less often than this.
    closed: u64,
    cache: Cache,
    /// Instructions of the program and their translations.
    known: Known,
    /// Instructions that are executed often, and where translations for that are.
    hot: FxHashSet<u64>,
    stops: Stops,
    targets: Targets,
    blocks: Blocks,
    /// Memory that hodo has mapped, besides regions.
    mapped: Vec<Span>,
    recorder: Option<Rc<RefCell<Recorder>>>,
    /// What the counters count: numbers of blocks.
    counters: RefCell<Vec<u32>>,
    /// The mappings, if they are known: only what observes needs them.
    maps: Vec<Mapping>,
    files: Files,
    /// Pages of code that cannot change.
    pages: RefCell<FxHashMap<u64, Rc<[u8]>>>,
    /// Threads that fetch the rest of an instruction, where that cannot be fetched: this place, and the instruction.
    cuts: FxHashMap<i32, (u64, u64)>,
    flags: Flags,
    marked: Marked,
    /// Whether it may not register restartable sequences; `None`: it has not tried.
    refuses_sequences: Option<bool>,
}

impl Process {
    /// The address space of a program that has just been executed, or of one that runs. It is not prepared yet.
    ///
    /// # Errors
    /// If the thread is gone.
    pub(crate) fn new(
        thread: Stopped,
        recorder: Option<Rc<RefCell<Recorder>>>,
        kept: Rc<RefCell<Kept>>,
    ) -> Result<Self> {
        let program = std::fs::read_link(format!("/proc/{thread}/exe"));
        Ok(Self {
            memory: Writer::new(thread.memory()?),
            code: Code::default(),
            marks: RefCell::default(),
            changes: Changes::default(),
            protected: Protected::default(),
            lent: FxHashSet::default(),
            is_open: false,
            closed: 0,
            cache: Cache::default(),
            known: Known::default(),
            hot: FxHashSet::default(),
            stops: Stops::default(),
            targets: Targets::default(),
            blocks: Blocks::none(),
            mapped: Vec::new(),
            recorder,
            counters: RefCell::default(),
            maps: Vec::new(),
            files: Files::new(program.unwrap_or_default(), kept),
            pages: RefCell::default(),
            cuts: FxHashMap::default(),
            flags: Flags::default(),
            marked: Marked::default(),
            refuses_sequences: None,
        })
    }

    /// Prepares the address space. All threads are stopped.
    ///
    /// # Errors
    /// If there is no room for the cache, or the thread is gone.
    pub(crate) fn start(&mut self, thread: Stopped) -> Result<()> {
        let maps = maps::read(thread.tid())?;
        let calls = Syscalls::begin_anywhere(thread, &self.memory, &maps)?;
        let mapped = self.map_all(&calls, &maps);
        calls.end()?;
        mapped?;
        self.guard(thread, &maps)
    }

    fn map_all(&mut self, calls: &Syscalls, maps: &[Mapping]) -> Result<()> {
        let place = places::for_table(maps, table::SIZE);
        let place = place.context("there is no room below 2 GiB")?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        map(calls, Span::at(place, table::SIZE), protection)?;
        self.targets.at = place;
        self.mapped.push(Span::at(place, table::SIZE));
        let entry = calls.thread().regs()?.pc();
        self.map_region(calls, maps, entry)?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let got = calls.mmap(TargetAddr(AWAY), blocks::SIZE, libc::PROT_NONE, flags, None)?;
        let at = got.addr().context("memory for threads")?;
        self.mapped.push(self.blocks.begin(at.0));
        Ok(())
    }

    /// Maps a region near an address.
    fn map_region(&mut self, calls: &Syscalls, maps: &[Mapping], near: u64) -> Result<()> {
        let heap = start_of_heap(calls.thread().tid());
        let place = places::for_region(maps, near, self.cache.is_empty(), heap);
        let place = place.or_else(|| places::for_far_region(maps));
        let place = place.context("there is no room for translated code")?;
        let span = Span::at(place, REGION);
        // A wild access of the program is to fault there.
        map(calls, span, libc::PROT_NONE)?;
        let first = Span::at(place, STEP);
        open(calls, first)?;
        self.memory.write(TargetAddr(place), &SYSTEM_CALL)?;
        if places::is_away(span) {
            self.cache.note_lonely(near);
        }
        self.cache.add(Region::new(span, 64, first));
        Ok(())
    }

    /// One of our instructions that makes system calls.
    fn syscall_place(&self) -> TargetAddr {
        TargetAddr(self.cache.spans().next().map_or(0, |span| span.start))
    }

    /// Begins system calls in a stopped thread.
    ///
    /// # Errors
    /// If the thread is gone.
    pub(crate) fn calls_of(&self, thread: Stopped) -> Result<Syscalls> {
        Syscalls::begin_in(thread, self.syscall_place(), Some(&self.memory))
    }

    /// Memory of a thread for what hodo passes to the kernel.
    ///
    /// # Errors
    /// If the thread is gone.
    pub(crate) fn scratch(&self, thread: Stopped) -> Result<TargetAddr> {
        Ok(TargetAddr(thread.block()? + block::ARGUMENTS))
    }

    /// Makes the program's own code unexecutable.
    fn guard(&mut self, thread: Stopped, maps: &[Mapping]) -> Result<()> {
        let calls = self.calls_of(thread)?;
        // The page of the old system calls cannot be changed.
        let own =
            |mapping: &&Mapping| mapping.executable && mapping.path.as_os_str() != "[vsyscall]";
        for mapping in maps.iter().filter(own) {
            let span = mapping.span();
            let write = if mapping.writable {
                libc::PROT_WRITE
            } else {
                0
            };
            if calls.mprotect(TargetAddr(span.start), span.len(), libc::PROT_READ | write)? {
                let soft = mapping.writable || mapping.shared || mapping.inode == 0;
                self.add_code(span, mapping.writable, soft)?;
            }
        }
        calls.end()
    }

    /// The same address space in a process that was forked just now, by the thread with this block. That had last been
    /// resumed when this much was written.
    ///
    /// # Errors
    /// If the process is gone.
    pub(crate) fn forked(&self, child: Stopped, block: Option<u64>, since: u64) -> Result<Self> {
        let memory = look_into(child, self.syscall_place(), || child.memory())?;
        let mut copy = Self {
            memory: Writer::new(memory),
            code: self.code.clone(),
            marks: self.marks.clone(),
            changes: self.changes.clone(),
            protected: self.protected.clone(),
            lent: FxHashSet::default(),
            is_open: false,
            closed: 0,
            cache: self.cache.clone(),
            known: self.known.clone(),
            hot: self.hot.clone(),
            stops: self.stops.clone(),
            targets: self.targets.clone(),
            blocks: self.blocks.forked(block),
            mapped: self.mapped.clone(),
            recorder: self.recorder.clone(),
            counters: self.counters.clone(),
            maps: self.maps.clone(),
            files: self.files.clone(),
            pages: self.pages.clone(),
            cuts: FxHashMap::default(),
            flags: self.flags,
            marked: self.marked.clone(),
            refuses_sequences: self.refuses_sequences,
        };
        let marks = copy.marks.borrow().rooms().to_vec();
        let regions = copy.cache.all();
        let executable = libc::PROT_READ | libc::PROT_EXEC;
        let regions = regions.map(|region| (region.span, region.open(), executable));
        let rooms = marks.iter().map(|&room| (room, room, libc::PROT_READ));
        let regions: Vec<(Span, Span, i32)> = regions.chain(rooms).collect();
        let used = copy.cache.all();
        let used = used.map(|region| Span::from(region.span.start..region.next()));
        let used: Vec<Span> = used.chain(marks).chain([copy.targets.span()]).collect();
        let memory = (&self.memory, &copy.memory);
        let calls = || copy.calls_of(child);
        written::catch_up(memory, since, calls, &regions, &used)?;
        // It was copied after its maker had last been resumed.
        if self.is_open || self.closed > since {
            copy.take_back(child)?;
        } else if self.memory.count() != since && self.protected.is_used() {
            copy.renew_rights(child)?;
        }
        Ok(copy)
    }

    /// What the counters of its threads count: numbers of blocks.
    pub(crate) fn counters(&self) -> Ref<'_, Vec<u32>> {
        self.counters.borrow()
    }

    /// Counters count these blocks, too.
    pub(crate) fn add_counters(&self, ids: Range<u32>) {
        self.counters.borrow_mut().extend(ids);
    }

    /// The mappings, in ascending order.
    ///
    /// # Errors
    /// If the thread is gone.
    pub(crate) fn list(&self, thread: Stopped) -> Result<Vec<Mapping>> {
        look_into(thread, self.syscall_place(), || maps::read(thread.tid()))
    }

    /// The program's memory.
    pub(crate) fn memory(&self) -> &Writer {
        &self.memory
    }

    /// Whether an address is in the cache.
    pub(crate) fn holds(&self, at: u64) -> bool {
        self.cache.region_of(at).is_some()
    }

    /// Where a thread is that is at this address in the cache.
    pub(crate) fn place(&self, at: u64) -> Option<Place> {
        let point = self.cache.region_of(at)?.point(at)?;
        Some(match point.state.inside {
            None if point.at == at => Place::At(AppPoint::unprobed(point.original)),
            None => Place::Inside(point.original, Saved::default()),
            Some(saved) => Place::Inside(point.original, saved),
        })
    }

    /// A map of values of the program that are in a thread's block.
    pub(crate) fn state_map(&self, number: u32) -> InSlots {
        let recorder = self.recorder.as_ref();
        let passes = recorder.and_then(|recorder| recorder.borrow().passes());
        passes.map_or_else(InSlots::new, |passes| passes.borrow().map(number).to_vec())
    }

    /// What of the code for its block a thread has executed that is at this address.
    pub(crate) fn stage(&self, at: u64) -> Stage {
        let point = self.cache.region_of(at).and_then(|region| region.point(at));
        point.map_or(Stage::Body, |point| point.state.stage)
    }

    /// The block to which the code at this address belongs.
    pub(crate) fn block_at(&self, at: u64) -> Option<Arc<Block>> {
        self.cache.region_of(at)?.block_at(at)
    }

    /// Where the code begins that writes a record, and that a thread is in that is at this address.
    pub(crate) fn record_start(&self, at: u64) -> Option<u64> {
        self.cache.region_of(at)?.record_start(at)
    }

    /// Whether the program may execute this.
    pub(crate) fn is_code(&self, at: u64) -> bool {
        self.code.spans().at(at).is_some()
    }

    /// Whether some of a range is code.
    pub(crate) fn has_code(&self, range: Span) -> bool {
        self.code.spans().overlap(range)
    }

    /// What a breakpoint of the cache is for.
    pub(crate) fn stop(&self, trap: u64) -> Option<Stop> {
        if let Some(image) = self.cache.image_of(trap) {
            let exit = image.exit(trap).map(|(target, _)| Stop::Exit(target));
            let call = || image.call(trap).map(Stop::Call);
            let miss = || image.miss(trap).map(Stop::Miss);
            return exit.or_else(call).or_else(miss);
        }
        if let Some(stop) = self.stops.leading(trap) {
            return Some(stop);
        }
        if let Some(&check) = self.changes.check(trap) {
            return Some(Stop::Changed(check));
        }
        self.stops.other(trap)
    }

    /// Whether a thread that is here misses a target in the table, and where it continues.
    pub(crate) fn miss(&self, trap: u64) -> Option<u64> {
        match self.cache.image_of(trap) {
            Some(image) => image.miss(trap),
            None => self.stops.miss(trap),
        }
    }

    /// A thread is at a breakpoint. If it is that of an exit to code that is translated, no other thread comes here.
    ///
    /// # Errors
    /// If the process is gone.
    pub(crate) fn link(&self, trap: u64) -> Result<()> {
        let exit = match self.cache.image_of(trap) {
            Some(image) => image.exit(trap),
            None => self.stops.exit(trap),
        };
        if let Some((target, cell)) = exit
            && let Some(at) = self.known.get(target)
        {
            self.memory.write(TargetAddr(cell), &at.to_le_bytes())?;
        }
        Ok(())
    }

    /// Where a target is in the cache that a thread did not find in the table, which has it from now on. A target that
    /// the program may not execute stays itself, so that the program faults there.
    ///
    /// # Errors
    /// If there is no room, or the process is gone.
    pub(crate) fn find_missing(&mut self, thread: Stopped, target: u64) -> Result<u64> {
        let Some(at) = self.translated(thread, target)? else {
            return Ok(target);
        };
        self.put_target(target, at)?;
        Ok(at)
    }

    /// Where an instruction of the program is in the cache. Translates it if necessary; a stopped thread may have to
    /// map memory for that. `None`: the program may not execute it.
    ///
    /// # Errors
    /// If there is no room, or the process is gone.
    pub(crate) fn translated(&mut self, thread: Stopped, pc: u64) -> Result<Option<u64>> {
        if let Some(at) = self.known.get(pc) {
            return Ok(Some(at));
        }
        if !self.is_code(pc) || self.cut(pc).is_some() {
            return Ok(None);
        }
        if self.cache.any_region_for(pc).is_none() {
            let maps = self.list(thread)?;
            let calls = self.calls_of(thread)?;
            let mapped = self.map_region(&calls, &maps, pc);
            calls.end()?;
            mapped?;
        }
        if let Some(recorder) = &self.recorder {
            recorder.borrow().check_room(&self.counters(), MOST)?;
            if self.maps.is_empty() {
                self.maps = self.list(thread)?;
                crate::contents::note(thread.tid(), &self.maps);
            }
        }
        let is_soft = self.may_change(pc);
        if !is_soft {
            self.enter(thread, pc)?;
            if self.keep_flags()? {
                return self.translated(thread, pc);
            }
            if let Some(at) = self.known.get(pc) {
                return Ok(Some(at));
            }
            if self.is_marker(pc) {
                return self.stub_of(thread, pc).map(Some);
            }
        }
        if is_soft && !self.marks.borrow().has_room(2 * MOST_SOFT as u64) {
            self.map_marks(thread)?;
        }
        if is_soft {
            self.protect(thread, pc)?;
        }
        let region = self.cache.any_region_for(pc).context("the cache is full")?;
        let most = if is_soft { MOST_SOFT } else { MOST };
        let within = self.code.together(pc);
        let on_stack = is_soft && within.contains(thread.regs()?.sp());
        let within = (within, on_stack);
        let (translation, _) = self.translate(region, &[pc], None, most, within);
        self.tell_blocks(&translation);
        self.extend(thread, region, translation.bytes.len())?;
        let returns = self.add(region, translation)?;
        self.put_targets(&returns)?;
        if self.keep_flags()? {
            return self.translated(thread, pc);
        }
        Ok(self.known.get(pc))
    }

    /// Whether an instruction is not translated together with code that does not change.
    fn is_apart(&self, pc: u64) -> bool {
        self.may_change(pc) || self.is_marker(pc)
    }

    /// Tells the listener which blocks a translation has.
    pub(crate) fn tell_blocks(&self, translation: &Translation) {
        if let Some(recorder) = &self.recorder {
            let blocks = translation.blocks.iter();
            for block in blocks.filter_map(|(_, block)| block.clone()) {
                // The code for branches that leave it belongs to it, too.
                recorder.borrow_mut().tell_block(block);
            }
        }
    }

    /// Translates code: `most` is the maximum number of instructions; `on_stack`: it may be on a stack. Returns the
    /// pages that were read, too.
    pub(crate) fn translate(
        &self,
        region: usize,
        starts: &[u64],
        profile: Option<&Profile>,
        most: usize,
        (within, on_stack): (Span, bool),
    ) -> (Translation, Vec<u64>) {
        let mut fetched = Fetched::new(self, within);
        let region = &self.cache[region];
        let recorder = self.recorder.as_ref();
        let insertion = recorder.map(|recorder| recorder.borrow().insertion());
        let passes = recorder.and_then(|recorder| recorder.borrow().passes());
        let watch = recorder.map(|recorder| recorder.borrow().watch());
        let mut numbers = |identity: Identify<'_>| {
            let id = recorder.map_or(0, |recorder| recorder.borrow_mut().number(identity));
            let mut counters = self.counters.borrow_mut();
            counters.push(id);
            (id, counters.len() as u32 - 1)
        };
        let mut line_number =
            |line| recorder.map_or(0, |recorder| recorder.borrow_mut().line_number(line));
        let translation = translate::<Native>(Request {
            starts,
            profile,
            most,
            within,
            base: region.next(),
            table: self.targets.at,
            read: &mut |at| fetched.read(at),
            known: &|pc| self.known.get(pc).filter(|_| within.contains(pc)),
            soft: &|pc| self.is_apart(pc),
            notice: &|pc| self.notice(pc),
            on_stack,
            mark: &|address| self.marks.borrow_mut().of(address),
            insertion,
            keeps_flags: self.flags.are_kept(),
            passes: passes.as_deref(),
            file: &|pc| maps::file_at(&self.maps, pc),
            watch: watch.as_deref(),
            numbers: &mut numbers,
            line_number: &mut line_number,
        });
        if let Some(passes) = passes {
            // A counter is a word of a pass here.
            let mut counters = self.counters.borrow_mut();
            let made = counters.len() as u32..passes.borrow().words();
            counters.extend(made);
        }
        (translation, fetched.pages())
    }

    /// Writes a translation into the cache. Returns where its calls return to, for the table of targets.
    pub(crate) fn add(
        &mut self,
        index: usize,
        mut translation: Translation,
    ) -> Result<Vec<(u64, u64)>> {
        self.flags.note(translation.loses_flags);
        let region = &mut self.cache[index];
        let base = TargetAddr(region.next());
        self.memory.write(base, &translation.bytes)?;
        region.add(&mut translation);
        for exit in translation.exits {
            self.stops.add_exit(exit);
            match self.known.get(exit.target).filter(|_| !exit.linked) {
                // It was left out.
                Some(at) => self
                    .memory
                    .write(TargetAddr(exit.cell), &at.to_le_bytes())?,
                None if !exit.linked => self.stops.wait(exit.target, exit.cell),
                None => {}
            }
        }
        self.changes.add(&translation.checks);
        for &made in &translation.uncompared {
            self.protected.add(made);
        }
        self.stops.add(translation.calls, translation.misses);
        for (pc, at) in translation.instructions {
            self.known.insert(pc, at);
            let waiting = self.stops.end_wait(pc);
            for cell in waiting.into_iter().chain(self.known.waiting(pc)) {
                self.memory.write(TargetAddr(cell), &at.to_le_bytes())?;
            }
        }
        Ok(translation.returns)
    }

    /// Lets returns and indirect branches find a target.
    ///
    /// # Errors
    /// If the process is gone.
    pub(crate) fn put_target(&mut self, pc: u64, at: u64) -> Result<()> {
        if let Some(map) = self.files.mapping(pc)
            && !self.may_change(pc)
        {
            let offset = map.offset + (pc - map.start);
            self.files.note(&map.path, offset, true);
        }
        self.put_targets(&[(pc, at)])
    }

    /// If a target had no room in the table, empties it. All threads wait.
    ///
    /// # Errors
    /// If the process is gone.
    pub(crate) fn make_room(&mut self) -> Result<()> {
        match self.targets.is_crowded {
            true => self.targets.clear(&self.memory),
            false => Ok(()),
        }
    }

    /// Lets returns and indirect branches find these targets.
    ///
    /// # Errors
    /// If the process is gone.
    pub(crate) fn put_targets(&mut self, targets: &[(u64, u64)]) -> Result<()> {
        self.targets.put(&self.memory, targets, self.is_alone())
    }

    /// Whether only one thread runs from the cache.
    pub(crate) fn is_alone(&self) -> bool {
        self.blocks.is_single()
    }

    /// The program may execute this from now on. What may change may have been translated when it was executable
    /// before.
    ///
    /// # Errors
    /// If the process is gone.
    pub(crate) fn add_code(&mut self, range: Span, writable: bool, soft: bool) -> Result<()> {
        self.maps.clear();
        self.code.add(range, writable, soft);
        match soft {
            true => self.mark(range, true)?,
            false => {
                self.known.remove_pages(|page| range.contains(page));
                self.changes.forget(range);
                self.files.forget_list();
            }
        }
        Ok(())
    }

    /// Whether the process may not register restartable sequences. At first, `has_some` says whether there are any:
    /// they would not be restarted. The kernel compares the place of a thread that was preempted with the program's
    /// addresses, and the thread is in the cache.
    pub(crate) fn refuses_sequences(&mut self, has_some: impl FnOnce() -> bool) -> bool {
        *self.refuses_sequences.get_or_insert_with(has_some)
    }

    /// Memory was moved, with the rights that the program has there.
    ///
    /// # Errors
    /// If the process is gone.
    pub(crate) fn move_code(&mut self, from: Span, to: Span) -> Result<()> {
        let within = |spans: &Spans| -> Vec<Span> {
            let mut moved = Vec::new();
            for part in spans.within(from) {
                let start = part.start - from.start + to.start;
                // What comes after the end has the rights of what was before it.
                let end = match part.end == from.end {
                    true => to.end,
                    false => (part.end - from.start + to.start).min(to.end),
                };
                if start < end {
                    moved.push(Span::from(start..end));
                }
            }
            moved
        };
        let (code, writable) = (within(self.code.spans()), within(self.code.writable()));
        self.remove_code(from)?;
        self.remove_code(to)?;
        for part in code {
            self.add_code(
                part,
                writable.iter().any(|other| other.overlaps(part)),
                true,
            )?;
        }
        Ok(())
    }

    /// The program may no longer execute this, or other code is there.
    ///
    /// # Errors
    /// If the process is gone.
    pub(crate) fn remove_code(&mut self, range: Span) -> Result<()> {
        self.mark(range, false)?;
        self.end_protection(None, range)?;
        self.protected.forget_shared(range);
        let hard = self.code.hard();
        if hard.overlap(range) {
            let all = hard.around(range);
            self.keep_unloaded(all);
            self.forget(all)?;
        }
        self.code.remove(range);
        self.maps.clear();
        self.files.end(range);
        let mut pages = self.pages.borrow_mut();
        pages.retain(|&page, _| !range.overlaps(Span::at(page, PAGE)));
        Ok(())
    }

    /// Forgets the translations of code that cannot change. All of the code in these mappings is in the range, because
    /// it jumps to each other directly.
    pub(crate) fn forget(&mut self, range: Span) -> Result<()> {
        let is_gone = |pc: u64| range.contains(pc);
        self.known.remove_pages(is_gone);
        self.hot.retain(|&pc| !is_gone(pc));
        self.targets.remove(&self.memory, is_gone)?;
        // Threads may still be in an image.
        for image in self.known.remove_images(is_gone) {
            for [trap, cell, target] in image.exits() {
                self.stops.add_exit(Exit {
                    trap,
                    cell,
                    target,
                    linked: false,
                });
            }
        }
        for [trap, cell, _] in self.known.exits_to(is_gone) {
            self.memory.write(TargetAddr(cell), &trap.to_le_bytes())?;
        }
        for (cell, trap) in self.stops.unlink(is_gone) {
            self.memory.write(TargetAddr(cell), &trap.to_le_bytes())?;
        }
        Ok(())
    }
}
