//! Code with labels: instructions take 16 bits where they can, and branches become as long as they need to be once all
//! of the code is known.

use core::ops::{Deref, DerefMut};

use super::super::encode::{
    FENCE_LOADS, FENCE_STORES, LOAD, LUI, OP, OP_IMM, OP_IMM_32, STORE, i, r, s, u,
};
use super::super::regs::{RA, SP, ZERO};
use super::ops::Insns;
use super::short::short;
use super::{If, Refer, fits, split};
use crate::buffer::{self, Label};

/// Operations on two registers: their three-bit and seven-bit functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Op(u32, u32);

#[expect(missing_docs, reason = "the names that mnemonics have")]
impl Op {
    pub const ADD: Self = Self(0, 0);
    pub const SUB: Self = Self(0, 0x20);
    pub const SLL: Self = Self(1, 0);
    pub const SLT: Self = Self(2, 0);
    pub const SLTU: Self = Self(3, 0);
    pub const XOR: Self = Self(4, 0);
    pub const SRL: Self = Self(5, 0);
    pub const SRA: Self = Self(5, 0x20);
    pub const OR: Self = Self(6, 0);
    pub const AND: Self = Self(7, 0);
    pub const MUL: Self = Self(0, 1);
    pub const DIV: Self = Self(4, 1);
    pub const DIVU: Self = Self(5, 1);
    pub const REM: Self = Self(6, 1);
    pub const REMU: Self = Self(7, 1);

    /// The three-bit function of the form with a 12-bit immediate in place of the second register, if there is one;
    /// shifts take six bits.
    fn immediate(self) -> Option<u32> {
        (self.1 == 0).then_some(self.0)
    }
}

/// Code that is being written.
#[derive(Debug, Default)]
pub struct Asm(buffer::Draft<Refer>);

