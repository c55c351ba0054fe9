//! Follows a program: its threads, its children, the programs that they execute.
//!
//! The tracer sees every new thread before its first instruction and gives it a thread control block (see
//! [`crate::arch`]), so the agent needs no thread-local storage and no hook in any libc. It stops threads only when the
//! kernel does so in any case: at new threads and processes, execs, signals, and breakpoints.

mod armed;
mod asked;
mod attach;
mod children;
mod cleared;
mod control;
mod cores;
mod delivery;
mod detach;
mod policy;
mod shared;
mod stopping;
mod tasks;
mod unkillable;
mod untimed;
mod watching;

use hodo_ptrace::arch;
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::sync::Arc;

use anyhow::{Context, Error, Result, anyhow};
use hodo_patch::{Raise, Recording};
use hodo_trace::format::{BUCKET, BUCKET_ROOM, tcb};
use serde_json::json;

use crate::control::Control;
use crate::events::Events;
use crate::modules::Modules;
use crate::options::RecordOptions;
use crate::select::Selection;
use crate::session::Session;
use crate::work::Work;
use hodo_follow::{Exit, Program, Restarts, Tasks};
use hodo_inject::context::Contexts;
use hodo_inject::install;
use hodo_inject::space::{SharedSpace, Sites, Space};
use hodo_ptrace as ptrace;
use hodo_ptrace::launch::Failure;
use hodo_ptrace::signals::Seen;
use hodo_ptrace::stops;
use hodo_ptrace::{Report, Stopped, TargetAddr, look_into};
use shared::Origin;
use watching::Calls;

/// A thread that is followed.
#[derive(Debug, Clone)]
pub struct Thread {
    pid: i32,
    /// 0: nothing is recorded of this thread.
    task: u32,
    tcb: Option<u64>,
    /// Its name, as it was last written to the log.
    name: String,
    space: Option<SharedSpace>,
    /// What its signal handlers see.
    contexts: Contexts,
    /// The address of its control block, if that is in its own memory and not in the file.
    private: Option<u64>,
    /// The thread that waits until this one executes a program or ends.
    awaited: Option<i32>,
    /// Of its system calls, because of signals that it ignores.
    restarts: Restarts,
    /// The state of its system calls that are recorded by stopping at them.
    calls: Calls,
}

impl Thread {
    /// A process that is followed because of its children, or because it must be released later; nothing is recorded of
    /// it.
    fn untraced(pid: i32) -> Self {
        Self {
            pid,
            task: 0,
            tcb: None,
            name: String::new(),
            space: None,
            contexts: Contexts::default(),
            private: None,
            awaited: None,
            restarts: Restarts::default(),
            calls: Calls::default(),
        }
    }

    /// The address of its control block in its memory, as its children inherit it.
    fn block(&self) -> Option<u64> {
        let space = self.space.as_ref()?.borrow();
        let number = || Some(space.trace().start + self.tcb? * tcb::SIZE);
        self.private.or_else(number)
    }
}

/// How many control blocks are not reused at first: a child may appear after the end of the thread that made it.
const REMEMBERED: usize = 16;

/// Follows one program and all its descendants.
pub struct Tracer<'a> {
    options: &'a RecordOptions,
    session: &'a mut Session,
    modules: Modules,
    selection: Selection,
    recording: Recording,
    threads: Tasks<Thread>,
    free_tcbs: VecDeque<u64>,
    /// Control blocks for processes that are released, by the address of the `events` file in them.
    silent: HashMap<u64, u64>,
    words: shared::Words,
    /// Number of threads of which nothing was recorded because no control block was left.
    crowded: u64,
    /// The disk is full: nothing more is recorded.
    full: bool,
    next_tcb: u64,
    next_task: u32,
    lost: u64,
    unshadowed: u64,
    program: Program,
    failure: Option<Failure>,
    /// Something has ended the recording early.
    broken: bool,
    /// The reports that are being handled. After a panic, these have not been handled.
    dealing: Vec<Report>,
    /// A process that is being prepared for its core file: its threads do not run any more.
    dying: Option<SharedSpace>,
    /// How many calls are waiting for threads to stop.
    stopping: usize,
    /// Where requests for changes arrive.
    control: Option<Control>,
    /// The current options.
    settings: RecordOptions,
    /// The changes of a killed hodo are being undone: nothing is recorded.
    clearing: bool,
    /// Something could not be undone.
    unfinished: bool,
}

