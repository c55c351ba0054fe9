//! Turns records into calls: which frames are open, and when each was entered and left.

mod stacks;

use std::sync::Arc;

use crate::records::{Record, RecordKind};
use stacks::{ONE_FRAME, Stacks};

/// What is recorded of a function, and what its records say about open frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traits(u8);

impl Traits {
    /// Entry and exit are recorded.
    pub const PLAIN: Self = Self(0);
    /// Exits are not recorded.
    pub const ENTRY_ONLY: Self = Self(1);
    /// It leaves frames without recording their exits, as `throw` does.
    pub const UNWINDS: Self = Self(2);
    /// It does so immediately, as `longjmp` does.
    pub const JUMPS: Self = Self(4);
    /// It is called where an exception lands.
    pub const LANDS: Self = Self(8);

    /// It is called where jumps may land.
    pub const RETURNS_TWICE: Self = Self(32);
    /// It ends its thread.
    pub const ENDS: Self = Self(16);
    /// It continues on another stack, as `swapcontext` does.
    pub const SWITCHES: Self = Self(64);

    /// Returns what a function's name says about it.
    #[must_use]
    pub fn of(name: &str, entry_only: bool) -> Self {
        let bare = name.trim_start_matches('_');
        let bare = bare.split('@').next().unwrap_or(bare);
        let by_name = match bare {
            "longjmp" | "siglongjmp" | "longjmp_chk" | "libc_longjmp" | "libc_siglongjmp" => {
                Self::UNWINDS.and(Self::JUMPS)
            }
            "cxa_throw"
            | "cxa_rethrow"
            | "Unwind_Resume"
            | "Unwind_RaiseException"
            | "Unwind_Resume_or_Rethrow"
            | "Unwind_ForcedUnwind" => Self::UNWINDS,
            "pthread_exit" | "thrd_exit" | "pthread_unwind" | "pthread_unwind_next" => {
                Self::UNWINDS.and(Self::ENDS)
            }
            "cxa_begin_catch" | "cxa_get_exception_ptr" => Self::LANDS,
            "setjmp" | "sigsetjmp" | "xsetjmp" => Self::RETURNS_TWICE,
            "swapcontext" | "setcontext" => Self::SWITCHES,
            // std::rethrow_exception; functions such as std::__throw_length_error; Rust's panics.
            _ if bare.starts_with("ZSt17rethrow_exception")
                || bare.starts_with("ZSt") && bare.contains("__throw_")
                || bare.ends_with("rust_start_panic") =>
            {
                Self::UNWINDS
            }
            _ => Self::PLAIN,
        };
        if entry_only {
            by_name.and(Self::ENTRY_ONLY)
        } else {
            by_name
        }
    }

    /// Returns the union of both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns whether all of `other` are among these.
    #[must_use]
    pub const fn has(self, traits: Self) -> bool {
        self.0 & traits.0 == traits.0
    }
}

/// How to show a function that another one jumped to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TailCalls {
    /// As a call: inside the function that jumped.
    #[default]
    Nested,
    /// As the processor sees it: in place of the function that jumped.
    Flat,
}

/// At most this many functions that jumped from one to the next are nested. After that, each new one replaces the last.
const MOST_JUMPS: u16 = 16;

/// An open call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// Function id.
    pub id: u32,
    /// The function whose exit closes this frame: this function, or the one whose frame it took over by a tail call.
    pub origin: u32,
    /// When it was entered, in units of the counter.
    pub start: u64,
    /// The bits of the stack pointer at its entry that records have.
    pub sp: u16,
    /// How many open functions led to this one by jumps. They share its frame on the stack.
    pub jumps: u16,
    /// Whether it was jumped to, not called.
    pub jumped: bool,
    /// Whether it was entered in the parent, before the fork that created this task.
    pub inherited: bool,
    /// The stack pointer at its entry, rounded down to a multiple of 16; 0 if not known.
    pub stack: u64,
}

