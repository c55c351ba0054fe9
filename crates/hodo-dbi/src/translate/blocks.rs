//! Blocks of code: straight pieces of which executions are counted, or accesses recorded, for clients.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::Translator;
use super::model::{Analyzed, BlockInsn, Bytes, ENOUGH, Insertion, Stage, Version};
use super::set::{Decoded, Ends, Observe};
use crate::block::{Block, Noted, Transfer};
use crate::fragment::Item;
use crate::numbers::Identity;

/// Most blocks have at most this many instructions.
const USUAL: usize = 16;
/// The maximum number of instructions of a block.
const MOST: usize = 64;

impl<S: Observe> Translator<'_, '_, S> {
    /// Translates blocks up to an instruction that does not continue.
    pub(super) fn blocks(&mut self, mut version: Version, insertion: Insertion) {
        loop {
            let (pc, registers) = version;
            if self.is_elsewhere(version) {
                self.begins_block(None);
                self.point(pc, None);
                return self.jump_to_version(version);
            }
            let label = self.label_of(version);
            let (observed, until) = self.choice(pc);
            let code = self.collect_run(pc, until);
            if code.is_empty() {
                // The program must not execute this, and the exit shows it the fault; or it waits.
                self.begins_block(None);
                return self.jump_to_version((pc, 0));
            }
            self.bound.insert(version);
            if self.is_soft {
                self.begin_run(label, &code);
            } else {
                self.code.bind(label);
                if registers == 0 {
                    self.out.instructions.push((pc, self.code.here()));
                }
            }
            match self.block(&code, registers, (insertion, observed)) {
                Some(next) => version = next,
                None => return,
            }
        }
    }

    /// Whether code is observed from an instruction on, and the instruction before which that ends.
    fn choice(&self, pc: u64) -> (bool, u64) {
        let Some(watch) = self.request.watch.filter(|watch| watch.chooses()) else {
            return (true, u64::MAX);
        };
        let file = (self.request.file)(pc);
        let place = file
            .as_ref()
            .map(|(file, offset)| (file.as_path(), *offset));
        let choice = watch.choice(place);
        let until = place.map_or(u64::MAX, |(_, offset)| {
            pc.saturating_add(choice.until.saturating_sub(offset))
        });
        (choice.observed, until)
    }

    /// Decodes what may become a block, which ends before an address.
    pub(super) fn collect(&mut self, start: u64, until: u64) -> Vec<Decoded<S>> {
        let mut code: Vec<Decoded<S>> = Vec::with_capacity(USUAL);
        let mut pc = start;
        while code.len() < MOST {
            if pc != start && pc >= until {
                break;
            }
            if pc != start && self.ends_before(pc) {
                break;
            }
            let Some((bytes, len)) = (self.request.read)(pc) else {
                break;
            };
            let insn = S::decode(&bytes, len);
            if insn.is_some_and(|insn| self.waits_for_flags(pc, insn)) {
                break;
            }
            let own = &bytes[..insn.map_or(1, |insn| S::len(insn) as usize)];
            let memory = &mut self.own;
            let known = match self.request.profile {
                // Instructions may be in several versions of several blocks.
                Some(_) => Rc::clone(
                    (self.facts.entry(pc)).or_insert_with(|| S::facts(memory, pc, own).into()),
                ),
                None => S::facts(memory, pc, own).into(),
            };
            if S::is_special(&known) && pc != start {
                break;
            }
            let decoded = Decoded {
                pc,
                bytes,
                insn,
                facts: known,
            };
            let continues = match insn.map(S::ends) {
                Some(Ends::Never) => {
                    let may_change = || self.is_soft && self.may_write_code(&decoded);
                    !S::is_special(&decoded.facts) && !may_change()
                }
                Some(Ends::Maybe) => self.is_rarely_taken(&decoded),
                Some(Ends::Always) | None => false,
            };
            pc = decoded.next();
            code.push(decoded);
            if !continues {
                break;
            }
        }
        code
    }

    /// Whether a block ends before an instruction. One that is executed often goes on where others begin.
    fn ends_before(&self, pc: u64) -> bool {
        match self.request.profile {
            Some(_) => self.left == 0 || (self.request.soft)(pc),
            None => self.is_elsewhere((pc, 0)) || self.labels.contains_key(&(pc, 0)),
        }
    }

    /// Whether a block goes on after a branch: this is known of code that is executed often.
    fn is_rarely_taken(&self, branch: &Decoded<S>) -> bool {
        let (Some(profile), Some(target)) = (self.request.profile, S::target(branch)) else {
            return false;
        };
        let count = |pc: u64| profile.get(&pc).copied().unwrap_or(0);
        count(branch.next()) > count(target)
    }

