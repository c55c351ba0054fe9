//! Code with labels: branches become as long as they need to be once all of the code is known.

use core::ops::{Deref, DerefMut};

use super::super::encode::adr;
use super::super::regs::{LINK, SP, ZERO};
use super::operand::{Extend, Mem, Size, indexed, mem, near};
use super::ops::Insns;
use super::{Refer, is_mask, small};
use crate::buffer::{self, Label};

/// Operations on two registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names that mnemonics have")]
pub enum Op {
    ADD,
    SUB,
    AND,
    ORR,
    EOR,
    LSL,
    LSR,
    ASR,
    MUL,
    SDIV,
    UDIV,
}

impl Op {
    /// Whether there is a form with this number in place of the second register.
    #[must_use]
    pub const fn takes(self, value: i64) -> bool {
        match self {
            Self::ADD | Self::SUB => small(value),
            Self::AND | Self::ORR | Self::EOR => is_mask(value.cast_unsigned()),
            Self::LSL | Self::LSR | Self::ASR => value >= 0 && value < 64,
            Self::MUL | Self::SDIV | Self::UDIV => false,
        }
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

    fn reference(&mut self, reference: Refer, to: Label) {
        self.refer(reference, to);
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

    /// Appends an instruction.
    pub fn word(&mut self, word: u32) {
        self.raw(&word.to_le_bytes());
    }

    /// A jump to a label.
    pub fn jump(&mut self, to: Label) {
        self.b(to);
    }

    /// A jump to a label that puts the return address into a register.
    pub fn call(&mut self, link: u8, to: Label) {
        self.refer(Refer::Jump(link), to);
    }

    /// Puts the address of a label within 16 MiB into a register.
    pub fn address(&mut self, rd: u8, of: Label) {
        self.adr(rd, of);
    }

    /// A jump or call to an address anywhere: the target, a register for it, and the link, which may be the same
    /// register if it is the link register.
    pub fn far(&mut self, to: u64, register: u8, link: u8) {
        self.li(register, to);
        match link {
            ZERO => self.br(register),
            LINK => self.blr(register),
            _ => {
                debug_assert_ne!(link, register);
                self.word(adr(link, 8));
                self.br(register);
            }
        }
    }

    /// Copies a register, if it is another one.
    pub fn mv(&mut self, rd: u8, rs: u8) {
        if rd != rs {
            self.mov(rd, rs);
        }
    }

    /// An operation on two registers.
    pub fn op(&mut self, op: Op, rd: u8, left: u8, right: u8) {
        match op {
            Op::ADD => Insns::add(self, rd, left, right),
            Op::SUB => self.sub(rd, left, right),
            Op::AND => self.and(rd, left, right),
            Op::ORR => self.orr(rd, left, right),
            Op::EOR => self.eor(rd, left, right),
            Op::LSL => self.lsl(rd, left, right),
            Op::LSR => self.lsr(rd, left, right),
            Op::ASR => self.asr(rd, left, right),
            Op::MUL => self.mul(rd, left, right),
            Op::SDIV => self.sdiv(rd, left, right),
            Op::UDIV => self.udiv(rd, left, right),
        }
    }

    /// The same with a number that [the operation takes](Op::takes).
    ///
    /// # Panics
    /// If it does not.
    pub fn op_imm(&mut self, op: Op, rd: u8, left: u8, value: i64) {
        assert!(op.takes(value), "{op:?} of {value:#x}");
        let (bits, by) = (value.cast_unsigned(), value as u8);
        match op {
            Op::ADD => self.addi(rd, left, value),
            Op::SUB => self.addi(rd, left, -value),
            Op::AND => self.andi(rd, left, bits),
            Op::ORR => self.orri(rd, left, bits),
            Op::EOR => self.eori(rd, left, bits),
            Op::LSL => self.lsli(rd, left, by),
            Op::LSR => self.lsri(rd, left, by),
            Op::ASR => self.asri(rd, left, by),
            Op::MUL | Op::SDIV | Op::UDIV => {}
        }
    }

    /// Adds a constant. If it has more than 24 bits besides its sign, `rd` must differ from `left`. Both may be the
    /// stack pointer if it has not.
    pub fn add(&mut self, rd: u8, left: u8, value: i64) {
        let high = value / 0x1000 * 0x1000;
        if small(value) {
            if rd != left || value != 0 {
                self.addi(rd, left, value);
            }
        } else if small(high) {
            self.addi(rd, left, high);
            self.addi(rd, rd, value - high);
        } else {
            debug_assert!(rd != left && rd != SP);
            self.li(rd, value.cast_unsigned());
            self.add_extended(rd, left, rd, (Extend::Uxtx, 0));
        }
    }

    /// Adds a constant to a register, which may be the stack pointer. Clobbers `scratch` if it has more than 24 bits
    /// besides its sign.
    pub fn add_to(&mut self, rd: u8, value: i64, scratch: u8) {
        if small(value / 0x1000 * 0x1000) {
            return self.add(rd, rd, value);
        }
        self.li(scratch, value.cast_unsigned());
        self.add_extended(rd, rd, scratch, (Extend::Uxtx, 0));
    }

    /// Loads 1, 2, 4 or 8 bytes, zero-extended, from a base plus an offset. The base may be the register that is loaded
    /// if the offset is [`near`]. Returns a label of the instruction that may fault.
    pub fn load(&mut self, size: u8, rd: u8, base: u8, offset: i64) -> Label {
        let place = self.place(size, rd, base, offset);
        let at = self.here();
        match Size::of(size) {
            Size::Byte => self.ldrb(rd, place),
            Size::Half => self.ldrh(rd, place),
            Size::Word => self.ldr_w(rd, place),
            Size::Double => self.ldr(rd, place),
        }
        at
    }

    /// Loads 2 bytes, sign-extended. Returns a label of the instruction that may fault.
    pub fn load_signed_half(&mut self, rd: u8, base: u8, offset: i64) -> Label {
        let at = self.here();
        self.ldrsh(rd, mem(base, offset));
        at
    }

    /// Stores the lower 1, 2, 4 or 8 bytes. `scratch` is overwritten if the offset is not [`near`].
    pub fn store(&mut self, size: u8, from: u8, base: u8, offset: i64, scratch: u8) {
        debug_assert!(near(size, offset) || scratch != from);
        let place = self.place(size, scratch, base, offset);
        match Size::of(size) {
            Size::Byte => self.strb(from, place),
            Size::Half => self.strh(from, place),
            Size::Word => self.str_w(from, place),
            Size::Double => self.str(from, place),
        }
    }

    /// The operand for a base and an offset. The base stays what it is: on a full disk, hodo moves the registers that
    /// point into the chunk to the bucket.
    fn place(&mut self, size: u8, scratch: u8, base: u8, offset: i64) -> Mem {
        if near(size, offset) {
            return mem(base, offset);
        }
        debug_assert!(scratch != base && scratch != ZERO);
        self.li(scratch, offset.cast_unsigned());
        indexed(base, scratch)
    }

    /// `rd` = the 64 bits at `base` + `offset`, whatever the offset.
    pub fn ld(&mut self, rd: u8, offset: i64, base: u8) {
        self.load(8, rd, base, offset);
    }

    /// Adds a multiple of 16 that is [`small`] to the stack pointer.
    pub fn stack(&mut self, value: i64) {
        self.addi(SP, SP, value);
    }
}
