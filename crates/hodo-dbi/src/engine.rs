//! Follows the threads of a program that runs from the cache.

mod attach;
mod blocked;
mod debuggers;
mod handlers;
mod limit;
mod marked;
mod notes;
mod policy;
mod progress;
mod refused;
pub(crate) mod run;
mod stepped;
mod tracers;
mod watched;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use anyhow::Result;
use hodo_abi::Span;
use hodo_follow::{CAUSED, Program, Restarts, Tasks, ends_untraced};
use hodo_ptrace::{Memory, Regs, Stopped, TargetAddr, fault_address, set_fault_address};

use self::limit::Limit;
use self::progress::Progress;
use self::stepped::Steps;
use self::tracers::Tracers;
use crate::kept::Kept;
use crate::markers::Markers;
use crate::native::{block, stopped};
use crate::process::{Place, Process, Stop};
use crate::profile::Profile;
use crate::recorder::{Beginning, Cut, Recorder, Recording, Rest};
use crate::state::{record_of, restore_from, run_to_instruction};
use crate::translate::{Saved, Stage};
use crate::trap::{Actions, Blocked, OURS};

/// `si_code` of a fault because nothing is mapped there.
const SEGV_MAPERR: i32 = 1;
/// `si_code` of a fault because the page may not be accessed in this way.
const SEGV_ACCERR: i32 = 2;
/// `si_code` after an instruction of a program that steps itself.
const TRAP_TRACE: i32 = 2;
/// `si_code` of a fault because an access is not aligned.
const BUS_ADRALN: i32 = 1;
/// Signals that do not end a process that has no handler for them.
const SURVIVED: [i32; 8] = [
    libc::SIGCHLD,
    libc::SIGCONT,
    libc::SIGURG,
    libc::SIGWINCH,
    libc::SIGSTOP,
    libc::SIGTSTP,
    libc::SIGTTIN,
    libc::SIGTTOU,
];
const OPTIONS: i32 = libc::PTRACE_O_TRACESYSGOOD
    | libc::PTRACE_O_TRACECLONE
    | libc::PTRACE_O_TRACEFORK
    | libc::PTRACE_O_TRACEVFORK
    | libc::PTRACE_O_TRACEVFORKDONE
    | libc::PTRACE_O_TRACEEXEC;

type Shared = Rc<RefCell<Process>>;

/// Threads that wait to be left, before instructions of the program, and whether their processes were found
/// stopped as a whole.
type Parked = BTreeMap<Stopped, bool>;

/// A watched system call that a thread makes.
#[derive(Debug, Clone, Copy)]
struct Watched {
    number: i64,
    args: [u64; 6],
    /// Whether the kernel has it.
    entered: bool,
    /// The kernel has got other rights for memory than the program wants.
    stripped: bool,
}

/// How long a thread is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Followed {
    /// To its end.
    #[default]
    Always,
    /// Until it has memory of its own, because it executes a program: it is of a child process that is not observed.
    UntilOwnMemory,
    /// Not at all: it is of such a process, which has a copy of the memory.
    No,
}

#[derive(Debug, Default)]
struct Thread {
    /// Its process.
    pid: i32,
    /// `None`: its program has not been executed yet.
    process: Option<Shared>,
    /// Where its block is, if it has one.
    block: Option<u64>,
    /// What it says there of itself.
    mark: Option<u64>,
    /// How often hodo had written into its process when it was last resumed, or earlier.
    resumed: Cell<u64>,
    actions: Actions,
    call: Option<Watched>,
    /// It takes this signal, and stops at the first instruction of its handler.
    entering: Option<i32>,
    /// Its maker waits until it executes a program (`vfork`).
    spawning: bool,
    /// It has waited for the one to which its memory was lent.
    takes_back: bool,
    followed: Followed,
    beginning: Beginning,
    /// How it is observed, if it is.
    recording: Option<Recording>,
    steps: Steps,
    /// Of its system calls, because of signals that it ignores.
    restarts: Restarts,
    /// Which of the signals by which threads stop for hodo it blocks.
    blocked: Blocked,
    /// What the program is to see of a signal that hodo has sent again.
    sent_again: Option<libc::siginfo_t>,
    /// How often such a signal has come again because of another thread.
    waits: u32,
    progress: Progress,
}