    /// Translates code that clients do not receive. Returns where the program continues, if it does so after it.
    pub(super) fn unobserved(&mut self, code: &[Decoded<S>]) -> Option<Version> {
        self.begins_block(None);
        self.left = self.left.saturating_sub(code.len());
        self.stage = Stage::Body;
        for decoded in code {
            self.point(decoded.pc, None);
            let Some(insn) = decoded.insn else {
                S::invalid(self, &decoded.bytes);
                return None;
            };
            if !S::instruction(self, decoded.pc, &decoded.bytes, insn) {
                return None;
            }
        }
        Some((code.last()?.next(), 0))
    }

    /// Translates a block. Returns where the program continues, if it does so after it.
    fn block(
        &mut self,
        code: &[Decoded<S>],
        registers: u16,
        (insertion, is_observed): (Insertion, bool),
    ) -> Option<Version> {
        let file = (self.request.file)(code[0].pc);
        let mut notes = self.notes(code, file.as_ref(), insertion);
        if !is_observed {
            // It is known without this where functions end that return.
            notes.retain(|(_, what)| *what != Noted::Call);
            if notes.is_empty() {
                return self.unobserved(code);
            }
        }
        let about = (file, is_observed);
        let mut analyzed = self.analyzed(code, registers, notes, insertion, about);
        let id = analyzed.id;
        let expanded = self.expand(&code[0], &mut analyzed);
        let analyzed = Arc::new(analyzed);
        self.begins_block(Some(Arc::clone(&analyzed)));
        let len = analyzed.insns.len();
        self.left = self.left.saturating_sub(len);
        let mut compared = insertion
            .recent
            .map(|recent| S::compared(self, code, &analyzed, recent));
        S::head(self, &analyzed, (insertion, compared.as_mut()), &code[0]);
        if let Some(items) = expanded {
            return Some((self.expanded(&items)?, 0));
        }
        let mut continues = None;
        for (number, decoded) in code.iter().enumerate().take(len) {
            let pc = decoded.pc;
            S::middle(self, &analyzed, number as u16, pc);
            if let Some(compared) = &mut compared
                && !analyzed.is_special()
            {
                S::compare(self, compared, number, decoded);
            }
            match compared.as_ref().and_then(S::taken) {
                Some(saved) => self.set_point(pc, saved),
                None if self.stage != Stage::Repeating => self.point(pc, None),
                None => {}
            }
            let Some(insn) = decoded.insn else {
                S::invalid(self, &decoded.bytes);
                return None;
            };
            if let Some(target) = S::target(decoded)
                && number + 1 < len
            {
                self.may_leave(&analyzed, number as u16 + 1, insn, (target, &decoded.bytes));
                continue;
            }
            let known = analyzed.known_after(number + 1);
            self.versions.set_known(known);
            self.versions.leave(Some((id, number as u16 + 1)));
            let follows = S::instruction(self, pc, &decoded.bytes, insn);
            self.versions.leave(None);
            continues = follows.then(|| decoded.next());
        }
        let known = self.versions.known();
        self.versions.set_known(0);
        if self.stage == Stage::Repeating {
            self.stage = Stage::Repeated;
            S::record(self, &analyzed, continues?);
        }
        // What comes after a call or a system call is reached in other ways, too.
        let known = match analyzed.insns[len - 1].transfer {
            Transfer::Next | Transfer::Branch => known,
            _ => 0,
        };
        self.versions.leave(Some((id, len as u16)));
        let next = self.version(continues?, known);
        self.versions.leave(None);
        Some(next)
    }

    /// The block at the start of this code.
    fn analyzed(
        &mut self,
        code: &[Decoded<S>],
        registers: u16,
        notes: Vec<(u16, Noted)>,
        insertion: Insertion,
        (file, is_observed): (Option<(PathBuf, u64)>, bool),
    ) -> Block {
        let observed = match (insertion.records, self.request.profile) {
            (true, Some(_)) => Analyzed::Hot(registers),
            (true, None) => Analyzed::Accesses,
            (false, _) if insertion.recent.is_some() => Analyzed::Lines,
            (false, _) => Analyzed::Counts,
        };
        let keeps_flags = self.request.keeps_flags;
        let (id, counter) = (self.request.numbers)(&|| {
            // What is recorded of these depends on what else is executed often.
            let is_hot = matches!(observed, Analyzed::Hot(_));
            let code_bytes = code.iter().map(Decoded::own);
            let flags = [is_observed, keeps_flags];
            (!is_hot)
                .then(|| Identity::of_block(code[0].pc, code_bytes, file.as_ref(), &notes, flags))
        });
        let known: Vec<BlockInsn<'_, S::Facts>> = code
            .iter()
            .map(|decoded| (decoded.pc, decoded.own(), Rc::clone(&decoded.facts)))
            .collect();
        self.versions.add_block(id, (code[0].pc, registers));
        let mut block = S::analyze(id, &known, notes, observed, keeps_flags);
        block.counter = counter;
        block.observed = is_observed;
        block.file = file;
        block
    }

