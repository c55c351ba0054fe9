//! The regions of a piece of code that can be moved as a whole: those that are entered from outside only at their first
//! byte.

use hodo_isa::Via;
use hodo_isa::code::{Flow, InstructionSet, Step, Transaction};

use crate::image::Text;
use crate::jumps::Jumps;
use crate::live::Live;
use crate::model::Spare;
use crate::pieces::Piece;
use crate::survey::Survey;

/// The maximum number of bytes that are moved as a whole.
const LIMIT: u64 = 512;
/// How a planner of probes classifies an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// It can have a probe.
    Good,
    /// Padding that nothing leads to.
    Padding,
    /// Data, or bytes that are not an instruction.
    Data,
    /// Nothing is known to lead to it.
    Unreached,
    Immovable,
    /// Between the start and the end of a hardware transaction.
    Transaction,
    /// Between a reservation of memory and the end of what depends on it.
    Reserved,
    /// It is in a sequence that the kernel restarts and knows by its addresses.
    Restartable,
    /// A branch on a static key, which the program changes.
    Static,
}

/// The branches of the piece itself to one instruction: the first and the last of them, by index.
#[derive(Debug, Clone, Copy)]
struct Sources {
    first: u32,
    last: u32,
}

const NO_SOURCES: Sources = Sources {
    first: u32::MAX,
    last: 0,
};

/// The instructions of a piece. Its memory is reused for the next piece.
pub(crate) struct Code {
    pub steps: Vec<Step>,
    pub states: Vec<State>,
    /// The flags or registers that are used from the start of each instruction on before they are overwritten.
    live: Vec<u32>,
    isa: &'static dyn InstructionSet,
    /// The instructions that calls or jumps must find where they land, in ascending order.
    landings: Vec<u64>,
    sources: Vec<Sources>,
    /// Whether no region may contain both the instruction and the one before it.
    hard: Vec<bool>,
    /// Whether something branches into the middle of the instruction, and where to.
    middles: Vec<(usize, u64)>,
    /// Whether something that depends on this reservation of memory does not follow it.
    apart: bool,
    /// Whether the target of a jump of the piece is unknown: it may lead into the piece, so each instruction must keep
    /// its place.
    pub unclear: bool,
}

/// A region of code: the instructions `first..end` by index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub first: usize,
    pub end: usize,
}

impl Code {
    /// Creates it without a piece.
    pub fn new(isa: &'static dyn InstructionSet) -> Self {
        Self {
            steps: Vec::new(),
            states: Vec::new(),
            live: Vec::new(),
            isa,
            landings: Vec::new(),
            sources: Vec::new(),
            hard: Vec::new(),
            middles: Vec::new(),
            apart: false,
            unclear: false,
        }
    }

    /// Reads a piece.
    pub fn read(&mut self, survey: &Survey<'_>, piece: &Piece, text: &Text<'_>, live: &Live<'_>) {
        self.steps.clear();
        let steps = text.slice(piece.start, piece.end);
        let all = &mut self.steps;
        self.isa
            .steps(steps, piece.start)
            .for_each(|step| all.push(step));
        let count = self.steps.len();
        self.states.clear();
        self.states.resize(count, State::Good);
        self.hard.clear();
        self.hard.resize(count, false);
        self.landings.clear();
        let starts = self.steps.iter().map(|step| step.addr);
        let lands = |&at: &u64| self.isa.must_land(text.slice(at, text.end()));
        self.landings.extend(starts.filter(lands));
        self.sources.clear();
        self.sources.resize(count, NO_SOURCES);
        self.middles.clear();
        let mut statics = Vec::new();
        survey
            .statics
            .see(&mut self.steps, |index| statics.push(index));
        let jumps = Jumps::of(survey, piece, text, &self.steps.as_slice());
        self.classify(survey, piece);
        for &index in &statics {
            self.states[index] = State::Static;
        }
        self.find_reservations();
        self.find_sources();
        self.find_borders(survey, piece);
        live.find(
            piece,
            &self.steps,
            |at| self.states[at] == State::Data,
            &mut self.live,
        );
        // If a table was not found, its targets look like code that is never reached.
        self.unclear = jumps.computed || jumps.any && self.states.contains(&State::Unreached);
    }

    /// Returns the instruction that begins at an address.
    pub fn at(&self, addr: u64) -> Option<usize> {
        self.steps
            .binary_search_by_key(&addr, |step| step.addr)
            .ok()
    }

