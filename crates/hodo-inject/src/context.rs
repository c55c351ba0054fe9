//! Signals that interrupt moved code: the program's handler sees the program's own address, and returns to ours.
//!
//! The kernel builds the handler's frame, which contains an address in an island. The thread is stopped before the
//! handler's first instruction, and the frame gets the address that the instruction has in the program. When the
//! handler returns (`rt_sigreturn`), the frame gets its real address back. If the handler has stored another address
//! there, execution continues at that one, or at its copy. A signal that interrupts code that is ours alone (a probe, a
//! stub) waits until that code is done.

use crate::space::{AppPoint, Moved};
use hodo_ptrace::TargetAddr;

use std::time::Duration;

use anyhow::Result;
use hodo_abi::Span;

use crate::space::Space;
use hodo_ptrace::arch::{BROKEN_OFF, frame};
use hodo_ptrace::{Memory, Regs, Stopped};

/// How many times a signal is held back for a thread that is in our code each time.
const HOLDS: u32 = 200;

/// For how long the thread runs then before the signal is sent again: at first, and at most.
const RUNS: Duration = Duration::from_micros(30);
const RUNS_AT_MOST: Duration = Duration::from_millis(2);

/// After this many system calls of a handler, we no longer wait for its return.
const PATIENCE: u32 = 4096;

/// A frame in which a handler sees the program's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shown {
    /// The address of the frame.
    at: u64,
    /// The address that the frame's context holds, as shown to the handler, and the real one.
    shown: u64,
    real: u64,
    /// Where the thread has left the program, if the probes there have already run.
    left: Option<u64>,
    /// The interrupted stack pointer.
    sp: u64,
    /// The alternate stack, if the frame is on it.
    alternate: Option<Span>,
}

/// What a thread's signals are waiting for.
#[derive(Debug, Clone, Default)]
pub struct Contexts {
    shown: Vec<Shown>,
    /// The signal that the next step delivers, and the place in the program that its handler will see.
    pub delivering: Option<(AppPoint, u64)>,
    /// Signals that were sent again, in the order in which they came.
    held: Vec<Held>,
    /// How many times one was held back since the last one was delivered.
    holds: u32,
    patience: u32,
}

/// A signal that comes once more, because the thread was in our code.
#[derive(Debug, Clone, Copy)]
struct Held {
    signal: i32,
    /// The kernel's information about it.
    info: libc::siginfo_t,
}

/// Where an interrupted thread is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// In the program, or somewhere else that is not ours.
    Program,
    /// At one of our instructions that stands for one of the program, with the program's complete state.
    At(AppPoint),
    /// In between: at no instruction of the program.
    Between,
}

/// A path other than from one instruction to the next: addresses in the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// The thread left from here: the probes of this instruction have run, those of the next ones have not.
    Left(u64),
    /// Another thread continues here, in addition to this one.
    Shared(u64),
    /// The thread came here.
    Came(u64),
}

/// Emulates the rest of our code for a stopped thread that is in it. Returns the registers after that, at a place that
/// is not [`Place::Between`]; or `None` if that is not possible and nothing has changed.
///
/// # Errors
/// If the thread is gone, or its memory cannot be written.
pub fn run_ahead(thread: Stopped, space: &mut Space, regs: &Regs) -> Result<Option<Regs>> {
    // The stop that it has asked for comes first.
    if space.is_announcing(regs.pc()) && space.awaits_announcement(thread.tid(), regs.pc()) {
        return Ok(None);
    }
    // A system call that ends in our code is one that we have made.
    let mut regs = *regs;
    regs.end_call();
    hodo_ptrace::arch::run_ahead(thread, &regs, |regs| place(space, regs) != Place::Between)
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
    moved.app_point(regs.pc()).map_or(Place::Between, Place::At)
}

impl Contexts {
    /// Whether a handler sees an address other than the real one.
    pub fn is_watched(&self) -> bool {
        !self.shown.is_empty()
    }

    /// The real address for the word at `at` of a handler's frame, if the handler sees another one.
    pub fn shown_for(&self, at: u64) -> Option<u64> {
        let shown = self.shown.iter().find(|shown| shown.at + frame::PC == at);
        shown.map(|shown| shown.real)
    }