/// How a recording went.
#[derive(Debug)]
pub struct Outcome {
    /// How the program ended.
    pub exit: Exit,
    /// Records lost.
    pub lost: u64,
    /// Whether events of probes are among them.
    pub events: bool,
    /// Why the program could not be executed.
    pub failure: Option<io::Error>,
    /// Whether a reported error has ended the recording early.
    pub broken: bool,
    /// Messages about probes that were never placed.
    pub unplaced: Vec<String>,
}

/// Runs something that must not end hodo while other processes have its patches: a panic becomes an error.
fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    std::panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = (panic.downcast_ref::<String>().map(String::as_str))
            .or_else(|| panic.downcast_ref::<&str>().copied());
        Err(anyhow!(
            "a defect in hodo itself: {}",
            text.unwrap_or("a panic")
        ))
    })
}

impl<'a> Tracer<'a> {
    /// A tracer for the child `first`, which it seizes here and which has not executed yet.
    pub fn new(
        options: &'a RecordOptions,
        session: &'a mut Session,
        modules: Modules,
        selection: Selection,
        first: i32,
    ) -> Result<Self> {
        ptrace::seize(first, session.ptrace_options())?;
        let mut this = Self::idle(options, session, modules, selection, first);
        this.threads.insert(first, Thread::untraced(first));
        Ok(this)
    }

    /// A tracer for the process `first`, which has not been touched yet.
    pub fn idle(
        options: &'a RecordOptions,
        session: &'a mut Session,
        modules: Modules,
        selection: Selection,
        first: i32,
    ) -> Self {
        session.events.own();
        let recording = control::recording(options, &selection, &modules, session);
        if let Some(costs) = crate::arch::measure(recording) {
            session.keep_costs(&costs);
        }
        Self {
            options,
            session,
            modules,
            selection,
            recording,
            threads: Tasks::default(),
            free_tcbs: VecDeque::new(),
            silent: HashMap::new(),
            words: shared::Words::default(),
            crowded: 0,
            full: false,
            next_tcb: tcb::FIRST,
            next_task: 1,
            lost: 0,
            unshadowed: 0,
            program: Program::new(first),
            failure: None,
            broken: false,
            dealing: Vec::new(),
            dying: None,
            stopping: 0,
            control: None,
            settings: options.clone(),
            clearing: false,
            unfinished: false,
        }
    }

    /// Reports signals that are sent to the program.
    pub fn tell_signals(&mut self, seen: Arc<Seen>) {
        self.program.tell_signals(seen);
    }

    /// Follows threads until none are left.
    pub fn run(mut self, failure: Failure) -> Result<Outcome> {
        self.failure = Some(failure);
        let followed = guarded(|| {
            self.listen();
            self.follow_all()
        });
        self.control = None;
        match followed {
            Ok(()) if self.program.may_be_left() => self.detach(),
            Ok(()) => {}
            Err(error) => {
                self.broke(&error);
                self.detach();
                self.wait_for_first();
            }
        }
        self.complete()
    }

    /// Follows threads until none are left, or the recording has to end.
    fn follow_all(&mut self) -> Result<()> {
        while !self.threads.is_empty() {
            let Some(report) = hodo_follow::next(self)? else {
                break;
            };
            self.deal(report)?;
        }
        Ok(())
    }

    /// Reports what has ended the recording early.
    fn broke(&mut self, error: &Error) {
        self.broken = true;
        let text = format!("{error:#}; the recording ends, and the program runs on");
        warn_user!("hodo: {text}");
        let _ = self.remark(self.program.first, &text);
    }