    fn classify(&mut self, survey: &Survey<'_>, piece: &Piece) {
        let targets = &survey.targets;
        let data = targets.data.first(piece.start..piece.end).is_some();
        let mut dead = false;
        let mut transaction = false;
        let restarted = &survey.restarted;
        let restarted = restarted
            .iter()
            .filter(|r| r.start < piece.end && piece.start < r.end);
        let restarted: Vec<_> = restarted.collect();
        for (index, step) in self.steps.iter().enumerate() {
            let is_data = step.flow == Flow::Invalid
                || data && targets.data.first(step.addr..step.end()).is_some();
            if dead && targets.any.get(step.addr) {
                dead = false;
            }
            if step.transaction == Transaction::Begin {
                transaction = true;
            }
            self.states[index] = if is_data {
                State::Data
            } else if dead && step.padding {
                State::Padding
            } else if dead {
                State::Unreached
            } else if restarted.iter().any(|range| range.contains(&step.addr)) {
                State::Restartable
            } else if transaction {
                State::Transaction
            } else if step.transaction == Transaction::Reserved {
                State::Reserved
            } else if !step.movable {
                State::Immovable
            } else {
                State::Good
            };
            // After data, code begins only where something leads.
            dead |= step.flow.is_end() || is_data;
            if step.transaction == Transaction::End {
                transaction = false;
            }
        }
        // If a transaction does not end here, it is unknown where it does: mostly in the caller.
        if transaction {
            for (state, step) in self.states.iter_mut().zip(&self.steps) {
                if *state == State::Transaction && step.transaction == Transaction::None {
                    *state = match step.movable {
                        true => State::Good,
                        false => State::Immovable,
                    };
                }
            }
        }
    }

    /// Finds out whether each reservation of memory and what depends on it are consecutive, and can be moved together.
    fn find_reservations(&mut self) {
        self.apart = false;
        let mut before = false;
        for (step, state) in self.steps.iter().zip(&self.states) {
            let depends = *state == State::Reserved;
            self.apart |= depends && !(before && step.movable);
            before = depends || *state == State::Good && step.transaction == Transaction::Reserves;
        }
        if self.apart {
            for (step, state) in self.steps.iter().zip(&mut self.states) {
                if *state == State::Good && step.transaction == Transaction::Reserves {
                    *state = State::Reserved;
                }
            }
        }
    }

    /// Returns whether an instruction can be moved.
    fn moves(&self, index: usize) -> bool {
        match self.states[index] {
            State::Good => true,
            State::Reserved => !self.apart,
            _ => false,
        }
    }

    /// Fills `sources` from the branches of the piece.
    fn find_sources(&mut self) {
        let Some(start) = self.steps.first().map(|step| step.addr) else {
            return;
        };
        let end = self.steps.last().map_or(start, Step::end);
        for index in 0..self.steps.len() {
            let (Flow::Branch(to) | Flow::Jump(to)) = self.steps[index].flow else {
                continue;
            };
            if !(start..end).contains(&to) {
                continue;
            }
            if let Some(target) = self.at(to) {
                let sources = &mut self.sources[target];
                sources.first = sources.first.min(index as u32);
                sources.last = sources.last.max(index as u32);
            }
        }
    }

    fn find_borders(&mut self, survey: &Survey<'_>, piece: &Piece) {
        let targets = &survey.targets;
        let mut next = targets.any.first(piece.start..piece.end);
        for index in 0..self.steps.len() {
            let step = self.steps[index];
            let before = index.checked_sub(1).map(|before| &self.steps[before]);
            let mut hard = before.is_none_or(Step::is_call)
                || !self.moves(index)
                || index > 0 && !self.moves(index - 1);
            while let Some(target) = next
                && target < step.end()
            {
                if target > step.addr {
                    if self.middles.last().is_none_or(|last| last.0 != index) {
                        self.middles.push((index, target));
                    }
                } else if target == step.addr {
                    hard |= targets.foreign.get(target) || self.sources[index].first == u32::MAX;
                }
                next = targets.any.first(target + 1..piece.end);
            }
            self.hard[index] |= hard;
            if self.middles.last().is_some_and(|last| last.0 == index) {
                self.hard[index] = true;
                if let Some(after) = self.hard.get_mut(index + 1) {
                    *after = true;
                }
                // A branch into its own middle cannot be moved.
                if let Flow::Branch(to) | Flow::Jump(to) = step.flow
                    && to > step.addr
                    && to < step.end()
                {
                    self.states[index] = State::Immovable;
                }
            }
        }
    }

    /// Returns whether the arithmetic flags are dead at the start of an instruction.
    pub fn flags_dead(&self, index: usize) -> bool {
        self.live[index] & self.isa.flags() == 0
    }

