//! Runs programs, or parts of their runs, from the cache.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use hodo_follow::{Exit, Program, Tasks};
use hodo_ptrace::processes::{descendants, has_ended};
use hodo_ptrace::signals::{self, Forward, Interrupts};
use hodo_ptrace::{Report, launch, seize};

use super::limit::Limit;
use super::tracers::Tracers;
use super::{Engine, Thread};
use crate::client::{self, Client, Decode, Listener, Observe, Sink, Teller};
use crate::events::Events;
use crate::passes::{Pass, Passes};
use crate::ran::Ran;
use crate::recorder::Recorder;
use crate::target::{Amount, Target};

/// How long a part of a run is, and how much after its beginning the next one begins, if there are others.
type Part = (Option<Amount>, Option<Amount>);

/// What to say of a program that ends before the part of its run that is wanted.
const NOTHING: &str = "nothing was observed (--from says when to begin)";

/// Runs a program, or part of it, from the cache. Returns when the program and all its children have ended, or when it
/// is left.
///
/// Blocks all signals in the calling thread meanwhile, and in threads that are started from it. Those that wait at the
/// end, and are not for the program, are delivered then: who does not want that blocks them before.
///
/// # Errors
/// If the program cannot be traced, or does something that the engine cannot follow. A program that was started for
/// this is ended then; a process that ran before runs on.
pub fn run(target: &Target<'_>) -> Result<Ran> {
    let _mask = signals::Mask::keep();
    start(target, None)
}

/// The same, and tells a client what the program does. Returns the client, too.
///
/// # Errors
/// The same, and what the client could not do.
pub fn observe<C: Client + 'static>(
    target: &Target<'_>,
    observe: Observe,
    client: C,
) -> Result<(Ran, C)> {
    let (ran, decode) = listen(target, observe, Decode::of_engine(client))?;
    Ok((ran, decode.into_client()))
}

/// Observes a program with a listener.
///
/// # Errors
/// If the program cannot be run, and what the listener could not do.
pub fn listen<L: Listener + 'static>(
    target: &Target<'_>,
    observe: Observe,
    listener: L,
) -> Result<(Ran, L)> {
    with_recorder(target, listener, |sink, events| {
        Recorder::new(sink, observe, events)
    })
}

fn with_recorder<L: Listener + 'static>(
    target: &Target<'_>,
    listener: L,
    make: impl FnOnce(Sink, Events) -> Recorder,
) -> Result<(Ran, L)> {
    crate::native::check()?;
    let _mask = signals::Mask::keep();
    if matches!(target, Target::Process { .. }) {
        // Those that are started from here on must not get them.
        signals::block_all();
    }
    let events = listener.events();
    let (sink, teller) = Teller::start(listener).parts();
    let recorder = Rc::new(RefCell::new(make(sink, events)));
    let ran = start(target, Some(recorder));
    // All that could send messages is gone.
    let listener = client::end(teller);
    Ok((ran?, listener?))
}

/// Runs a program, or part of it, from the cache, with passes that change its code. Returns the client, which receives
/// what the code records that they insert, the words of threads, and system calls if it wants to
/// ([`Events::system_calls`]).
///
/// # Errors
/// The same as those of [`observe`], and if the client asks for calls of functions.
pub fn instrument<C: Client + 'static>(
    target: &Target<'_>,
    passes: Vec<Box<dyn Pass>>,
    client: C,
) -> Result<(Ran, C)> {
    if client.events().wants_functions() {
        bail!("only 'observe' reports calls of functions: passes see the code themselves");
    }
    let (ran, decode) = with_recorder(target, Decode::of_engine(client), |sink, events| {
        let passes = Passes::new(passes);
        let passes = match events.system_calls {
            true => passes.with_system_calls(),
            false => passes,
        };
        Recorder::with_passes(sink, passes, events)
    })?;
    Ok((ran, decode.into_client()))
}

