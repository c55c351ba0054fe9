//! The way back: threads leave our memory, their stacks are restored to what they would be without hodo, and the memory
//! is unmapped.

mod returns;
mod unwinders;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::iter::once;
use std::ops::Range;
use std::rc::Rc;

use anyhow::{Result, bail};
use hodo_ptrace as ptrace;
use hodo_ptrace::arch;
use hodo_ptrace::arch::frame::{PC, RETURN};
use hodo_ptrace::maps;
use hodo_ptrace::maps::Mapping;
use hodo_ptrace::stops;
use hodo_ptrace::{Memory, Regs, Stopped, Syscalls, TargetAddr};
use hodo_symbols::Cfa;

use crate::arch as code;
use crate::frames::{self, Returns as _, SignalFrame, Walked};
use crate::ledger::Entry;
use crate::limits;
use crate::site_writer;
use crate::space::{Moved, SharedSpace, Space};
use crate::step_out::{run_ahead, stepping, steps_until};
use crate::stubs::Stubs;
use crate::trap_handler;
use returns::Process;
use unwinders::Unwinders;

/// How far above the stack pointer to search for calls that hooks have made.
const HOOKED: usize = 256 << 10;

/// Restores a new process, which is stopped and has one thread, to what its maker had originally. Returns whether
/// nothing of ours is left.
///
/// # Errors
/// If the process is gone, or its memory cannot be accessed.
pub fn leave_child(child: Stopped, space: &SharedSpace) -> Result<bool> {
    let memory = child.memory()?;
    site_writer::revert(child.tid(), &space.borrow())?;
    space.borrow_mut().is_reverted();
    let maps = maps::read(child.tid())?;
    let child_alone = BTreeSet::from([child]);
    if settle(&child_alone, &memory, &maps, space, Unwinding::GoesOn)?.is_some() {
        return Ok(false);
    }
    restore(child.tid(), &memory, &space.borrow())?;
    child.set_block(0, space.borrow().scratch_page(), 0)?;
    unmap(child, &memory, &maps, &mut space.borrow_mut())?;
    Ok(true)
}

/// Restores everything that was written over code.
///
/// # Errors
/// If the process's memory cannot be accessed.
pub fn restore(tid: i32, memory: &Memory, space: &Space) -> Result<()> {
    site_writer::put_back(memory, space)?;
    restored(tid, memory, space)
}

/// Checks that the code of the dynamic linker is restored.
///
/// # Errors
/// If the dynamic linker's breakpoint is still there: it would end the program.
pub fn restored(tid: i32, memory: &Memory, space: &Space) -> Result<()> {
    let Some(at) = space.linker_stop() else {
        return Ok(());
    };
    let jump = space
        .announcement()
        .map(|announcement| announcement.jump.to_vec());
    let changed = jump.unwrap_or_else(|| arch::BREAKPOINT.to_vec());
    let mut code = vec![0; changed.len()];
    if memory.read(TargetAddr(at), &mut code).is_ok() && code == changed {
        bail!("the breakpoint in the dynamic linker of process {tid} did not go away");
    }
    Ok(())
}

/// Whether threads that are unwinding their stacks will continue to do so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unwinding {
    /// They will.
    GoesOn,
    /// The process ends at this point.
    Over,
}

/// What keeps our memory in use.
#[derive(Debug, Clone)]
pub struct Left {
    /// In words.
    pub reason: &'static str,
    /// The threads that may use it. The others have no use for it any more.
    pub threads: BTreeSet<Stopped>,
    /// Whether one of them is unwinding its stack, for which it needs the hooks.
    pub unwinds: bool,
}

/// Moves stopped threads out of our memory, and restores their stacks. Returns the reason if that has to wait.
///
/// # Errors
/// If the process's memory cannot be accessed.
pub fn settle(
    threads: &BTreeSet<Stopped>,
    memory: &Memory,
    maps: &[Mapping],
    space: &SharedSpace,
    unwinding: Unwinding,
) -> Result<Option<Left>> {
    let table = Table::new(space);
    let mut inside = BTreeSet::new();
    for &thread in threads {
        match step_out(thread, &table, space, unwinding) {
            Ok(true) => {}
            Ok(false) => _ = inside.insert(thread),
            Err(error) if ptrace::is_gone(&error) => {}
            Err(error) => return Err(error),
        }
    }
    let Some(&first) = threads.first() else {
        return Ok(None);
    };
    let space = space.borrow();
    let mut stacks = Stacks::new(first, &space, &table, (memory, maps), unwinding);
    let mut left = Left {
        reason: "",
        threads: inside,
        unwinds: false,
    };
    if !left.threads.is_empty() {
        left.reason = "a thread does not leave it";
    }
    for &thread in threads {
        let Ok(regs) = thread.regs() else {
            continue;
        };
        stacks.thread(thread, regs)?;
        if let Some(reason) = stacks.left.take() {
            left.reason = reason;
            left.threads.insert(thread);
        }
    }
    stacks.restore()?;
    if let Some(reason) = stacks.left {
        // The stack may be any thread's.
        left.reason = reason;
        left.threads.clone_from(threads);
    }
    left.unwinds = stacks.is_unwinding;
    Ok(Some(left).filter(|left| !left.threads.is_empty()))
}