    /// Returns the registers whose values are dead at the start of an instruction.
    fn dead(&self, index: usize) -> u32 {
        match self.isa.tracks_registers() {
            true => self.isa.usable(!self.live[index]),
            false => 0,
        }
    }

    /// Returns those of them that are free: without registers in which other code may look for the return address.
    pub fn free(&self, index: usize) -> u32 {
        self.dead(index) & !self.isa.link()
    }

    /// Returns the register that a long jump uses at the start of an instruction.
    pub fn via(&self, index: usize) -> Via {
        self.isa.via(self.free(index))
    }

    /// Returns the length of that jump in bytes, and of an instruction that must stay in front of it.
    pub fn jump(&self, index: usize) -> u64 {
        self.landing(index) + self.isa.jump(self.via(index)).len
    }

    /// Returns the length of an instruction that calls or jumps must find where they land; 0 for others.
    pub fn landing(&self, index: usize) -> u64 {
        let step = &self.steps[index];
        match self.landings.binary_search(&step.addr) {
            Ok(_) => step.end() - step.addr,
            Err(_) => 0,
        }
    }

    /// Returns whether a branch of the piece leads to an instruction.
    pub fn is_target(&self, index: usize) -> bool {
        self.sources[index].first != u32::MAX
    }

    /// Returns whether an instruction may be executed without the one before it: something may branch to it.
    pub fn is_entered(&self, index: usize) -> bool {
        self.unclear || self.hard[index] || self.is_target(index)
    }

    /// Returns where something branches into the middle of an instruction.
    pub fn middle(&self, index: usize) -> Option<u64> {
        let at = self.middles.binary_search_by_key(&index, |m| m.0).ok()?;
        Some(self.middles[at].1)
    }

    /// Returns the region from an instruction on, and whether it was made by [`grow_with_pads`](Self::grow_with_pads).
    pub fn region(&self, first: usize) -> Option<(Span, bool)> {
        let grown = self.grow(first, |_| false);
        if grown.is_some_and(|span| self.has_room_for_near(span)) {
            return grown.map(|span| (span, false));
        }
        let by_pads = self.grow_with_pads(first);
        let by_pads = by_pads.filter(|&span| grown.is_none() || self.has_room_for_near(span));
        (by_pads.map(|span| (span, true))).or(grown.map(|span| (span, false)))
    }

    /// Returns whether a region has room for more than a breakpoint: for a jump to our memory nearby, and for restoring
    /// a register at its end.
    fn has_room_for_near(&self, span: Span) -> bool {
        let Some(near) = self
            .isa
            .near()
            .first()
            .filter(|_| self.isa.needs_register())
        else {
            return true;
        };
        let last = &self.steps[span.end - 1];
        let goes_on = !last.flow.is_end() && !last.is_call() && self.free(span.end) == 0;
        let taken = if goes_on { Via::TAKE } else { 0 };
        self.end(span) - self.start(span) >= near.len + taken
    }

    /// Returns the longest region from an instruction on that `enough` does not end sooner; it gets the index of the
    /// end. Returns `None` if control cannot continue after it because no register is free, or if the instruction
    /// cannot be moved without others that cannot be moved.
    pub fn grow(&self, first: usize, enough: impl Fn(usize) -> bool) -> Option<Span> {
        self.grow_by(first, enough, false)
    }

    /// Returns a short region from an instruction on if no register is free: control leaves it through
    /// [`Pad`](crate::model::Pad)s.
    fn grow_with_pads(&self, first: usize) -> Option<Span> {
        let wanted = self.steps[first].addr + self.jump(first) + Via::PAD;
        let enough = |end: usize| self.steps[end - 1].end() >= wanted;
        let pads = self.isa.needs_register();
        pads.then(|| self.grow_by(first, enough, true)).flatten()
    }

    fn grow_by(&self, first: usize, enough: impl Fn(usize) -> bool, pads: bool) -> Option<Span> {
        let start = self.steps[first].addr;
        let mut good = None;
        // The region must contain all branches up to this one.
        let mut needed = first;
        let mut index = first;
        while index < self.steps.len() {
            if index > first {
                if self.hard[index] {
                    break;
                }
                let sources = self.sources[index];
                if sources.first != u32::MAX {
                    if (sources.first as usize) < first {
                        break;
                    }
                    needed = needed.max(sources.last as usize);
                }
                if self.steps[index].end() - start > LIMIT {
                    break;
                }
            }
            match self.without_register(first, index) {
                Some(_) if pads && self.leaves_by_pad(index) => {}
                Some(to) if to >= first => needed = needed.max(to),
                Some(_) => break,
                None => {}
            }
            index += 1;
            if index > needed && self.can_end(first, index, pads) {
                good = Some(index);
                if self.unclear || enough(index) {
                    break;
                }
            }
        }
        let end = good?;
        Some(Span { first, end })
    }

