//! Follows the threads of a program that runs from the cache.

use rustc_hash::FxHashMap;
use std::cell::RefCell;
use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::rc::Rc;

use anyhow::{Context, Result, bail};
use hodo_abi::Span;
use hodo_ptrace::signals::Forward;
use hodo_ptrace::{Regs, Report, Stopped, TargetAddr, fault_address, is_gone, launch, seize};

use crate::native::block;
use crate::native::translate::Saved;
use crate::process::{Place, Process, Stop};
use crate::ran::{End, Ran};
use crate::trap::{self, TrapAction};

/// `si_code` of a fault because the page may not be accessed in this way.
const SEGV_ACCERR: i32 = 2;
/// A code of `arch_prctl`: sets the base of `gs`.
const ARCH_SET_GS: u64 = 0x1001;
/// Numbers of registers.
const RAX: u8 = 0;
const RCX: u8 = 1;
const R11: u8 = 11;
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
    | libc::PTRACE_O_TRACEEXEC
    | libc::PTRACE_O_EXITKILL;

type Shared = Rc<RefCell<Process>>;

/// A watched system call that a thread makes.
#[derive(Debug, Clone, Copy)]
struct Watched {
    number: i64,
    args: [u64; 6],
    /// Whether the kernel has it.
    entered: bool,
}

#[derive(Debug, Default)]
struct Thread {
    /// `None`: its program has not been executed yet.
    process: Option<Shared>,
    /// Where its block is, if it has one.
    block: Option<u64>,
    trap: TrapAction,
    call: Option<Watched>,
    /// It takes a signal, and stops at the first instruction of its handler.
    entering: bool,
}

struct Engine {
    first: i32,
    threads: FxHashMap<i32, Thread>,
    /// Threads that have stopped before their makers.
    early: FxHashMap<i32, Stopped>,
    end: Option<End>,
}

/// Runs a program, whose path is given, with these words as its command line, from the cache. Returns when the program
/// and all its children have ended.
///
/// # Errors
/// If the program cannot be traced, or does something that the engine cannot follow. The program is ended then.
pub fn run(program: &Path, command: &[OsString]) -> Result<Ran> {
    let child = launch::fork(program, command, false)?;
    let first = child.pid;
    seize(first, OPTIONS)?;
    let forward = Forward::start(Some(first));
    let mut engine = Engine {
        first,
        threads: FxHashMap::from_iter([(first, Thread::default())]),
        early: FxHashMap::default(),
        end: None,
    };
    let failure = child.go()?;
    let followed = engine.follow();
    drop(forward);
    followed?;
    let end = engine.end.context("the end of the program was not seen")?;
    let failure = (end == End::Code(127)).then(|| failure.error()).flatten();
    Ok(Ran { end, failure })
}

impl Engine {
    fn follow(&mut self) -> Result<()> {
        while !self.threads.is_empty() {
            let report = match Report::any(true) {
                Ok(Some(report)) => report,
                Ok(None) => continue,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.raw_os_error() == Some(libc::ECHILD) => break,
                Err(error) => return Err(error.into()),
            };
            match self.deal(report) {
                Err(error) if is_gone(&error) => {}
                result => result?,
            }
        }
        Ok(())
    }

    fn deal(&mut self, report: Report) -> Result<()> {
        let Some(thread) = report.stopped() else {
            return self.ended(report);
        };
        match report.event() {
            libc::PTRACE_EVENT_EXEC => self.executed(thread),
            libc::PTRACE_EVENT_CLONE | libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK => {
                self.made(thread)
            }
            libc::PTRACE_EVENT_STOP if report.is_group_stop() => thread.listen(),
            libc::PTRACE_EVENT_STOP => self.begun(thread),
            _ if report.signal() == libc::SIGTRAP | 0x80 => self.at_call(thread),
            _ => self.signaled(thread, report.signal()),
        }
    }

    fn ended(&mut self, report: Report) -> Result<()> {
        if let Some(known) = self.threads.remove(&report.tid())
            && let (Some(process), Some(block)) = (known.process, known.block)
        {
            process.borrow_mut().take_block(block);
        }
        if report.tid() == self.first {
            let status = report.status();
            self.end = Some(match report.exit_code() {
                Some(code) => End::Code(code),
                None if libc::WCOREDUMP(status) => End::Core(libc::WTERMSIG(status)),
                None => End::Signal(libc::WTERMSIG(status)),
            });
        }
        Ok(())
    }

    /// A program was executed.
    fn executed(&mut self, thread: Stopped) -> Result<()> {
        thread.leave_exec()?;
        let mut process = Process::begin(thread)?;
        let block = process.give_block(thread)?;
        let shared = Rc::new(RefCell::new(process));
        let entry = Thread {
            process: Some(Rc::clone(&shared)),
            block: Some(block),
            trap: TrapAction::executed(thread.tid()),
            ..Thread::default()
        };
        self.threads.insert(thread.tid(), entry);
        self.enter(thread, &shared, thread.regs()?.pc())
    }

