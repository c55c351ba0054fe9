//! Signals that interrupt moved code: the program's handler sees the program's own place, and returns to ours.
//!
//! The kernel makes the handler's frame, with the address in an island. The thread is stopped before the handler's
//! first instruction, the frame gets the address that the instruction has in the program, and when the handler returns
//! (`rt_sigreturn`), the frame gets back what it had. A handler that has put another address there goes on at that one,
//! or at its copy. What interrupts code that is ours alone (a probe, a stub) waits until that is done.

use crate::space::{Moved, Standing};
use hodo_ptrace::TargetAddr;

use anyhow::Result;
use hodo_abi::Span;

use crate::space::Space;
use hodo_ptrace::arch::{BROKEN_OFF, frame};
use hodo_ptrace::{Memory, Regs, Stopped};

/// Our instructions that a thread is led through before a signal is delivered, at most: some system calls of the agent.
pub const STEPS: u32 = 600;

/// System calls of a handler after which it is not waited for its return any more.
const PATIENCE: u32 = 4096;

/// A frame in which a handler sees the program's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shown {
    /// Where the frame is.
    at: u64,
    /// Where the context has the address, and what stands there for the handler and in truth.
    shown: u64,
    real: u64,
    /// Where the thread has left the program, if the probes there have already run.
    left: Option<u64>,
    /// The interrupted stack pointer.
    sp: u64,
    /// The alternate stack that the frame is on, if it is on that.
    alternate: Option<Span>,
}

/// What a thread's signals are waiting for.
#[derive(Debug, Clone, Default)]
pub struct Contexts {
    shown: Vec<Shown>,
    /// The signal that is delivered by the next step, and the place of the program that its handler is to see.
    pub delivering: Option<(Standing, u64)>,
    /// The signal that waits until our code is done.
    pub waiting: Option<Waiting>,
    patience: u32,
}

/// A signal that waits.
#[derive(Debug, Clone, Copy)]
pub struct Waiting {
    /// Which.
    pub signal: i32,
    /// What the kernel says of it.
    pub info: libc::siginfo_t,
    /// The thread's signal mask; it is full meanwhile.
    pub mask: u64,
    /// Steps that are left.
    pub steps: u32,
    /// Whether the thread announces libraries: no signal can stop it for that meanwhile.
    pub announcing: bool,
}

/// Where a thread is that was interrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// In the program, or somewhere else that is not ours.
    Program,
    /// At one of our instructions that stands for one of the program, with all that the program had.
    At(Standing),
    /// In between.
    Between,
}

/// A way that a thread has taken other than from instruction to instruction: addresses in the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// It left from here: the probes of this instruction have run, those of the next ones have not.
    Left(u64),
    /// Another thread goes on here, where this one also does.
    Shared(u64),
    /// It came here.
    Came(u64),
}

/// Has a stopped thread do what is left of our code in which it is, without executing it. Returns its registers after
/// that, at a place that is not [`Place::Between`]; or `None` if that cannot be done, and nothing has changed.
///
/// # Errors
/// If the thread is gone, or its memory cannot be written.
pub fn run_ahead(thread: Stopped, space: &mut Space, regs: &Regs) -> Result<Option<Regs>> {
    // What announces libraries makes system calls.
    if space.is_announcing(regs.pc()) {
        return Ok(None);
    }
    let memory = thread.memory()?;
    hodo_ptrace::arch::run_ahead(thread, &memory, regs, |regs| {
        place(space, regs) != Place::Between
    })
}

/// The place of an instruction.
pub fn place(space: &mut Space, regs: &Regs) -> Place {
    if Moved::ways_of(space).is_on_the_way(regs.pc()) {
        return Place::Between;
    }
    if !space.holds(regs.pc()) {
        return Place::Program;
    }
    let moved = Moved::of(space);
    moved.standing(regs.pc()).map_or(Place::Between, Place::At)
}

impl Contexts {
    /// Does a handler see something else than what is?
    pub fn is_watched(&self) -> bool {
        !self.shown.is_empty()
    }

    /// The address that is meant in the word at `at` of a handler's frame, if the handler sees another one.
    pub fn shown_for(&self, at: u64) -> Option<u64> {
        let shown = self.shown.iter().find(|shown| shown.at + frame::PC == at);
        shown.map(|shown| shown.real)
    }

    /// The thread is at the first instruction of a handler, for which what `real` stands for takes its place.
    pub fn entered(&mut self, thread: Stopped, place: Standing, real: u64) -> Result<()> {
        let at = thread.regs()?.sp();
        let memory = thread.memory()?;
        let stack = memory.read_u64(TargetAddr(at + frame::STACK))?;
        let size = memory.read_u64(TargetAddr(at + frame::STACK_SIZE))?;
        // A system call that is begun again, or is not, stands elsewhere.
        let found = memory.read_u64(TargetAddr(at + frame::PC))?;
        let off = found.wrapping_sub(real).cast_signed();
        if off != 0 && off != BROKEN_OFF {
            return Ok(());
        }
        let shown = place.original.wrapping_add_signed(off);
        memory.write(TargetAddr(at + frame::PC), &shown.to_le_bytes())?;
        let alternate = Span::from(stack..stack.saturating_add(size));
        self.patience = 0;
        self.shown.push(Shown {
            at,
            shown,
            real: found,
            left: place.probed.then_some(place.original),
            sp: memory.read_u64(TargetAddr(at + frame::SP))?,
            alternate: Some(alternate).filter(|stack| stack.contains(at)),
        });
        Ok(())
    }