    /// If a block is of an instruction of which each lane is to be an access of its own: what passes make of it.
    fn expand(&self, first: &Decoded<S>, block: &mut Block) -> Option<Vec<Item>> {
        let passes = self.request.passes?;
        if !block.is_special() {
            return None;
        }
        let items = passes.borrow_mut().run(vec![S::seen(first)], false);
        let is_lane = |item: &Item| match item {
            Item::Instruction(instruction) => instruction.lane().is_some(),
            Item::Inserted(_) => false,
        };
        (items.iter().any(is_lane) && block.expand()).then_some(items)
    }

    /// Translates what passes have made of the only instruction of a block. Returns where the program continues.
    fn expanded(&mut self, items: &[Item]) -> Option<u64> {
        let next = S::lower(self, self.request.passes?, items);
        if self.code.offset() > ENOUGH {
            self.left = 0;
        }
        next
    }

    /// What clients receive about these instructions besides accesses.
    fn notes(
        &mut self,
        code: &[Decoded<S>],
        file: Option<&(PathBuf, u64)>,
        insertion: Insertion,
    ) -> Vec<(u16, Noted)> {
        let Some(watch) = self.request.watch.filter(|_| insertion.records) else {
            return Vec::new();
        };
        let mut notes = Vec::new();
        if watch.system_calls() && self.is_after_call(code[0].pc) {
            notes.push((0, Noted::AfterCall));
        }
        let functions = file.map(|(file, _)| watch.functions(file));
        let functions = functions.filter(|functions| !functions.is_empty());
        let first = file.map_or(0, |&(_, offset)| offset);
        for (decoded, number) in code.iter().zip(0..) {
            let transfer = S::transfer(&decoded.facts);
            if transfer == Transfer::SystemCall && watch.system_calls() {
                notes.push((number, Noted::SystemCall));
            }
            if watch.functions_wanted()
                && matches!(transfer, Transfer::Call | Transfer::IndirectCall)
            {
                notes.push((number, Noted::Call));
            }
            let Some(functions) = &functions else {
                continue;
            };
            if let Some(name) = functions.get(&(first + (decoded.pc - code[0].pc))) {
                notes.push((number, Noted::Entry(name.clone())));
            }
            if transfer == Transfer::Return {
                notes.push((number, Noted::Return));
            }
        }
        notes
    }

    /// Whether an instruction comes after a system call.
    pub(super) fn is_after_call(&mut self, pc: u64) -> bool {
        let before = pc.wrapping_sub(S::SYSTEM_CALL.len() as u64);
        let there = (self.request.read)(before);
        there.is_some_and(|(bytes, len)| bytes[..len].starts_with(S::SYSTEM_CALL))
    }

    /// Where blocks are left, only what is needed by the versions that they lead to has to be computed.
    pub(super) fn forget_unneeded(&mut self) {
        let blocks = self.out.blocks.iter();
        let blocks: FxHashMap<u32, Arc<Block>> = blocks
            .filter_map(|(_, block)| Some((block.as_ref()?.id, Arc::clone(block.as_ref()?))))
            .collect();
        let needs = self.versions.needs(&blocks);
        let trimmed = blocks.into_iter().map(|(id, block)| {
            let mut block = Block::clone(&block);
            for leave in &mut block.leaving {
                let wanted = self.versions.wanted(&needs, id, leave.upto);
                leave
                    .sets
                    .retain(|&(register, ..)| wanted >> register & 1 == 1);
            }
            (id, Arc::new(block))
        });
        let trimmed: FxHashMap<u32, Arc<Block>> = trimmed.collect();
        for block in self
            .out
            .blocks
            .iter_mut()
            .filter_map(|(_, block)| block.as_mut())
        {
            if let Some(new) = trimmed.get(&block.id) {
                *block = Arc::clone(new);
            }
        }
    }

    /// A branch before the end of a block.
    fn may_leave(
        &mut self,
        block: &Arc<Block>,
        upto: u16,
        insn: S::Insn,
        (target, bytes): (u64, &Bytes),
    ) {
        self.versions.leave(Some((block.id, upto)));
        let target = self.version(target, block.known_after(usize::from(upto)));
        self.versions.leave(None);
        // It will be translated, too.
        self.label_of(target);
        let label = self.code.label();
        S::branch(self, insn, bytes, label);
        self.put_later(S::leave(label, Arc::clone(block), upto, target));
    }
}