impl Thread {
    /// The thread with this number, the first one of a process whose program has not been executed yet.
    fn of(pid: i32) -> Self {
        Self {
            pid,
            ..Self::default()
        }
    }
}

struct Engine {
    program: Program,
    threads: Tasks<Thread>,
    recorder: Option<Rc<RefCell<Recorder>>>,
    kept: Rc<RefCell<Kept>>,
    /// Child processes are followed, too.
    follows: bool,
    /// hodo has attached to a running process, which is to survive it.
    attached: bool,
    /// hodo leaves; these threads wait for that.
    parked: Option<Parked>,
    /// With this thread, something could not be done.
    stuck: Option<Stopped>,
    /// The table of some process has no room for a target.
    crowded: bool,
    /// The threads are followed until they have executed enough instructions,
    limit: Option<Limit>,
    /// which they have.
    reached: bool,
    /// An error has ended the observation. It was reported.
    broken: bool,
    tracers: Tracers,
    /// How many marks threads have got.
    marks: Cell<u64>,
    /// Programs say which parts of their runs are observed, if there are such,
    markers: Option<Rc<RefCell<Markers>>>,
    /// and these threads wait at markers for that.
    at_markers: Vec<Stopped>,
}

impl Engine {
    /// Options for the threads that are traced.
    fn options(&self) -> i32 {
        let exits = match self.recorder {
            Some(_) => libc::PTRACE_O_TRACEEXIT,
            None => 0,
        };
        let kill = match self.attached {
            true => 0,
            false => libc::PTRACE_O_EXITKILL,
        };
        OPTIONS | exits | kill
    }

    /// Whether the client needs to receive nothing more.
    fn has_enough(&self) -> bool {
        let recorder = self.recorder.as_ref();
        recorder.is_some_and(|recorder| recorder.borrow().has_enough())
    }

    /// A thread is about to end: its memory is there for the last time. Another one may have ended it inside a block.
    fn exits(&mut self, thread: Stopped) -> Result<()> {
        if let Some(process) = self.process(thread) {
            let regs = thread.regs()?;
            let process = process.borrow();
            let original = match process.place(regs.pc()) {
                Some(Place::At(point)) => Some(point.original),
                Some(Place::Inside(original, _)) => Some(original),
                None => None,
            };
            if let Some(original) = original {
                self.cut(thread, &process, &regs, original)?;
            }
        }
        self.take(thread)?;
        thread.cont(0)
    }

    /// Takes what a thread has recorded.
    fn take(&mut self, thread: Stopped) -> Result<()> {
        if let Some(process) = self.process(thread) {
            self.take_from_others(thread, &process.borrow())?;
        }
        if let Some(recorder) = &self.recorder
            && let Some(known) = self.threads.get_mut(&thread.tid())
            && let (Some(process), Some(block)) = (&known.process, known.block)
            && let Some(recording) = &mut known.recording
        {
            let process = process.borrow();
            recorder
                .borrow()
                .take(recording, (process.memory(), &process.counters()), block)?;
        }
        Ok(())
    }

    /// A program was executed.
    fn executed(&mut self, thread: Stopped) -> Result<()> {
        let tid = thread.event_message()? as i32;
        let before = self.threads.get(&tid).map(|known| known.followed);
        let depth = self.depth_of(tid);
        let former = self.former(tid);
        if before.is_some_and(|followed| followed != Followed::Always) {
            return thread.detach();
        }
        thread.leave_exec()?;
        let mut process = self.space(thread, depth)?;
        process.start(thread)?;
        let block = process.give_block(thread)?;
        let beginning = former.map_or(Beginning::Thread, Beginning::Program);
        let recording = self.recording(thread.tid(), &process, block, beginning)?;
        let shared = Rc::new(RefCell::new(process));
        let entry = Thread {
            pid: thread.tid(),
            recording,
            mark: Some(self.mark(&shared.borrow(), block)?),
            process: Some(Rc::clone(&shared)),
            block: Some(block),
            actions: Actions::executed(thread.tid()),
            ..Thread::default()
        };
        let entry = self.threads.entry(thread.tid()).insert_entry(entry);
        entry.into_mut().look_at_mask(thread)?;
        self.enter(thread, &shared, thread.regs()?.pc())
    }

