//! Programs that step themselves.
//!
//! A program that sets the processor's trap flag gets a signal after each of its instructions. Inserted code has
//! instructions, too, which it must not receive.

use hodo_ptrace::{Regs, Stopped};

use super::{Engine, Shared};
use crate::process::Place;
use crate::translate::Stage;

/// What is known of a thread that steps itself.
#[derive(Debug, Default)]
pub(super) struct Steps {
    /// The instruction that was next when it had last stopped.
    next: Option<u64>,
    /// Where in the cache that was.
    at: u64,
    /// It has compared the program's code since.
    compared: bool,
}

impl Engine {
    /// A thread that steps itself has stopped at an address in the cache. Returns whether it has executed only inserted
    /// code since its last stop.
    pub(super) fn steps_inside(&mut self, thread: Stopped, process: &Shared, at: u64) -> bool {
        let process = process.borrow();
        let place = process.place(at);
        let compares = matches!(place, Some(Place::Inside(_, saved)) if saved.compares);
        if let Some(known) = self.threads.get_mut(&thread.tid()) {
            // After that, it is before the same instruction.
            let compared = std::mem::replace(&mut known.steps.compared, compares);
            if compares || compared {
                return true;
            }
        }
        if let Some(Place::Inside(_, saved)) = place
            && !saved.is_known
            && !saved.in_fragment
        {
            // One of several instructions that stand for one of the program, which is not complete.
            return true;
        }
        let is_observed = process.is_observed();
        let (true, Some(known)) = (is_observed, self.threads.get_mut(&thread.tid())) else {
            return false;
        };
        let (next, is_own, in_fragment) = match place {
            Some(Place::At(point)) => (point.original, true, false),
            Some(Place::Inside(next, saved)) if saved.is_known || saved.in_fragment => {
                (next, saved.is_own, saved.in_fragment)
            }
            _ => return false,
        };
        // What is repeated has been executed once if it comes again; in a fragment, each round is several instructions.
        let is_again = match in_fragment {
            true => at <= known.steps.at,
            false => at == known.steps.at,
        };
        // At the beginning of a block, it has come from elsewhere, maybe from the block's only instruction.
        let is_start = matches!(place, Some(Place::At(_))) && process.stage(at) == Stage::Head;
        let is_inside = match known.steps.next {
            Some(before) => before == next && !is_start && !is_again,
            // The flag was set by the instruction before, and counts after the next one.
            None => !is_own,
        };
        known.steps.next = Some(next);
        known.steps.at = at;
        is_inside
    }

    /// A handler has returned.
    pub(super) fn returned(&mut self, thread: Stopped, regs: &Regs) {
        if let Some(known) = self.threads.get_mut(&thread.tid()) {
            known.steps.next = regs.is_stepping().then(|| regs.pc());
            known.steps.at = 0;
        }
    }
}
