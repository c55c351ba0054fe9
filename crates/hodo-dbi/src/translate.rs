//! Turns a program's code into code of the cache. What is here knows no register by its name: an instruction set says
//! how each instruction is translated ([`Set`]), and where threads are observed, what is recorded ([`Observe`]).
//!
//! The translation of a piece keeps the order of its instructions. Between instructions of the program, all of its
//! registers have their values. Inside the code that stands for one instruction, some may be in the thread's block;
//! [`Point`]s say where.
//!
//! * [`model`]: what a translation is made from, and what it has.
//! * [`set`]: what an instruction set does.
//! * This file: the queue of what is to be translated, labels, and exits; [`versions`]: versions of instructions.
//! * [`blocks`]: blocks of code, for clients; [`fragments`]: fragments, for passes; [`changing`]: code that may change.

mod blocks;
mod changing;
mod fragments;
mod model;
mod set;
mod versions;

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use hodo_isa::buffer::Label;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::block::Block;
use crate::changes::Check;
use crate::fixups::Depends;
use crate::protected::{Notice, Uncompared};
use changing::Covered;
use versions::Versions;

pub(crate) use model::{
    Analyzed, BlockInsn, Bytes, Exit, Insertion, Point, Points, Request, Saved, Stage, State,
    Translation, Version, first_bytes,
};
pub(crate) use set::{Decoded, Emit, Ends, Observe, Set};

/// A translation that is being made.
pub(crate) struct Translator<'c, 'r, S: Set> {
    /// What is emitted. The instruction set writes to it, everywhere in its room.
    pub(crate) code: S::Code<'c>,
    /// What the instruction set knows of this translation.
    own: S::Own,
    request: Request<'r>,
    labels: FxHashMap<Version, Label>,
    bound: FxHashSet<Version>,
    versions: Versions,
    queue: VecDeque<Version>,
    /// Where the translation begins.
    starts: FxHashSet<u64>,
    /// What instructions do that blocks have.
    facts: FxHashMap<u64, Rc<S::Facts>>,
    /// What is put after the code that is being translated,
    near: Vec<S::Cold>,
    /// and after all code.
    cold: Vec<S::Cold>,
    covered: Covered<S>,
    out: Translation,
    left: usize,
    stage: Stage,
    /// Whether the code may change,
    is_soft: bool,
    /// and how that is noticed.
    notice: Notice,
}

impl<'c, 'r, S: Set> Translator<'c, 'r, S> {
    /// Begins a translation, which appends to `bytes`.
    fn new(request: Request<'r>, bytes: &'c mut Vec<u8>) -> Self {
        let is_soft = request.starts.iter().any(|&start| (request.soft)(start));
        let first = request.starts.first().filter(|_| is_soft);
        let notice = first.map_or(Notice::Undecided, |&first| (request.notice)(first));
        Self {
            code: S::Code::begin(bytes, request.base),
            own: S::Own::default(),
            labels: FxHashMap::with_capacity_and_hasher(request.most, Default::default()),
            bound: FxHashSet::with_capacity_and_hasher(request.most, Default::default()),
            versions: Versions::default(),
            queue: request.starts.iter().map(|&start| (start, 0)).collect(),
            starts: request.starts.iter().copied().collect(),
            facts: FxHashMap::default(),
            near: Vec::new(),
            cold: Vec::new(),
            covered: Covered::default(),
            out: Translation::default(),
            left: request.most,
            stage: Stage::Body,
            is_soft,
            notice,
            request,
        }
    }

    /// Ends it.
    fn end(self) -> Translation {
        self.out
    }
}

/// Translates the code from an instruction on, and code that it leads to. Nothing is inserted.
pub(crate) fn translate_plain<S: Set>(request: Request<'_>) -> Translation {
    let mut bytes = Vec::new();
    let mut translator = Translator::<S>::new(request, &mut bytes);
    translator.all(|translator, (pc, _)| translator.piece(pc));
    let mut out = translator.end();
    out.bytes = bytes;
    out
}

