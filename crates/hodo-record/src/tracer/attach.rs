//! Attaches: stops all threads of a running process, maps and writes what was prepared, and resumes the threads.

use hodo_ptrace::TargetAddr;
use hodo_ptrace::arch;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use hodo_abi::Span;
use hodo_patch::Copied;

use super::shared::{Maker, Origin};
use super::{Outcome, SharedSpace, Thread, Tracer, guarded};
use crate::abandon::before_attaching;
use crate::work::Work;
use hodo_inject::frames;
use hodo_inject::install;
use hodo_inject::install::{Prepared, Wanted};
use hodo_inject::ledger;
use hodo_inject::trap_handler;
use hodo_ptrace as ptrace;
use hodo_ptrace::maps;
use hodo_ptrace::maps::Mapping;
use hodo_ptrace::processes::{have_one_memory, named, or_ended};
use hodo_ptrace::signals;
use hodo_ptrace::signals::{Interrupts, go_on};
use hodo_ptrace::stops::Stops;
use hodo_ptrace::{Memory, Stopped, Syscalls};

/// How many times attaching is tried if the process has changed between plan and stop, or was stopped in the wrong
/// place.
const TRIES: u32 = 40;

/// How many times in each of these a thread may be found switching static keys.
const SWITCHES: u32 = 300;

/// The auxiliary vector, with which the kernel has executed the process's program (getauxval(3)). Its addresses differ
/// from one execution to the next. Empty if the process is ending.
fn executed(pid: i32) -> Vec<u8> {
    hodo_ptrace::auxv::of(pid).unwrap_or_default()
}

/// Why attaching must wait while libraries come and go.
const UNSTEADY: &str = "it keeps loading and unloading code";

/// The result of one try.
enum Tried {
    Attached(Duration),
    /// The obstacle.
    NotYet(&'static str),
}

impl Tracer<'_> {
    /// Attaches to processes, given with their names, and follows them until they end or the recording is to end.
    ///
    /// # Errors
    /// Why one of them cannot be attached to; they all run on as if nothing had happened.
    pub fn run_attached(
        mut self,
        mut interrupts: Interrupts,
        processes: &[(i32, String)],
    ) -> Result<Outcome> {
        let begun = Instant::now();
        // This starts a thread, which may fail: before anything is changed. Requests are answered later.
        self.listen();
        let stopped = self.attach_all(processes)?;
        // Whatever fails from here on, the process gets its code back.
        let followed = guarded(|| {
            // Nothing can be undone any more.
            if let Err(error) = self.session.begin() {
                warn_user!("hodo: {error:#}");
            }
            if self.options.verbose > 0 {
                let whom = match processes {
                    [_] => "the process was",
                    _ => "the processes were",
                };
                warn_user!(
                    "hodo: attached in {:.1} ms; {whom} stopped for {:.2} ms",
                    begun.elapsed().as_secs_f64() * 1e3,
                    stopped.as_secs_f64() * 1e3
                );
            }
            interrupts.begin(self.options.duration);
            self.program.set_interrupts(Some(interrupts));
            self.follow_all()
        });
        if let Err(error) = followed {
            self.broke(&error);
        }
        self.program.set_interrupts(None);
        self.control = None;
        self.detach();
        signals::forget();
        self.complete()
    }

