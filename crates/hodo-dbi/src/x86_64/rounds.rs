//! Repeated string instructions, round by round.
//!
//! Rounds work on the program's own registers, so a thread that stops between them has what the processor would show
//! there: an instruction that is broken off, with the flags of its last round. The state map says where a round is
//! complete, and it is not known yet whether it was the last one: if it was, the thread is after the instruction.

use hodo_isa::x86_64::asm::{AL, Cond, RAX, RCX, gs, mem};

use super::emit::ECX;
use super::lower::{Flags, Lowering, at};
use super::narrow::decode;
use super::{RAX_NUMBER, RCX_NUMBER, block};
use crate::fragment::Instruction;
use crate::inserted::{Mark, Repeated};
use crate::translate::Saved;

/// The bit of the zero flag in the second byte of flags in a slot.
const EQUAL: u8 = 0x40;

impl Lowering<'_, '_, '_> {
    /// If there are no rounds, goes on at the mark.
    pub(super) fn begin_round(&mut self, mark: Mark) {
        self.save_flags();
        self.keep_for_round();
        self.begin_region(mark);
        let start = self.translator.code.label();
        self.translator.code.bind(start);
        self.starts.insert(mark, start);
        self.translator.code.test_rr(RCX, RCX);
        self.skip_if(Cond::E, mark);
    }

    /// A round. It uses the program's registers.
    ///
    /// If neither of two operands can be accessed, a processor may fault at another one of them than it does without
    /// the prefix: so the round is a repetition, of one round.
    pub(super) fn round(&mut self, instruction: &Instruction, repeated: Repeated) {
        let own = Saved {
            is_own: true,
            ..Saved::default()
        };
        self.pc = instruction.pc;
        let count = (instruction.operands.len() > 1).then(|| self.general.slot());
        if let Some(count) = count {
            self.translator.code.mov_mr(at(count), RCX);
            self.general.set_slot_of(RCX_NUMBER, Some(count));
            self.point(Saved::default());
            self.translator.code.mov_ri(ECX, 1);
            self.point(own);
            self.translator.code.raw(&[repeated.prefix]);
        } else {
            self.point(own);
        }
        let Some(insn) = decode(&instruction.bytes) else {
            unreachable!("it was decoded before");
        };
        self.translator
            .copy(instruction.pc, &instruction.bytes, insn);
        let slot = match self.flags {
            Flags::Slot(slot) if repeated.while_equal.is_some() => {
                self.flags = Flags::There;
                Some(slot)
            }
            _ => None,
        };
        self.round = Some((repeated, false));
        self.point(Saved::default());
        if let Some(count) = count {
            self.translator.code.mov_rm(RCX, at(count));
            self.general.set_slot_of(RCX_NUMBER, None);
            self.general.free(count);
            self.point(Saved::default());
        }
        self.translator.code.lea(RCX, mem(RCX, -1));
        self.round = Some((repeated, true));
        self.point(Saved::default());
        if let Some(slot) = slot {
            self.keep_flags(slot);
        }
    }

    /// Puts the flags into a slot. Nothing moves.
    fn keep_flags(&mut self, slot: u8) {
        let other = self.general.slot();
        self.translator.code.mov_mr(at(other), RAX);
        let before = self.general.slot_of(RAX_NUMBER);
        if before.is_none() {
            self.general.set_slot_of(RAX_NUMBER, Some(other));
        }
        self.point(Saved::default());
        self.translator.code.lahf();
        self.translator.code.seto(AL);
        self.translator.code.mov_mr(at(slot), RAX);
        self.flags = Flags::Slot(slot);
        self.point(Saved::default());
        self.translator.code.mov_rm(RAX, at(other));
        self.general.set_slot_of(RAX_NUMBER, before);
        self.general.free(other);
        self.point(Saved::default());
    }

    /// A round is complete.
    pub(super) fn end_round(&mut self, repeated: Repeated, mark: Mark) {
        if let (Some(while_equal), Flags::Slot(slot)) = (repeated.while_equal, self.flags) {
            let flags = gs(block::FIRST_SPILL + 8 * u32::from(slot) + 1);
            self.translator.code.test_mi(flags, EQUAL);
            self.skip_if(if while_equal { Cond::E } else { Cond::NE }, mark);
        }
        self.translator.code.test_rr(RCX, RCX);
        self.skip_if(Cond::E, mark);
        self.round = None;
        // The thread may stop here: all rounds may take long.
        self.point(Saved {
            is_known: true,
            ..Saved::default()
        });
        let Some(start) = self.starts.remove(&mark) else {
            unreachable!("the first round begins before it ends");
        };
        self.translator.code.jmp(start);
        self.mark(mark);
    }
}