/// Translates the code from an instruction on, and code that it leads to.
pub(crate) fn translate<S: Observe>(request: Request<'_>) -> Translation {
    let mut bytes = Vec::new();
    let mut translator = Translator::<S>::new(request, &mut bytes);
    let insertion = translator.request.insertion.filter(Insertion::observes);
    translator.all(|translator, version| match insertion {
        Some(insertion) => translator.blocks(version, insertion),
        None if translator.request.passes.is_some() => translator.fragments(version),
        None if translator.is_soft => translator.runs(version.0),
        None => translator.piece(version.0),
    });
    if translator.request.profile.is_some() {
        translator.forget_unneeded();
    }
    let mut out = translator.end();
    out.bytes = bytes;
    out
}

impl<S: Set> Translator<'_, '_, S> {
    /// Translates all that is asked for, each version by `one`, and what it leads to.
    fn all(&mut self, one: impl Fn(&mut Self, Version)) {
        let starts = self.request.starts.iter();
        self.cold
            .extend(starts.filter_map(|&start| S::landing(start)));
        while let Some(version) = self.queue.pop_front() {
            self.covered = Covered::default();
            if !self.is_elsewhere(version) {
                one(self, version);
                self.put_near();
            }
        }
        self.begins_block(None);
        while !self.cold.is_empty() {
            for cold in std::mem::take(&mut self.cold) {
                S::cold(self, cold);
            }
        }
        self.exits();
    }

    /// The ends of calls are near their beginnings: each call comes there.
    fn put_near(&mut self) {
        let near = std::mem::take(&mut self.near);
        if !near.is_empty() {
            self.begins_block(None);
        }
        for cold in near {
            S::cold(self, cold);
        }
    }

    /// Whether the translation of an instruction is or will be elsewhere. Code that may change and code that does not
    /// are never translated together, nor is code whose changes are noticed in different ways.
    pub(crate) fn is_elsewhere(&self, version: Version) -> bool {
        let (pc, registers) = version;
        let is_known = || match self.request.profile {
            Some(_) => !self.starts.contains(&pc),
            None => (self.request.known)(pc).is_some(),
        };
        self.bound.contains(&version)
            || registers == 0 && is_known()
            || self.left == 0
            || (self.request.soft)(pc) != self.is_soft
            || self.is_soft && (self.request.notice)(pc) != self.notice
            || !self.request.within.contains(pc)
    }

    /// Code that has been translated, is in reach, and stays as it is.
    pub(crate) fn known(&self, (pc, registers): Version) -> Option<u64> {
        let is_here = self.request.profile.is_some() && self.starts.contains(&pc);
        if registers != 0 || is_here || (self.request.soft)(pc) {
            return None;
        }
        let at = (self.request.known)(pc)?;
        let far = at.abs_diff(self.code.here()) >= S::REACH;
        (!far).then_some(at)
    }

    pub(crate) fn label_of(&mut self, version: Version) -> Label {
        if let Some(&label) = self.labels.get(&version) {
            return label;
        }
        let label = self.code.label();
        self.labels.insert(version, label);
        self.queue.push_back(version);
        label
    }

    /// The best version of an instruction where the values of these registers are known.
    pub(crate) fn version(&mut self, pc: u64, registers: u16) -> Version {
        let is_wanted = registers != 0 && self.request.profile.is_some();
        let version = match is_wanted && self.starts.contains(&pc) {
            true => self.versions.choose(pc, registers, self.left == 0),
            false => (pc, 0),
        };
        self.versions.lead(version);
        version
    }

    /// The state from here on.
    pub(crate) fn point(&mut self, original: u64, inside: Option<Saved>) {
        let at = self.code.here();
        let stage = self.stage;
        let point = Point {
            at,
            original,
            state: State { inside, stage },
        };
        match self.out.points.last_mut() {
            Some(last) if last.at == at && inside.is_some() => {}
            Some(last) if last.at == at => *last = point,
            _ => self.out.points.push(point),
        }
    }

    pub(crate) fn inside(&mut self, original: u64, saved: Saved) {
        self.point(original, Some(saved));
    }