/// The stacks of stopped threads of one process, and what has to be restored in them.
struct Stacks<'a> {
    space: &'a Space,
    memory: &'a Memory,
    maps: &'a [Mapping],
    unwinding: Unwinding,
    table: &'a Table,
    returns: Process<'a>,
    unwinders: Unwinders<'a>,
    /// Where to search for return addresses.
    stacks: Vec<Mapping>,
    /// Words that may point to exceptions in flight.
    pointers: Vec<u64>,
    /// Stack pointers.
    sps: Vec<u64>,
    /// The frames that the kernel has made for signal handlers: the whole frame, and the general registers in it.
    kernels: Vec<Range<u64>>,
    registers: Vec<Range<u64>>,
    walked: Walked,
    saves_contexts: bool,
    /// Why something has to wait.
    left: Option<&'static str>,
    /// Whether a thread is unwinding its stack.
    is_unwinding: bool,
}

impl<'a> Stacks<'a> {
    fn new(
        thread: Stopped,
        space: &'a Space,
        table: &'a Table,
        (memory, maps): (&'a Memory, &'a [Mapping]),
        unwinding: Unwinding,
    ) -> Self {
        // No stack is in our memory. There is much of it, so it is not searched.
        let ours = space.regions(memory);
        let is_ours = |m: &Mapping| ours.iter().any(|region| region.contains(m.start));
        Self {
            space,
            memory,
            maps,
            unwinding,
            table,
            returns: Process {
                thread,
                space,
                table,
                memory,
                maps,
                traced: RefCell::default(),
                others: RefCell::default(),
                known: RefCell::default(),
            },
            unwinders: Unwinders::new(maps, space),
            stacks: maps.iter().filter(|m| !is_ours(m)).cloned().collect(),
            pointers: Vec::new(),
            sps: Vec::new(),
            kernels: Vec::new(),
            registers: Vec::new(),
            walked: Walked::default(),
            saves_contexts: space
                .written()
                .files()
                .iter()
                .any(|file| file.image.saves_contexts()),
            left: None,
            is_unwinding: false,
        }
    }

    /// What has to take the place of a return address in a register, if it is the one of a stub: the real return
    /// address of the function that is executed at `pc`. It may be signed, as `word` may be.
    fn real(&self, word: u64, pc: u64, sp: u64, pointer: u64) -> Option<u64> {
        let of = self.returns.is_return(arch::unsigned(word))?;
        let by_tables = frame(self.space, pc, sp, pointer);
        let find = |s: u64| Some((s, frames::shadow(self.memory, s)?));
        let by_code = || find(self.returns.made(of.function).frame(pc, sp)?);
        let (s, real) = by_tables.and_then(find).or_else(by_code)?;
        let how = of
            .called
            .and_then(|called| self.returns.signing(called, s, false));
        let page = self.space.scratch_page();
        let thread = self.returns.thread;
        thread.sign_again(page, word, real, how).ok().flatten()
    }

    /// Whether this is a return address into a stub, perhaps signed.
    fn is_stub(&self, back: u64) -> bool {
        let back = arch::unsigned(back);
        self.space.holds(back) && self.returns.stub_of(back).is_some()
    }

    /// Restores a thread's registers and the frames of its signal handlers, and inspects its stack.
    fn thread(&mut self, thread: Stopped, mut regs: Regs) -> Result<()> {
        self.sps.push(regs.sp());
        if let Some(back) = regs.return_address().filter(|&at| self.is_stub(at)) {
            match self.real(back, regs.pc(), regs.sp(), regs.frame_pointer()) {
                Some(address) => {
                    regs.set_return_address(address);
                    thread.set_regs(&regs)?;
                }
                None => self.left = Some("a thread will return into it"),
            }
        }
        if self.saves_contexts
            && !self.space.holds(regs.pc())
            && self.returns.stub_of(regs.carried()).is_some()
        {
            self.left = Some("a thread will return into it");
        }
        let space = self.space;
        let handled = frames::signal_frames(thread, self.memory, self.maps, &|at| space.holds(at))?;
        for frame in &handled {
            self.handler(frame)?;
        }
        let mut walked = Walked::default();
        self.returns.walk(&regs, &mut walked);
        // The interrupted code may run on another stack.
        let interrupted = handled.iter().map(|frame| (frame.pc, frame.sp));
        let mut unwinds = false;
        for (pc, sp) in once((regs.pc(), regs.sp())).chain(interrupted) {
            unwinds |= self.top(pc, sp, &walked);
        }
        // Where S is known of each frame, all are found by their shadow.
        if !unwinds && code::RETURNS_BELOW != 0 {
            self.walked.append(walked);
        }
        self.pointers.extend(regs.pointers());
        Ok(())
    }

