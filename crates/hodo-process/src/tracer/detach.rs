//! Detaching: every followed process gets its code back, its threads leave all memory of ours, that memory goes, and they run on
//! as if nothing had been.

mod held;
mod returns;

use hodo_ptrace::arch;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::iter::once;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use hodo_symbols::Cfa;

use super::delivery::CAUSED;
use super::off::{LEAVING, stepping, steps_until};
use super::stopping::after;
use super::stopping::{PATIENCE, Stopped, exists};
use super::{SharedSpace, Thread, Tracer, guarded};
use crate::frames::{self, Walked};
use crate::instrument;
use crate::ledger::Entry;
use crate::limits;
use crate::machine;
use crate::reserve;
use crate::space::Moved;
use crate::space::Space;
use held::Unwinders;
use hodo_ptrace as ptrace;
use hodo_ptrace::arch::frame::{PC, RETURN};
use hodo_ptrace::maps;
use hodo_ptrace::maps::Mapping;
use hodo_ptrace::stops;
use hodo_ptrace::{Memory, Syscalls};
use returns::Process;

/// For so long they run until it is seen whether they have, at most.
const PAUSE: Duration = Duration::from_millis(20);
/// How often it is seen at least: a slow machine looks at few moments in that time.
const TRIES_TO_LEAVE: u32 = 100;
/// How often it is tried to detach at all.
const TRIES: u32 = 3;
/// How far above the stack pointer calls are looked for that hooks have made.
const HOOKED: usize = 256 << 10;

