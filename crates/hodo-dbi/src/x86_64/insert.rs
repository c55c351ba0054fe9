//! Code for clients, inserted at the beginning of blocks: a counter, or a record.
//!
//! The code changes only flags that the block overwrites before it reads them. A thread that stops in it is shown to
//! the program before the block, or, if the record is complete, before the first instruction; the registers that the
//! code uses are in the thread's block.

use std::sync::Arc;

use hodo_codegen::reserve::unused;
use hodo_isa::x86_64::asm::{DWORD, Label, QWORD, RCX, Reg, gs, mem};

use super::block;
use super::emitter::{Decoded, Emitter};
use super::recent::Compared;
use super::{RCX_NUMBER, SCRATCH};
use crate::block::{Block, Special, Value};
use crate::client::CUT;
use crate::fixups::Depends;
use crate::translate::{Insertion, Saved, Stage, Version};

impl Emitter<'_, '_, '_> {
    /// Where a branch that leaves a block leads: writes a record of that.
    pub(super) fn leave(&mut self, label: Label, block: Arc<Block>, upto: u16, target: Version) {
        let (pc, _) = target;
        self.code.bind(label);
        self.begins_block(Some(block));
        self.set_stage(Stage::Left(upto));
        self.point(pc, None);
        self.begins_record();
        let saved = self.take(pc, RCX_NUMBER);
        self.code.mov_rm(RCX, gs(block::POSITION));
        self.code.mov_mi(DWORD, mem(RCX, 0), CUT + u32::from(upto));
        self.code.lea(RCX, mem(RCX, 4));
        self.code.mov_mr(gs(block::POSITION), RCX);
        self.set_stage(Stage::Body);
        self.begins_block(None);
        self.give_back(pc, saved);
        self.jump_to_version(target);
    }

    /// Records what an instruction needs that is not known at the beginning of the block.
    pub(super) fn middle(&mut self, block: &Block, number: u16, pc: u64) {
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
            let is_used = |number| recorded.value.uses(number);
            let Some([position, second]) = unused(&SCRATCH, is_used) else {
                unreachable!("a value has at most two registers");
            };
            self.point(pc, None);
            self.begins_record();
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
    pub(super) fn head(
        &mut self,
        block: &Block,
        (insertion, compared): (Insertion, Option<&mut Compared>),
        first: &Decoded,
    ) {
        let pc = block.insns[0].pc;
        self.set_stage(Stage::Head);
        self.point(pc, None);
        let counter = gs(block::COUNTERS + 8 * block.counter);
        if insertion.counts && block.flags_are_dead {
            self.code.inc_m(QWORD, counter);
            self.fix(Depends::Counter, 4, 0);
            self.set_stage(Stage::Counted);
            self.point(pc, None);
        } else if insertion.counts {
            let saved = self.take(pc, RCX_NUMBER);
            self.code.mov_rm(RCX, counter);
            self.fix(Depends::Counter, 4, 0);
            self.code.lea(RCX, mem(RCX, 1));
            self.code.mov_mr(counter, RCX);
            self.fix(Depends::Counter, 4, 0);
            self.set_stage(Stage::Counted);
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
            self.set_stage(Stage::Repeating);
            self.point(pc, None);
            return;
        }
        if insertion.records || block.is_special() {
            self.record(block, pc);
        }
        self.set_stage(Stage::Body);
    }

    /// Writes a record, before an instruction.
    pub(super) fn record(&mut self, block: &Block, pc: u64) {
        let at_head = block.values.iter().filter(|recorded| recorded.insn == 0);
        let values: Vec<Value> = at_head.map(|recorded| recorded.value).collect();
        let is_used = |number| values.iter().any(|value| value.uses(number));
        let Some([position]) = unused(&SCRATCH, is_used) else {
            unreachable!("a record has fewer registers at its head");
        };
        let needs_two = values.iter().any(|value| {
            use Value::{Before, Signs, Sum, ThreadBase};
            matches!(value, ThreadBase | Before(_) | Sum(..) | Signs(..))
        });
        self.point(pc, None);
        self.begins_record();
        let mut saved = self.take(pc, position);
        let mut second = Reg::whole(position);
        let position = second;
        if needs_two && let Some([_, number]) = unused(&SCRATCH, is_used) {
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
        self.set_stage(Stage::Body);
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