    /// A thread has executed a program: forgets what it was before. Returns its number for clients, if it has one.
    fn former(&mut self, tid: i32) -> Option<u32> {
        let known = self.threads.remove(&tid)?;
        if let (Some(process), Some(block)) = (known.process, known.block) {
            process.borrow_mut().take_block(block);
        }
        known.recording.map(|recording| recording.thread)
    }

    /// Marks the block of a thread, so that its children are known by their copies. Returns the mark.
    ///
    /// # Errors
    /// If the process is gone.
    fn mark(&self, process: &Process, block: u64) -> Result<u64> {
        let mark = self.marks.get() + 1;
        self.marks.set(mark);
        let at = TargetAddr(block + block::MARK);
        Memory::write(process.memory(), at, &mark.to_le_bytes())?;
        Ok(mark)
    }

    /// Begins to observe a thread, if anything is observed.
    fn recording(
        &self,
        tid: i32,
        process: &Process,
        block: u64,
        beginning: Beginning,
    ) -> Result<Option<Recording>> {
        let Some(recorder) = self.recorder.as_ref().filter(|_| process.is_observed()) else {
            return Ok(None);
        };
        let ids = (hodo_ptrace::process_of(tid).unwrap_or(tid), tid);
        let mut recorder = recorder.borrow_mut();
        recorder
            .begin(
                (process.memory(), &process.counters()),
                block,
                ids,
                beginning,
            )
            .map(Some)
    }

    /// Lets a thread continue at an instruction of the program.
    fn enter(&mut self, thread: Stopped, process: &Shared, pc: u64) -> Result<()> {
        lead(thread, process, pc)?;
        self.go(thread, 0)
    }

    fn go(&self, thread: Stopped, signal: i32) -> Result<()> {
        let known = self.threads.get(&thread.tid());
        if let Some(known) = known
            && let Some(process) = &known.process
            && let Ok(process) = process.try_borrow()
        {
            known.resumed.set(process.memory().count());
        }
        match known.and_then(|known| known.call) {
            Some(_) => thread.cont_to_call(signal),
            None => thread.cont(signal),
        }
    }

    fn process(&self, thread: Stopped) -> Option<Shared> {
        self.threads.get(&thread.tid())?.process.clone()
    }