    pub(super) fn work(&mut self) -> Work<'_> {
        Work {
            modules: &mut self.modules,
            session: &mut *self.session,
            selection: &self.selection,
            recording: self.recording,
        }
    }

    /// Attaches to one process after the other, or to none. Returns for how long they were stopped. Each is
    /// [`Program::first`](hodo_follow::Program::first) while hodo attaches to it.
    fn attach_all(&mut self, processes: &[(i32, String)]) -> Result<Duration> {
        let first = self.program.first;
        for (pid, name) in processes {
            self.program.first = *pid;
            self.clear_left()
                .map_err(|error| or_ended(*pid, name, error))?;
        }
        if processes.len() > 1 {
            // All plans are made before the first process is attached to: whatever happens in it then has to wait for
            // the last.
            for (pid, name) in processes {
                let mut work = self.work();
                Wanted::new(*pid, &mut work)
                    .and_then(|wanted| install::prepare(wanted, &mut work))
                    .map_err(|error| or_ended(*pid, name, error))?;
            }
        }
        let mut stopped = Duration::ZERO;
        for (pid, name) in processes {
            self.program.first = *pid;
            match self.attach() {
                Ok(time) => stopped += time,
                Err(error) => {
                    self.program.first = first;
                    self.detach();
                    return Err(or_ended(*pid, name, error));
                }
            }
        }
        self.program.first = first;
        Ok(stopped)
    }

    /// Removes what a killed hodo has left.
    fn clear_left(&mut self) -> Result<()> {
        let pid = self.program.first;
        if let Some(found) = ledger::find(pid)? {
            self.clear(&found)?;
            warn_user!(
                "hodo: process {}: restored what a killed hodo had left there",
                named(pid)
            );
        }
        Ok(())
    }

    /// Whether nothing was done to the process that is being attached to.
    fn is_untouched(&self) -> bool {
        let pid = self.program.first;
        !self.threads.values().any(|thread| thread.pid == pid)
    }

    /// Attaches to the process; returns for how long it was stopped.
    fn attach(&mut self) -> Result<Duration> {
        let pid = self.program.first;
        let mut pause = Duration::from_micros(500);
        let mut reason = "";
        for _ in 0..TRIES {
            let before = executed(pid);
            match self.plan_and_attach() {
                Ok(Tried::Attached(time)) => return Ok(time),
                Ok(Tried::NotYet(why)) => reason = why,
                Err(_) if self.is_untouched() && executed(pid) != before => {
                    // The program that was inspected is gone.
                    reason = "it is executing another program";
                }
                Err(error) => return Err(error),
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(50));
        }
        bail!("process {pid} cannot be attached to now: {reason}; try again")
    }

    fn plan_and_attach(&mut self) -> Result<Tried> {
        let pid = self.program.first;
        // What has been done to other processes would have to be undone.
        let is_first = self.threads.is_empty();
        let planning = is_first.then(|| before_attaching(self.session.removal()));
        let mut work = self.work();
        let wanted = Wanted::new(pid, &mut work)?;
        let prepared = install::prepare(wanted, &mut work)?;
        drop(planning);
        let Some(prepared) = prepared else {
            return Ok(Tried::NotYet(UNSTEADY));
        };
        go_on()?;
        hodo_symbols::fetch_no_more();
        self.try_attach(prepared)
    }

    fn try_attach(&mut self, prepared: Prepared) -> Result<Tried> {
        let mut begun = Instant::now();
        let mut stops = Stops::new(self.program.first, self.session.ptrace_options());
        let mut stopped = stops.stop_all();
        // A program that does little but switch keys is seldom stopped while it does not.
        for _ in 0..SWITCHES {
            let Ok(memory) = Memory::open(self.program.first) else {
                break;
            };
            if stopped.is_err() || !prepared.is_switching(&memory) {
                break;
            }
            stops.detach();
            prepared.wait_for_switching(&memory);
            begun = Instant::now();
            stops = Stops::new(self.program.first, self.session.ptrace_options());
            stopped = stops.stop_all();
        }
        let done = stopped.and_then(|()| guarded(|| self.place(prepared, &mut stops)));
        match done {
            Ok(None) => {
                stops.resume();
                self.begin_watching();
                Ok(Tried::Attached(begun.elapsed()))
            }
            Ok(Some(reason)) => {
                stops.detach();
                Ok(Tried::NotYet(reason))
            }
            Err(error) if self.is_untouched() => {
                stops.detach();
                Err(error)
            }
            Err(error) => {
                // There are patches already.
                stops.resume();
                self.detach();
                Err(error)
            }
        }
    }

    /// Maps and writes everything. Returns the reason if that has to wait.
    fn place(&mut self, mut prepared: Prepared, stops: &mut Stops) -> Result<Option<&'static str>> {
        let pid = self.program.first;
        let memory = Memory::open(pid)?;
        if let Some(reason) = has_to_wait(pid, &prepared, &memory)? {
            return Ok(Some(reason));
        }
        let maps = maps::read(pid)?;
        let moves = match Moves::find(pid, &prepared, stops, &memory, &maps)? {
            Ok(moves) => moves,
            Err(reason) => return Ok(Some(reason)),
        };
        let worker = stops
            .worker()
            .context("no thread of the process can run system calls for hodo")?;
        let calls = Syscalls::begin_anywhere(worker, &memory, &maps)?;
        let mapped = prepared.map(&calls, &memory, &self.work());
        let group = calls.end_in_stop()?;
        stops.set_group(worker, group);
        let written = guarded(|| {
            mapped?;
            prepared.write_islands(&memory)?;
            if let Some(group) = trap_handler::prepare_in_stop(worker, &mut prepared.space)? {
                stops.set_group(worker, group);
            }
            Ok(())
        });
        if let Err(error) = written {
            // Unmaps what was mapped.
            let mut space = prepared.space;
            hodo_inject::leave::restore(pid, &memory, &space)?;
            let group = hodo_inject::leave::unmap(worker, &memory, &maps, &mut space)?;
            stops.set_group(worker, group);
            return Err(error);
        }
        let space = Rc::new(RefCell::new(std::mem::take(&mut prepared.space)));
        self.begin_tasks(stops, &space)?;
        for (stopped, probed) in moves.in_calls {
            match self.was_in_call(stopped, probed) {
                Err(error) if !ptrace::is_gone(&error) => return Err(error),
                _ => {}
            }
        }
        for (stopped, to) in moves.threads {
            match stopped.regs().and_then(|mut regs| {
                regs.set_pc(to);
                stopped.set_regs(&regs)
            }) {
                Err(error) if !ptrace::is_gone(&error) => return Err(error),
                _ => {}
            }
        }
        for (at, to) in moves.frames {
            memory.write(TargetAddr(at), &to.to_le_bytes())?;
        }
        prepared.write_sites(&memory, &mut space.borrow_mut())?;
        let islands = space.borrow().islands();
        prepared.log(&islands, &mut self.work())?;
        Ok(None)
    }

    /// Gives tasks and control blocks to all threads.
    fn begin_tasks(&mut self, stops: &Stops, space: &SharedSpace) -> Result<()> {
        let pid = self.program.first;
        for stopped in stops.threads() {
            // Whatever fails from here on, it is known what the threads have.
            let thread = Thread {
                space: Some(Rc::clone(space)),
                ..Thread::untraced(pid)
            };
            self.threads.insert(stopped.tid(), thread);
        }
        // The first thread may have ended before the others.
        let first = stops.get(pid);
        if let Some(first) = first {
            self.begin_task(first, pid, "attach", 0, space, Origin::default())?;
        }
        let parent = self.threads.get(&pid).map_or(0, |thread| thread.task);
        let page = space.borrow().scratch_page();
        // The thread that first used each word.
        let mut words = HashMap::new();
        if let Some(first) = first
            && let Some(word) = first.place_of_block(page)?
        {
            words.insert(word, first);
        }
        for stopped in stops.threads().filter(|&stopped| Some(stopped) != first) {
            let earlier = match stopped.place_of_block(page)? {
                Some(word) => *words.entry(word).or_insert(stopped),
                None => stopped,
            };
            let maker = Maker {
                thread: earlier,
                waits: false,
            };
            let origin = Origin {
                maker: Some(maker).filter(|maker| maker.thread != stopped),
                tcb: None,
                begins: false,
            };
            self.begin_task(stopped, pid, "thread", parent, space, origin)?;
        }
        Ok(())
    }
}

