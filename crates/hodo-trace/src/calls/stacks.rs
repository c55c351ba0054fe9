//! Programs that switch stacks: which stack a record belongs to.
//!
//! A stack shows by the addresses of its frames. A function whose frame is far from that of the one before it runs on
//! another stack: that of a signal handler, or that of a coroutine. Which of them shows only when the thread goes on on
//! the stack before, although no function has left the frames. Then they stay open, and may be used again.

use std::collections::{HashMap, VecDeque};

use super::{CallStep, Calls, Entered, Frame, Left, NEAR, SEARCHED, Traits};
use crate::records::{Record, RecordKind};

/// The stacks that a thread has left.
#[derive(Debug, Clone, Default)]
pub(super) struct Stacks {
    /// The thread switches stacks. From then on, each record may belong to another stack.
    pub several: bool,
    /// It does so without functions that are known to switch.
    unseen: bool,
    /// If nothing has shown yet whether the last function known to switch has switched: the stack pointer at its entry.
    switching: Option<u64>,
    /// If such a function has called another one first, which has not returned: that stack pointer, and how many frames
    /// were open. glibc's `setcontext` does so on AArch64.
    calling: Option<(u64, usize)>,
    /// Exits that may belong to several stacks, and what came after them but does not say where it is.
    held: Vec<Record>,
    /// In the order in which they were left. As long as the thread has shown no switch, they were perhaps unwound.
    others: VecDeque<Stack>,
    /// Where other stacks begin among the open frames, if it is known that the thread switches without such functions.
    seams: Vec<usize>,
    /// How many of the others have this function and these bits of the stack pointer as their innermost frame.
    innermost: HashMap<(u32, u16), usize>,
}

/// A stack that the thread has left and may use again.
#[derive(Debug, Clone)]
struct Stack {
    /// Its open frames, outermost first. There is at least one.
    frames: Vec<Frame>,
    /// The stack pointer when it was left.
    left: u64,
    /// The least of all these addresses that are known.
    lowest: u64,
    /// Whether it is surely not a part of the stack that called it.
    sure: bool,
}

impl Stack {
    /// Returns whether a function that is entered at this address may have been called from one of the frames, which
    /// are at most this large.
    fn contains(&self, stack: u64, size: u64) -> bool {
        !self.begins_at(stack) && self.distance(stack) <= size
    }

    /// Returns how far below the next of its frames, or the place where it was left, this address is.
    fn distance(&self, stack: u64) -> u64 {
        if stack <= self.lowest {
            return self.lowest - stack;
        }
        let frames = self.frames.iter().rev().take(SEARCHED);
        let addresses = frames.map(|frame| frame.stack).chain([self.left]);
        distance(addresses, stack)
    }

    /// Returns whether an entry at this address shows that none of the frames is alive: it is at the outermost one, or
    /// a little above it.
    fn begins_at(&self, stack: u64) -> bool {
        let first = self.frames.first().map_or(0, |frame| frame.stack);
        first != 0 && first <= stack && stack - first <= ONE_FRAME
    }

    /// Returns what tells its innermost frame from those of other stacks.
    fn innermost(&self) -> (u32, u16) {
        let top = self.frames.last();
        top.map_or((0, 0), |top| (top.origin, top.sp))
    }
}

/// A stack that a record may belong to.
#[derive(Debug, Clone, Copy)]
enum Candidate {
    /// These of the open frames.
    Here(usize, usize),
    /// This one of the others.
    Other(usize),
}

/// Returns how far below the next of these addresses this one is.
fn distance(addresses: impl Iterator<Item = u64>, stack: u64) -> u64 {
    let below = addresses.filter_map(|address| address.checked_sub(stack));
    below.min().unwrap_or(u64::MAX)
}

/// Returns whether a function entered at one address may be in a frame that was entered at the other one.
fn is_called_at(frame: u64, stack: u64) -> bool {
    is_in(frame, stack, ONE_FRAME)
}

/// Does this for a frame of at most this size.
fn is_in(frame: u64, stack: u64, size: u64) -> bool {
    frame != 0 && stack <= frame && frame - stack <= size
}