    fn signaled(&mut self, thread: Stopped, signal: i32) -> Result<()> {
        let Some(process) = self.process(thread) else {
            return thread.cont(signal);
        };
        let mut regs = thread.regs()?;
        let fetched = regs.pc();
        if let Some(pc) = process.borrow_mut().take_cut(thread, fetched) {
            regs.set_pc(pc);
            thread.set_regs(&regs)?;
        }
        let pc = regs.pc();
        let info = thread.siginfo()?;
        if signal == libc::SIGTRAP {
            // A step may have ended after a breakpoint that it has not been at.
            let trap = pc.wrapping_sub(1);
            let stop = process.borrow().stop(trap);
            if let Some(stop) = stop.filter(|_| info.si_code != TRAP_TRACE) {
                process.borrow().link(trap)?;
                return self.at_breakpoint(thread, &process, stop, &info);
            }
            if info.si_code == TRAP_TRACE && self.steps_inside(thread, &process, pc) {
                self.keep(libc::SIGTRAP, thread, &process)?;
                return self.go(thread, 0);
            }
        }
        let guarded = signal == libc::SIGSEGV
            && info.si_code == SEGV_ACCERR
            && fault_address(&info) == fetched
            && process.borrow_mut().may_execute(thread, fetched)?;
        if guarded {
            self.keep(libc::SIGSEGV, thread, &process)?;
            let at = process.borrow_mut().translated(thread, pc)?;
            if let Some(at) = at {
                process.borrow_mut().put_target(pc, at)?;
            }
            return self.enter(thread, &process, pc);
        }
        let is_access = matches!(signal, libc::SIGSEGV | libc::SIGBUS) && info.si_code > 0;
        if is_access && self.has_no_path(thread, &process, pc)? {
            self.keep(signal, thread, &process)?;
            return self.go(thread, 0);
        }
        if signal == libc::SIGSEGV
            && info.si_code == SEGV_ACCERR
            && self.is_full(thread, &process.borrow(), pc, fault_address(&info))
        {
            return self.empty(thread, &process, regs);
        }
        if signal == libc::SIGSEGV && info.si_code == SEGV_ACCERR {
            let at = fault_address(&info);
            let was_protected = process
                .borrow_mut()
                .end_protection(Some(thread), Span::at(at, 1))?;
            // If not, another thread may have been the first that tried.
            if was_protected || process.borrow().may_write(at) {
                self.keep(libc::SIGSEGV, thread, &process)?;
                return self.go(thread, 0);
            }
        }
        if signal == libc::SIGBUS
            && info.si_code == BUS_ADRALN
            && self.unaligned(thread, &process)?
        {
            self.keep(libc::SIGBUS, thread, &process)?;
            return self.go(thread, 0);
        }
        let pid = self.threads.get(&thread.tid()).map(|known| known.pid);
        self.program.note_signal(thread, || pid, signal);
        let is_fault = info.si_code > 0 && signal != libc::SIGSYS && CAUSED.contains(&signal);
        let info = Self::without_own(thread, &process.borrow(), signal, info)?;
        self.show_sent(thread, signal, &info)?;
        self.deliver(thread, &process, regs, signal, is_fault)
    }

    /// A thread is at a breakpoint of the cache. The signal may be one that was sent to the thread, and has waited; the
    /// kernel adds none for the breakpoint then.
    fn at_breakpoint(
        &mut self,
        thread: Stopped,
        process: &Shared,
        stop: Stop,
        info: &libc::siginfo_t,
    ) -> Result<()> {
        self.keep(libc::SIGTRAP, thread, process)?;
        if info.si_code <= 0 {
            self.send_again(thread, process, info)?;
        }
        match stop {
            Stop::Exit(target) => {
                let marker = process.borrow_mut().marker(thread, target)?;
                if let Some(marker) = marker {
                    return self.at_marker(thread, process, target, marker);
                }
                process.borrow_mut().lead_former(thread, target)?;
                self.enter(thread, process, target)
            }
            Stop::Changed(check) => {
                let mut known = process.borrow_mut();
                let at = known.changed(thread, &check)?;
                let at = at.unwrap_or_else(|| known.faulting(thread, check.pc));
                drop(known);
                let mut regs = thread.regs()?;
                regs.set_pc(at);
                thread.set_regs(&regs)?;
                self.go(thread, 0)
            }
            Stop::Call(at) => self.watch(thread, process, at),
            Stop::Miss(next) => self.missed(thread, process, next),
        }
    }