    /// Translates instructions up to one that does not continue.
    fn piece(&mut self, mut pc: u64) {
        loop {
            if self.is_elsewhere((pc, 0)) {
                self.point(pc, None);
                return self.jump_to(pc);
            }
            let Some((bytes, len)) = (self.request.read)(pc) else {
                // The program must not execute this: the exit shows it the fault.
                return self.jump_to(pc);
            };
            let insn = S::decode(&bytes, len);
            if insn.is_some_and(|insn| self.waits_for_flags(pc, insn)) {
                self.point(pc, None);
                return self.jump_to(pc);
            }
            let label = self.label_of((pc, 0));
            self.code.bind(label);
            self.bound.insert((pc, 0));
            self.left -= 1;
            self.point(pc, None);
            self.out.instructions.push((pc, self.code.here()));
            let Some(insn) = insn else {
                return S::invalid(self, &bytes);
            };
            if !S::instruction(self, pc, &bytes, insn) {
                return;
            }
            pc += S::len(insn);
        }
    }

    /// Whether an instruction is a call that needs flags to be kept, which they are not yet. It is translated when a
    /// thread comes to it, and never if it is of a function that does not return, after which comes what only looks
    /// like code that reads them.
    fn waits_for_flags(&mut self, pc: u64, insn: S::Insn) -> bool {
        if self.request.keeps_flags || !S::passes_flags(self, pc, insn) {
            return false;
        }
        let is_reached = self.starts.contains(&pc);
        self.out.loses_flags |= is_reached;
        !is_reached
    }

    /// What comes `ahead` bytes after this depends on a place.
    pub(crate) fn fix_ahead(&mut self, depends: Depends, ahead: u64) {
        let offset = self.code.here() - self.request.base + ahead;
        self.out.fixups.add(offset, depends);
    }

    /// The last `len` bytes before the last `after` ones depend on a place.
    pub(crate) fn fix(&mut self, depends: Depends, len: u64, after: u64) {
        let offset = self.code.here() - self.request.base - len - after;
        self.out.fixups.add(offset, depends);
    }

    /// Jumps to the version for the registers that are known here.
    pub(crate) fn jump_to(&mut self, pc: u64) {
        self.out.entries.push(pc);
        let version = self.version(pc, self.versions.known());
        self.jump_to_version(version);
    }

    pub(crate) fn jump_to_version(&mut self, version: Version) {
        match self.known(version) {
            Some(at) => self.code.jmp_to(at),
            None => {
                let label = self.label_of(version);
                self.code.jmp(label);
            }
        }
    }

    /// Labels of versions that are not translated.
    fn open(&self, is_wanted: impl Fn(Version) -> bool) -> Vec<(Version, Label)> {
        let labels = self.labels.iter();
        let labels = labels.map(|(&version, &label)| (version, label));
        let mut open: Vec<(Version, Label)> = labels
            .filter(|&(version, _)| is_wanted(version) && !self.bound.contains(&version))
            .collect();
        open.sort_unstable_by_key(|&(version, _)| version);
        open
    }

    /// Code for what is not translated.
    fn exits(&mut self) {
        for ((pc, _), label) in self.open(|(_, registers)| registers != 0) {
            self.code.bind(label);
            self.point(pc, None);
            self.jump_to_version((pc, 0));
        }
        let mut cells = Vec::new();
        for ((target, _), label) in self.open(|(_, registers)| registers == 0) {
            let cell = self.code.label();
            self.code.bind(label);
            let trap = S::exit(self, target, cell);
            cells.push((cell, trap, target));
        }
        self.code.align(8);
        S::words(self);
        for (label, trap, target) in cells {
            self.code.bind(label);
            let cell = self.code.here();
            let known = (self.request.known)(target).filter(|_| S::IS_ENTERED_ANYWHERE);
            self.code.data(known.unwrap_or(trap));
            self.fix(Depends::Cache, 8, 0);
            self.out.exits.push(Exit {
                trap,
                cell,
                target,
                linked: known.is_some(),
            });
        }
    }
}

/// What an instruction set says of the code that it writes, and asks.
impl<S: Set> Translator<'_, '_, S> {
    /// From here on, the state is this one, also if it was said to be another one at this place.
    pub(crate) fn set_point(&mut self, original: u64, saved: Saved) {
        let here = self.code.here();
        if self.out.points.last().is_some_and(|last| last.at == here) {
            self.out.points.pop();
        }
        self.inside(original, saved);
    }

    /// What the instruction set knows of this translation.
    pub(crate) fn own(&mut self) -> &mut S::Own {
        &mut self.own
    }

