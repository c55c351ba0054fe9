//! The code of one piece, instruction by instruction, and the regions of it that can be moved as a whole: those that are
//! entered from outside at their first byte only.

use hodo_arch::Via;
use hodo_arch::code::{Flow, Isa, Origin, Reference, Step, Transaction};

use crate::image::Text;
use crate::live::Live;
use crate::pieces::Piece;
use crate::planner::Survey;

/// No more than this is moved as a whole, in bytes.
const LIMIT: u64 = 512;
/// Instructions before an indirect jump that are looked at to tell where it goes.
const LOOK_BACK: usize = 24;
/// No table of distances has more entries than this.
const ENTRIES: usize = 4096;
/// Ways to an indirect jump that are followed.
const PATHS: usize = 32;
/// What an instruction is to a planner of probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// It can be probed.
    Good,
    /// Padding that nothing leads to.
    Padding,
    /// Data, or bytes that are no instruction.
    Data,
    /// Nothing is known to lead to it.
    Unreached,
    Immovable,
    /// Between the start and the end of a hardware transaction.
    Transaction,
    /// Between a reservation of memory and the end of what depends on it.
    Reserved,
    /// In a sequence that the kernel restarts, which it knows by its addresses.
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

/// The instructions of a piece. Its memory is used again for the next piece.
#[derive(Default)]
pub(crate) struct Code {
    pub steps: Vec<Step>,
    pub states: Vec<State>,
    /// The flags or registers that are used after the start of each instruction before they are overwritten.
    live: Vec<u32>,
    isa: Isa,
    sources: Vec<Sources>,
    /// No region may hold both the instruction and the one before it.
    hard: Vec<bool>,
    /// Something branches into the middle of the instruction; where to.
    middles: Vec<(usize, u64)>,
    /// A jump of the piece leads nobody knows where, perhaps into it: each instruction must keep its place.
    pub unclear: bool,
}

/// A region of code: instructions `first..end` by index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub first: usize,
    pub end: usize,
}

impl Code {
    /// Reads a piece.
    pub fn read(&mut self, survey: &Survey<'_>, piece: &Piece, text: &Text<'_>, live: &Live<'_>) {
        self.isa = survey.image.isa;
        self.steps.clear();
        let steps = text.slice(piece.start, piece.end);
        self.steps.extend(self.isa.steps(steps, piece.start));
        let count = self.steps.len();
        self.states.clear();
        self.states.resize(count, State::Good);
        self.hard.clear();
        self.hard.resize(count, false);
        self.sources.clear();
        self.sources.resize(count, NO_SOURCES);
        self.middles.clear();
        let mut statics = Vec::new();
        survey
            .statics
            .see(&mut self.steps, |index| statics.push(index));
        let jumps = self.jumps(survey, piece, text);
        if jumps.distances {
            mark_distances(survey, piece, text);
        }
        self.classify(survey, piece);
        for &index in &statics {
            self.states[index] = State::Static;
        }
        self.find_sources();
        self.find_borders(survey, piece);
        live.find(
            piece,
            &self.steps,
            |at| self.states[at] == State::Data,
            &mut self.live,
        );
        // Where a table was not found, its targets remain as code that nothing leads to.
        self.unclear = jumps.computed || jumps.any && self.states.contains(&State::Unreached);
    }