    /// Returns the target of a jump that can only be moved together with its target, because no register is free; a
    /// number that no instruction has if that is not allowed.
    fn without_register(&self, first: usize, index: usize) -> Option<usize> {
        if !self.isa.needs_register() {
            return None;
        }
        let step = &self.steps[index];
        let free = self.dead(index) & !step.reads;
        match step.flow {
            // A jump through a register is copied as it is.
            Flow::Jump(_) if step.reads != 0 => None,
            Flow::Branch(to) | Flow::Jump(to) if free == 0 => {
                Some(self.at(to).unwrap_or(usize::MAX))
            }
            // A call that the patch leaves whole is jumped to, unless a branch would reach it without its probes.
            Flow::Call(_) | Flow::IndirectCall => {
                let whole = step.addr - self.steps[first].addr >= self.jump(first);
                let stays = whole && !self.is_target(index);
                let links = if stays { 0 } else { step.writes };
                (free & !links == 0).then_some(usize::MAX)
            }
            _ => None,
        }
    }

    /// Returns whether the copy of an instruction can reach its target without a free register.
    fn leaves_by_pad(&self, index: usize) -> bool {
        let flow = self.steps[index].flow;
        matches!(flow, Flow::Branch(_) | Flow::Jump(_) | Flow::Call(_))
    }

    /// Returns whether control can continue after the end of a region.
    fn can_end(&self, first: usize, end: usize, pads: bool) -> bool {
        if !self.isa.needs_register() {
            return true;
        }
        if self.states.get(end) == Some(&State::Reserved) && !self.apart {
            return false;
        }
        let last = &self.steps[end - 1];
        pads || last.flow.is_end()
            || last.is_call()
            || self.free(end) != 0
            || self.has_room_to_take(first, end)
    }

    /// Returns whether the instructions that restore a register fit between the patch and the end of a region.
    fn has_room_to_take(&self, first: usize, end: usize) -> bool {
        let size = self.steps[end - 1].end() - self.steps[first].addr;
        size >= self.isa.trap_len() + Via::TAKE && self.middle(first).is_none()
    }

    /// Returns the exits without a free register of a region that was grown with pads: the address of the instruction,
    /// or of the region's end, and the target.
    pub fn pads(&self, span: Span) -> Vec<(u64, u64)> {
        let (start, end) = (self.start(span), self.end(span));
        let leaves = |index: usize| {
            let step = &self.steps[index];
            let (to, links) = match step.flow {
                Flow::Jump(_) if step.reads != 0 => return None,
                Flow::Branch(to) | Flow::Jump(to) => (to, 0),
                Flow::Call(to) => (to, step.writes),
                _ => return None,
            };
            let free = self.dead(index) & !step.reads & !links;
            // A call of the region's own start leads to its place in the program.
            let stays = (start..end).contains(&to) && !(step.is_call() && to == start);
            (free == 0 && !stays).then_some((step.addr, to))
        };
        let last = &self.steps[span.end - 1];
        let goes_on = !last.flow.is_end() && !last.is_call() && self.free(span.end) == 0;
        let after = goes_on && !self.has_room_to_take(span.first, span.end);
        (span.first..span.end)
            .filter_map(leaves)
            .chain(after.then_some((end, end)))
            .collect()
    }

    /// Returns the registers for moving a region.
    pub fn spare(&self, span: Span) -> Spare {
        if !self.isa.needs_register() {
            return Spare::default();
        }
        let leaves = (span.first..span.end).filter(|&at| self.steps[at].flow != Flow::Next);
        let last = &self.steps[span.end - 1];
        Spare {
            dead: leaves
                .map(|at| (self.steps[at].addr, self.dead(at)))
                .collect(),
            back: match last.flow.is_end() || last.is_call() {
                true => Via::Nothing,
                false => self.via(span.end),
            },
            pads: Vec::new(),
        }
    }

    /// Returns whether a branch of the region leads to one of its bytes that a patch of `len` bytes at its start
    /// overwrites.
    pub fn loops(&self, span: Span, len: u64) -> bool {
        let patch_end = self.steps[span.first].addr + len;
        (span.first + 1..span.end)
            .take_while(|&index| self.steps[index].addr < patch_end)
            .any(|index| self.sources[index].first != u32::MAX)
    }

    /// The address where a region begins.
    pub fn start(&self, span: Span) -> u64 {
        self.steps[span.first].addr
    }

    /// The address where a region ends.
    pub fn end(&self, span: Span) -> u64 {
        self.steps[span.end - 1].end()
    }
}
