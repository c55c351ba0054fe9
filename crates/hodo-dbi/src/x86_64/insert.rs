//! Code for clients, inserted at the beginning of blocks: a counter, or a record.
//!
//! The code changes only flags that the block overwrites before it reads them. A thread that stops in it is shown to the program in front of the block, or, if the record
//! is complete, in front of the first instruction; the registers that the code uses are in the thread's block.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use hodo_isa::x86_64::asm::{DWORD, Label, QWORD, RCX, Reg, SYSTEM_CALL, gs, mem};
use hodo_isa::x86_64::decode::{Insn, Kind, decode};

use super::analyze::{Analyzed, Facts, analyze, facts};
use super::block;
use super::decoded::Decoded;
use super::fragment::ENOUGH;
use super::instruction::seen;
use super::lower::lower;
use super::recent::Compared;
use super::translate::{Cold, INVALID, Insertion, Saved, Stage, Translator, Version};
use super::{RCX_NUMBER, SCRATCH};
use crate::block::{Block, Flow, Noted, Special, Value};
use crate::client::CUT;
use crate::fixups::Depends;
use crate::fragment::Item;

/// Most blocks have at most this many instructions.
const USUAL: usize = 16;
/// The maximum number of instructions of a block.
const MOST: usize = 64;

impl Translator<'_, '_> {
    /// Translates blocks up to an instruction that does not continue.
    pub(super) fn blocks(&mut self, mut version: Version, insertion: Insertion) {
        loop {
            let (pc, registers) = version;
            if self.is_elsewhere(version) {
                self.out.blocks.push((self.code.here(), None));
                self.point(pc, None);
                return self.jump_to_version(version);
            }
            let label = self.label_of(version);
            let (observed, until) = self.choice(pc);
            let code = self.collect(pc, until);
            if code.is_empty() {
                // The program must not execute this: the exit shows it the fault.
                self.out.blocks.push((self.code.here(), None));
                return self.jump_to_version((pc, 0));
            }
            self.code.bind(label);
            self.bound.insert(version);
            if registers == 0 {
                self.out.instructions.push((pc, self.code.here()));
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
    pub(super) fn collect(&mut self, start: u64, until: u64) -> Vec<Decoded> {
        let mut code: Vec<Decoded> = Vec::with_capacity(USUAL);
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
            let insn = decode(&bytes).filter(|insn| usize::from(insn.len) <= len);
            let own = &bytes[..insn.map_or(1, |insn| usize::from(insn.len))];
            let factory = &mut self.factory;
            let known = match self.request.profile {
                // Instructions may be in several versions of several blocks.
                Some(_) => Rc::clone(
                    (self.facts.entry(pc)).or_insert_with(|| facts(factory, pc, own).into()),
                ),
                None => facts(factory, pc, own).into(),
            };
            if known.is_special && pc != start {
                break;
            }
            let decoded = Decoded {
                pc,
                bytes,
                insn,
                facts: known,
            };
            let continues = match insn.map(|insn| insn.kind) {
                Some(Kind::Plain) => !decoded.facts.is_special,
                Some(Kind::Branch) => self.is_rarely_taken(&decoded),
                _ => false,
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
    fn is_rarely_taken(&self, branch: &Decoded) -> bool {
        let (Some(profile), Some(target)) = (self.request.profile, branch.target()) else {
            return false;
        };
        let count = |pc: u64| profile.get(&pc).copied().unwrap_or(0);
        count(branch.next()) > count(target)
    }

    /// Translates code of which clients hear nothing. Returns where the program continues, if it does so after it.
    fn unobserved(&mut self, code: &[Decoded]) -> Option<Version> {
        self.out.blocks.push((self.code.here(), None));
        self.left = self.left.saturating_sub(code.len());
        self.stage = Stage::Body;
        for decoded in code {
            self.point(decoded.pc, None);
            let Some(insn) = decoded.insn else {
                // It is no instruction here, either.
                self.code.raw(&decoded.bytes[..1]);
                self.code.raw(&INVALID);
                return None;
            };
            if !self.instruction(decoded.pc, &decoded.bytes, insn) {
                return None;
            }
        }
        Some((code.last()?.next(), 0))
    }

    /// Translates a block. Returns where the program continues, if it does so after it.
    fn block(
        &mut self,
        code: &[Decoded],
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
        let mut analyzed = self.analyzed(code, registers, notes, insertion);
        analyzed.observed = is_observed;
        analyzed.file = file;
        let id = analyzed.id;
        let expanded = self.expand(&code[0], &mut analyzed);
        let analyzed = Arc::new(analyzed);
        self.out
            .blocks
            .push((self.code.here(), Some(Arc::clone(&analyzed))));
        let len = analyzed.insns.len();
        self.left = self.left.saturating_sub(len);
        let mut compared = insertion
            .recent
            .map(|recent| self.compared(code, &analyzed, recent));
        self.head(&analyzed, (insertion, compared.as_mut()), &code[0]);
        if let Some(items) = expanded {
            return Some((self.expanded(&items)?, 0));
        }
        let mut continues = None;
        for (number, decoded) in code.iter().enumerate().take(len) {
            let pc = decoded.pc;
            self.middle(&analyzed, number as u16, pc);
            if let Some(compared) = &mut compared
                && !analyzed.is_special()
            {
                self.compare(compared, number, decoded);
            }
            match compared.as_ref().and_then(Compared::saved) {
                Some(saved) => self.set_point(pc, saved),
                None if self.stage != Stage::Repeating => self.point(pc, None),
                None => {}
            }
            let Some(insn) = decoded.insn else {
                // It is no instruction here, either.
                self.code.raw(&decoded.bytes[..1]);
                self.code.raw(&INVALID);
                return None;
            };
            if let Some(target) = decoded.target()
                && number + 1 < len
            {
                self.may_leave(&analyzed, number as u16 + 1, insn, (target, &decoded.bytes));
                continue;
            }
            self.known_registers = analyzed.known_after(number + 1);
            self.leaving = Some((id, number as u16 + 1));
            let follows = self.instruction(pc, &decoded.bytes, insn);
            self.leaving = None;
            continues = follows.then(|| decoded.next());
        }
        let known = std::mem::take(&mut self.known_registers);
        if self.stage == Stage::Repeating {
            self.stage = Stage::Repeated;
            self.record(&analyzed, continues?);
        }
        // What comes after a call or a system call is reached in other ways, too.
        let known = match analyzed.insns[len - 1].flow {
            Flow::Next | Flow::Branch => known,
            _ => 0,
        };
        self.leaving = Some((id, len as u16));
        let next = self.version(continues?, known);
        self.leaving = None;
        Some(next)
    }

    /// The block at the start of this code.
    fn analyzed(
        &mut self,
        code: &[Decoded],
        registers: u16,
        notes: Vec<(u16, Noted)>,
        insertion: Insertion,
    ) -> Block {
        let (id, counter) = (self.request.numbers)();
        let known: Vec<(u64, &[u8], Rc<Facts>)> = code
            .iter()
            .map(|decoded| (decoded.pc, decoded.own(), Rc::clone(&decoded.facts)))
            .collect();
        self.block_versions.insert(id, (code[0].pc, registers));
        let observed = match (insertion.records, self.request.profile) {
            (true, Some(_)) => Analyzed::Hot(registers),
            (true, None) => Analyzed::Accesses,
            (false, _) if insertion.recent.is_some() => Analyzed::Lines,
            (false, _) => Analyzed::Counts,
        };
        let mut block = analyze(id, &known, notes, observed);
        block.counter = counter;
        block
    }

    /// If a block is of an instruction of which each lane is to be an access of its own: what passes make of it.
    fn expand(&self, first: &Decoded, block: &mut Block) -> Option<Vec<Item>> {
        let passes = self.request.passes?;
        if !block.is_special() {
            return None;
        }
        let items = passes.borrow_mut().run(vec![seen(first)]);
        let is_lane = |item: &Item| match item {
            Item::Instruction(instruction) => instruction.lane().is_some(),
            Item::Inserted(_) => false,
        };
        (items.iter().any(is_lane) && block.expand()).then_some(items)
    }

    /// Translates what passes have made of the only instruction of a block. Returns where the program continues.
    fn expanded(&mut self, items: &[Item]) -> Option<u64> {
        let next = lower(self, self.request.passes?, items);
        if self.code.offset() > ENOUGH {
            self.left = 0;
        }
        next
    }

    /// What clients hear of these instructions besides accesses.
    fn notes(
        &mut self,
        code: &[Decoded],
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
            let flow = decoded.facts.flow;
            if flow == Flow::SystemCall && watch.system_calls() {
                notes.push((number, Noted::SystemCall));
            }
            if watch.functions_wanted() && matches!(flow, Flow::Call | Flow::IndirectCall) {
                notes.push((number, Noted::Call));
            }
            let Some(functions) = &functions else {
                continue;
            };
            if let Some(name) = functions.get(&(first + (decoded.pc - code[0].pc))) {
                notes.push((number, Noted::Entry(name.clone())));
            }
            if flow == Flow::Return {
                notes.push((number, Noted::Return));
            }
        }
        notes
    }

    /// Whether an instruction comes after a system call.
    fn is_after_call(&mut self, pc: u64) -> bool {
        let before = pc.wrapping_sub(SYSTEM_CALL.len() as u64);
        let there = (self.request.read)(before);
        there.is_some_and(|(bytes, len)| bytes[..len].starts_with(&SYSTEM_CALL))
    }

    /// Where blocks are left, only what is needed by the versions that they lead to has to be computed.
    pub(super) fn forget_unneeded(&mut self) {
        let blocks = self.out.blocks.iter();
        let blocks: FxHashMap<u32, Arc<Block>> = blocks
            .filter_map(|(_, block)| Some((block.as_ref()?.id, Arc::clone(block.as_ref()?))))
            .collect();
        let mut needs: FxHashMap<Version, u16> = FxHashMap::default();
        let wanted = |needs: &FxHashMap<Version, u16>, block: u32, upto: u16| {
            let leads = self.leads.get(&(block, upto)).into_iter().flatten();
            leads.fold(0, |all, to| all | needs.get(to).copied().unwrap_or(0))
        };
        let mut has_changed = true;
        while has_changed {
            has_changed = false;
            for (id, version) in &self.block_versions {
                let Some(block) = blocks.get(id) else {
                    continue;
                };
                let need = block
                    .leaving
                    .iter()
                    .fold(block.used_before(), |all, leave| {
                        all | block.needed_before(leave, wanted(&needs, *id, leave.upto))
                    });
                has_changed |= needs.insert(*version, need) != Some(need);
            }
        }
        let trimmed = blocks.into_iter().map(|(id, block)| {
            let mut block = Block::clone(&block);
            for leave in &mut block.leaving {
                let wanted = wanted(&needs, id, leave.upto);
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
        insn: Insn,
        (target, bytes): (u64, &[u8; 16]),
    ) {
        let condition = bytes[usize::from(insn.opcode)] & 15;
        self.leaving = Some((block.id, upto));
        let target = self.version(target, block.known_after(usize::from(upto)));
        self.leaving = None;
        // It will be translated, too.
        self.label_of(target);
        let label = self.code.label();
        self.code.jcc_by(condition, label);
        self.cold.push(Cold::Leave {
            label,
            block: Arc::clone(block),
            upto,
            target,
        });
    }

    /// Where a branch that leaves a block leads: writes a record of that.
    pub(super) fn leave(&mut self, label: Label, block: Arc<Block>, upto: u16, target: Version) {
        let (pc, _) = target;
        self.code.bind(label);
        self.out.blocks.push((self.code.here(), Some(block)));
        self.stage = Stage::Left(upto);
        self.point(pc, None);
        self.out.records.push(self.code.here());
        let saved = self.take(pc, RCX_NUMBER);
        self.code.mov_rm(RCX, gs(block::POSITION));
        self.code.mov_mi(DWORD, mem(RCX, 0), CUT + u32::from(upto));
        self.code.lea(RCX, mem(RCX, 4));
        self.code.mov_mr(gs(block::POSITION), RCX);
        self.stage = Stage::Body;
        self.out.blocks.push((self.code.here(), None));
        self.give_back(pc, saved);
        self.jump_to_version(target);
    }

    /// Records what an instruction needs that is not known at the beginning of the block.
    fn middle(&mut self, block: &Block, number: u16, pc: u64) {
        if number == 0 {
            return;
        }
        let size = block.record_size() as i32;
        let mut at = 4;
        for recorded in &block.values {
            let here = at;
            at += recorded.value.size();
            if recorded.insn != number {
                continue;
            }
            let uses = |free: &u8| !recorded.value.uses(*free);
            let mut free = SCRATCH.into_iter().filter(uses);
            let (Some(position), Some(second)) = (free.next(), free.next()) else {
                unreachable!("a value has at most two registers");
            };
            self.point(pc, None);
            self.out.records.push(self.code.here());
            let mut saved = self.take(pc, position);
            if matches!(recorded.value, Value::Sum(..)) {
                self.take_second(pc, second, &mut saved);
            }
            let (position, second) = (Reg::whole(position), Reg::whole(second));
            self.code.mov_rm(position, gs(block::POSITION));
            let to = here.cast_signed() - size;
            self.value(recorded.value, position, second, to);
            self.give_back(pc, saved);
        }
    }

    /// What comes before the first instruction.
    fn head(
        &mut self,
        block: &Block,
        (insertion, compared): (Insertion, Option<&mut Compared>),
        first: &Decoded,
    ) {
        let pc = block.insns[0].pc;
        self.stage = Stage::Head;
        self.point(pc, None);
        let counter = gs(block::COUNTERS + 8 * block.counter);
        if insertion.counts && block.flags_are_dead {
            self.code.inc_m(QWORD, counter);
            self.fix(Depends::Counter, 4, 0);
            self.stage = Stage::Counted;
            self.point(pc, None);
        } else if insertion.counts {
            let saved = self.take(pc, RCX_NUMBER);
            self.code.mov_rm(RCX, counter);
            self.fix(Depends::Counter, 4, 0);
            self.code.lea(RCX, mem(RCX, 1));
            self.code.mov_mr(counter, RCX);
            self.fix(Depends::Counter, 4, 0);
            self.stage = Stage::Counted;
            self.give_back(pc, saved);
        }
        if let Some(compared) = compared
            && block.is_special()
        {
            self.compare_special(compared, first);
        }
        if matches!(block.special, Some(Special::Strings { .. })) {
            for (number, at) in block::BEFORE {
                self.code.mov_mr(gs(at), Reg::whole(number));
            }
            self.stage = Stage::Repeating;
            self.point(pc, None);
            return;
        }
        if insertion.records || block.is_special() {
            self.record(block, pc);
        }
        self.stage = Stage::Body;
    }

    /// Writes a record, in front of an instruction.
    fn record(&mut self, block: &Block, pc: u64) {
        let at_head = block.values.iter().filter(|recorded| recorded.insn == 0);
        let values: Vec<Value> = at_head.map(|recorded| recorded.value).collect();
        let is_free = |number: &u8| !values.iter().any(|value| value.uses(*number));
        let mut free = SCRATCH.into_iter().filter(is_free);
        let needs_two = values.iter().any(|value| {
            use Value::{Before, Signs, Sum, ThreadBase};
            matches!(value, ThreadBase | Before(_) | Sum(..) | Signs(..))
        });
        let Some(position) = free.next() else {
            unreachable!("a record has fewer registers at its head");
        };
        self.point(pc, None);
        self.out.records.push(self.code.here());
        let mut saved = self.take(pc, position);
        let mut second = Reg::whole(position);
        let position = second;
        if needs_two && let Some(number) = free.next() {
            second = Reg::whole(number);
            self.take_second(pc, number, &mut saved);
        }
        self.code.mov_rm(position, gs(block::POSITION));
        self.code.mov_mi(DWORD, mem(position, 0), block.id);
        self.fix(Depends::Block, 4, 0);
        let mut at = 4;
        for recorded in &block.values {
            if recorded.insn == 0 {
                self.value(recorded.value, position, second, at);
            }
            at += recorded.value.size().cast_signed();
        }
        self.code.lea(position, mem(position, at));
        self.code.mov_mr(gs(block::POSITION), position);
        self.stage = Stage::Body;
        self.give_back(pc, saved);
    }

    /// Writes a value of a record.
    fn value(&mut self, value: Value, position: Reg, second: Reg, at: i32) {
        let to = mem(position, at);
        match value {
            Value::Register(number) => self.code.mov_mr(to, Reg::whole(number)),
            Value::Half(number) | Value::Signed(number) => {
                self.code.mov_mr(to, Reg::whole(number).part(DWORD));
            }
            Value::Sum(base, index, power) => {
                let (base, index) = (Reg::whole(base), Reg::whole(index));
                self.code
                    .lea(second, mem(base, 0).plus_scaled(index, power));
                self.code.mov_mr(to, second);
            }
            Value::ThreadBase => {
                self.code.rdfsbase(second);
                self.code.mov_mr(to, second);
            }
            Value::Before(number) => {
                let slot = block::BEFORE.iter().find(|(before, _)| *before == number);
                let slot = slot.map_or(block::BEFORE[0].1, |slot| slot.1);
                self.code.mov_rm(second, gs(slot));
                self.code.mov_mr(to, second);
            }
            Value::ShortVector(number) => {
                self.code.store_ymm(position, at.cast_unsigned(), number);
            }
            Value::Signs(number, size) => {
                self.code.signs(second, number, size);
                self.code.mov_mr(to, second);
            }
            Value::Vector(number) => self.code.store_zmm(position, at.cast_unsigned(), number),
            Value::Mask(number) => self.code.store_mask(position, at.cast_unsigned(), number),
        }
    }

    /// Saves a register.
    pub(super) fn take(&mut self, pc: u64, number: u8) -> Saved {
        self.code.mov_mr(gs(block::SCRATCH[0]), Reg::whole(number));
        let saved = Saved {
            scratch: [Some(number), None],
            is_known: true,
            ..Saved::default()
        };
        self.inside(pc, saved);
        saved
    }

    /// Saves another register.
    pub(super) fn take_second(&mut self, pc: u64, number: u8, saved: &mut Saved) {
        self.code.mov_mr(gs(block::SCRATCH[1]), Reg::whole(number));
        saved.scratch[1] = Some(number);
        self.inside(pc, *saved);
    }

    /// Restores the registers that were saved.
    pub(super) fn give_back(&mut self, pc: u64, saved: Saved) {
        self.inside(pc, saved);
        for (register, word) in saved.scratch.into_iter().zip(block::SCRATCH) {
            if let Some(number) = register {
                self.code.mov_rm(Reg::whole(number), gs(word));
            }
        }
        self.point(pc, None);
    }
}