    /// The instruction that begins at an address.
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
            // Behind data, code is where something leads.
            dead |= step.flow.is_end() || is_data;
            if step.transaction == Transaction::End {
                transaction = false;
            }
        }
        // Where a transaction that is not ended here goes on is not known: in the caller, mostly.
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
                || self.states[index] != State::Good
                || index > 0 && self.states[index - 1] != State::Good;
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
                if let Some(behind) = self.hard.get_mut(index + 1) {
                    *behind = true;
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

    /// Whether the arithmetic flags are of no use any more at the start of an instruction.
    pub fn flags_dead(&self, index: usize) -> bool {
        self.live[index] == 0 || !self.isa.has_flags()
    }

    /// The registers whose values are of no use at the start of an instruction.
    pub fn free(&self, index: usize) -> u32 {
        match self.isa.has_flags() {
            true => 0,
            false => self.isa.usable(!self.live[index]),
        }
    }

    /// The register that a long jump takes at the start of an instruction.
    pub fn via(&self, index: usize) -> Via {
        self.isa.via(self.free(index))
    }

    /// Whether a branch of the piece leads to an instruction.
    pub fn is_target(&self, index: usize) -> bool {
        self.sources[index].first != u32::MAX
    }

    /// Looks at the indirect jumps.
    fn jumps(&self, survey: &Survey<'_>, piece: &Piece, text: &Text<'_>) -> Jumps {
        let mut jumps = Jumps::default();
        for (index, step) in self.steps.iter().enumerate() {
            if step.flow != Flow::IndirectJump {
                continue;
            }
            let code = text.slice(step.addr, step.end());
            let by_slot = self
                .isa
                .sweep(code, step.addr)
                .next()
                .is_some_and(|insn| matches!(insn.reference, Reference::Memory(_)));
            if by_slot {
                continue;
            }
            let from = self.steps[index.saturating_sub(LOOK_BACK)].addr;
            match self.trace(text, &mut vec![index], &mut { PATHS }) {
                Origin::Table
                    if table_is_own(text.slice(from, step.end()), from, survey, piece) => {}
                Origin::Loaded | Origin::Table => jumps.any = true,
                Origin::Distances => {
                    jumps.any = true;
                    jumps.distances = true;
                }
                Origin::Computed | Origin::Open => jumps.computed = true,
            }
        }
        jumps
    }

    /// Follows the code backwards from an indirect jump, along all ways that lead there. `path` has the instructions on the
    /// way so far.
    fn trace(&self, text: &Text<'_>, path: &mut Vec<usize>, paths: &mut usize) -> Origin {
        let origin = |path: &[usize]| {
            let steps = path.iter().map(|&index| &self.steps[index]);
            self.isa
                .origin(steps.map(|step| (text.slice(step.addr, step.end()), step.addr)))
        };
        while let Some(&first) = path.last() {
            if first == 0 {
                // A register that the function is called with.
                return match origin(path) {
                    Origin::Open => Origin::Loaded,
                    origin => origin,
                };
            }
            if path.len() > LOOK_BACK {
                return origin(path);
            }
            let mut before = first - 1;
            while before > 0 && self.steps[before].padding {
                before -= 1;
            }
            if self.steps[before].flow.is_end() {
                let found = origin(path);
                let start = self.steps[first].addr;
                let sources = self.steps.iter().enumerate().filter(
                    |(_, step)| matches!(step.flow, Flow::Branch(to) | Flow::Jump(to) if to == start),
                );
                let sources: Vec<usize> = sources.map(|(index, _)| index).collect();
                if found != Origin::Open || sources.len() > *paths {
                    return found;
                }
                *paths -= sources.len();
                let len = path.len();
                let mut worst = None;
                for source in sources {
                    path.push(source);
                    let found = self.trace(text, path, paths);
                    path.truncate(len);
                    worst = worst.max(Some(found));
                }
                return worst.unwrap_or(found);
            }
            path.push(first - 1);
        }
        Origin::Open
    }

    /// Where something branches into the middle of an instruction.
    pub fn middle(&self, index: usize) -> Option<u64> {
        let at = self.middles.binary_search_by_key(&index, |m| m.0).ok()?;
        Some(self.middles[at].1)
    }

    /// The longest region from an instruction on that `enough` does not end sooner; it is asked about the end's index.
    pub fn grow(&self, first: usize, enough: impl Fn(usize) -> bool) -> Span {
        let start = self.steps[first].addr;
        let mut good = first + 1;
        // All branches up to this one must be in it.
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
            index += 1;
            if index > needed {
                good = index;
                if self.unclear || enough(good) {
                    break;
                }
            }
        }
        Span { first, end: good }
    }

    /// Whether a branch of the region leads to one of its bytes that a patch of `len` bytes at its start overwrites.
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

/// The indirect jumps of a piece, but for those through one word of memory.
#[derive(Default)]
struct Jumps {
    /// One is by a table that was not looked at, or to an address from memory.
    any: bool,
    /// One is by a table of distances from somewhere in the code.
    distances: bool,
    /// One goes nobody knows where.
    computed: bool,
}

/// Whether some instructions form the address of a table in the data whose first distance leads into the piece itself.
fn table_is_own(code: &[u8], addr: u64, survey: &Survey<'_>, piece: &Piece) -> bool {
    survey.image.isa.sweep(code, addr).any(|insn| {
        let Reference::Forms(base) = insn.reference else {
            return false;
        };
        let entry = survey
            .image
            .data_at(base)
            .map_or(&[][..], |data| data.slice(base, base.saturating_add(4)));
        let [entry] = entry.as_chunks::<4>().0 else {
            return false;
        };
        let target = base.wrapping_add_signed(i64::from(i32::from_le_bytes(*entry)));
        (piece.start..piece.end).contains(&target)
    })
}

/// Marks what tables lead to whose distances are from a place in the piece itself. Which place belongs to which table is
/// not known: all are taken for possible, and marks that are wrong do no harm.
fn mark_distances(survey: &Survey<'_>, piece: &Piece, text: &Text<'_>) {
    let range = piece.start..piece.end;
    let mut places = Vec::new();
    let mut tables = Vec::new();
    for insn in survey
        .image
        .isa
        .sweep(text.slice(piece.start, piece.end), piece.start)
    {
        if let Reference::Forms(addr) = insn.reference {
            if range.contains(&addr) {
                places.push(addr);
            } else if survey.image.data_at(addr).is_some() {
                tables.push(addr);
            }
        }
    }
    for list in [&mut places, &mut tables] {
        list.sort_unstable();
        list.dedup();
    }
    for &table in &tables {
        let Some(data) = survey.image.data_at(table) else {
            continue;
        };
        for &place in &places {
            let entries = data.slice(table, data.end()).as_chunks::<4>().0;
            for entry in entries.iter().take(ENTRIES) {
                let distance = i64::from(i32::from_le_bytes(*entry));
                let target = place.wrapping_add_signed(distance);
                if !range.contains(&target) {
                    break;
                }
                survey.targets.mark(target);
            }
        }
    }
}