fn start(target: &Target<'_>, recorder: Option<Rc<RefCell<Recorder>>>) -> Result<Ran> {
    crate::native::check_machine()?;
    let (Target::Program { marked, .. } | Target::Process { marked, .. }) = *target;
    let mut engine = Engine {
        program: Program::new(0),
        threads: Tasks::default(),
        recorder,
        kept: Rc::default(),
        follows: match *target {
            Target::Program { follows, .. } | Target::Process { follows, .. } => follows,
        },
        attached: false,
        parked: None,
        stuck: None,
        crowded: false,
        limit: None,
        reached: false,
        broken: false,
        tracers: Tracers::default(),
        marks: Cell::new(0),
        markers: marked.then(Rc::default),
        at_markers: Vec::new(),
    };
    let ran = engine.run(target);
    let kept = Rc::clone(&engine.kept);
    // A client need not wait for this.
    drop(engine);
    kept.borrow_mut().write();
    ran
}

impl Engine {
    /// Runs a program, or attaches to a process.
    fn run(&mut self, target: &Target<'_>) -> Result<Ran> {
        if target.repeats()
            && let Some(recorder) = &self.recorder
        {
            recorder.borrow_mut().keep_numbers();
        }
        match *target {
            Target::Process {
                pid, length, every, ..
            } => {
                let interrupts = Interrupts::new(None);
                self.measure(length)?;
                self.measure(every)?;
                self.come_to(&[pid])?;
                self.follow_process(interrupts, (length, every))?;
                self.has_begun()?;
                Ok(Ran {
                    end: self.program.exit,
                    failure: None,
                    broken: false,
                })
            }
            Target::Program {
                path,
                command,
                period,
                ..
            } => {
                let part = (
                    period.and_then(|period| period.length),
                    period.and_then(|period| period.every),
                );
                self.measure(part.0)?;
                self.measure(part.1)?;
                signals::leave_terminal_to_program();
                let child = launch::fork(path, command, false)?;
                self.program.first = child.pid;
                let failure = match period.and_then(|period| period.from) {
                    Some(Amount::Time(from)) => {
                        let failure = child.go()?;
                        self.part(from, part)?;
                        failure
                    }
                    Some(Amount::Instructions(from)) => {
                        self.follow_from_first(child, Some(from), part)?
                    }
                    None => self.follow_from_first(child, None, part)?,
                };
                let end = self.program.exit;
                let end = end.context("the end of the program was not seen")?;
                let failure = (end == Exit::Code(127)).then(|| failure.error()).flatten();
                if failure.is_none() && !self.broken {
                    self.has_begun()?;
                }
                Ok(Ran {
                    end: Some(end),
                    failure,
                    broken: self.broken,
                })
            }
        }
    }

    /// Has the recorder know how many instructions are executed, if an amount is one of these.
    fn measure(&mut self, amount: Option<Amount>) -> Result<()> {
        if !matches!(amount, Some(Amount::Instructions(_))) {
            return Ok(());
        }
        let counting = || Rc::new(RefCell::new(Recorder::counting()));
        let mut recorder = self.recorder.get_or_insert_with(counting).borrow_mut();
        if recorder.inserts() {
            bail!("passes count no instructions: they cannot be left after a number of them");
        }
        recorder.measure();
        Ok(())
    }

    /// Follows a program from its first instruction to its last, or a part of that. Before this number of instructions,
    /// only their number is observed.
    fn follow_from_first(
        &mut self,
        child: launch::Waiting,
        from: Option<u64>,
        (length, every): Part,
    ) -> Result<launch::Failure> {
        let recorder = self.recorder.clone();
        if from.is_some() {
            self.recorder = Some(Rc::new(RefCell::new(Recorder::counting())));
        }
        seize(self.program.first, self.options())?;
        let forward = Forward::start(Some(self.program.first));
        self.program.tell_signals(forward.seen());
        let first = self.program.first;
        self.threads.insert(first, Thread::of(first));
        let failure = child.go()?;
        if let Some(from) = from {
            let interrupts = Interrupts::beside(&forward, None);
            let reached = self.count_until(interrupts, Limit::new(from), recorder)?;
            if !reached {
                if self.program.exit.is_none() {
                    self.wait_for_end(&Interrupts::beside(&forward, None))?;
                }
                bail!(
                    "the program has ended before it had executed {from} instructions: {NOTHING}"
                );
            }
        }
        let followed = match length {
            Some(_) => self.follow_part(&forward, (length, every)),
            None => Ok(()),
        };
        self.follow_to_end()?;
        if self.program.exit.is_none() {
            self.wait_for_end(&Interrupts::beside(&forward, None))?;
        }
        drop(forward);
        followed.map(|()| failure)
    }