/// Returns whether these exits may be of these frames, innermost first.
fn fits(mut open: &[Frame], exits: &[Record]) -> bool {
    let mut exits = exits
        .iter()
        .filter(|record| record.kind == RecordKind::Exit);
    exits.all(|exit| match open.last() {
        Some(top) if (top.origin, top.sp) == (exit.id, exit.sp) => {
            open = &open[..open.len().saturating_sub(1 + usize::from(top.jumps))];
            true
        }
        _ => false,
    })
}

/// If two frames are at most this far apart, everything between them belongs to the outer one. A larger frame may
/// contain a whole stack, for signal handlers.
pub(super) const ONE_FRAME: u64 = 4 << 10;

/// The same if no function says when the thread switches: then an entry is often the first record after that, and the
/// frame around it may have a buffer. Few stacks are this small.
const BUFFERED_FRAME: u64 = 12 << 10;

/// In a thread that switches stacks, two frames that are farther apart are on different ones.
const LARGE_FRAME: u64 = 32 << 10;

/// At most this many stacks are kept. Those of coroutines that will not be resumed cannot be told from others.
const MOST_STACKS: usize = 4096;

/// At most this many are kept that may be parts of others.
const MOST_UNWOUND: usize = 64;

/// At most this many records wait for one that says where it is.
const MOST_HELD: usize = 256;

impl Stacks {
    /// A function was entered that switches stacks.
    pub(super) fn switch(&mut self, stack: u64) {
        (self.several, self.switching) = (true, Some(stack));
    }

    /// Records are missing.
    pub(super) fn forget(&mut self) {
        self.switching = None;
        if !self.several {
            self.others.clear();
            self.innermost.clear();
        }
    }

    /// Only this many frames are open.
    pub(super) fn trim(&mut self, open: usize) {
        while self.seams.last().is_some_and(|&last| last >= open) {
            self.seams.pop();
        }
    }

    fn push(&mut self, stack: Stack) {
        if self.others.len() >= MOST_STACKS {
            self.remove(0);
        } else if !stack.sure {
            let mut unsure = (0..self.others.len()).filter(|&at| !self.others[at].sure);
            let first = unsure.next();
            if unsure.count() + 1 >= MOST_UNWOUND {
                first.and_then(|first| self.remove(first));
            }
        }
        *self.innermost.entry(stack.innermost()).or_default() += 1;
        self.others.push_back(stack);
    }

    fn remove(&mut self, at: usize) -> Option<Stack> {
        let stack = self.others.remove(at)?;
        if let Some(count) = self.innermost.get_mut(&stack.innermost()) {
            *count -= 1;
            if *count == 0 {
                self.innermost.remove(&stack.innermost());
            }
        }
        Some(stack)
    }
}

impl Calls {
    /// Finds out to which stack a record belongs, and switches to it. Returns `false` if later records must show that;
    /// then the record is kept.
    ///
    /// An entry is on the stack whose frames are around its address, or on a new one if a function known to switch came
    /// before. Otherwise it is on the stack in use: then it may be a signal handler's. An exit closes the innermost
    /// frame of a stack. If it fits several, the next entry shows which of them is meant.
    #[cold]
    pub(super) fn choose_stack(&mut self, record: Record, step: &mut dyn FnMut(CallStep)) -> bool {
        match record.kind {
            RecordKind::Exit => return self.choose_for_exit(record, step),
            RecordKind::Tail => {
                self.settle_first(step);
                self.choose_for_tail(record, step);
            }
            RecordKind::Entry if record.stack != 0 && self.is_placed(record.id) => {
                self.settle_nearest(record.stack, step);
                self.choose_for_entry(record.stack, record.time, step);
            }
            RecordKind::Entry if self.stacks.held.is_empty() => {}
            RecordKind::Entry if self.stacks.held.len() < MOST_HELD => {
                self.stacks.held.push(record);
                return false;
            }
            RecordKind::Entry | RecordKind::Lost(_) => self.settle_first(step),
        }
        true
    }