impl Tracer<'_> {
    /// Lets all threads that are followed go on without hodo. Whatever fails is said, and each process gets its code back.
    pub(super) fn detach(&mut self) {
        reserve::give_back();
        // What an error or a panic has kept from being done is done in another try.
        for _ in 0..TRIES {
            match guarded(|| self.let_all_go()) {
                Ok(()) => break,
                Err(error) => {
                    self.unfinished = true;
                    warn_user!("hodo: detaching: {error:#}");
                }
            }
        }
        for thread in std::mem::take(&mut self.threads).into_values() {
            let Some(space) = &thread.space else {
                continue;
            };
            // Its threads may run: better than code that nobody will ever take back.
            if let Err(error) = guarded(|| instrument::revert(thread.pid, &space.borrow()))
                && exists(thread.pid)
            {
                self.unfinished = true;
                warn_user!(
                    "hodo: the code of process {} stays changed: {error:#}",
                    thread.pid
                );
            }
        }
    }

    /// A thread that nobody has let go on after its stop would never stop again: has it do what it was about to do, and stop before
    /// that.
    fn release_dealt(&mut self) -> Result<()> {
        while let Some((tid, status)) = self.dealing.pop() {
            match release(tid, status) {
                Err(error) if !ptrace::is_gone(&error) => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    fn let_all_go(&mut self) -> Result<()> {
        self.release_dealt()?;
        let all: BTreeSet<i32> = self.threads.keys().copied().collect();
        let mut stopped = self.stop(&all)?;
        let mut done = Vec::new();
        // What is left may make others meanwhile, with memory of their own perhaps.
        while let Some((&tid, space)) =
            (self.threads.iter()).find_map(|(tid, thread)| Some((tid, thread.space.clone()?)))
        {
            let of_space = |thread: &Thread| {
                let own = thread.space.as_ref();
                own.is_some_and(|own| Rc::ptr_eq(own, &space))
            };
            let left = guarded(|| self.leave(&space, &mut stopped));
            if left.is_err()
                && let Ok(space) = space.try_borrow()
            {
                // At least that.
                let _ = guarded(|| instrument::revert(tid, &space));
            }
            // Whoever has been killed meanwhile has nothing of ours, whatever failed because of that.
            let mut threads = self.threads.iter();
            let is_there = threads.any(|(&tid, thread)| of_space(thread) && exists(tid));
            if let Err(error) = left
                && !ptrace::is_gone(&error)
                && is_there
            {
                self.unfinished = true;
                let text = format!("detaching: {error:#}");
                warn_user!("hodo: {tid}: {text}");
                let _ = self.remark(tid, &text);
            }
            let threads = self.threads.extract_if(|_, thread| of_space(thread));
            done.extend(threads);
            for (tid, _) in done.iter().filter(|(_, thread)| of_space(thread)) {
                let _ = ptrace::detach(*tid);
            }
        }
        for &tid in self.threads.keys() {
            let _ = ptrace::detach(tid);
        }
        self.threads.clear();
        for (_, thread) in &done {
            let Some(number) = thread.tcb.filter(|_| thread.task != 0) else {
                continue;
            };
            self.lost += self.session.events.lost(number);
            self.unshadowed += self.session.events.unshadowed(number);
            self.bad_frames(thread, number)?;
        }
        Ok(())
    }

    /// The threads of an address space that are stopped.
    pub(super) fn stopped_in(&self, space: &SharedSpace, stopped: &Stopped) -> BTreeSet<i32> {
        let own = |thread: &Thread| {
            let own = thread.space.as_ref();
            own.is_some_and(|own| Rc::ptr_eq(own, space))
        };
        let all = self.threads.iter().filter(|(_, thread)| own(thread));
        all.map(|(&tid, _)| tid)
            .filter(|tid| stopped.contains_key(tid))
            .collect()
    }

    /// Lets stopped threads run until none is in the middle of switching static keys.
    fn wait_for_keys(&mut self, space: &SharedSpace, stopped: &mut Stopped) -> Result<()> {
        let begun = Instant::now();
        loop {
            let own = self.stopped_in(space, stopped);
            let Some(&tid) = own.first() else {
                return Ok(());
            };
            let memory = Memory::open(tid)?;
            if !space.borrow().keys.is_busy(tid, &memory) {
                return Ok(());
            }
            if begun.elapsed() > LEAVING {
                space.borrow_mut().keys.let_go();
                let text =
                    "a thread does not finish switching static keys: tracepoints stay switched on";
                return self.remark(tid, text);
            }
            let mut late = after(PAUSE);
            self.run_on(&own, stopped, || {
                late() || !space.borrow().keys.is_busy(tid, &memory)
            })?;
        }
    }

    /// Gives an address space back what it had. Its threads stay stopped.
    fn leave(&mut self, space: &SharedSpace, stopped: &mut Stopped) -> Result<()> {
        self.wait_for_keys(space, stopped)?;
        self.all_come_off(stopped, space)?;
        let Some(tid) = self.stopped_in(space, stopped).pop_first() else {
            return Ok(());
        };
        let pid = self.threads[&tid].pid;
        let memory = Memory::open(tid)?;
        // The hooks stay until nobody needs them: unwinders on their way through frames with stubs.
        instrument::revert(tid, &space.borrow())?;
        // They are lowered once, and keys are held by nobody then.
        space.borrow_mut().semaphores.clear();
        space.borrow_mut().keys.let_go();
        let begun = Instant::now();
        // Who only does this has time.
        let leaving = LEAVING * if self.clearing { 5 } else { 1 };
        let mut pause = Duration::from_micros(100);
        let mut tries = 0u32;
        let own = loop {
            // Others than before: threads are made, and end, while they run.
            let own = self.stopped_in(space, stopped);
            let Some(&tid) = own.first() else {
                return Ok(());
            };
            for tid in &own {
                if let Some(thread) = self.threads.get_mut(tid) {
                    // Before anybody runs, for the code is the original one already; and again, for signals may have come meanwhile.
                    match thread.contexts.leave(*tid) {
                        Err(error) if !ptrace::is_gone(&error) => return Err(error),
                        _ => {}
                    }
                }
            }
            let maps = maps::read(tid)?;
            let left = settle(&own, &memory, &maps, space, Unwinding::GoesOn)?;
            let Some(reason) = left.or_else(|| self.coming(&own, space)) else {
                break own;
            };
            let waited = begun.elapsed();
            if waited > leaving && (tries >= TRIES_TO_LEAVE || waited > leaving * 10) {
                bail!(
                    "{reason}: the memory of hodo stays mapped in process {pid}; its code is restored, and it runs on"
                );
            }
            // Now and then nobody is held: others may wait for them.
            tries += 1;
            match tries % 4 {
                0 => self.run_on(&own, stopped, after(pause))?,
                _ => self.run_until_unwinding(&own, space, stopped, pause)?,
            }
            pause = (pause * 3 / 2).min(Duration::from_millis(5));
        };
        let Some(&tid) = own.first() else {
            return Ok(());
        };
        // The rest is done, and other code may be there now.
        instrument::remove_hooks(&memory, &space.borrow())?;
        restored(tid, &memory, &space.borrow())?;
        for &tid in &own {
            match arch::set_block(tid, 0, space.borrow().workshop, 0) {
                Err(error) if !ptrace::is_gone(&error) => return Err(error),
                _ => {}
            }
        }
        self.forget_words(space);
        let maps = maps::read(tid)?;
        let group = unmap(tid, &memory, &maps, &mut space.borrow_mut())?;
        stopped.insert(tid, group);
        Ok(())
    }
}

/// Has a thread that is stopped with this status do what it was about to do, and stop before that.
fn release(tid: i32, status: i32) -> Result<()> {
    if !libc::WIFSTOPPED(status) {
        return Ok(());
    }
    let mut signal = 0;
    if status >> 16 == 0 {
        let info = ptrace::siginfo(tid)?;
        // What it stands for may be another than that of the stop: one that has waited.
        signal = info.si_signo;
        if CAUSED.contains(&signal) && signal != libc::SIGSYS && info.si_code > 0 {
            // The instruction is executed again, and our breakpoint is not there then.
            let mut regs = ptrace::regs(tid)?;
            let mut code = arch::BREAKPOINT.map(|_| 0);
            if signal == libc::SIGTRAP
                && arch::is_breakpoint(&info)
                && Memory::open(tid)?
                    .read(regs.breakpoint(), &mut code)
                    .is_ok()
                && code == arch::BREAKPOINT
            {
                regs.set_pc(regs.breakpoint());
                ptrace::set_regs(tid, &regs)?;
            }
            signal = 0;
        }
    }
    ptrace::interrupt(tid)?;
    ptrace::cont(tid, signal)
}

/// Gives a new process, which is stopped and has one thread, back what its maker had. Tells whether nothing of ours is left.
///
/// # Errors
/// If the process is gone, or its memory not to be had.
pub(super) fn leave_child(child: i32, space: &SharedSpace) -> Result<bool> {
    let memory = Memory::open(child)?;
    instrument::revert(child, &space.borrow())?;
    space.borrow_mut().semaphores.clear();
    space.borrow_mut().keys.let_go();
    let maps = maps::read(child)?;
    let child_alone = BTreeSet::from([child]);
    if settle(&child_alone, &memory, &maps, space, Unwinding::GoesOn)?.is_some() {
        return Ok(false);
    }
    restore(child, &memory, &space.borrow())?;
    arch::set_block(child, 0, space.borrow().workshop, 0)?;
    unmap(child, &memory, &maps, &mut space.borrow_mut())?;
    Ok(true)
}

/// Puts back all that was written over code.
///
/// # Errors
/// If the process's memory is not to be had.
pub(super) fn restore(tid: i32, memory: &Memory, space: &Space) -> Result<()> {
    instrument::put_back(memory, space)?;
    restored(tid, memory, space)
}

/// # Errors
/// If the dynamic linker's breakpoint is still there: it would end the program.
fn restored(tid: i32, memory: &Memory, space: &Space) -> Result<()> {
    let Some(at) = space.r_brk else {
        return Ok(());
    };
    let jump = space
        .announcement
        .map(|announcement| announcement.jump.to_vec());
    let changed = jump.unwrap_or_else(|| arch::BREAKPOINT.to_vec());
    let mut code = vec![0; changed.len()];
    if memory.read(at, &mut code).is_ok() && code == changed {
        bail!("the breakpoint in the dynamic linker of process {tid} did not go away");
    }
    Ok(())
}

/// Whether threads that are in the midst of unwinding their stacks go on with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unwinding {
    /// They do.
    GoesOn,
    /// The process ends where it is.
    Over,
}

/// Moves stopped threads out of the memory of ours, and restores what their stacks hold. Returns why that has to wait.
pub(super) fn settle(
    tids: &BTreeSet<i32>,
    memory: &Memory,
    maps: &[Mapping],
    space: &SharedSpace,
    unwinding: Unwinding,
) -> Result<Option<&'static str>> {
    let table = Table::new(space);
    let mut left = None;
    for &tid in tids {
        match step_out(tid, &table, space, unwinding) {
            Ok(true) => {}
            Ok(false) => left = Some("a thread does not leave it"),
            Err(error) if ptrace::is_gone(&error) => {}
            Err(error) => return Err(error),
        }
    }
    let Some(&first) = tids.iter().next() else {
        return Ok(left);
    };
    let space = space.borrow();
    let unwinders = Unwinders::new(maps, &space);
    // No stack lies in memory of ours, of which there is much.
    let ours = space.regions(memory);
    let mut stacks: Vec<Mapping> = maps
        .iter()
        .filter(|m| {
            !ours
                .iter()
                .any(|&(at, size)| m.start.wrapping_sub(at) < size)
        })
        .cloned()
        .collect();
    let mut pointers = Vec::new();
    let mut sps = Vec::new();
    let mut kernels = Vec::new();
    let mut registers = Vec::new();
    let mut walked = Walked::default();
    let returns = Process {
        tid: first,
        space: &space,
        table: &table,
        memory,
        maps,
        traced: RefCell::default(),
        others: RefCell::default(),
        known: RefCell::default(),
    };
    // The real return address of what is executed at `pc`, whose stub is the one that `back` leads to.
    let real = |back, pc, sp, pointer| {
        real(&space, memory, pc, sp, pointer).or_else(|| {
            let frame = returns.made(returns.stub_of(back)?.0).frame(pc, sp)?;
            frames::shadow(memory, frame)
        })
    };
    let saves_contexts = space.files.iter().any(|file| file.image.saves_contexts());
    for &tid in tids {
        let Ok(mut regs) = ptrace::regs(tid) else {
            continue;
        };
        sps.push(regs.sp());
        if let Some(back) = regs.return_address().filter(|&at| space.holds(at))
            && returns.stub_of(back).is_some()
        {
            match real(back, regs.pc(), regs.sp(), regs.frame_pointer()) {
                Some(address) => {
                    regs.set_return_address(address);
                    ptrace::set_regs(tid, &regs)?;
                }
                None => left = Some("a thread will return into it"),
            }
        }
        if saves_contexts && !space.holds(regs.pc()) && returns.stub_of(regs.carried()).is_some() {
            left = Some("a thread will return into it");
        }
        let handled = frames::signal_frames(tid, memory, maps, &|at| space.holds(at))?;
        for frame in &handled {
            kernels.push(frame.extent());
            registers.push(frame.registers());
            match table.original(frame.pc) {
                _ if !space.holds(frame.pc) => {}
                Some(original) => memory.write(frame.at, &original.to_le_bytes())?,
                None => left = Some("a signal handler will return into it"),
            }
            if let Some((at, pointer)) = RETURN {
                let at = frame.at - PC + at;
                let back = memory.read_u64(at)?;
                if space.holds(back) && returns.stub_of(back).is_some() {
                    let pc = table.original(frame.pc).unwrap_or(frame.pc);
                    let pointer = memory.read_u64(frame.at - PC + pointer)?;
                    match real(back, pc, frame.sp, pointer) {
                        Some(address) => memory.write(at, &address.to_le_bytes())?,
                        None => left = Some("a signal handler will return into it"),
                    }
                }
            }
        }
        // What a handler has interrupted may have another stack.
        let interrupted = handled.iter().map(|frame| (frame.pc, frame.sp));
        let mut unwinds = false;
        for (pc, sp) in once((regs.pc(), regs.sp())).chain(interrupted) {
            let words = frames::top_words(memory, maps, sp, HOOKED);
            let awaited = |&word: &u64| space.holds(word) && space.hook_awaits(memory, word);
            if words.iter().any(awaited) {
                left = Some("an unwinder will return into it");
            }
            // An unwinder on its way has read addresses of frames already: they must stay as they are.
            if unwinding == Unwinding::GoesOn && unwinders.are_met(pc, &words) {
                left = Some("an unwinder is walking through its frames");
                stacks.retain(|m| !((m.start..m.end).contains(&sp)));
                unwinds = true;
            }
            pointers.extend(words);
        }
        if !unwinds {
            returns.walk(&regs, &mut walked);
        }
        pointers.extend(regs.pointers());
    }
    if space.stubs.iter().any(|stubs| !stubs.is_empty()) || !space.copies.is_empty() {
        let restored =
            frames::restore_returns(first, memory, &stacks, &registers, &returns, walked)?;
        if !restored.frames.is_empty() {
            frames::correct_exceptions(memory, maps, pointers.into_iter(), &restored.frames)?;
        }
        if saves_contexts {
            frames::restore_contexts(first, memory, &stacks, space.islands, &returns)?;
        }
        // Below the stack pointer there is nothing to return to, and the kernel's frames have what was left there between
        // registers; elsewhere, it may be what was left there.
        let stack = |at: u64| stacks.iter().find(|m| (m.start..m.end).contains(&at));
        let is_dead = |&at: &u64| {
            let mut sps = sps.iter().filter(|&&sp| {
                stack(at).is_some_and(|stack| (stack.start..stack.end).contains(&sp))
            });
            sps.next().is_some_and(|&sp| at < sp)
        };
        let is_in_use =
            |at: &&u64| !is_dead(at) && !kernels.iter().any(|kernel| kernel.contains(*at));
        // It would be left in the midst of frames that are made there later.
        for &at in (restored.lost.iter().chain(&restored.left)).filter(|at| is_dead(at)) {
            memory.write(at, &[0; 8])?;
        }
        if restored.lost.iter().any(|at| is_in_use(&at)) {
            left = Some("a function will return into it");
        }
    }
    Ok(left)
}