impl Frame {
    /// Creates the frame of a function that was called.
    #[must_use]
    pub fn called(id: u32, sp: u16, start: u64) -> Self {
        Self {
            id,
            origin: id,
            start,
            sp,
            jumps: 0,
            jumped: false,
            inherited: false,
            stack: 0,
        }
    }

    /// Returns the same frame in a process that was forked at `now`.
    #[must_use]
    pub fn inherited(&self, now: u64) -> Self {
        Self {
            start: now,
            inherited: true,
            ..*self
        }
    }
}

/// How a function was entered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entered {
    /// It was called.
    Called,
    /// It was jumped to from another function.
    Jumped,
    /// It was already open when the shown range of time began.
    Before,
    /// It was called earlier, and its stack is now used again.
    Resumed,
}

/// How a frame was left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// It returned.
    Returned,
    /// It jumped to another function, which took over its frame.
    Tail,
    /// It was skipped: longjmp, an exception or the end of the thread led to an outer frame.
    Unwound,
    /// It was still open when the shown range of time ended.
    Later,
    /// It stays open, but the thread goes on on another stack.
    Switched,
}

/// Something that happened in a task. `depth` counts from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallStep {
    /// A function was entered.
    Enter {
        /// How many frames are below it.
        depth: usize,
        /// Function id.
        id: u32,
        /// When.
        time: u64,
        /// How.
        entered: Entered,
    },
    /// A function was left.
    Leave {
        /// How many frames are below it.
        depth: usize,
        /// The frame.
        frame: Frame,
        /// When.
        time: u64,
        /// How.
        left: Left,
    },
    /// A function whose exit is not recorded was entered.
    Instant {
        /// How many frames are below it.
        depth: usize,
        /// Function id.
        id: u32,
        /// When.
        time: u64,
    },
    /// Records are missing here.
    Lost {
        /// How many.
        count: u64,
        /// When.
        time: u64,
    },
}

impl CallStep {
    /// Returns when it happened, in units of the counter.
    #[must_use]
    pub fn time(&self) -> u64 {
        match *self {
            Self::Enter { time, .. }
            | Self::Leave { time, .. }
            | Self::Instant { time, .. }
            | Self::Lost { time, .. } => time,
        }
    }
}

/// The open frames of a task, as its records are read.
#[derive(Debug, Clone)]
pub struct Calls {
    traits: Arc<[Traits]>,
    frames: Vec<Frame>,
    tail_calls: TailCalls,
    /// A function that leaves frames was entered, and the frames that it left may not be closed yet.
    unwinding: bool,
    /// If the last such function has no exit: the number of frames that were open then.
    since: Option<usize>,
    /// If the last function entered leaves frames immediately: the time of its entry.
    jumped: Option<u64>,
    /// A function that ends the thread was entered.
    ending: bool,
    /// The other stacks of the thread.
    stacks: Stacks,
}

/// An unwinding lands at most this many bytes away from a frame of the same stack. Anything farther away is another
/// stack, perhaps a coroutine's.
const NEAR: u64 = 8 << 20;

/// A function that unwinds makes its own calls at most this many bytes below its frame. An entry farther below is
/// somewhere else, so the unwinding has ended there.
const OWN_CALLS: u64 = 16 << 10;

/// At most this many of the innermost frames are searched.
const SEARCHED: usize = 1024;

impl Calls {
    /// Creates the state. `traits` are indexed by function id.
    #[must_use]
    pub fn new(traits: Arc<[Traits]>, frames: Vec<Frame>) -> Self {
        Self {
            traits,
            frames,
            tail_calls: TailCalls::default(),
            unwinding: false,
            since: None,
            jumped: None,
            ending: false,
            stacks: Stacks::default(),
        }
    }

    /// Selects how tail calls are shown.
    #[must_use]
    pub fn with_tail_calls(mut self, tail_calls: TailCalls) -> Self {
        self.tail_calls = tail_calls;
        self
    }