    /// Does this for an exit.
    fn choose_for_exit(&mut self, record: Record, step: &mut dyn FnMut(CallStep)) -> bool {
        let Record { id, sp, .. } = record;
        let closes = |frame: &Frame| (frame.origin, frame.sp) == (id, sp);
        self.stacks.trim(self.frames.len());
        let stacks = &self.stacks;
        let is_outer = stacks.seams.iter().any(|&at| closes(&self.frames[at - 1]));
        if stacks.held.is_empty() && !is_outer && !stacks.innermost.contains_key(&(id, sp)) {
            let last = self.frames.len().saturating_sub(1);
            let calling = stacks.calling.filter(|&(_, open)| open <= last);
            let is_back =
                |&(_, open): &(u64, usize)| open == last && self.frames.last().is_some_and(closes);
            // Still nothing shows whether it has switched.
            self.stacks.switching = calling.filter(is_back).map(|(left, _)| left);
            self.stacks.calling = calling.filter(|&(_, open)| open != last);
            return true;
        }
        // What an unwinding has left does not return.
        let goes_on = stacks.switching.is_none() && (self.unwinding || !stacks.unseen);
        if goes_on && self.frames.iter().rev().take(SEARCHED).any(closes) {
            self.settle_first(step);
            return true;
        }
        let is_first = stacks.held.is_empty();
        self.stacks.held.push(record);
        match self.fitting()[..] {
            [] => {
                self.stacks.held.pop();
                self.settle_first(step);
                self.stacks.switching = None;
                // The thread may have switched again after those exits.
                is_first || self.choose_for_exit(record, step)
            }
            [only] => {
                self.settle(Some(only), step);
                false
            }
            [first, ..] => {
                if self.stacks.held.len() >= MOST_HELD {
                    self.settle(Some(first), step);
                }
                false
            }
        }
    }

    /// Does this for a tail call.
    fn choose_for_tail(&mut self, record: Record, step: &mut dyn FnMut(CallStep)) {
        let is_jumper = |frame: &Frame| frame.sp == record.sp;
        let switched = self.stacks.switching.take();
        if switched.is_none() && self.frames.last().is_some_and(is_jumper) {
            return;
        }
        let innermost = |stack: &Stack| stack.frames.last().is_some_and(is_jumper);
        let chosen = self.stacks.others.iter().position(innermost);
        if let Some(chosen) = chosen {
            self.resume(chosen, switched, record.time, step);
        }
    }

    /// Does this for an entry whose address is known.
    fn choose_for_entry(&mut self, stack: u64, time: u64, step: &mut dyn FnMut(CallStep)) {
        let switched = self.stacks.switching.take();
        let top = self.frames.last().map_or(0, |top| top.stack);
        // After a switch, this is a signal handler, or nothing was switched.
        let near = switched.filter(|&left| left != 0).unwrap_or(top);
        if is_called_at(near, stack) {
            let calling = switched.map(|left| (left, self.frames.len()));
            self.stacks.calling = calling.or(self.stacks.calling);
            return;
        }
        let size = match self.stacks.unseen {
            true => BUFFERED_FRAME,
            false => ONE_FRAME,
        };
        let others = self.stacks.others.iter().enumerate();
        let around = others.filter(|(_, other)| other.contains(stack, size));
        let distances = around.map(|(at, other)| (other.distance(stack), at));
        let here = Candidate::Here(0, self.frames.len());
        let here = self.distance(here, stack);
        let is_nearer = |&(distance, _): &(u64, usize)| switched.is_some() || distance < here;
        if let Some((_, chosen)) = distances.min().filter(is_nearer) {
            self.resume(chosen, switched, time, step);
            return;
        }
        // It may be far below the innermost frame in use, and yet on the same stack.
        if switched.is_some() || here > LARGE_FRAME {
            let others = &self.stacks.others;
            let dead = others.iter().position(|other| other.begins_at(stack));
            dead.and_then(|dead| self.stacks.remove(dead));
        }
        if switched.is_some() {
            self.set_aside(0, switched, time, step);
        }
    }

    /// An exit fits no open frame. Returns whether it fits one that was taken for unwound: then the thread had only
    /// switched to another stack.
    pub(super) fn shows_switch(&mut self, exit: &Record) -> bool {
        let is_kept = self.stacks.innermost.contains_key(&(exit.id, exit.sp));
        let shown = !self.stacks.several && is_kept;
        if shown {
            self.begin_unseen();
        }
        shown
    }

    /// Returns all stacks that the exits that are held may belong to. The one in use is the first.
    fn fitting(&mut self) -> Vec<Candidate> {
        let mut fitting = Vec::new();
        if self.stacks.switching.is_none() {
            let mut end = self.frames.len();
            self.stacks.trim(end);
            for &start in self.stacks.seams.iter().rev().chain([&0]) {
                if fits(&self.frames[start..end], &self.stacks.held) {
                    fitting.push(Candidate::Here(start, end));
                }
                end = start;
            }
        }
        let Stacks { held, others, .. } = &self.stacks;
        let others = others.iter().enumerate();
        let others = others.filter(|(_, stack)| fits(&stack.frames, held));
        fitting.extend(others.map(|(at, _)| Candidate::Other(at)));
        fitting
    }