/// The real return address of the function that is executed at `pc`, if unwind tables tell where its frame is.
fn real(space: &Space, memory: &Memory, pc: u64, sp: u64, pointer: u64) -> Option<u64> {
    let (file, addr) = space.file_at(pc)?;
    let (base, offset) = match file.frames().at(addr)? {
        Cfa::Stack(offset) => (sp, offset),
        Cfa::Frame(offset) => (pointer, offset),
        Cfa::Other => return None,
    };
    frames::shadow(memory, base.wrapping_add_signed(offset.into()))
}

/// The program's instructions for which those of ours stand.
struct Table(Rc<Moved>);

impl Table {
    fn new(space: &SharedSpace) -> Self {
        Self(Moved::of(&mut space.borrow_mut()))
    }

    /// If this is where the detour of a return probe comes back to, behind the call of its function's code: where that
    /// function is.
    fn calls_body(&self, memory: &Memory, at: u64) -> Option<u64> {
        self.original(machine::called_before(memory, at)?)
    }

    fn original(&self, at: u64) -> Option<u64> {
        self.0.standing(at).map(|standing| standing.original)
    }
}

/// Has a stopped thread leave our memory. Tells whether it has.
fn step_out(tid: i32, table: &Table, space: &SharedSpace, unwinding: Unwinding) -> Result<bool> {
    let holds = |at| space.borrow().holds(at);
    let mut regs = ptrace::regs(tid)?;
    if !holds(regs.pc()) {
        return Ok(true);
    }
    if let Some(original) = table.original(regs.pc()) {
        regs.set_pc(original);
        ptrace::set_regs(tid, &regs)?;
        return Ok(true);
    }
    let out = stepping(tid, || steps(tid, table, space))?;
    // One that is about to end is to get the signal for which it has stopped.
    if unwinding == Unwinding::GoesOn {
        stops::rest(tid)?;
    }
    Ok(out)
}

