//! Waits for stops, and deals with them.

use std::io;
use std::time::Instant;

use anyhow::{Context, Error, Result};
use hodo_ptrace::stops::SYSTEM_CALL;
use hodo_ptrace::{Report, Stopped, is_gone, signals};

use crate::exit::Exit;
use crate::made::Made;
use crate::program::Program;
use crate::tasks::{Maker, Task, Tasks};

/// What is done with what is followed.
pub trait Policy {
    /// What is known of a thread.
    type Task: Task;

    /// What is done with processes, as a message says it: recorded, for example.
    const DONE: &'static str;

    /// The threads.
    fn tasks(&mut self) -> &mut Tasks<Self::Task>;

    /// The program.
    fn program(&mut self) -> &mut Program;

    /// The mark that a new thread has from its maker ([`Task::mark`]).
    ///
    /// # Errors
    /// If the thread is gone.
    fn mark_of(&self, child: Stopped) -> Result<u64>;

    /// To be done before each wait. Returns whether to go on.
    ///
    /// # Errors
    /// What could not be done. Nobody is followed any more then.
    fn look(&mut self) -> Result<bool>;

    /// When it is to look again, even if no thread stops. It is asked only while the program may be left.
    fn next_look(&self) -> Option<Instant> {
        None
    }

    /// Waits for a thread to stop.
    ///
    /// # Errors
    /// The kernel's.
    fn wait(&mut self) -> io::Result<Option<Report>> {
        Report::any(true)
    }

    /// Takes over a new thread or process, which has stopped before its first instruction, and lets it run in any case.
    /// `maker`: what is known of its maker, if that is. `beside`: the maker, if it is there and also stopped.
    ///
    /// # Errors
    /// What could not be done.
    fn adopt(
        &mut self,
        child: Stopped,
        maker: Option<&Self::Task>,
        made: Made,
        beside: Option<Stopped>,
    ) -> Result<()>;

    /// A thread has stopped, for whatever reason. What is done because of that comes afterwards.
    ///
    /// # Errors
    /// What could not be done.
    fn stops(&mut self, _thread: Stopped, _report: Report) -> Result<()> {
        Ok(())
    }

    /// A process has executed a program. The thread is still in that call.
    ///
    /// # Errors
    /// What could not be done.
    fn executed(&mut self, thread: Stopped) -> Result<()>;

    /// A thread is about to end.
    ///
    /// # Errors
    /// What could not be done.
    fn exits(&mut self, thread: Stopped) -> Result<()>;

    /// A thread has ended, which was known as this.
    ///
    /// # Errors
    /// What could not be done.
    fn ended(&mut self, tid: i32, known: Self::Task, exit: Exit) -> Result<()>;

    /// A thread gets a signal.
    ///
    /// # Errors
    /// What could not be done.
    fn signaled(&mut self, thread: Stopped, signal: i32) -> Result<()>;

    /// A thread has stopped at a system call.
    ///
    /// # Errors
    /// What could not be done.
    fn at_call(&mut self, thread: Stopped) -> Result<()>;

    /// A thread has stopped because it was asked to.
    ///
    /// # Errors
    /// What could not be done.
    fn asked(&mut self, thread: Stopped) -> Result<()>;

    /// A thread has stopped with its whole process (SIGSTOP, ^Z).
    ///
    /// # Errors
    /// What could not be done.
    fn all_stopped(&mut self, thread: Stopped) -> Result<()> {
        thread.listen()
    }

    /// Whether a shell is to see that the program stops at ^Z.
    fn stops_with_program(&self) -> bool {
        true
    }

    /// A thread goes on that has waited for its child to execute a program or to end (vfork).
    ///
    /// # Errors
    /// What could not be done.
    fn goes_on(&mut self, thread: Stopped) -> Result<()> {
        self.go(thread, 0)
    }

    /// Lets a stopped thread run, with a signal or 0.
    ///
    /// # Errors
    /// If the thread is gone.
    fn go(&mut self, thread: Stopped, signal: i32) -> Result<()>;

    /// A report could not be dealt with.
    ///
    /// # Errors
    /// If that is the end of the work.
    fn failed(&mut self, report: Report, error: Error) -> Result<()>;

    /// A child whose maker is gone could not be taken over. It runs.
    ///
    /// # Errors
    /// If that is the end of the work.
    fn failed_with(&mut self, orphan: Stopped, error: Error) -> Result<()>;
}