    /// The innermost frame was entered. It may be the first on its stack.
    pub(super) fn note_seam(&mut self) {
        let Some(at) = self.frames.len().checked_sub(1) else {
            return;
        };
        if self.stacks.unseen && self.is_seam(at, false) {
            self.stacks.seams.push(at);
        }
    }

    /// Returns how far below the next frame of a stack this address is.
    fn distance(&self, of: Candidate, stack: u64) -> u64 {
        match of {
            Candidate::Here(start, end) => {
                let frames = self.frames[start..end].iter().rev().take(SEARCHED);
                distance(frames.map(|frame| frame.stack), stack)
            }
            Candidate::Other(at) => self.stacks.others[at].distance(stack),
        }
    }

    /// Nothing shows which stack the exits that are held belong to.
    pub(super) fn settle_first(&mut self, step: &mut dyn FnMut(CallStep)) {
        if !self.stacks.held.is_empty() {
            let first = self.fitting().first().copied();
            self.settle(first, step);
        }
    }

    /// The next entry is at this address. It is on the stack that the exits that are held belong to.
    fn settle_nearest(&mut self, stack: u64, step: &mut dyn FnMut(CallStep)) {
        if !self.stacks.held.is_empty() {
            let fitting = self.fitting().into_iter();
            let nearest = fitting.min_by_key(|&at| self.distance(at, stack));
            self.settle(nearest, step);
        }
    }

    /// The records that are held belong to this stack.
    fn settle(&mut self, chosen: Option<Candidate>, step: &mut dyn FnMut(CallStep)) {
        let held = std::mem::take(&mut self.stacks.held);
        let switched = self.stacks.switching.take();
        let time = held.first().map_or(0, |exit| exit.time);
        match chosen {
            Some(Candidate::Other(chosen)) => self.resume(chosen, switched, time, step),
            Some(Candidate::Here(_, end)) if end < self.frames.len() => {
                self.set_aside(end, None, time, step);
            }
            _ => {}
        }
        for record in held {
            self.take(record, step);
        }
    }

    /// Leaves the stack in use, and goes on on another one.
    fn resume(
        &mut self,
        chosen: usize,
        left: Option<u64>,
        time: u64,
        step: &mut dyn FnMut(CallStep),
    ) {
        let Some(next) = self.stacks.remove(chosen) else {
            return;
        };
        self.set_aside(0, left, time, step);
        for (depth, mut frame) in next.frames.into_iter().enumerate() {
            frame.start = time;
            let id = frame.id;
            self.frames.push(frame);
            step(CallStep::Enter {
                depth,
                id,
                time,
                entered: Entered::Resumed,
            });
        }
    }

    /// Leaves this frame and all inside it. They stay open. `left` is the stack pointer, if that is known.
    fn set_aside(
        &mut self,
        from: usize,
        left: Option<u64>,
        time: u64,
        step: &mut dyn FnMut(CallStep),
    ) {
        self.stacks.calling = None;
        // Nothing on the next stack is the landing of an unwinding on this one.
        (self.unwinding, self.since, self.jumped) = (false, None, None);
        self.keep(from, left, true);
        while self.frames.len() > from {
            self.leave(time, Left::Switched, step);
        }
        self.stacks.trim(from);
    }

    /// Keeps this frame and all inside it as stacks that may be used again.
    fn keep(&mut self, from: usize, left: Option<u64>, sure: bool) {
        // Functions that are known to switch do so from one stack only.
        let splits = self.stacks.unseen || !self.stacks.several;
        let mut start = from;
        for end in from + 1..=self.frames.len() {
            let is_last = end == self.frames.len();
            let is_end = is_last || splits && self.is_seam(end, false);
            if !is_end {
                continue;
            }
            let frames = self.frames[start..end].to_vec();
            let left = left.filter(|&left| is_last && left != 0);
            let left = left.unwrap_or(self.frames[end - 1].stack);
            let addresses = frames.iter().map(|frame| frame.stack).chain([left]);
            let lowest = addresses.filter(|&address| address != 0).min();
            self.stacks.push(Stack {
                frames,
                left,
                lowest: lowest.unwrap_or(0),
                sure,
            });
            start = end;
        }
    }