fn steps(tid: i32, table: &Table, space: &SharedSpace) -> Result<bool> {
    steps_until(tid, space, |mut regs| {
        if !space.borrow().holds(regs.pc()) {
            return Ok(true);
        }
        let Some(original) = table.original(regs.pc()) else {
            return Ok(false);
        };
        regs.set_pc(original);
        ptrace::set_regs(tid, &regs)?;
        Ok(true)
    })
}

/// Unmaps all memory of ours by system calls of a stopped thread. Tells whether its process is stopped as a whole.
///
/// # Errors
/// If the thread is gone, or the kernel refuses.
pub(super) fn unmap(
    tid: i32,
    memory: &Memory,
    maps: &[Mapping],
    space: &mut Space,
) -> Result<bool> {
    let calls = Syscalls::begin_anywhere(tid, memory, maps)?;
    let mut failed = 0;
    for (start, size) in space.regions(memory) {
        if start != space.ledger.region().0 {
            space.ledger.note(memory, &Entry::Unmapped(start))?;
        }
        let got = calls.call(libc::SYS_munmap, [start, size, 0, 0, 0, 0])?;
        failed += i32::from(got != 0);
    }
    let group = calls.end_in_stop()?;
    if failed > 0 {
        bail!("{failed} of hodo's mappings could not be unmapped in process {tid}");
    }
    limits::lower(tid, space.extra);
    *space = Space::default();
    Ok(group)
}