/// Why a stopped process cannot be attached to now.
fn has_to_wait(pid: i32, prepared: &Prepared, memory: &Memory) -> Result<Option<&'static str>> {
    if prepared.is_loading(memory) {
        return Ok(Some("it is loading a library"));
    }
    if prepared.is_switching(memory) {
        return Ok(Some("it is switching static keys"));
    }
    let parent = ptrace::status(pid, "PPid:").and_then(|text| text.parse().ok());
    if parent.is_some_and(|parent| have_one_memory(pid, parent)) {
        return Ok(Some(
            "it shares its memory with the process that has made it",
        ));
    }
    Ok((!prepared.holds()?).then_some(UNSTEADY))
}

/// What has to be moved out of code that will be changed.
#[derive(Default)]
struct Moves {
    /// Threads, and where they continue.
    threads: Vec<(Stopped, u64)>,
    /// Addresses in the frames of signal handlers, and their new values.
    frames: Vec<(u64, u64)>,
    /// Threads in system calls, and whether there is a probe on the call.
    in_calls: Vec<(Stopped, bool)>,
}

impl Moves {
    /// Inspects all threads. The inner error is the reason if that has to wait.
    fn find(
        pid: i32,
        prepared: &Prepared,
        stops: &Stops,
        memory: &Memory,
        maps: &[Mapping],
    ) -> Result<Result<Self, &'static str>> {
        let mut moves = Self::default();
        let (ranges, copies) = (prepared.ranges(), prepared.copies());
        for stopped in stops.threads() {
            let regs = stopped.regs()?;
            let block = stopped.block()?;
            if block != 0 && !install::is_left_over(block, None, maps) {
                bail!("process {pid} {}", arch::BLOCK_IN_USE);
            }
            let in_call = regs.may_go_back();
            let again = stops.makes_again(stopped);
            let at = copies.partition_point(|copied| copied.original < regs.pc());
            let mut here = (copies[at..].iter()).take_while(|copied| copied.original == regs.pc());
            let call = here.find(|copied| copied.call && (in_call || again));
            if call.is_some() || again || regs.is_made_again() {
                moves.in_calls.push((stopped, call.is_some()));
            }
            if let Some(call) = call.filter(|_| again) {
                moves.threads.push((stopped, call.copy));
                continue;
            }
            match moved(regs.pc(), in_call, &ranges, &copies) {
                Ok(None) => {}
                Ok(Some(to)) => moves.threads.push((stopped, to)),
                Err(()) => {
                    return Ok(Err(
                        "a thread is in the middle of an instruction to be changed",
                    ));
                }
            }
        }
        for stopped in stops.threads() {
            for frame in frames::signal_frames(stopped, memory, maps, &|_| false)? {
                match moved(frame.pc, false, &ranges, &copies) {
                    Ok(None) => {}
                    Ok(Some(to)) => moves.frames.push((frame.at, to)),
                    Err(()) => {
                        return Ok(Err("a signal has interrupted an instruction to be changed"));
                    }
                }
            }
        }
        Ok(Ok(moves))
    }
}