/// Waits for the next thread that stops or ends. `None`: none is left, or the work has to end.
///
/// # Errors
/// What could not be done.
pub fn next<P: Policy>(policy: &mut P) -> Result<Option<Report>> {
    while policy.look()? {
        stay_with_rest(policy);
        let program = policy.program();
        if program.is_over() {
            break;
        }
        let report = match program.may_be_left() {
            true => Report::any(false),
            false => policy.wait(),
        };
        match report {
            Ok(Some(report)) => return Ok(Some(report)),
            Ok(None) => {
                let at = policy.next_look();
                let is_over = policy.program().interrupts().is_some_and(|interrupts| {
                    at.map_or_else(|| interrupts.wait(), |at| interrupts.wait_until(at))
                });
                if is_over {
                    break;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.raw_os_error() == Some(libc::ECHILD) => break,
            Err(error) => return Err(error).context("waiting for the program"),
        }
    }
    Ok(None)
}

fn stay_with_rest<P: Policy>(policy: &mut P) {
    // Only a few have to be told.
    if policy.program().exit.is_some() {
        let processes = policy.tasks().processes();
        policy.program().stay_with_rest(P::DONE, || processes);
    }
}

/// Deals with a report.
///
/// # Errors
/// What the policy does not bear.
pub fn deal<P: Policy>(policy: &mut P, report: Report) -> Result<()> {
    handle(policy, report).or_else(|error| policy.failed(report, error))
}

fn handle<P: Policy>(policy: &mut P, report: Report) -> Result<()> {
    let tid = report.tid();
    if let Some(exit) = Exit::of(report) {
        return ended(policy, tid, exit);
    }
    let Some(thread) = report.stopped() else {
        return Ok(());
    };
    if !policy.tasks().contains_key(&tid) {
        policy.tasks().is_early(thread);
        return orphans(policy);
    }
    policy.stops(thread, report)?;
    match report.event() {
        0 if report.signal() == SYSTEM_CALL => policy.at_call(thread),
        0 => policy.signaled(thread, report.signal()),
        event @ (libc::PTRACE_EVENT_CLONE | libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK) => {
            child(policy, thread, event)?;
            policy.go(thread, 0)
        }
        libc::PTRACE_EVENT_VFORK_DONE => policy.goes_on(thread),
        libc::PTRACE_EVENT_EXEC => {
            policy.executed(thread)?;
            orphans(policy)
        }
        libc::PTRACE_EVENT_EXIT => policy.exits(thread),
        libc::PTRACE_EVENT_STOP if report.is_group_stop() => {
            policy.all_stopped(thread)?;
            if tid == policy.program().first
                && report.signal() == libc::SIGTSTP
                && policy.stops_with_program()
            {
                signals::stop_in_foreground(tid);
            }
            Ok(())
        }
        libc::PTRACE_EVENT_STOP => policy.asked(thread),
        _ => policy.go(thread, 0),
    }
}

/// A thread has made another one.
fn child<P: Policy>(policy: &mut P, maker: Stopped, event: i32) -> Result<()> {
    let tid = i32::try_from(maker.event_message()?)?;
    if policy.tasks().contains_key(&tid) {
        return Ok(());
    }
    // Its own first stop may have been seen already.
    let child = match policy.tasks().take_early(tid) {
        Some(child) => child,
        None => match Report::of(tid, true)
            .ok()
            .flatten()
            .and_then(Report::stopped)
        {
            Some(child) => child,
            // It was killed.
            None => return Ok(()),
        },
    };
    let Ok(made) = Made::of(maker, tid, event) else {
        // The maker was killed; its end is reported separately.
        policy.tasks().is_early(child);
        return Ok(());
    };
    let known = policy.tasks().get(&maker.tid()).map(Task::as_maker);
    policy.adopt(child, known.as_ref(), made, Some(maker))
}

/// Adopts the children whose makers were killed before they reported them.
fn orphans<P: Policy>(policy: &mut P) -> Result<()> {
    for child in policy.tasks().take_all_early() {
        let mark = match policy.mark_of(child) {
            // It was killed, too.
            Err(error) if is_gone(&error) => continue,
            mark => mark,
        };
        let maker = mark.map_or(Maker::Lives, |mark| policy.tasks().maker(child.tid(), mark));
        let maker = match maker {
            Maker::Lives => {
                policy.tasks().is_early(child);
                continue;
            }
            Maker::Ended(maker) => maker,
        };
        // A problem with one must leave neither the others stopped, nor threads that have nothing to do with it.
        if let Err(error) = policy.adopt(child, maker.as_ref(), Made::default(), None) {
            policy.failed_with(child, error)?;
        }
    }
    Ok(())
}

/// A thread or a process has ended.
fn ended<P: Policy>(policy: &mut P, tid: i32, exit: Exit) -> Result<()> {
    policy.program().ended(tid, exit);
    // It may have stopped before that.
    policy.tasks().take_early(tid);
    let Some(known) = policy.tasks().remove(&tid) else {
        return Ok(());
    };
    policy.ended(tid, known, exit)?;
    orphans(policy)
}