    /// Returns the open frames on the stack that is in use, outermost first.
    #[must_use]
    pub fn frames(&self) -> &[Frame] {
        &self.frames
    }

    /// Takes the next record, and passes what it means to `step`.
    #[inline]
    pub fn feed(&mut self, record: Record, mut step: impl FnMut(CallStep)) {
        let Record {
            time, id, sp, kind, ..
        } = record;
        match kind {
            // Unknown addresses are 0, and far from all others.
            RecordKind::Entry
                if !self.unwinding
                    && !self.stacks.several
                    && self.traits.get(id as usize) == Some(&Traits::PLAIN)
                    && self.frames.last().is_none_or(|top| {
                        top.stack.wrapping_sub(record.stack).wrapping_sub(1) < NEAR
                    }) =>
            {
                self.enter(record, &mut step);
            }
            RecordKind::Exit
                if let Some(top) = self.frames.last()
                    && top.origin == id
                    && top.sp == sp
                    && top.jumps == 0
                    && !self.stacks.several =>
            {
                // Copying the whole frame would stall the processor: the frame was just written in parts and would be
                // read as a whole.
                let frame = Frame {
                    id: top.id,
                    origin: id,
                    start: top.start,
                    sp,
                    jumps: 0,
                    jumped: top.jumped,
                    inherited: top.inherited,
                    stack: top.stack,
                };
                self.frames.pop();
                step(CallStep::Leave {
                    depth: self.frames.len(),
                    frame,
                    time,
                    left: Left::Returned,
                });
            }
            _ => self.feed_rare(record, &mut step),
        }
    }

    /// The task has no more records. If it ended its own thread, that left all frames; otherwise they are still open.
    pub fn finish(&mut self, ended: u64, mut step: impl FnMut(CallStep)) {
        self.settle_first(&mut step);
        if self.ending {
            self.jumped = None;
            self.close(0, ended, &mut step);
        }
    }

    #[inline]
    fn enter(&mut self, record: Record, step: &mut impl FnMut(CallStep)) {
        let Record {
            time,
            id,
            sp,
            stack,
            ..
        } = record;
        let depth = self.frames.len();
        self.frames.push(Frame {
            id,
            origin: id,
            start: time,
            sp,
            jumps: 0,
            jumped: false,
            inherited: false,
            stack,
        });
        step(CallStep::Enter {
            depth,
            id,
            time,
            entered: Entered::Called,
        });
    }

    /// Takes a record that is neither a plain entry nor the exit of the innermost frame.
    #[cold]
    fn feed_rare(&mut self, record: Record, step: &mut dyn FnMut(CallStep)) {
        if !self.stacks.several || self.choose_stack(record, step) {
            self.take(record, step);
        }
    }

    /// Takes a record of the stack in use.
    fn take(&mut self, record: Record, mut step: &mut dyn FnMut(CallStep)) {
        let Record {
            time, id, sp, kind, ..
        } = record;
        match kind {
            RecordKind::Entry => self.rare_entry(record, &mut step),
            RecordKind::Tail => self.tail(record, step),
            RecordKind::Exit => {
                let closes = |frame: &Frame| frame.origin == id && frame.sp == sp;
                let at = self.outer_innermost(&record);
                let Some(at) = at.or_else(|| self.frames.iter().rposition(closes)) else {
                    if self.shows_switch(&record) {
                        self.feed_rare(record, step);
                    }
                    return;
                };
                self.leave_stacks(at + 1, time, step);
                self.close(at + 1, time, step);
                // The functions that led here by jumps return together with this one.
                let first = at - usize::from(self.frames[at].jumps).min(at);
                while self.frames.len() > first {
                    self.leave(time, Left::Returned, step);
                }
            }
            RecordKind::Lost(count) => {
                self.jumped = None;
                self.stacks.forget();
                step(CallStep::Lost { count, time });
            }
        }
    }