    /// Restores the address to which a signal handler returns.
    fn handler(&mut self, frame: &SignalFrame) -> Result<()> {
        let memory = self.memory;
        self.kernels.push(frame.extent());
        self.registers.push(frame.registers());
        match self.table.original(frame.pc) {
            _ if !self.space.holds(frame.pc) => {}
            Some(original) => memory.write(TargetAddr(frame.at), &original.to_le_bytes())?,
            None => self.left = Some("a signal handler will return into it"),
        }
        let Some((at, pointer)) = RETURN else {
            return Ok(());
        };
        let at = frame.at - PC + at;
        let back = memory.read_u64(TargetAddr(at))?;
        if self.is_stub(back) {
            let pc = self.table.original(frame.pc).unwrap_or(frame.pc);
            let pointer = memory.read_u64(TargetAddr(frame.at - PC + pointer))?;
            match self.real(back, pc, frame.sp, pointer) {
                Some(address) => memory.write(TargetAddr(at), &address.to_le_bytes())?,
                None => self.left = Some("a signal handler will return into it"),
            }
        }
        Ok(())
    }

    /// Inspects the top of a stack. Returns whether an unwinder is running there. `walked`: the thread's frames, as far
    /// as unwind tables lead.
    fn top(&mut self, pc: u64, sp: u64, walked: &Walked) -> bool {
        let words = frames::top_words(self.memory, self.maps, sp, HOOKED);
        // Functions do not overwrite all of their frames: words of calls that have ended stay in them for long.
        let is_leftover = walked.leftovers();
        let of_calls = (sp & !7..).step_by(8).zip(&words);
        let calls: Vec<u64> = of_calls
            .map(|(at, &word)| if is_leftover(at) { 0 } else { word })
            .collect();
        let awaited = |(index, &word): (usize, &u64)| {
            self.space.holds(word)
                && self.space.hook_awaits(self.memory, word)
                && self.is_hook_frame(&words[index..])
        };
        if calls.iter().enumerate().any(awaited) {
            self.left = Some("an unwinder will return into it");
        }
        // A running unwinder has already read addresses of frames: they must stay as they are.
        let unwinds =
            self.unwinding == Unwinding::GoesOn && self.unwinders.are_met(pc, &calls, &words);
        if unwinds {
            self.left = Some("an unwinder is walking through its frames");
            self.is_unwinding = true;
            self.stacks.retain(|m| !((m.start..m.end).contains(&sp)));
        }
        self.pointers.extend(words);
        unwinds
    }

    /// Whether a hook may have made a call that returns to the first of these words: above the hook's frame is where
    /// the hook itself returns to.
    fn is_hook_frame(&self, words: &[u64]) -> bool {
        let returns = |&size: &u64| {
            let back = words
                .get(1 + size as usize / 8)
                .copied()
                .unwrap_or_default();
            self.space.holds(back) || self.returns.follows_call(back)
        };
        code::HOOK_FRAMES.is_empty() || code::HOOK_FRAMES.iter().any(returns)
    }

    /// Replaces return addresses of stubs by the real ones.
    fn restore(&mut self) -> Result<()> {
        let (space, memory, maps) = (self.space, self.memory, self.maps);
        let written = space.written();
        if written.stubs().iter().all(Stubs::is_empty) && written.copies().is_empty() {
            return Ok(());
        }
        let tid = self.returns.thread.tid();
        let walked = std::mem::take(&mut self.walked);
        let restored = frames::restore_returns(
            tid,
            memory,
            &self.stacks,
            &self.registers,
            &self.returns,
            walked,
        )?;
        if !restored.frames.is_empty() {
            let pointers = std::mem::take(&mut self.pointers).into_iter();
            frames::correct_exceptions(memory, maps, pointers, &restored.frames)?;
        }
        if self.saves_contexts {
            frames::restore_contexts(tid, memory, &self.stacks, space.islands(), &self.returns)?;
        }
        // Otherwise it would later be among frames that are made there.
        for &at in (restored.lost.iter().chain(&restored.left)).filter(|&&at| self.is_dead(at)) {
            memory.write(TargetAddr(at), &[0; 8])?;
        }
        if restored.lost.iter().any(|&at| self.is_in_use(at)) {
            self.left = Some("a function will return into it");
        }
        Ok(())
    }