    /// The thread has begun a system call. Returns the handlers that have not come back to where they began.
    pub fn system_call(&mut self, thread: Stopped, space: &mut Space) -> Result<Vec<Turn>> {
        let mut turns = Vec::new();
        let regs = thread.regs()?;
        let memory = thread.memory()?;
        self.patience += 1;
        let patience = self.patience < PATIENCE;
        let returns = regs.system_call() == Some(libc::SYS_rt_sigreturn);
        let mut back = None;
        self.shown.retain(|shown| {
            if returns && regs.sp() == shown.at + frame::RETURNED {
                back = Some(*shown);
                return false;
            }
            let left = match shown.alternate {
                Some(stack) => !stack.contains(regs.sp()),
                None => regs.sp() > shown.at + frame::RETURNED,
            };
            let keep = patience && !left;
            if !keep {
                restore(&memory, shown);
                // Whoever is only not waited for any more comes back, as far as is known.
                turns.extend(shown.left.filter(|_| left).map(Turn::Left));
            }
            keep
        });
        if let Some(shown) = back {
            let place = memory.read_u64(TargetAddr(shown.at + frame::PC))?;
            let to = match place == shown.shown {
                true => Some(shown.real),
                false => {
                    turns.extend(shown.left.map(Turn::Left));
                    let copy = Moved::of(space).copy_of(place);
                    turns.extend(copy.map(|_| Turn::Came(place)));
                    copy
                }
            };
            if let Some(to) = to {
                memory.write(TargetAddr(shown.at + frame::PC), &to.to_le_bytes())?;
            }
        }
        Ok(turns)
    }

    /// What becomes of the ways of a thread that ends.
    pub fn end(&self) -> impl Iterator<Item = Turn> {
        self.shown
            .iter()
            .filter_map(|shown| shown.left)
            .map(Turn::Left)
    }

    /// What becomes of the ways that a child has in common with its parent.
    pub fn share(&self) -> impl Iterator<Item = Turn> {
        self.shown
            .iter()
            .filter_map(|shown| shown.left)
            .map(Turn::Shared)
    }

    /// hodo leaves, and the program gets its code back: what handlers see becomes true by that. Lets a signal come
    /// again that waits.
    pub fn leave(&mut self, thread: Stopped) -> Result<()> {
        self.shown.clear();
        self.give_up(thread)
    }

    /// Nothing is shown any more from here on: puts back what is, and lets a signal come again that waits.
    pub fn give_up(&mut self, thread: Stopped) -> Result<()> {
        if let Some(waiting) = self.waiting.take() {
            thread.set_signal_mask(waiting.mask)?;
            hodo_ptrace::send(thread.tid(), waiting.signal)?;
        }
        if self.shown.is_empty() {
            return Ok(());
        }
        let memory = thread.memory()?;
        for shown in self.shown.drain(..) {
            restore(&memory, &shown);
        }
        Ok(())
    }
}

/// Puts the true address back into a frame, if it still is that frame.
fn restore(memory: &Memory, shown: &Shown) {
    let is = |offset, value| {
        memory
            .read_u64(TargetAddr(shown.at + offset))
            .is_ok_and(|is| is == value)
    };
    if is(frame::PC, shown.shown) && is(frame::SP, shown.sp) {
        // What cannot be written was no frame.
        let _ = memory.write(TargetAddr(shown.at + frame::PC), &shown.real.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use hodo_patch::{Copied, Copies};

    use std::rc::Rc;

    use super::*;

    #[test]
    fn after_a_system_call_of_a_probe_comes_the_next_instruction() {
        let copied = |original, before, copy, call| Copied {
            original,
            before,
            copy,
            call,
        };
        let mut space = Space {
            copies: Rc::new(Copies::from_iter([
                copied(0x1000, 0x8000, 0x8000, false),
                copied(0x1005, 0x8005, 0x8030, false),
                copied(0x1007, 0x8017, 0x8017, true),
                copied(0x1005, 0x8015, 0x8015, true),
                copied(0x1007, 0x8030, 0x8030, false),
            ])),
            ..Space::default()
        };
        let moved = Moved::of(&mut space);
        let original = |at| moved.standing(at).map(|standing| standing.original);
        assert_eq!(original(0x8005), Some(0x1005));
        assert_eq!(original(0x8015), Some(0x1005));
        assert_eq!(original(0x8017), Some(0x1007));
        assert_eq!(original(0x8030), Some(0x1007));
    }

    #[test]
    fn what_leads_to_stubs_is_nowhere_in_the_program() {
        let mut space = Space {
            ways: vec![Span::from(0x2000..0x200C), Span::from(0x1001..0x1008)],
            leaving: vec![Span::from(0x9000..0x9010)],
            ..Space::default()
        };
        let moved = Moved::of(&mut space);
        for (at, expected) in [
            (0x1000, false),
            (0x1001, true),
            (0x1004, true),
            (0x1008, false),
            (0x1FFF, false),
            (0x2000, true),
            (0x200B, true),
            (0x200C, false),
        ] {
            assert_eq!(moved.is_on_the_way(at), expected, "{at:#x}");
            assert_eq!(space.is_on_the_way(at), expected, "{at:#x}");
            assert_eq!(space.needs_ways(at), expected, "{at:#x}");
        }
        let moved = Moved::ways_of(&mut Space::default());
        assert!(!moved.is_known(), "nobody has asked for that");
        // What stands for the program's instructions, and is left by what leads back.
        assert!(space.needs_ways(0x9004) && !space.is_on_the_way(0x9004));
        assert!(!space.needs_ways(0x9010));
    }
}