    /// The thread is at the first instruction of a handler: replaces the real address `real` by that of the program.
    pub fn entered(&mut self, thread: Stopped, place: AppPoint, real: u64) -> Result<()> {
        let at = thread.regs()?.sp();
        let memory = thread.memory()?;
        let stack = memory.read_u64(TargetAddr(at + frame::STACK))?;
        let size = memory.read_u64(TargetAddr(at + frame::STACK_SIZE))?;
        // If a system call is restarted, or broken off, the address differs.
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

    /// The thread has started a system call. Returns the paths of handlers that have not returned to where they were
    /// called.
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
                // If we only stop waiting for a handler, it is assumed to return.
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

    /// The paths that end with a thread.
    pub fn end(&self) -> impl Iterator<Item = Turn> {
        self.shown
            .iter()
            .filter_map(|shown| shown.left)
            .map(Turn::Left)
    }

    /// The paths that a child shares with its parent.
    pub fn share(&self) -> impl Iterator<Item = Turn> {
        self.shown
            .iter()
            .filter_map(|shown| shown.left)
            .map(Turn::Shared)
    }

    /// What a new process has of its maker's. It has no signals that wait.
    #[must_use]
    pub fn of_child(&self) -> Self {
        Self {
            held: Vec::new(),
            ..self.clone()
        }
    }

    /// Holds a signal back that has stopped a thread in our code. Returns for how long the thread is to run before the
    /// signal is sent again. `None`: it was held back often enough.
    ///
    /// If hodo is killed in that moment, the signal is lost; once it is sent, hodo is not needed any more. A single
    /// step would leave the thread in step mode, which ends the program.
    ///
    /// # Errors
    /// If the thread is gone.
    pub fn hold(&mut self, thread: Stopped, signal: i32) -> Result<Option<Duration>> {
        if self.holds == HOLDS {
            self.holds = 0;
            return Ok(None);
        }
        let info = thread.siginfo()?;
        self.held.push(Held { signal, info });
        self.holds += 1;
        Ok(Some((RUNS * self.holds).min(RUNS_AT_MOST)))
    }

    /// Whether a signal with which a thread has stopped is one that was sent again.
    ///
    /// # Errors
    /// If the thread is gone.
    pub fn is_again(&self, thread: Stopped, signal: i32) -> Result<bool> {
        if !self.held.iter().any(|held| held.signal == signal) {
            return Ok(false);
        }
        let info = thread.siginfo()?;
        let sender = hodo_ptrace::sender(&info);
        // In another namespace, hodo has no number.
        let by_hodo = sender == 0 || sender == std::process::id().cast_signed();
        Ok(info.si_code == libc::SI_TKILL && by_hodo)
    }

    /// A thread has stopped with a signal: if such a signal was held back, it is that one. What the kernel says of this
    /// one is for the next.
    ///
    /// # Errors
    /// If the thread is gone.
    pub fn take_held(&mut self, thread: Stopped, signal: i32) -> Result<()> {
        let Some(first) = self.held.iter().position(|held| held.signal == signal) else {
            return Ok(());
        };
        if !self.is_again(thread, signal)? {
            let info = thread.siginfo()?;
            self.held.push(Held { signal, info });
        }
        thread.set_siginfo(&self.held.remove(first).info)
    }

    /// The signal has been delivered.
    pub fn is_delivered(&mut self) {
        self.holds = 0;
    }

    /// Whether a signal that was sent again is about to stop the thread.
    pub fn awaits(&self, tid: i32) -> bool {
        let bits = || (self.held.iter()).fold(0, |all, held| all | 1 << (held.signal - 1));
        !self.held.is_empty()
            && hodo_ptrace::pending(tid) & !hodo_ptrace::blocked(tid) & bits() != 0
    }

    /// hodo detaches, and the program gets its code back: so the addresses that handlers see become real.
    pub fn leave(&mut self) {
        self.shown.clear();
        self.held.clear();
    }

    /// From here on, real addresses are shown: restores them.
    pub fn give_up(&mut self, thread: Stopped) -> Result<()> {
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

/// Restores the real address in a frame, if the frame still exists.
fn restore(memory: &Memory, shown: &Shown) {
    let is = |offset, value| {
        memory
            .read_u64(TargetAddr(shown.at + offset))
            .is_ok_and(|is| is == value)
    };
    if is(frame::PC, shown.shown) && is(frame::SP, shown.sp) {
        // If it cannot be written, it was not a frame.
        let _ = memory.write(TargetAddr(shown.at + frame::PC), &shown.real.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use hodo_patch::{Copied, Copies, Patches};

    use super::*;

    #[test]
    fn after_a_system_call_of_a_probe_comes_the_next_instruction() {
        let copied = |original, before, copy, call| Copied {
            original,
            before,
            copy,
            call,
            leads: false,
        };
        let mut space = Space::default();
        space.written_mut().add(&Patches {
            copies: Copies::from_iter([
                copied(0x1000, 0x8000, 0x8000, false),
                copied(0x1005, 0x8005, 0x8030, false),
                copied(0x1007, 0x8017, 0x8017, true),
                copied(0x1005, 0x8015, 0x8015, true),
                copied(0x1007, 0x8030, 0x8030, false),
            ]),
            ..Patches::default()
        });
        let moved = Moved::of(&mut space);
        let original = |at| moved.app_point(at).map(|point| point.original);
        assert_eq!(original(0x8005), Some(0x1005));
        assert_eq!(original(0x8015), Some(0x1005));
        assert_eq!(original(0x8017), Some(0x1007));
        assert_eq!(original(0x8030), Some(0x1007));
    }

    #[test]
    fn who_is_sent_to_the_instruction_before_a_jump_comes_by_the_jump() {
        let copied = |original, before, copy, leads| Copied {
            original,
            before,
            copy,
            call: false,
            leads,
        };
        let mut space = Space::default();
        space.written_mut().add(&Patches {
            sites: vec![(0x1004, 0x8000).into()],
            copies: Copies::from_iter([
                copied(0x1000, 0x8004, 0x8020, true),
                copied(0x1004, 0x8024, 0x8040, false),
                copied(0x1008, 0x8044, 0x8044, false),
            ]),
            ..Patches::default()
        });
        let moved = Moved::of(&mut space);
        let copies = [0x1000, 0x1004, 0x1008].map(|at| moved.copy_of(at));
        assert_eq!(copies, [None, None, Some(0x8044)]);
        assert_eq!(moved.app_point(0x8004), Some(AppPoint::unprobed(0x1000)));
    }

    #[test]
    fn what_leads_to_stubs_is_nowhere_in_the_program() {
        let mut space = Space::default();
        space.written_mut().add(&Patches {
            ways: vec![Span::from(0x2000..0x200C), Span::from(0x1001..0x1008)],
            leaving: vec![Span::from(0x9000..0x9010)],
            ..Patches::default()
        });
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
        // Instructions that stand for the program's, and that are left through code that leads back.
        assert!(space.needs_ways(0x9004) && !space.is_on_the_way(0x9004));
        assert!(!space.needs_ways(0x9010));
    }
}