    /// Returns what is known about a function.
    fn traits(&self, id: u32) -> Traits {
        let traits = self.traits.get(id as usize).copied();
        traits.unwrap_or(Traits::ENTRY_ONLY)
    }

    /// Takes an entry that took over no frame. Its exit may not be recorded, and it may show that frames were left.
    fn rare_entry(&mut self, record: Record, mut step: &mut dyn FnMut(CallStep)) {
        let Record {
            time, id, stack, ..
        } = record;
        let traits = self.traits(id);
        if traits.has(Traits::ENTRY_ONLY) {
            if stack != 0 && traits.has(Traits::RETURNS_TWICE) {
                self.land(stack, time, false, step);
            }
            let depth = self.frames.len();
            if traits.has(Traits::UNWINDS) {
                (self.unwinding, self.since) = (true, Some(depth));
            }
            step(CallStep::Instant { depth, id, time });
        } else {
            if stack != 0 {
                self.follow(stack, time, step);
                self.land(stack, time, traits.has(Traits::LANDS), step);
            } else {
                // The unwinding may have ended here. Later entries must not be taken for its landing.
                (self.unwinding, self.since) = (false, None);
            }
            self.unwinding |= traits.has(Traits::UNWINDS);
            self.stacks.trim(self.frames.len());
            self.enter(record, &mut step);
            self.note_seam();
        }
        self.jumped = traits.has(Traits::JUMPS).then_some(time);
        self.ending |= traits.has(Traits::ENDS);
        if traits.has(Traits::SWITCHES) {
            self.stacks.switch(stack);
        }
    }

    /// Closes this frame and all inside it. They were left by an unwinding that shows only now.
    fn close(&mut self, from: usize, now: u64, step: &mut dyn FnMut(CallStep)) {
        // A jump takes no time. It was the last event if no frame has been added or removed since.
        let at_once = self.jumped.take().filter(|&jumped| {
            let top = self.frames.last();
            self.since == Some(self.frames.len())
                || top.is_some_and(|top| {
                    top.start == jumped && self.traits(top.id).has(Traits::JUMPS)
                })
        });
        while self.frames.len() > from {
            self.leave(at_once.unwrap_or(now), Left::Unwound, step);
        }
    }

    /// A function was entered at this stack address. Closes the frames that must have been left by then.
    fn land(&mut self, stack: u64, time: u64, sure: bool, step: &mut dyn FnMut(CallStep)) {
        if !self.unwinding && !sure {
            if self.frames.last().is_some_and(|top| top.stack != stack)
                && let Some(dead) = self.overwritten(stack)
            {
                self.close(dead, time, step);
            }
            return;
        }
        let began = self
            .leaver()
            .max(self.since.and_then(|open| open.checked_sub(1)));
        let by = began.and_then(|began| self.frames.get(began)).copied();
        let dead = self
            .overwritten(stack)
            .or_else(|| self.unwound(stack, began, sure));
        if let Some(dead) = dead {
            self.close(dead, time, step);
        }
        // A function that unwinds also makes calls of its own.
        self.unwinding &= by.is_some_and(|by| by.stack > stack && by.stack - stack <= OWN_CALLS);
        self.since = self.since.filter(|_| self.unwinding);
    }

    /// Returns the outermost frame that is certainly dead because a return address was written here: the address lies
    /// between a frame and its caller's. So the stack was unwound at least that far, in whatever way.
    fn overwritten(&self, stack: u64) -> Option<usize> {
        let last = self.frames.len().checked_sub(1)?;
        let places = (last.saturating_sub(SEARCHED)..=last).rev();
        // A frame called from an unknown place after this one may be alive.
        let mut known = places.take_while(|&at| self.frames[at].stack > 0);
        let at = known.find(|&at| {
            let frame = self.frames[at].stack;
            // Addresses are known only down to 16 bytes. The innermost frame may have called a function at the same
            // rounded address.
            let same = frame == stack && (at < last || self.unwinding);
            let outer = at.checked_sub(1).map_or(0, |at| self.frames[at].stack);
            same || frame < stack && stack < outer && outer - frame <= ONE_FRAME
        })?;
        // Functions that jumped to one another have the same address.
        let is_other = |frame: &Frame| frame.stack != self.frames[at].stack;
        let outer = self.frames[..at].iter().rposition(is_other);
        Some(outer.map_or(0, |outer| outer + 1))
    }