    /// Has a thread take a signal of the program's.
    fn deliver(
        &mut self,
        thread: Stopped,
        process: &Shared,
        mut regs: Regs,
        signal: i32,
        is_fault: bool,
    ) -> Result<()> {
        let tid = thread.tid();
        if OURS.contains(&signal) && self.waits_for_action(thread, signal, is_fault)? {
            return self.go(thread, 0);
        }
        let leads = !is_fault && self.leads_to_handler(thread, &process.borrow(), &regs, signal);
        let is_caught = leads || hodo_ptrace::is_caught(tid, signal);
        if is_caught && self.frees_frame(thread, process, &regs, (signal, is_fault))? {
            return self.go(thread, 0);
        }
        if !is_caught {
            if let Some(known) = self.threads.get_mut(&tid) {
                known.restarts.before(thread, signal)?;
            }
            if is_fault && ends_untraced(tid, signal) {
                // Untraced, the thread executes the instruction again.
                thread.detach()?;
                if tid != self.program.first {
                    self.threads.remove(&tid);
                }
                return Ok(());
            }
            let ends = !SURVIVED.contains(&signal) && !hodo_ptrace::is_ignored(tid, signal);
            if !ends && !is_fault {
                return self.go(thread, signal);
            }
        }
        let before = regs.pc();
        if self.show(thread, process, &mut regs, is_fault)? {
            thread.set_regs(&regs)?;
            if is_fault || signal == libc::SIGSYS {
                show_instruction(thread, before, regs.pc())?;
            }
        }
        if !is_caught {
            return self.go(thread, signal);
        }
        if let Some(known) = self.threads.get_mut(&tid) {
            if regs.system_call().is_none() {
                known.comes_before_call(before)?;
            }
            // If it was about to make a watched call, it reaches that again.
            known.call = None;
        }
        if !is_fault && self.stands_still(thread, process, (signal, &regs))? {
            return Ok(());
        }
        self.note_signal(thread, &process.borrow(), signal)?;
        if let Some(known) = self.threads.get_mut(&tid) {
            known.entering = (!leads).then_some(signal);
        }
        if leads {
            self.lead_back(process, &regs)?;
            return self.go(thread, signal);
        }
        thread.enter_handler(signal)
    }

    /// A thread is at the breakpoint for a target that is not in the table.
    fn missed(&mut self, thread: Stopped, process: &Shared, next: u64) -> Result<()> {
        let mut regs = thread.regs()?;
        let at = process
            .borrow_mut()
            .find_missing(thread, stopped::missing(&regs))?;
        stopped::found(&mut regs, at);
        regs.set_pc(next);
        thread.set_regs(&regs)?;
        self.crowded |= process.borrow().is_crowded();
        self.go(thread, 0)
    }

    /// What a program is to see of a fault: without hodo, nothing is mapped where hodo has memory.
    fn without_own(
        thread: Stopped,
        process: &Process,
        signal: i32,
        mut info: libc::siginfo_t,
    ) -> Result<libc::siginfo_t> {
        let at = Span::at(fault_address(&info), 1);
        if signal == libc::SIGSEGV
            && info.si_code == SEGV_ACCERR
            && process.has_own([at, Span::EMPTY])
        {
            info.si_code = SEGV_MAPERR;
            thread.set_siginfo(&info)?;
        }
        Ok(info)
    }

    /// Whether a thread has filled its buffer, if it has faulted at this address, and is at that place of the cache.
    fn is_full(&self, thread: Stopped, process: &Process, pc: u64, address: u64) -> bool {
        // Instructions of the program may go there, too.
        if !matches!(process.place(pc), Some(Place::Inside(_, saved)) if !saved.is_own) {
            return false;
        }
        let known = self.threads.get(&thread.tid());
        let block = known.filter(|known| known.recording.is_some());
        let block = block.and_then(|known| known.block);
        let (Some(recorder), Some(block)) = (&self.recorder, block) else {
            return false;
        };
        recorder.borrow().layout().is_full(block, address)
    }

    /// A thread has filled its buffer: it writes the record again when there is room.
    fn empty(&mut self, thread: Stopped, process: &Shared, regs: Regs) -> Result<()> {
        self.keep(libc::SIGSEGV, thread, process)?;
        self.take_from_others(thread, &process.borrow())?;
        let profile = self.profile(thread, &process.borrow());
        self.again(thread, &process.borrow(), regs)?;
        if let Some(profile) = profile {
            process.borrow_mut().optimize(thread, &profile)?;
        }
        self.go(thread, 0)
    }

    /// What a thread has executed that has filled its buffer, if it is time to look at that.
    fn profile(&mut self, thread: Stopped, process: &Process) -> Option<Profile> {
        let known = self.threads.get_mut(&thread.tid())?;
        let (block, recording) = (known.block?, known.recording.as_mut()?);
        let recorder = self.recorder.as_ref()?.borrow();
        recorder.profile(recording, process.memory(), block)
    }

