//! The program that was started or attached to, what it leaves behind, and what ends the work.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hodo_ptrace::signals::{Interrupts, Seen};
use hodo_ptrace::{Stopped, processes, sender};

use crate::exit::Exit;

/// How long the work continues after the program's end before hodo says so: many processes outlive their parent a
/// little.
const SILENCE: Duration = Duration::from_secs(2);

/// So often it is looked whether a signal or time means the end, even if threads stop all the time.
const OFTEN: Duration = Duration::from_millis(5);

/// The program.
#[derive(Debug)]
pub struct Program {
    /// Its process.
    pub first: i32,
    /// How it has ended.
    pub exit: Option<Exit>,
    /// Where to report signals that are sent to it.
    signals: Option<Arc<Seen>>,
    /// What ends the work while the program goes on.
    interrupts: Option<Interrupts>,
    /// When it was last looked whether something does.
    looked: Instant,
    rest: Rest,
}

/// The processes that the program has left behind.
#[derive(Debug)]
enum Rest {
    /// The program has not ended yet, or was not started by us.
    Awaited,
    /// It ended at this time, and others run on.
    Since(Instant),
    /// The user has been told.
    Told,
}

impl Program {
    /// The program whose process is `first`.
    #[must_use]
    pub fn new(first: i32) -> Self {
        Self {
            first,
            exit: None,
            signals: None,
            interrupts: None,
            looked: Instant::now(),
            rest: Rest::Awaited,
        }
    }

    /// Reports signals that are sent to the program.
    pub fn tell_signals(&mut self, seen: Arc<Seen>) {
        self.signals = Some(seen);
    }

    /// From here on, this ends the work.
    pub fn set_interrupts(&mut self, interrupts: Option<Interrupts>) {
        self.interrupts = interrupts;
    }

    /// Whether the work can end while the program or processes that it has left behind go on.
    #[must_use]
    pub fn may_be_left(&self) -> bool {
        self.interrupts.is_some()
    }

    /// What ends the work, if the program may be left.
    pub(crate) fn interrupts(&self) -> Option<&Interrupts> {
        self.interrupts.as_ref()
    }

    /// A process has ended. What comes after the program's end is not for the program.
    pub fn ended(&mut self, pid: i32, exit: Exit) {
        if pid == self.first {
            self.exit = Some(exit);
            if let Some(signals) = &self.signals {
                signals.end();
            }
        }
    }

    /// A thread of this process gets a signal.
    pub fn note_signal(&self, thread: Stopped, process: impl FnOnce() -> Option<i32>, signal: i32) {
        if let Some(seen) = &self.signals
            && seen.counts(signal)
            && process() == Some(self.first)
            && let Ok(info) = thread.siginfo()
        {
            seen.note(signal, sender(&info));
        }
    }

    /// Whether a signal or time means the end of the work. It is not looked each time.
    pub(crate) fn is_over(&mut self) -> bool {
        let Some(interrupts) = &self.interrupts else {
            return false;
        };
        let is_due = self.looked.elapsed() >= OFTEN;
        if is_due {
            self.looked = Instant::now();
        }
        is_due && interrupts.look()
    }

    /// If the program that was started has ended, and processes that it has made run on: from then on signals end the
    /// work, and hodo says that it goes on. `done`: what is done with these, as a word; `processes`: which they are.
    pub(crate) fn stay_with_rest(&mut self, done: &str, processes: impl FnOnce() -> Vec<i32>) {
        if self.exit.is_none() {
            return;
        }
        match self.rest {
            Rest::Awaited => {
                // Earlier signals were for the program.
                self.interrupts = match self.interrupts.take() {
                    None => Some(Interrupts::after_program()),
                    Some(interrupts) => Some(interrupts.after_end()),
                };
                self.rest = Rest::Since(Instant::now());
            }
            Rest::Since(begun) if begun.elapsed() > SILENCE => {
                self.rest = Rest::Told;
                tell_rest(done, &processes());
            }
            _ => {}
        }
    }
}

/// Reports which processes are waited for.
fn tell_rest(done: &str, pids: &[i32]) {
    let (some, more) = pids.split_at(pids.len().min(3));
    let names: Vec<String> = some.iter().map(|&pid| processes::named(pid)).collect();
    let more = match more.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let (processes, they, them) = match pids.len() {
        1 => ("process", "is", "it"),
        _ => ("processes", "are", "them"),
    };
    warn_user!(
        "hodo: the program has ended; {processes} {}{more} that it has left behind {they} still {done}. Ctrl-C, or kill {}, ends that and lets {them} run on.",
        names.join(", "),
        std::process::id()
    );
}