    /// Lets a thread continue at an instruction of the program.
    fn enter(&mut self, thread: Stopped, process: &Shared, pc: u64) -> Result<()> {
        let at = process.borrow_mut().translated(thread, pc)?;
        let mut regs = thread.regs()?;
        regs.set_pc(at.unwrap_or(pc));
        thread.set_regs(&regs)?;
        self.go(thread, 0)
    }

    fn go(&self, thread: Stopped, signal: i32) -> Result<()> {
        let call = self.threads.get(&thread.tid()).and_then(|known| known.call);
        match call {
            Some(_) => thread.cont_to_call(signal),
            None => thread.cont(signal),
        }
    }

    fn process(&self, thread: Stopped) -> Option<Shared> {
        self.threads.get(&thread.tid())?.process.clone()
    }

    /// A thread has made another one.
    fn made(&mut self, thread: Stopped) -> Result<()> {
        let tid = thread.event_message()? as i32;
        let Some(maker) = self.threads.get(&thread.tid()) else {
            return thread.cont(0);
        };
        let (number, args) = thread.regs()?.call();
        let flags = clone_flags(thread, number.cast_signed(), args)?;
        let shares = |flag: i32| flags & flag as u64 != 0;
        let trap = match shares(libc::CLONE_SIGHAND) {
            true => maker.trap.clone(),
            false => maker.trap.copied(),
        };
        let is_forked = !shares(libc::CLONE_VM);
        let process = match &maker.process {
            Some(process) if is_forked => {
                let own = process.borrow().forked(tid)?;
                Some(Rc::new(RefCell::new(own)))
            }
            process => process.clone(),
        };
        let child = Thread {
            process,
            // The block of a forked thread was copied.
            block: maker.block.filter(|_| is_forked),
            trap,
            ..Thread::default()
        };
        self.threads.insert(tid, child);
        if let Some(child) = self.early.remove(&tid) {
            self.begun(child)?;
        }
        self.go(thread, 0)
    }

    /// A thread has stopped for the first time.
    fn begun(&mut self, thread: Stopped) -> Result<()> {
        let Some(known) = self.threads.get_mut(&thread.tid()) else {
            self.early.insert(thread.tid(), thread);
            return Ok(());
        };
        let Some(process) = known.process.clone() else {
            return thread.cont(0);
        };
        if known.block.is_none() {
            known.block = Some(process.borrow_mut().give_block(thread)?);
        }
        self.go(thread, 0)
    }

    /// A thread is at the beginning or at the end of a watched system call.
    fn at_call(&mut self, thread: Stopped) -> Result<()> {
        let Some(known) = self.threads.get_mut(&thread.tid()) else {
            return thread.cont(0);
        };
        let Some(mut call) = known.call.take() else {
            return thread.cont(0);
        };
        if !call.entered {
            call.entered = true;
            known.call = Some(call);
            return thread.cont_to_call(0);
        }
        let regs = thread.regs()?;
        let Some(process) = known.process.clone() else {
            return thread.cont(0);
        };
        if call.number == libc::SYS_rt_sigreturn {
            return self.enter(thread, &process, regs.pc());
        }
        let mut process = process.borrow_mut();
        if call.number == libc::SYS_rt_sigaction {
            let [_, new, ..] = call.args;
            let mut action = [0; trap::SIZE];
            let has_read = process.memory().read(TargetAddr(new), &mut action).is_ok();
            if regs.result() == 0 && has_read {
                known.trap.set(action);
            }
            return thread.cont(0);
        }
        changed(thread, &mut process, &call, regs.result())?;
        thread.cont(0)
    }

    fn signaled(&mut self, thread: Stopped, signal: i32) -> Result<()> {
        let Some(process) = self.process(thread) else {
            return thread.cont(signal);
        };
        let regs = thread.regs()?;
        let pc = regs.pc();
        let info = thread.siginfo()?;
        let entering = self.threads.get_mut(&thread.tid());
        let entering = entering.is_some_and(|known| std::mem::take(&mut known.entering));
        if signal == libc::SIGTRAP {
            if entering && info.si_code > 0 && !process.borrow().holds(pc) {
                return self.enter(thread, &process, pc);
            }
            let stop = process.borrow().stop(pc.wrapping_sub(1));
            if let Some(stop) = stop {
                return self.at_breakpoint(thread, &process, stop, info.si_code <= 0);
            }
        }
        let guarded = signal == libc::SIGSEGV
            && info.si_code == SEGV_ACCERR
            && fault_address(&info) == pc
            && process.borrow().is_code(pc);
        if guarded {
            let at = process.borrow_mut().translated(thread, pc)?;
            if let Some(at) = at {
                process.borrow_mut().put_target(pc, at)?;
            }
            return self.enter(thread, &process, pc);
        }
        let may_write = signal == libc::SIGSEGV && info.si_code == SEGV_ACCERR;
        if may_write && process.borrow_mut().written(thread, fault_address(&info))? {
            return self.write(thread, &process);
        }
        let is_fault = info.si_code > 0
            && matches!(
                signal,
                libc::SIGSEGV | libc::SIGBUS | libc::SIGFPE | libc::SIGILL | libc::SIGTRAP
            );
        self.deliver(thread, &process, regs, signal, is_fault)
    }