    /// Follows a program to its end, and what it leaves behind until a signal comes. If the client has enough before
    /// that, or something fails, the program runs on as alone.
    fn follow_to_end(&mut self) -> Result<()> {
        if let Err(error) = self.follow_for_now(None, None) {
            self.broken = true;
            warn_user!(
                "hodo: {error:#}; from here on, nothing is observed, and the program runs on"
            );
        }
        match self.threads.is_empty() {
            true => Ok(()),
            false => self.leave(),
        }
    }

    /// Waits for the end of a program that was started, and follows it meanwhile for some time.
    fn part(&mut self, from: Duration, part: Part) -> Result<()> {
        let forward = Forward::start(Some(self.program.first));
        self.program.tell_signals(forward.seen());
        let followed = self
            .wait_for_end(&Interrupts::beside(&forward, Some(from)))
            .and_then(|has_ended| match has_ended {
                true => bail!("the program has ended before {from:?} had passed: {NOTHING}"),
                false => match self.come_to(&self.pids()) {
                    Err(_) if self.has_ended() => {
                        bail!("the program has ended before {from:?} had passed: {NOTHING}")
                    }
                    Err(error) => Err(error),
                    Ok(()) => self.follow_part(&forward, part),
                },
            });
        if self.program.exit.is_none() {
            self.wait_for_end(&Interrupts::beside(&forward, None))?;
        }
        followed
    }

    /// Follows a program that was started for a part of its run, and for others if there are some.
    fn follow_part(&mut self, forward: &Forward, (length, every): Part) -> Result<()> {
        let every = match every {
            Some(Amount::Instructions(every)) => {
                let interrupts = |time| Interrupts::beside(forward, time);
                return self.follow_counted(&interrupts, length, every);
            }
            Some(Amount::Time(every)) => Some(every),
            None => None,
        };
        let mut failed = 0;
        loop {
            let began = Instant::now();
            if failed == 0 {
                let (time, limit) = self.split(length);
                let interrupts = Interrupts::beside(forward, time);
                self.follow_until(interrupts.clone(), limit)?;
                if interrupts.asked() {
                    return Ok(());
                }
            }
            let Some(every) = every.filter(|_| self.program.exit.is_none()) else {
                return Ok(());
            };
            let rest = every.saturating_sub(began.elapsed());
            let interrupts = Interrupts::beside(forward, Some(rest));
            if self.wait_for_end(&interrupts)? || interrupts.asked() {
                return Ok(());
            }
            let pids = self.pids();
            match self.come_again(&pids, failed)? {
                Some(now) => failed = now,
                None => return Ok(()),
            }
        }
    }

    /// The same with a process that ran before. A signal means the end.
    fn follow_process(&mut self, mut interrupts: Interrupts, (length, every): Part) -> Result<()> {
        let every = match every {
            Some(Amount::Instructions(every)) => {
                let interrupts = |time| {
                    let mut part = interrupts.clone();
                    part.begin(time);
                    part
                };
                return self.follow_counted(&interrupts, length, every);
            }
            Some(Amount::Time(every)) => Some(every),
            None => None,
        };
        let pid = self.program.first;
        let mut failed = 0;
        loop {
            let began = Instant::now();
            if failed == 0 {
                let (time, limit) = self.split(length);
                interrupts.begin(time);
                self.follow_until(interrupts.clone(), limit)?;
                interrupts.begin(None);
                let is_over = match time {
                    Some(time) => began.elapsed() >= time,
                    None => self.reached,
                };
                // Leaving takes time, too: a signal may have come before that.
                if interrupts.asked() || !is_over {
                    return Ok(());
                }
            }
            let Some(every) = every.filter(|_| self.program.exit.is_none()) else {
                return Ok(());
            };
            let next = began + every;
            while Instant::now() < next {
                if interrupts.wait_until(next) || has_ended(pid) {
                    return Ok(());
                }
            }
            match self.come_again(&[pid], failed)? {
                Some(now) => failed = now,
                None => return Ok(()),
            }
        }
    }