    /// If a program lets unaligned accesses fault, those of a record do, too: executes the record without such faults.
    /// Returns whether a thread is at one.
    fn unaligned(&mut self, thread: Stopped, process: &Shared) -> Result<bool> {
        let regs = thread.regs()?;
        let place = process.borrow().place(regs.pc());
        let Some(Place::Inside(_, saved)) = place else {
            return Ok(false);
        };
        // Code that may change is compared in parts that are not aligned.
        let compares = saved.compares;
        let records = saved.scratch[0].is_some() && !saved.is_own;
        if !compares && !records {
            return Ok(false);
        }
        if !compares {
            self.again(thread, &process.borrow(), regs)?;
        }
        let mut regs = thread.regs()?;
        let before = regs.check_alignment(false);
        thread.set_regs(&regs)?;
        loop {
            hodo_ptrace::arch::step_alone(thread)?;
            regs = thread.regs()?;
            let place = process.borrow().place(regs.pc());
            let is_own = matches!(place, Some(Place::Inside(_, saved)) if saved.is_own);
            let is_at_breakpoint = process.borrow().stop(regs.pc()).is_some();
            if is_own || is_at_breakpoint || matches!(place, Some(Place::At(_)) | None) {
                break;
            }
        }
        regs.check_alignment(before);
        thread.set_regs(&regs)?;
        self.keep_after_steps(libc::SIGTRAP, thread, process)?;
        Ok(true)
    }

    /// Takes the records of a thread that is writing one, and brings it to where it writes that from the beginning.
    fn again(&mut self, thread: Stopped, process: &Process, mut regs: Regs) -> Result<()> {
        let at = regs.pc();
        let place = process.place(at);
        let start = process.record_start(at);
        if let (Some(Place::Inside(_, saved)), Some(_)) = (place, start) {
            // In a fragment, it writes the record again with the registers that it has.
            let saved = Saved { map: 0, ..saved };
            let block = thread.block()?;
            restore_from(process, (thread, block), &mut regs, (at, saved))?;
        }
        if let Some(known) = self.threads.get_mut(&thread.tid())
            && let (Some(recorder), Some(block)) = (&self.recorder, known.block)
            && let Some(recording) = &mut known.recording
        {
            // In the middle of a block, its record is not complete.
            let kept = match (process.stage(at), process.block_at(at)) {
                (Stage::Body, Some(block)) if block.is_expanded() => Rest::Last,
                (Stage::Body, Some(block)) if recorder.borrow().insertion().records => {
                    Rest::Bytes(block.record_size() as u64)
                }
                _ => Rest::NOTHING,
            };
            let recorder = recorder.borrow();
            let memory = process.memory();
            match process.stage(at) {
                Stage::Head if recorder.insertion().records => {
                    recorder.drain_before_block(recording, memory, block, &regs.all())?;
                }
                _ => recorder.drain(recording, memory, block, kept)?,
            }
            recorder.show_progress(recording, (process.memory(), &process.counters()), block)?;
        }
        if let (Some(Place::Inside(..)), Some(start)) = (place, start) {
            regs.set_pc(start);
            thread.set_regs(&regs)?;
        }
        Ok(())
    }

    /// A thread in the cache will continue elsewhere, at an instruction of the program: what it has begun to execute
    /// ends before that.
    fn cut(
        &mut self,
        thread: Stopped,
        process: &Process,
        regs: &Regs,
        original: u64,
    ) -> Result<()> {
        let Some((recorder, recording, at)) = self.recorded(thread.tid()) else {
            return Ok(());
        };
        recorder.forget_lines(process.memory(), at)?;
        let Some(block) = process.block_at(regs.pc()) else {
            return Ok(());
        };
        let stage = process.stage(regs.pc());
        if stage == Stage::Head {
            return Ok(());
        }
        if matches!(stage, Stage::Repeating | Stage::Repeated) {
            let record = record_of(process, &block, at, regs)?;
            recorder.append(recording, process.memory(), at, &record)?;
        }
        let upto = match stage {
            Stage::Left(upto) => Some(usize::from(upto)),
            _ => block.insns.iter().position(|insn| insn.pc == original),
        };
        let Some(upto) = upto else {
            return Ok(());
        };
        if let (Stage::Body, 0, Some((lanes, mask))) = (stage, upto, block.progress()) {
            let active = stopped::active(thread, mask)?;
            recorder.keep_complete(process.memory(), at, (&block, lanes), active.into())?;
        }
        let cut = Cut {
            block: &block,
            upto: upto as u32,
            counted: true,
            recorded: stage != Stage::Counted,
        };
        recorder.cut(recording, process.memory(), at, &cut)
    }