    /// A thread is at a breakpoint of the cache. `was_sent`: the signal is one that was sent to the thread, and has waited
    /// because it is blocked; the kernel adds none for the breakpoint then.
    fn at_breakpoint(
        &mut self,
        thread: Stopped,
        process: &Shared,
        stop: Stop,
        was_sent: bool,
    ) -> Result<()> {
        self.keep_trap(thread, process)?;
        if was_sent {
            trap::send_again(thread, &process.borrow())?;
        }
        match stop {
            Stop::Exit(target) => self.enter(thread, process, target),
            Stop::Call(at) => self.watch(thread, process, at),
            Stop::Miss(next) => self.missed(thread, process, next),
        }
    }

    /// Repairs what a breakpoint does to a thread that blocks SIGTRAP.
    fn keep_trap(&self, thread: Stopped, process: &Shared) -> Result<()> {
        match self.threads.get(&thread.tid()) {
            Some(known) => known.trap.keep(thread, &process.borrow()),
            None => Ok(()),
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
        let is_caught = hodo_ptrace::is_caught(tid, signal);
        if !is_caught {
            if is_fault && hodo_ptrace::is_first(tid) {
                // The kernel does not end the first process of a PID namespace while it is traced. Alone, its thread
                // executes the instruction again, and the process ends.
                thread.detach()?;
                if tid != self.first {
                    self.threads.remove(&tid);
                }
                return Ok(());
            }
            let ends = !SURVIVED.contains(&signal) && !hodo_ptrace::is_ignored(tid, signal);
            if !ends && !is_fault {
                return self.go(thread, signal);
            }
        }
        if self.show(thread, process, &mut regs, is_fault)? {
            thread.set_regs(&regs)?;
        }
        if !is_caught {
            return self.go(thread, signal);
        }
        if let Some(known) = self.threads.get_mut(&tid) {
            known.entering = true;
            // If it was about to make a watched call, it comes to that again.
            known.call = None;
        }
        thread.enter_handler(signal)
    }

    /// A thread is at the breakpoint for a target that is not in the table.
    fn missed(&mut self, thread: Stopped, process: &Shared, next: u64) -> Result<()> {
        let mut regs = thread.regs()?;
        let at = process
            .borrow_mut()
            .find_missing(thread, regs.all()[usize::from(RCX)])?;
        regs.set_general(R11, at);
        regs.set_pc(next);
        thread.set_regs(&regs)?;
        self.go(thread, 0)
    }

    /// A thread may now write to code. If the instruction that writes is among the code that was forgotten, it is executed
    /// once as it is, and what follows it is translated again.
    fn write(&mut self, thread: Stopped, process: &Shared) -> Result<()> {
        let place = process.borrow().place(thread.regs()?.pc());
        let Some(Place::At(point)) = place else {
            return self.go(thread, 0);
        };
        if !process.borrow().is_known(point.original) {
            hodo_ptrace::arch::step_alone(thread)?;
            self.keep_trap(thread, process)?;
            let next = process.borrow().place(thread.regs()?.pc());
            if let Some(Place::At(next)) = next {
                return self.enter(thread, process, next.original);
            }
        }
        self.go(thread, 0)
    }

    /// Gives a thread in the cache the program's state: that of the instruction that has faulted, or of the next one that
    /// it comes to. Returns whether the registers have changed.
    fn show(
        &mut self,
        thread: Stopped,
        process: &Shared,
        regs: &mut Regs,
        is_fault: bool,
    ) -> Result<bool> {
        let mut process = process.borrow_mut();
        let Some(place) = process.place(regs.pc()) else {
            return Ok(false);
        };
        let original = match place {
            Place::At(point) => point.original,
            Place::Inside(original, saved) if is_fault => {
                restore_from(&process, thread.block()?, regs, saved)?;
                original
            }
            Place::Inside(..) => {
                run_to_instruction(thread, &mut process, regs)?;
                match process.place(regs.pc()) {
                    Some(Place::At(point)) => point.original,
                    _ => return Ok(true),
                }
            }
        };
        regs.set_pc(original);
        Ok(true)
    }

    /// A thread is about to make a system call that may change what can be executed. `at` is the instruction.
    fn watch(&mut self, thread: Stopped, process: &Shared, at: u64) -> Result<()> {
        let mut regs = thread.regs()?;
        // The kernel has not been called yet: the number is where the program has put it.
        let (number, args) = regs.call();
        let number = number.cast_signed();
        if number == libc::SYS_arch_prctl && args[0] == ARCH_SET_GS {
            bail!("the program uses the gs register itself (as Wine does), which hodo needs");
        }
        regs.set_pc(at);
        let matters = matters(&process.borrow(), number, args);
        thread.set_regs(&regs)?;
        if let Some(known) = self.threads.get_mut(&thread.tid()) {
            known.call = matters.then_some(Watched {
                number,
                args,
                entered: false,
            });
        }
        self.go(thread, 0)
    }
}

/// The flags of the call by which a thread makes another one.
fn clone_flags(thread: Stopped, number: i64, args: [u64; 6]) -> Result<u64> {
    Ok(match number {
        libc::SYS_fork => 0,
        libc::SYS_vfork => libc::CLONE_VM as u64,
        libc::SYS_clone3 => thread.memory()?.read_u64(TargetAddr(args[0]))?,
        _ => args[0],
    })
}

/// Whether a call asks for memory that can be executed.
fn gives_execution(number: i64, args: [u64; 6]) -> bool {
    let protects = matches!(
        number,
        libc::SYS_mmap | libc::SYS_mprotect | libc::SYS_pkey_mprotect
    );
    protects && args[2] & libc::PROT_EXEC as u64 != 0
}

/// The memory that a call is about.
fn range(number: i64, args: [u64; 6]) -> Span {
    let size = args[1].saturating_add(4095) & !4095;
    match number {
        libc::SYS_mmap if args[3] & libc::MAP_FIXED as u64 == 0 => Span::EMPTY,
        _ => Span::from(args[0]..args[0].saturating_add(size)),
    }
}

fn matters(process: &Process, number: i64, args: [u64; 6]) -> bool {
    let memory = matches!(
        number,
        libc::SYS_mmap
            | libc::SYS_mprotect
            | libc::SYS_pkey_mprotect
            | libc::SYS_munmap
            | libc::SYS_mremap
    );
    matches!(number, libc::SYS_rt_sigreturn | libc::SYS_rt_sigaction)
        || memory && (gives_execution(number, args) || process.has_code(range(number, args)))
}

/// The kernel has done what a call asked for, or not.
fn changed(thread: Stopped, process: &mut Process, call: &Watched, result: i64) -> Result<()> {
    let Watched { number, args, .. } = *call;
    // Errors are between -4095 and -1.
    if (-4095..0).contains(&result) {
        return Ok(());
    }
    let mut at = range(number, args);
    if number == libc::SYS_mmap {
        at = Span::at(result.cast_unsigned(), args[1].saturating_add(4095) & !4095);
    }
    process.remove_code(at)?;
    match gives_execution(number, args) {
        true => process.strip(thread, at, args[2] as i32),
        false => Ok(()),
    }
}

/// Brings a thread that is inside the code for an instruction to the next instruction of the program.
fn run_to_instruction(thread: Stopped, process: &mut Process, regs: &mut Regs) -> Result<()> {
    loop {
        let is_done = |regs: &Regs| {
            let pc = regs.pc();
            process.miss(pc).is_some()
                || !process.holds(pc)
                || matches!(process.place(pc), Some(Place::At(_)))
        };
        let ahead = hodo_ptrace::arch::run_ahead(thread, process.memory(), regs, is_done)?;
        *regs = ahead.with_context(|| {
            format!("thread {thread} could not be brought to an instruction of the program")
        })?;
        let Some(next) = process.miss(regs.pc()) else {
            return Ok(());
        };
        let at = process.find_missing(thread, regs.all()[usize::from(RCX)])?;
        regs.set_general(R11, at);
        regs.set_pc(next);
    }
}

/// Takes registers from the block of a thread.
fn restore_from(process: &Process, block: u64, regs: &mut Regs, saved: Saved) -> Result<()> {
    let word = |offset: u32| {
        let at = TargetAddr(block + u64::from(offset));
        process.memory().read_u64(at)
    };
    if saved.flags {
        regs.set_flags(regs.all()[usize::from(RAX)] as u16);
        regs.set_general(RAX, word(block::RAX)?);
    }
    if saved.rcx {
        regs.set_general(RCX, word(block::RCX)?);
    }
    if saved.r11 {
        regs.set_general(R11, word(block::R11)?);
    }
    Ok(())
}