    /// The same with either, if instructions are counted between the parts.
    fn follow_counted(
        &mut self,
        interrupts: &dyn Fn(Option<Duration>) -> Interrupts,
        length: Option<Amount>,
        every: u64,
    ) -> Result<()> {
        let recorder = self.recorder.clone();
        let mut follow = || -> Result<()> {
            loop {
                let (began, before) = (Instant::now(), self.executed_instructions());
                let (time, limit) = self.split(length);
                let part = interrupts(time);
                self.follow_for_now(Some(part.clone()), limit)?;
                let is_over = match time {
                    Some(time) => began.elapsed() >= time,
                    None => self.reached,
                };
                if self.threads.is_empty() || part.asked() || !is_over {
                    return Ok(());
                }
                let executed = self.executed_instructions().saturating_sub(before);
                let Some(rest) = every.checked_sub(executed).filter(|&rest| rest > 0) else {
                    continue;
                };
                self.change_recorder(Some(Rc::new(RefCell::new(Recorder::counting()))))?;
                let limit = Limit::new(rest);
                if !self.count_until(interrupts(None), limit, recorder.clone())? {
                    return Ok(());
                }
            }
        };
        let followed = follow();
        followed.and(self.leave())
    }

    /// Comes to processes again, for another part, after this has failed so often. Returns how often it has failed now;
    /// `None`: the first of them has ended. A process cannot be stopped while it executes a program, for example: then
    /// it is not observed in this part.
    fn come_again(&mut self, pids: &[i32], failed: u32) -> Result<Option<u32>> {
        /// How often it may fail in a row.
        const MOST: u32 = 10;
        match self.come_to(pids) {
            Ok(()) => Ok(Some(0)),
            Err(_) if self.has_ended() => Ok(None),
            Err(error) if failed >= MOST => Err(error),
            Err(_) => Ok(Some(failed + 1)),
        }
    }

    /// Whether the program has ended, also if that was not reported yet.
    fn has_ended(&self) -> bool {
        self.program.exit.is_some() || has_ended(self.program.first)
    }

    /// The program that was started, and its children if they are observed.
    fn pids(&self) -> Vec<i32> {
        let mut all = match self.follows {
            true => descendants(self.program.first),
            false => Vec::new(),
        };
        all.insert(0, self.program.first);
        all
    }

    /// The time that a part takes, or when as many more instructions are executed.
    fn split(&self, length: Option<Amount>) -> (Option<Duration>, Option<Limit>) {
        match length {
            Some(Amount::Time(time)) => (Some(time), None),
            Some(Amount::Instructions(instructions)) => {
                let all = self.executed_instructions().saturating_add(instructions);
                (None, Some(Limit::new(all)))
            }
            None => (None, None),
        }
    }

    /// Waits for the end of a program that is not traced, or until time is up. Returns whether it has ended.
    fn wait_for_end(&mut self, interrupts: &Interrupts) -> Result<bool> {
        loop {
            let first = self.program.first;
            if let Some(exit) = Report::of(first, false)?.and_then(Exit::of) {
                self.program.ended(first, exit);
                return Ok(true);
            }
            if interrupts.wait() {
                return Ok(false);
            }
        }
    }

    /// Comes to these running processes. Those that are gone by then are none.
    fn come_to(&mut self, pids: &[i32]) -> Result<()> {
        self.attached = true;
        for (index, &pid) in pids.iter().enumerate() {
            if index == 0 {
                self.program.first = pid;
            }
            match self.take_over(pid) {
                Err(_) if index > 0 && has_ended(pid) => {}
                Err(error) => {
                    self.leave()?;
                    return Err(error);
                }
                Ok(()) => {}
            }
        }
        Ok(())
    }
}