    /// Gives a thread in the cache the program's state: that of the instruction that has faulted, or of the next one
    /// that it reaches. Returns whether the registers have changed.
    fn show(
        &mut self,
        thread: Stopped,
        process: &Shared,
        regs: &mut Regs,
        is_fault: bool,
    ) -> Result<bool> {
        if !is_fault {
            self.leave_fragment(thread, process, regs)?;
        }
        let mut process = process.borrow_mut();
        if !is_fault {
            Self::hide_refusal(thread, &process, regs)?;
        }
        let Some(place) = process.place(regs.pc()) else {
            return Ok(false);
        };
        let original = match place {
            Place::At(point) => point.original,
            Place::Inside(original, saved) if is_fault || saved.is_known || saved.in_fragment => {
                let block = thread.block()?;
                restore_from(&process, (thread, block), regs, (original, saved))?
            }
            Place::Inside(..) => {
                run_to_instruction(thread, &mut process, regs)?;
                match process.place(regs.pc()) {
                    Some(Place::At(point)) => point.original,
                    Some(Place::Inside(original, saved)) if saved.in_fragment => {
                        let block = thread.block()?;
                        restore_from(&process, (thread, block), regs, (original, saved))?
                    }
                    _ => return Ok(true),
                }
            }
        };
        self.cut(thread, &process, regs, original)?;
        regs.set_pc(original);
        Ok(true)
    }

    /// Brings a thread that is in a fragment to its end, so that what was inserted there is executed once, or to an
    /// instruction that faults or may take long.
    fn leave_fragment(&mut self, thread: Stopped, process: &Shared, regs: &mut Regs) -> Result<()> {
        let is_outside = |regs: &Regs| {
            let place = process.borrow().place(regs.pc());
            !matches!(place, Some(Place::Inside(_, saved)) if saved.in_fragment && !saved.is_known)
        };
        // A thread that steps itself stops after each instruction.
        if is_outside(regs) || regs.is_stepping() {
            return Ok(());
        }
        if let Some(ahead) = hodo_ptrace::arch::run_ahead(thread, regs, is_outside)? {
            *regs = ahead;
            return Ok(());
        }
        // After steps, the kernel would give the program another one with its signal.
        let info = thread.siginfo();
        let fault = hodo_ptrace::arch::steps_alone(thread, is_outside)?;
        if let Ok(info) = info {
            thread.set_siginfo(&info)?;
        }
        self.keep_after_steps(libc::SIGTRAP, thread, process)?;
        if let Some(signal) = fault {
            self.keep_after_steps(signal, thread, process)?;
        }
        *regs = thread.regs()?;
        Ok(())
    }
}

/// Has a thread continue at an instruction of the program when it goes on.
///
/// # Errors
/// If the thread is gone, or there is no room.
fn lead(thread: Stopped, process: &Shared, pc: u64) -> Result<()> {
    let mut process = process.borrow_mut();
    let at = process.translated(thread, pc)?;
    let mut regs = thread.regs()?;
    regs.set_pc(at.unwrap_or_else(|| process.faulting(thread, pc)));
    thread.set_regs(&regs)
}

/// If a fault is about the instruction itself, shows the address that this has in the program instead of that in the
/// cache.
fn show_instruction(thread: Stopped, at: u64, original: u64) -> Result<()> {
    let mut info = thread.siginfo()?;
    if fault_address(&info) == at {
        set_fault_address(&mut info, original);
        thread.set_siginfo(&info)?;
    }
    Ok(())
}