    /// Whether code at an address may be translated together with this.
    pub(crate) fn is_translated(&self, pc: u64) -> bool {
        self.request.within.contains(pc)
    }

    /// Whether the code that is translated may change.
    pub(crate) fn is_soft(&self) -> bool {
        self.is_soft
    }

    /// From here on, what of the code for a block has been executed.
    pub(crate) fn set_stage(&mut self, stage: Stage) {
        self.stage = stage;
    }

    /// What of it has been executed here.
    pub(crate) fn stage(&self) -> Stage {
        self.stage
    }

    /// Code of a block begins here, or code that belongs to none.
    pub(crate) fn begins_block(&mut self, block: Option<Arc<Block>>) {
        self.out.blocks.push((self.code.here(), block));
    }

    /// Code that writes a record begins here.
    pub(crate) fn begins_record(&mut self) {
        self.out.records.push(self.code.here());
    }

    /// What comes next here is reached by a return to an address.
    pub(crate) fn returns_here(&mut self, pc: u64) {
        self.out.returns.push((pc, self.code.here()));
        self.out.entries.push(pc);
    }

    /// The code that was written cannot be moved.
    pub(crate) fn stays(&mut self) {
        self.out.stays = true;
    }

    /// The program calls this: it is worth being translated, too.
    pub(crate) fn called(&mut self, pc: u64) {
        if !self.bound.contains(&(pc, 0)) && !self.is_soft {
            self.queue.push_back((pc, 0));
        }
    }

    /// There is a breakpoint for targets that are not in the table. Then, the thread continues here.
    pub(crate) fn misses_at(&mut self, trap: u64) {
        self.out.misses.push((trap, self.code.here()));
    }

    /// There is a breakpoint before a watched system call, which is made here.
    pub(crate) fn watches_at(&mut self, trap: u64) {
        self.out.calls.push((trap, self.code.here()));
    }

    /// The translation of an instruction begins here with a comparison.
    pub(crate) fn begins_check(&mut self, pc: u64) {
        self.out.instructions.push((pc, self.code.here()));
        self.begins_block(None);
    }

    /// There is a comparison.
    pub(crate) fn checks_at(&mut self, check: Check) {
        self.out.checks.push(check);
    }

    /// The translation of a run that is not compared begins here. It depends on the code before `end`.
    pub(crate) fn begins_uncompared(&mut self, pc: u64, end: u64) {
        let entry = self.code.here();
        self.out.uncompared.push(Uncompared { pc, end, entry });
    }

    /// The address of the mark of a page that may change.
    pub(crate) fn mark(&self, address: u64) -> u32 {
        (self.request.mark)(address)
    }

    /// The state at the last place of which one was said, if that is inside the code for an instruction.
    pub(crate) fn last_state(&self) -> Saved {
        let last = self.out.points.last();
        last.and_then(|last| last.state.inside).unwrap_or_default()
    }

    /// Has code put after the piece, block or fragment that is being translated, and what follows it.
    pub(crate) fn put_near_later(&mut self, cold: S::Cold) {
        self.near.push(cold);
    }

    /// Has code put after all other code.
    pub(crate) fn put_later(&mut self, cold: S::Cold) {
        self.cold.push(cold);
    }

    /// The version to which a branch leads.
    pub(crate) fn version_of_branch(&mut self, to: u64) -> Version {
        self.out.entries.push(to);
        self.version(to, self.versions.known())
    }

    /// The address of the table of targets.
    pub(crate) fn table(&self) -> u64 {
        self.request.table
    }

    /// Whether calls and returns keep the flags of the program.
    pub(crate) fn keeps_flags(&self) -> bool {
        self.request.keeps_flags
    }

    /// Reads the program's code at an address.
    pub(crate) fn read(&mut self, pc: u64) -> Option<(Bytes, usize)> {
        (self.request.read)(pc)
    }

    /// Reads the program's code at an address, unless it may change.
    pub(crate) fn read_fixed(&mut self, pc: u64) -> Option<(Bytes, usize)> {
        self.read(pc).filter(|_| !(self.request.soft)(pc))
    }

    /// The number of a line from which instructions are fetched.
    pub(crate) fn line_number(&mut self, line: u64) -> u32 {
        (self.request.line_number)(line)
    }
}