    /// Nothing returns to addresses below the stack pointer.
    fn is_dead(&self, at: u64) -> bool {
        let stack = self.stacks.iter().find(|m| (m.start..m.end).contains(&at));
        let own = |sp: &&u64| stack.is_some_and(|stack| (stack.start..stack.end).contains(*sp));
        self.sps.iter().find(own).is_some_and(|&sp| at < sp)
    }

    /// In the kernel's frames, the words between registers are leftovers; elsewhere, words may be leftovers.
    fn is_in_use(&self, at: u64) -> bool {
        !self.is_dead(at) && !self.kernels.iter().any(|kernel| kernel.contains(&at))
    }
}

/// S of the function that is executed at `pc`, if unwind tables show it.
fn frame(space: &Space, pc: u64, sp: u64, pointer: u64) -> Option<u64> {
    let (file, addr) = space.file_at(pc)?;
    let (base, offset) = match file.frames().at(addr)? {
        Cfa::Stack(offset) => (sp, offset),
        Cfa::Frame(offset) => (pointer, offset),
        Cfa::Other => return None,
    };
    Some(base.wrapping_add_signed(offset.into()))
}

/// The instructions of the program for which ours stand.
struct Table(Rc<Moved>);

impl Table {
    fn new(space: &SharedSpace) -> Self {
        Self(Moved::of(&mut space.borrow_mut()))
    }

    /// If `at` is where the detour of a return probe continues after the call of its function's code: the address of
    /// that function.
    fn calls_body(&self, memory: &Memory, at: u64) -> Option<u64> {
        self.original(code::called_before(memory, at)?)
    }

    fn original(&self, at: u64) -> Option<u64> {
        self.0.app_point(at).map(|point| point.original)
    }
}

/// Makes a stopped thread leave our memory. Returns whether it has left. If not, it leaves by itself when it runs.
///
/// If it can run, it makes no single steps where our instructions can be interpreted: the few others are soon over, and
/// if hodo were killed meanwhile, the thread would stay in step mode, which ends the program.
fn step_out(
    thread: Stopped,
    table: &Table,
    space: &SharedSpace,
    unwinding: Unwinding,
) -> Result<bool> {
    let holds = |at| space.borrow().holds(at);
    let mut regs = thread.regs()?;
    if !holds(regs.pc()) {
        return Ok(true);
    }
    if let Some(original) = table.original(regs.pc()) {
        regs.set_pc(original);
        thread.set_regs(&regs)?;
        return Ok(true);
    }
    let ahead = run_ahead(thread, &regs, |regs| {
        !holds(regs.pc()) || table.original(regs.pc()).is_some()
    })?;
    if let Some(mut regs) = ahead {
        if let Some(original) = table.original(regs.pc()) {
            regs.set_pc(original);
            thread.set_regs(&regs)?;
        }
        return Ok(true);
    }
    if arch::INTERPRETS && unwinding == Unwinding::GoesOn {
        return Ok(false);
    }
    let out = stepping(thread, || steps(thread, table, space))?;
    // If the process is about to end, the thread must get the signal for which it has stopped.
    if unwinding == Unwinding::GoesOn {
        stops::rest(thread)?;
    }
    Ok(out)
}

fn steps(thread: Stopped, table: &Table, space: &SharedSpace) -> Result<bool> {
    steps_until(thread, space, |mut regs| {
        if !space.borrow().holds(regs.pc()) {
            return Ok(true);
        }
        let Some(original) = table.original(regs.pc()) else {
            return Ok(false);
        };
        regs.set_pc(original);
        thread.set_regs(&regs)?;
        Ok(true)
    })
}

/// Unmaps all our memory, using system calls of a stopped thread. Returns whether its process is stopped as a whole.
///
/// # Errors
/// If the thread is gone, or the kernel refuses.
pub fn unmap(
    thread: Stopped,
    memory: &Memory,
    maps: &[Mapping],
    space: &mut Space,
) -> Result<bool> {
    let calls = Syscalls::begin_anywhere(thread, memory, maps)?;
    trap_handler::take_back(&calls, memory, space)?;
    let mut failed = 0;
    for region in space.regions(memory) {
        if region != space.ledger().region() {
            space
                .ledger()
                .note(memory, &Entry::Unmapped(region.start))?;
        }
        failed += i32::from(!calls.munmap(TargetAddr(region.start), region.len())?);
    }
    let group = calls.end_in_stop()?;
    if failed > 0 {
        bail!("{failed} of hodo's mappings could not be unmapped in process {thread}");
    }
    limits::lower(thread.tid(), space.raised());
    *space = Space::default();
    Ok(group)
}