    /// The thread switches stacks, and no function says when.
    fn begin_unseen(&mut self) {
        if !self.stacks.unseen {
            (self.stacks.several, self.stacks.unseen) = (true, true);
            let seams = (1..self.frames.len()).filter(|&at| self.is_seam(at, false));
            self.stacks.seams = seams.collect();
        }
    }

    /// Returns whether a frame is on another stack than the one below it: `sure`ly, or if the thread switches stacks.
    fn is_seam(&self, at: usize, sure: bool) -> bool {
        let Some(outer) = at.checked_sub(1) else {
            return false;
        };
        let (outer, inner) = (self.frames[outer].stack, self.frames[at].stack);
        let (below, above) = match sure {
            true => (NEAR, NEAR),
            false => (LARGE_FRAME, 0),
        };
        let is_far = match outer.checked_sub(inner) {
            Some(distance) => distance > below,
            None => inner - outer > above,
        };
        is_far && outer != 0 && inner != 0
    }

    /// An exit may be of a frame inside which another stack was begun. If so, returns which frame that is: the thread
    /// went back there. That is more likely than a return to an outer frame of the stack in use that nothing has led
    /// to.
    pub(super) fn outer_innermost(&self, exit: &Record) -> Option<usize> {
        let closes = |at: usize| {
            let frame = &self.frames[at];
            (frame.origin, frame.sp) == (exit.id, exit.sp)
        };
        let last = self.frames.len().checked_sub(1)?;
        if self.unwinding || closes(last) {
            return None;
        }
        let sure = !self.stacks.unseen;
        let mut frames = (0..last).rev().take(SEARCHED);
        frames.find(|&at| closes(at) && self.is_seam(at + 1, sure))
    }

    /// An outer frame returns, so this frame and all inside it were left. If no function has unwound them, those on
    /// other stacks stay open.
    pub(super) fn leave_stacks(&mut self, from: usize, time: u64, step: &mut dyn FnMut(CallStep)) {
        if self.unwinding {
            return;
        }
        let inner = from..self.frames.len();
        let sure = !self.stacks.unseen;
        if let Some(seam) = inner.clone().find(|&at| self.is_seam(at, sure)) {
            self.set_aside(seam, None, time, step);
        } else if !self.stacks.several
            && let Some(seam) = inner.clone().find(|&at| self.is_seam(at, false))
        {
            // Perhaps they were unwound after all: a frame may be that large.
            self.keep(seam, None, false);
        }
    }

    /// A function was entered at this address. If a stack that was left has called it, that is used again. If an outer
    /// stack has called it, the inner ones are left.
    pub(super) fn follow(&mut self, stack: u64, time: u64, step: &mut dyn FnMut(CallStep)) {
        let top = self.frames.last().map_or(0, |top| top.stack);
        if self.unwinding || is_called_at(top, stack) {
            return;
        }
        if !self.stacks.several {
            let mut known = self.stacks.others.iter().filter(|other| other.sure);
            if known.any(|other| other.contains(stack, BUFFERED_FRAME)) {
                // It was left, and is used again.
                self.begin_unseen();
                self.choose_for_entry(stack, time, step);
                return;
            }
        }
        let sure = !self.stacks.unseen;
        let frames = (1..self.frames.len()).rev().take(SEARCHED);
        let mut seams = frames.filter(|&at| self.is_seam(at, sure));
        let called = seams.find(|&at| {
            let outer = self.frames[at - 1].stack;
            let size = match self.is_seam(at, true) {
                true => BUFFERED_FRAME,
                false => ONE_FRAME,
            };
            // An entry at the same place shows that the outer frame was left, too.
            outer != stack && is_in(outer, stack, size)
        });
        if let Some(seam) = called {
            self.set_aside(seam, None, time, step);
        }
    }

    /// Returns whether the records of a function's entries say where on the stack they are.
    fn is_placed(&self, id: u32) -> bool {
        let traits = self.traits(id);
        !traits.has(Traits::ENTRY_ONLY)
            || traits.has(Traits::RETURNS_TWICE)
            || traits.has(Traits::SWITCHES)
    }
}