    /// Returns the outermost frame at or below this stack address. An unwinding that landed here has left it.
    ///
    /// The search stops where the stack changes: a frame lower than one that it called is on another stack, and alive.
    /// It also stops at a frame whose address is not known, because outer frames may have been left unseen before that
    /// frame was entered.
    ///
    /// Unless an unwinding has landed for `sure`, the frame that `began` it must be among the dead frames. Otherwise a
    /// signal handler has run in between, perhaps on a stack inside some frame. Then only a handler that runs between a
    /// jump and the next call is mistaken for the landing.
    #[cold]
    fn unwound(&self, stack: u64, began: Option<usize>, sure: bool) -> Option<usize> {
        let mut dead = self.frames.len();
        let mut above = 0;
        let mut survivor = None;
        for (at, frame) in self.frames.iter().enumerate().rev() {
            if frame.stack == 0 || frame.stack > stack || frame.stack < above {
                survivor = (frame.stack > stack).then_some(frame.stack);
                break;
            }
            above = frame.stack;
            dead = at;
        }
        let is_landing = sure || began.is_some_and(|began| dead <= began);
        let is_near = match survivor {
            Some(survivor) => survivor - stack <= NEAR,
            None => stack.saturating_sub(above) <= NEAR,
        };
        (is_landing && is_near).then_some(dead)
    }

    /// A function jumped to another one. Returns the outermost of the frames that were left before that, if any.
    fn above_jumper(&self, sp: u16) -> Option<usize> {
        let top = self.frames.last().filter(|top| top.sp != sp)?;
        let frames = self.frames.iter().rev().take(SEARCHED);
        // The frames that were left are below it, and all on the same stack as far as we know.
        let mut above = 0;
        let mut frames = frames.take_while(|frame| {
            let known = top.stack != 0 && frame.stack >= above;
            above = frame.stack;
            known
        });
        let left = frames.position(|frame| frame.sp == sp)?;
        Some(self.frames.len() - left)
    }

    /// Returns the index of the innermost open function that leaves frames.
    fn leaver(&self) -> Option<usize> {
        let frames = self.frames.iter().rev().take(SEARCHED);
        let mut frames = frames.map(|frame| self.traits(frame.id));
        let above = frames.position(|traits| traits.has(Traits::UNWINDS))?;
        Some(self.frames.len() - 1 - above)
    }

    /// Leaves the innermost frame.
    fn leave(&mut self, time: u64, left: Left, step: &mut dyn FnMut(CallStep)) {
        if let Some(frame) = self.frames.pop() {
            let depth = self.frames.len();
            step(CallStep::Leave {
                depth,
                frame,
                time,
                left,
            });
        }
    }