impl Deref for Asm {
    type Target = buffer::Draft<Refer>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for Asm {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl Insns for Asm {
    fn word(&mut self, word: u32) {
        Asm::word(self, word);
    }
}

impl Asm {
    /// The finished code, for an address.
    ///
    /// # Errors
    /// If a reference does not reach its target.
    pub fn lay(self, start: u64) -> Result<buffer::Laid, buffer::OutOfRange> {
        self.0.lay(start)
    }

    /// Appends an instruction, in its 16-bit form if it has one.
    pub fn word(&mut self, word: u32) {
        match short(word) {
            Some(half) => self.raw(&half.to_le_bytes()),
            None => self.raw(&word.to_le_bytes()),
        }
    }

    /// A branch to a label, as long as it needs to be.
    pub fn branch(&mut self, condition: If, left: u8, right: u8, to: Label) {
        self.refer(Refer::Branch(condition, left, right), to);
    }

    /// A jump to a label.
    pub fn jump(&mut self, to: Label) {
        self.call(ZERO, to);
    }

    /// A jump to a label that puts the return address into a register.
    pub fn call(&mut self, link: u8, to: Label) {
        self.refer(Refer::Jump(link), to);
    }

    /// Puts the address of a label into a register.
    pub fn address(&mut self, rd: u8, of: Label) {
        self.refer(Refer::Address(rd), of);
    }

    /// A jump or call to an address within 2 GiB: the target, a register for it, and the link.
    pub fn far(&mut self, to: u64, register: u8, link: u8) {
        self.refer_to(Refer::Pair(register, link), to);
    }

    /// A return.
    pub fn ret(&mut self) {
        self.jr(RA);
    }

    /// Copies a register, if it is another one.
    pub fn mv(&mut self, rd: u8, rs: u8) {
        if rd != rs {
            self.word(i(OP_IMM, 0, rd, rs, 0));
        }
    }

    /// An operation on two registers.
    pub fn op(&mut self, op: Op, rd: u8, left: u8, right: u8) {
        self.word(r(OP, op.0, op.1, rd, left, right));
    }

    /// The same with an immediate: signed 12 bits (see [`small`]), six bits for shifts.
    pub fn op_imm(&mut self, op: Op, rd: u8, left: u8, value: i64) {
        let value = match op {
            Op::SRA => value | 0x400,
            _ => value,
        };
        debug_assert!(op == Op::SRA || op.immediate().is_some());
        self.word(i(OP_IMM, op.0, rd, left, value));
    }

    /// Adds a constant. If it is not [`small`], `rd` must differ from `left`.
    pub fn add(&mut self, rd: u8, left: u8, value: i64) {
        if small(value) {
            if rd != left || value != 0 {
                self.op_imm(Op::ADD, rd, left, value);
            }
            return;
        }
        debug_assert_ne!(rd, left);
        self.li(rd, value.cast_unsigned());
        self.op(Op::ADD, rd, rd, left);
    }

    /// Adds a constant to a register. Clobbers `scratch` if it is not [`small`].
    pub fn add_to(&mut self, rd: u8, value: i64, scratch: u8) {
        if small(value) {
            return self.add(rd, rd, value);
        }
        let (high, low) = split(value);
        self.li(scratch, high.cast_unsigned());
        self.op(Op::ADD, rd, rd, scratch);
        self.add(rd, rd, low);
    }

    /// Puts a number into a register.
    pub fn li(&mut self, rd: u8, value: u64) {
        let value = value.cast_signed();
        if small(value) {
            self.op_imm(Op::ADD, rd, ZERO, value);
            return;
        }
        let (high, low) = split(value);
        if i32::try_from(value).is_ok() {
            self.word(u(LUI, rd, high));
            if low != 0 {
                // 32-bit addition wraps around where rounding has carried the upper part out of its range.
                self.word(i(OP_IMM_32, 0, rd, rd, low));
            }
            return;
        }
        let zeros = high.trailing_zeros();
        self.li(rd, (high >> zeros).cast_unsigned());
        self.op_imm(Op::SLL, rd, rd, zeros.into());
        if low != 0 {
            self.op_imm(Op::ADD, rd, rd, low);
        }
    }

    /// Loads 1, 2, 4 or 8 bytes, zero-extended, from a base plus an offset. The base may be the register that is loaded
    /// if the offset is [`small`]. Returns a label of the instruction that may fault.
    pub fn load(&mut self, size: u8, rd: u8, base: u8, offset: i64) -> Label {
        let f3 = match size {
            1 => 4,
            2 => 5,
            4 => 6,
            _ => 3,
        };
        let (base, offset) = self.base(rd, base, offset);
        let at = self.here();
        self.word(i(LOAD, f3, rd, base, offset));
        at
    }

    /// Loads 2 bytes, sign-extended. Returns a label of the instruction that may fault.
    pub fn load_signed_half(&mut self, rd: u8, base: u8, offset: i64) -> Label {
        let at = self.here();
        self.word(i(LOAD, 1, rd, base, offset));
        at
    }

    /// Stores the lower 1, 2, 4 or 8 bytes. `scratch` is overwritten if the offset is not [`small`].
    pub fn store(&mut self, size: u8, from: u8, base: u8, offset: i64, scratch: u8) {
        let f3 = size.trailing_zeros();
        debug_assert!(small(offset) || scratch != from);
        let (base, offset) = self.base(scratch, base, offset);
        self.word(s(STORE, f3, from, base, offset));
    }

    /// Turns a base and an offset into ones that fit an instruction.
    fn base(&mut self, scratch: u8, base: u8, offset: i64) -> (u8, i64) {
        if small(offset) {
            return (base, offset);
        }
        debug_assert_ne!(scratch, base);
        // On a full disk, hodo moves the registers that point into the chunk to the bucket. So this base must point
        // into the record, at or below the access.
        let low = offset & 0x7FF;
        self.li(scratch, (offset - low).cast_unsigned());
        self.op(Op::ADD, scratch, scratch, base);
        (scratch, low)
    }

    /// `rd` = the 64 bits at `base` + `offset`, whatever the offset.
    pub fn ld(&mut self, rd: u8, offset: i64, base: u8) {
        self.load(8, rd, base, offset);
    }

    /// Stores before this become visible before stores after it.
    pub fn fence_stores(&mut self) {
        self.word(FENCE_STORES);
    }

    /// Loads before this are performed before loads after it.
    pub fn fence_loads(&mut self) {
        self.word(FENCE_LOADS);
    }

    /// Adds a multiple of 16 that is [`small`] to the stack pointer.
    pub fn stack(&mut self, value: i64) {
        self.op_imm(Op::ADD, SP, SP, value);
    }
}

/// Whether a number fits the immediate of an instruction: signed 12 bits.
pub fn small(value: i64) -> bool {
    fits(value, 12)
}