    /// The program runs on without a tracer: waits for its end.
    fn wait_for_first(&mut self) {
        while self.program.exit.is_none() {
            match Report::of(self.program.first, true) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
                Ok(report) => self.program.exit = report.and_then(Exit::of),
            }
        }
    }

    /// Handles what has stopped a thread.
    fn deal(&mut self, report: Report) -> Result<()> {
        self.dealing.push(report);
        let handled = hodo_follow::deal(self, report);
        self.dealing.pop();
        handled
    }

    /// Completes the trace.
    fn complete(mut self) -> Result<Outcome> {
        let lost = self.lost;
        let exit = self.program.exit.unwrap_or(Exit::Code(0));
        // SAFETY: all-zero is a valid rusage, and getrusage fills it.
        let usage = unsafe {
            let mut usage = std::mem::zeroed();
            libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage);
            usage
        };
        if self.unshadowed > 0 {
            let text = format!(
                "{} calls have no exit: their stack cannot have a shadow",
                self.unshadowed
            );
            self.remark(self.program.first, &text)?;
        }
        if self.crowded > 0 {
            let text = format!(
                "{} threads were not recorded: more than {} lived at once, or the disk was full",
                self.crowded,
                self.most_tcbs() - tcb::FIRST
            );
            self.remark(self.program.first, &text)?;
            warn_user!("hodo: {text}");
        }
        self.counts()?;
        // Threads that still run code of hodo record nothing from here on.
        self.session.events.disown();
        // The program's end is reported in any case.
        if let Err(error) = self.session.finish(exit, lost, &usage) {
            warn_user!("hodo: the trace is not complete: {error:#}");
        }
        Ok(Outcome {
            exit,
            lost,
            events: self.modules.probes.make_events(),
            failure: self.failure.and_then(Failure::error),
            broken: self.broken,
            unplaced: self.modules.probes.unplaced_definitions(),
        })
    }

    /// Writes what the probes have counted, and reports the probes that were never placed.
    fn counts(&mut self) -> Result<()> {
        let probes = &self.modules.probes;
        let count = probes.counts.counters();
        let counts = self.session.take_counts(count, self.next_tcb)?;
        if !counts.is_empty() {
            self.session.write_counts(probes.describe(&counts))?;
        }
        if probes.histogram_bytes() > 0 {
            let memory = |at, bytes| self.session.histogram_words(at, bytes);
            let histograms = probes.describe_histograms(&memory)?;
            self.session.write_histograms(&histograms)?;
        }
        for text in probes.unplaced() {
            self.remark(self.program.first, &text)?;
        }
        Ok(())
    }

    fn remark(&mut self, tid: i32, text: &str) -> Result<()> {
        self.session
            .log(&json!({"remark": {"pid": tid, "text": text}}))?;
        if self.options.verbose > 0 {
            warn_user!("hodo: {tid}: {text}");
        }
        Ok(())
    }

    fn signal(&mut self, stopped: Stopped, signal: i32) -> Result<()> {
        let tid = stopped.tid();
        let again = match self.threads.get(&tid) {
            Some(thread) => thread.contexts.is_again(stopped, signal)?,
            None => false,
        };
        // One that was sent again is the program's, wherever it comes.
        if !again && self.is_announcement(stopped, signal)? {
            return Ok(());
        }
        let process = || self.threads.get(&tid).map(|thread| thread.pid);
        if !again {
            self.program.note_signal(stopped, process, signal);
        }
        if let Some(thread) = self.threads.get_mut(&tid) {
            thread.restarts.before(stopped, signal)?;
        }
        let space = self.threads.get(&tid).and_then(|t| t.space.clone());
        if let Some(space) = space {
            match signal {
                stops::SYSTEM_CALL => return self.system_call(stopped, &space),
                libc::SIGTRAP if arch::is_breakpoint(&stopped.siginfo()?) => {
                    let mut regs = stopped.regs()?;
                    let at = regs.breakpoint();
                    if space.borrow().announces(at) {
                        // The function there does nothing, so return from it.
                        regs.leave_function(space.borrow().return_place());
                        stopped.set_regs(&regs)?;
                        self.announced(stopped, &space)?;
                        return self.go(stopped, 0);
                    }
                    let asks = space.borrow().asks_at(at);
                    if let Some(function) = asks {
                        return self.asked(stopped, function, &space);
                    }
                    let stub = space.borrow().stub_at(at);
                    if let Some(stub) = stub {
                        regs.set_pc(stub);
                        stopped.set_regs(&regs)?;
                        return self.go(stopped, 0);
                    }
                }
                libc::SIGSEGV | libc::SIGBUS
                    if hodo_inject::step_out::skip_fetch(stopped, &space)? =>
                {
                    return self.go(stopped, 0);
                }
                libc::SIGSEGV if self.find_block(stopped, &space)? => {
                    return self.go(stopped, 0);
                }
                libc::SIGSEGV if self.without_counter(stopped, &space)? => {
                    return self.go(stopped, 0);
                }
                libc::SIGBUS => {
                    let info = stopped.siginfo()?;
                    // SAFETY: a SIGBUS carries an address.
                    let address = unsafe { info.si_addr() } as u64;
                    if info.si_code > 0 && space.borrow().is_in_trace(address) {
                        return self.disk_full(stopped, address);
                    }
                }
                _ => {}
            }
            if hodo_inject::copied::repair(stopped, signal, &space)? {
                return self.go(stopped, 0);
            }
            if self.modules.probes.records_syscalls() && !again {
                self.tell_signal(stopped)?;
            }
            if self.ends_first_process(stopped, signal)? {
                return Ok(());
            }
            return self.deliver(stopped, signal, &space);
        }
        if self.ends_first_process(stopped, signal)? {
            return Ok(());
        }
        self.go(stopped, signal)
    }

    /// The dynamic linker announces libraries, in a stopped thread.
    fn announced(&mut self, stopped: Stopped, space: &SharedSpace) -> Result<()> {
        let tid = stopped.tid();
        let mut looked = self.libraries(stopped, space);
        self.watch_start(stopped, space);
        if space.borrow().has_ended() {
            // These libraries have ended the recording of this program.
            space.borrow_mut().set_sites_to_come(None);
        }
        let sites = space.borrow().sites_to_come();
        if let Some(sites) = sites
            && !sites.is_adding(&stopped.memory()?)
        {
            space.borrow_mut().set_sites_to_come(None);
            let written = sites.write(tid, &mut space.borrow_mut(), &mut self.work());
            looked = looked.and(written);
        }
        match looked {
            Err(error) if !ptrace::is_gone(&error) => {
                self.remark(tid, &format!("new libraries: {error:#}"))
            }
            _ => Ok(()),
        }
    }

    /// If a thread has stopped by this signal to announce libraries: inspects them, and lets the thread run on. Returns
    /// whether that was the case.
    fn is_announcement(&mut self, stopped: Stopped, signal: i32) -> Result<bool> {
        let tid = stopped.tid();
        let space = self.threads.get(&tid).and_then(|t| t.space.clone());
        let Some(space) = space.filter(|space| space.borrow().has_announcement()) else {
            return Ok(false);
        };
        let pc = stopped.regs()?.pc();
        if signal == libc::SIGSYS && space.borrow().is_announcing(pc) {
            // The program's seccomp filter has refused a system call of hodo there; hodo goes on in another way.
            self.go(stopped, 0)?;
            return Ok(true);
        }
        if !space.borrow().announced(pc, signal) || is_for_handler(stopped, signal)? {
            return Ok(false);
        }
        self.announced(stopped, &space)?;
        // The program must not see the signal, even if another one has merged with it.
        self.go(stopped, 0)?;
        Ok(true)
    }

    /// If a stub did not find the control block because the thread has a new thread pointer: stores it there. Returns
    /// whether that was the case.
    fn find_block(&self, stopped: Stopped, space: &SharedSpace) -> Result<bool> {
        let tid = stopped.tid();
        let Some(block) = self.threads.get(&tid).and_then(Thread::block) else {
            return Ok(false);
        };
        let regs = stopped.regs()?;
        // SAFETY: a SIGSEGV carries an address; if a process has sent it, that is an arbitrary number.
        let address = unsafe { stopped.siginfo()?.si_addr() } as u64;
        if !space.borrow().holds(regs.pc()) {
            return Ok(false);
        }
        let place = TargetAddr(space.borrow().syscall_place());
        let found = look_into(stopped, place, || {
            let mut regs = regs;
            Ok((regs.find_block(stopped, block, address)?).then_some(regs))
        })?;
        if let Some(regs) = &found {
            stopped.set_regs(regs)?;
        }
        Ok(found.is_some())
    }

    /// The disk is full: nobody records any more. The record whose store to this address has failed goes to the bucket.
    fn disk_full(&mut self, stopped: Stopped, address: u64) -> Result<()> {
        let tid = stopped.tid();
        self.stop_recording(tid)?;
        if let Some(thread) = self.threads.get(&tid) {
            if let Some(number) = thread.tcb {
                self.session.events.divert_tcb(number);
            }
            if let Some(space) = &thread.space {
                let base = space.borrow().trace().start;
                if let Some(chunk) = Events::chunk_at(address - base) {
                    let mut regs = stopped.regs()?;
                    regs.divert(base + chunk, BUCKET_ROOM, base + BUCKET);
                    stopped.set_regs(&regs)?;
                }
            }
        }
        self.go(stopped, 0)
    }

    /// The disk is full, which a thread was the first to find: no thread gets another chunk.
    fn stop_recording(&mut self, tid: i32) -> Result<()> {
        if !std::mem::replace(&mut self.full, true) {
            self.remark(
                tid,
                "the disk is full: recording has stopped; calls from here on are counted as lost",
            )?;
            warn_user!("hodo: the disk is full: recording has stopped, and the program runs on");
        }
        for thread in self.threads.values() {
            if let Some(number) = thread.tcb {
                self.session.events.stop_tcb(number);
            }
        }
        Ok(())
    }

    /// Installs the recording in a program that has just been executed.
    fn install(&mut self, stopped: Stopped, extra: Raise) -> Result<(Space, Sites)> {
        if !ptrace::is_confined(stopped.tid()) {
            return install::program(stopped, extra, &mut self.work());
        }
        // The seccomp filter that a program inherits need not allow what we have to do here.
        let usual = self.session.ptrace_options();
        stopped
            .set_options(usual | ptrace::SUSPEND_SECCOMP)
            .context("it starts under a seccomp filter, which only root may suspend")?;
        let installed = install::program(stopped, extra, &mut self.work());
        let _ = stopped.set_options(usual);
        installed
    }

    /// Reports that a program is not recorded, and why.
    fn runs_untraced(&mut self, tid: i32, reason: &str) -> Result<()> {
        let text = format!("{reason}; it runs untraced");
        self.remark(tid, &text)?;
        if self.options.verbose == 0 {
            warn_user!("hodo: {tid}: {text}");
        }
        Ok(())
    }

    /// The process executes a new program. Its other threads are gone, as is the address space with the agent.
    fn exec(&mut self, stopped: Stopped) -> Result<()> {
        let tid = stopped.tid();
        let pid = tid;
        let before = stopped.event_message()? as i32;
        let parent = self.threads.get(&before).map_or(0, |t| t.task);
        let space = self.threads.get(&before).and_then(|t| t.space.as_ref());
        let extra = space
            .map(|space| space.borrow().raised())
            .unwrap_or_default();
        let leaves = self.options.no_follow
            && pid != self.program.first
            && self.threads.get(&before).is_some_and(|t| t.task == 0);
        let gone: Vec<i32> = self
            .threads
            .iter()
            .filter(|(_, t)| t.pid == pid)
            .map(|(&tid, _)| tid)
            .collect();
        for other in gone {
            self.part(other);
            if let Some(thread) = self.threads.remove(&other) {
                // The thread that executes continues as another task.
                self.release(&thread, (other != before).then_some(Exit::Code(0)))?;
            }
        }
        if leaves || self.clearing {
            return stopped.detach();
        }
        self.threads.insert(tid, Thread::untraced(pid));
        // The program runs, so this recording replaces an older trace.
        if let Err(error) = self.session.begin() {
            warn_user!("hodo: {error:#}");
        }
        if let Some(reason) = install::set_aside(pid, &mut self.work()) {
            self.runs_untraced(tid, reason)?;
            if pid != self.program.first {
                self.threads.remove(&tid);
            }
            return stopped.detach();
        }
        let space = self.install(stopped, extra);
        match space {
            Ok((space, sites)) => {
                let kind = if parent == 0 { "start" } else { "exec" };
                let space = Rc::new(RefCell::new(space));
                let origin = Origin {
                    begins: true,
                    ..Origin::default()
                };
                self.begin_task(stopped, pid, kind, parent, &space, origin)?;
                sites.arm_linker(pid, &mut space.borrow_mut())?;
                // No code leads to our frames before unwinders find their way through them.
                self.libraries(stopped, &space)?;
                match sites.can_wait() {
                    true => space.borrow_mut().set_sites_to_come(Some(Rc::new(sites))),
                    false => sites.write(pid, &mut space.borrow_mut(), &mut self.work())?,
                }
            }
            Err(error) => self.runs_untraced(tid, &format!("{error:#}"))?,
        }
        self.go(stopped, 0)
    }

    fn libraries(&mut self, stopped: Stopped, space: &SharedSpace) -> Result<()> {
        let mut work = Work {
            modules: &mut self.modules,
            session: &mut *self.session,
            selection: &self.selection,
            recording: self.recording,
        };
        let always = space.borrow().watch().always;
        let done = install::libraries(stopped, &mut space.borrow_mut(), &mut work);
        if space.borrow().watch().always && !always {
            // The other threads may run its code, too.
            self.begin_watching();
        }
        if space.borrow().is_untimed() {
            hodo_inject::untimed::take_time(&stopped.memory()?, &space.borrow())?;
        }
        done
    }
}

/// Whether a signal that arrives where threads announce libraries is one for which the program has a handler: for
/// example, a child ended while hodo was inspecting the libraries. Such a signal is delivered. If another thread has
/// set a handler in the meantime, it does not get the agent's signal.
fn is_for_handler(stopped: Stopped, signal: i32) -> Result<bool> {
    Ok(signal != libc::SIGTRAP
        && hodo_ptrace::is_caught(stopped.tid(), signal)
        && stopped.siginfo()?.si_code != libc::SI_TKILL)
}