    /// Takes a record of a function that was jumped to.
    fn tail(&mut self, record: Record, mut step: &mut dyn FnMut(CallStep)) {
        let Record { time, id, sp, .. } = record;
        if let Some(from) = self.above_jumper(sp) {
            self.close(from, time, step);
        }
        let Some(&top) = self.frames.last().filter(|top| top.sp == sp) else {
            self.rare_entry(record, &mut step);
            return;
        };
        self.jumped = None;
        let first = self.frames.len() - 1 - usize::from(top.jumps).min(self.frames.len() - 1);
        let chain = &self.frames[first..];
        // In a loop of jumps, a function that returns to the chain takes its old place, so that loops do not nest
        // forever.
        let again = chain.iter().position(|frame| frame.id == id);
        let keep = match self.tail_calls {
            TailCalls::Flat => 0,
            TailCalls::Nested => again.unwrap_or(chain.len()).min(usize::from(MOST_JUMPS)),
        };
        while self.frames.len() > first + keep {
            self.leave(time, Left::Tail, step);
        }
        let depth = self.frames.len();
        self.frames.push(Frame {
            id,
            start: time,
            jumps: keep as u16,
            jumped: true,
            inherited: false,
            ..top
        });
        step(CallStep::Enter {
            depth,
            id,
            time,
            entered: Entered::Jumped,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(records: &[(RecordKind, u32, u16)]) -> (Vec<String>, usize) {
        let plain = Traits::PLAIN;
        let traits = [plain, plain, plain, plain, plain, Traits::ENTRY_ONLY];
        let mut calls = Calls::new(traits.into(), Vec::new());
        let mut out = Vec::new();
        for (time, &(kind, id, sp)) in (1..).zip(records) {
            let record = Record {
                time,
                id,
                sp,
                kind,
                stack: 0,
            };
            calls.feed(record, |step| {
                out.push(match step {
                    CallStep::Enter { depth, id, .. } => format!("{depth}>{id}"),
                    CallStep::Leave {
                        depth, frame, left, ..
                    } => format!("{depth}<{}{left:?}", frame.id),
                    CallStep::Instant { depth, id, .. } => format!("{depth}={id}"),
                    CallStep::Lost { count, .. } => format!("lost {count}"),
                });
            });
        }
        (out, calls.frames().len())
    }

    const E: RecordKind = RecordKind::Entry;
    const X: RecordKind = RecordKind::Exit;
    const T: RecordKind = RecordKind::Tail;

    #[test]
    fn calls_nest() {
        let (out, open) = run(&[(E, 1, 9), (E, 2, 8), (X, 2, 8), (E, 5, 8), (X, 1, 9)]);
        assert_eq!(out, ["0>1", "1>2", "1<2Returned", "1=5", "0<1Returned"]);
        assert_eq!(open, 0);
    }

    #[test]
    fn a_tail_call_is_inside_the_function_that_jumped() {
        // 1 calls 2, 2 jumps to 3, 3 jumps to 4, and 4 returns to 1: the exit recorded is that of 2.
        let (out, open) = run(&[
            (E, 1, 9),
            (E, 2, 8),
            (T, 3, 8),
            (T, 4, 8),
            (X, 2, 8),
            (X, 1, 9),
        ]);
        assert_eq!(
            out,
            [
                "0>1",
                "1>2",
                "2>3",
                "3>4",
                "3<4Returned",
                "2<3Returned",
                "1<2Returned",
                "0<1Returned"
            ]
        );
        assert_eq!(open, 0);
    }

    #[test]
    fn an_exit_closes_what_was_jumped_over() {
        let (out, _) = run(&[(E, 1, 9), (E, 2, 8), (E, 3, 7), (X, 1, 9)]);
        assert_eq!(out[3..], ["2<3Unwound", "1<2Unwound", "0<1Returned"]);
    }

    #[test]
    fn a_million_tail_calls_nest_no_deeper_than_their_functions() {
        let mut records = vec![(E, 1, 9)];
        records.extend((0..1_000_000).map(|i| (T, 2 + i % 2, 9)));
        assert_eq!(run(&records).1, 3);
        records.push((X, 1, 9));
        let (out, open) = run(&records);
        assert_eq!(open, 0);
        assert_eq!(out[..6], ["0>1", "1>2", "2>3", "2<3Tail", "1<2Tail", "1>2"]);
        assert_eq!(
            out[out.len() - 3..],
            ["2<3Returned", "1<2Returned", "0<1Returned"]
        );
    }

    #[test]
    fn an_exit_without_its_entry_changes_nothing() {
        let (out, open) = run(&[(X, 1, 9), (E, 2, 8), (X, 3, 7)]);
        assert_eq!(out, ["0>2"]);
        assert_eq!(open, 1);
    }
}
