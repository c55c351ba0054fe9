//! Code for clients, inserted at the beginning of blocks: a counter, or a record.
//!
//! The code changes only flags that the block overwrites before it reads them. A thread that stops in it is shown to the program in front of the block, or, if the record
//! is complete, in front of the first instruction; the registers that the code uses are in the thread's block.

use std::sync::Arc;

use hodo_isa::x86_64::asm::{DWORD, QWORD, RCX, Reg, gs, mem};
use hodo_isa::x86_64::decode::{Insn, Kind, decode};

use super::analyze::analyze;
use super::block;
use super::translate::{INVALID, Insertion, Saved, Stage, Translator};
use crate::block::{Block, Special, Value};

/// Registers that the inserted code may use, the better ones first. The stores of vectors cannot be based on `r12`.
const SCRATCH: [u8; 13] = [1, 2, 0, 6, 7, 8, 9, 10, 11, 3, 13, 14, 15];
/// The maximum number of instructions that are looked at for a block.
const MOST: usize = 64;

const RCX_NUMBER: u8 = 1;

type Decoded = (u64, [u8; 16], Option<Insn>);

impl Translator<'_, '_> {
    /// Translates blocks up to an instruction that does not continue.
    pub(super) fn blocks(&mut self, mut pc: u64, insertion: Insertion) {
        loop {
            if self.is_elsewhere(pc) {
                self.out.blocks.push((self.code.here(), None));
                self.point(pc, None);
                return self.jump_to(pc);
            }
            let label = self.label_of(pc);
            let code = self.collect(pc);
            if code.is_empty() {
                // The program must not execute this: the exit shows it the fault.
                return self.jump_to(pc);
            }
            self.code.bind(label);
            self.bound.insert(pc);
            self.out.instructions.push((pc, self.code.here()));
            match self.block(&code, insertion) {
                Some(next) => pc = next,
                None => return,
            }
        }
    }

    /// Decodes what may become a block.
    fn collect(&mut self, start: u64) -> Vec<Decoded> {
        let mut code = Vec::new();
        let mut pc = start;
        while code.len() < MOST {
            if pc != start && (self.labels.contains_key(&pc) || self.is_elsewhere(pc)) {
                break;
            }
            let Some((bytes, len)) = (self.request.read)(pc) else {
                break;
            };
            let insn = decode(&bytes).filter(|insn| usize::from(insn.len) <= len);
            code.push((pc, bytes, insn));
            match insn {
                Some(insn) if insn.kind == Kind::Plain => pc += u64::from(insn.len),
                _ => break,
            }
        }
        code
    }

    /// Translates a block. Returns where the program continues, if it does so after it.
    fn block(&mut self, code: &[Decoded], insertion: Insertion) -> Option<u64> {
        let id = (self.request.numbers)();
        let known: Vec<(u64, [u8; 16], u8)> = code
            .iter()
            .map(|&(pc, bytes, insn)| (pc, bytes, insn.map_or(1, |insn| insn.len)))
            .collect();
        let mut analyzed = analyze(id, &known);
        analyzed.file = (self.request.file)(analyzed.insns[0].pc);
        let analyzed = Arc::new(analyzed);
        self.out
            .blocks
            .push((self.code.here(), Some(Arc::clone(&analyzed))));
        self.left = self.left.saturating_sub(analyzed.insns.len());
        self.head(&analyzed, insertion);
        let mut continues = None;
        for &(pc, bytes, insn) in &code[..analyzed.insns.len()] {
            if self.stage != Stage::Repeating {
                self.point(pc, None);
            }
            let Some(insn) = insn else {
                // It is no instruction here, either.
                self.code.raw(&bytes[..1]);
                self.code.raw(&INVALID);
                return None;
            };
            let follows = self.instruction(pc, &bytes, insn);
            continues = follows.then(|| pc + u64::from(insn.len));
        }
        if self.stage == Stage::Repeating {
            self.stage = Stage::Repeated;
            self.record(&analyzed, continues?);
        }
        continues
    }

    /// What comes before the first instruction.
    fn head(&mut self, block: &Block, insertion: Insertion) {
        let pc = block.insns[0].pc;
        self.stage = Stage::Head;
        self.point(pc, None);
        let counter = gs(block::COUNTERS + 8 * block.id);
        if insertion.counts && block.flags_are_dead {
            self.code.inc_m(QWORD, counter);
            self.stage = Stage::Counted;
            self.point(pc, None);
        } else if insertion.counts {
            let saved = self.take(pc, RCX_NUMBER);
            self.code.mov_rm(RCX, counter);
            self.code.lea(RCX, mem(RCX, 1));
            self.code.mov_mr(counter, RCX);
            self.stage = Stage::Counted;
            self.give_back(pc, saved);
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
        let is_free = |number: &u8| {
            let mut values = block.values.iter();
            values.all(|&value| match value {
                Value::Register(used) => used != *number,
                Value::Sum(base, index, _) => base != *number && index != *number,
                _ => true,
            })
        };
        let mut free = SCRATCH.into_iter().filter(is_free);
        let needs_two = block
            .values
            .iter()
            .any(|value| matches!(value, Value::ThreadBase | Value::Before(_) | Value::Sum(..)));
        let Some(position) = free.next() else {
            unreachable!("a record has fewer registers");
        };
        self.point(pc, None);
        self.out.records.push(self.code.here());
        let mut saved = self.take(pc, position);
        let mut second = Reg::whole(position);
        let position = second;
        if needs_two && let Some(number) = free.next() {
            second = Reg::whole(number);
            self.code.mov_mr(gs(block::SCRATCH[1]), second);
            saved.scratch[1] = Some(number);
            self.inside(pc, saved);
        }
        self.code.mov_rm(position, gs(block::POSITION));
        self.code.mov_mi(DWORD, mem(position, 0), block.id);
        let mut at = 4;
        for &value in &block.values {
            self.value(block, value, position, second, at);
            at += value.size();
        }
        self.code.lea(position, mem(position, at.cast_signed()));
        self.code.mov_mr(gs(block::POSITION), position);
        self.stage = Stage::Body;
        self.give_back(pc, saved);
    }

    /// Writes a value of a record.
    fn value(&mut self, block: &Block, value: Value, position: Reg, second: Reg, at: u32) {
        let to = mem(position, at.cast_signed());
        match value {
            Value::Register(number) => self.code.mov_mr(to, Reg::whole(number)),
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
            Value::Vector(number) if !block.has_long_vectors() => {
                self.code.store_ymm(position, at, number);
            }
            Value::Vector(number) => self.code.store_zmm(position, at, number),
            Value::Mask(number) => self.code.store_mask(position, at, number),
        }
    }

    /// Saves a register.
    fn take(&mut self, pc: u64, number: u8) -> Saved {
        self.code.mov_mr(gs(block::SCRATCH[0]), Reg::whole(number));
        let saved = Saved {
            scratch: [Some(number), None],
            ..Saved::default()
        };
        self.inside(pc, saved);
        saved
    }

    /// Restores the registers that were saved.
    fn give_back(&mut self, pc: u64, saved: Saved) {
        self.inside(pc, saved);
        for (register, word) in saved.scratch.into_iter().zip(block::SCRATCH) {
            if let Some(number) = register {
                self.code.mov_rm(Reg::whole(number), gs(word));
            }
        }
        self.point(pc, None);
    }
}