/// Where a thread at `pc` has to continue when the ranges are changed. `None`: where it is. An error: there is no such
/// place. `in_call`: it is stopped in a system call, which the kernel may restart.
pub(super) fn moved(
    pc: u64,
    in_call: bool,
    ranges: &[Span],
    copies: &[Copied],
) -> Result<Option<u64>, ()> {
    // Ranges do not overlap.
    let is_inside = |pc| {
        let next = ranges.partition_point(|range| range.start < pc);
        next.checked_sub(1)
            .is_some_and(|index| pc < ranges[index].end)
    };
    let must =
        is_inside(pc) || in_call && is_inside(pc.wrapping_sub(arch::SYSTEM_CALL.len() as u64));
    let begins = ranges
        .binary_search_by_key(&pc, |range| range.start)
        .is_ok();
    if !must && begins {
        return Ok(None);
    }
    let at = copies.partition_point(|copied| copied.original < pc);
    let mut here = copies[at..]
        .iter()
        .take_while(|copied| copied.original == pc);
    let call = here.clone().find(|copied| copied.call && in_call);
    match call.or_else(|| here.find(|copied| !copied.call)) {
        // Unchanged code may branch back to code that changes.
        Some(copied) if must || copied.call || !in_call => Ok(Some(copied.before)),
        _ if must => Err(()),
        _ => Ok(None),
    }
}
