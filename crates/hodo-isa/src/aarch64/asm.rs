//! The assembler. There are two ways to write code:
//!
//! * [`Code`] writes it where it will stay: each instruction is final, and only references to labels are filled in
//!   later.
//! * [`Asm`](relax::Asm) keeps it until all of it is known: branches become as long as they need to be.
//!
//! [`Insns`] has the single instructions for both, [`operand`] what they work on.

use alloc::vec::Vec;
use core::ops::{Deref, DerefMut};

mod constant;
pub mod operand;
pub mod ops;
pub mod relax;

use super::encode::{
    self, ADD, MOVK, MOVZ, SUB, WIDE, add_immediate, adr, bitmask, branch, call, compare_zero,
    conditional, literal, page, pop, push, test_bit,
};
use super::regs::{LINK, ZERO};
use super::{JUMP_REACH, LEN};
use crate::buffer::{Buffer, JumpForm, Reference};
pub use crate::buffer::{Label, OutOfRange};
pub use crate::linked::If;
pub use constant::Halves;
pub use operand::{Cond, Test};
use ops::{Insns, twelve};

/// How far away the addresses that code refers to can be, at most. This decides the length of jumps and addresses,
/// whatever the actual distance is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// 128 MiB for jumps, by `b`; 4 GiB for addresses, by `adrp` and `add`. No register is needed.
    Jump,
    /// 4 GiB: jumps are `adrp`, `add` and `br`.
    Page,
    /// Anywhere: addresses are built from four parts.
    Any,
}

impl Reach {
    /// Whether a jump needs a register.
    #[must_use]
    pub const fn needs_register(self) -> bool {
        !matches!(self, Self::Jump)
    }

    /// Bytes of the instructions that form an address in a register.
    #[must_use]
    pub const fn address_len(self) -> usize {
        match self {
            Self::Jump | Self::Page => 8,
            Self::Any => 16,
        }
    }

    /// Bytes of a jump.
    #[must_use]
    pub const fn jump_len(self) -> usize {
        match self {
            Self::Jump => 4,
            Self::Page | Self::Any => self.address_len() + 4,
        }
    }
}

/// `svc #0`, which enters the kernel.
pub const SYSTEM_CALL: [u8; 4] = encode::SYSTEM_CALL.to_le_bytes();
/// A nop of the same length.
pub const SYSTEM_CALL_NOP: [u8; 4] = encode::NOP.to_le_bytes();
/// `brk #0`
pub const BREAKPOINT: [u8; 4] = encode::BREAKPOINT.to_le_bytes();

/// `b` to itself
pub const WAIT: [u8; 4] = branch(false, 0).to_le_bytes();
/// `bti c; mov x0, #0; ret`: a function that returns 0. Calls through registers may lead to it.
pub const RETURN_ZERO: [u8; 12] = [
    0x5F, 0x24, 0x03, 0xD5, 0, 0, 0x80, 0xD2, 0xC0, 0x03, 0x5F, 0xD6,
];

/// Fills up to a length with breakpoints.
pub fn fill(bytes: &mut Vec<u8>, len: usize) {
    while bytes.len() < len {
        bytes.push(BREAKPOINT[bytes.len() % BREAKPOINT.len()]);
    }
}

/// `b to`, placed at an address within 128 MiB of it.
///
/// # Errors
/// If `to` is farther away, or is not the address of an instruction.
pub fn jump(from: u64, to: u64) -> Result<[u8; 4], OutOfRange> {
    let distance = reached(Refer::Jump(ZERO), from, to)?;
    Ok(branch(false, distance).to_le_bytes())
}

/// Whether a number can be added by one instruction: 12 bits, perhaps followed by 12 zeros, and a sign.
#[must_use]
pub const fn small(value: i64) -> bool {
    twelve(value.unsigned_abs()).is_some()
}

/// Whether one instruction can combine a number with a register bit by bit: see [`bitmask`].
#[must_use]
pub const fn is_mask(number: u64) -> bool {
    bitmask(number, true).is_some()
}

impl If {
    /// The condition on the flags after `cmp`.
    #[must_use]
    pub const fn flags(self) -> Cond {
        match self {
            Self::Equal => Cond::Eq,
            Self::NotEqual => Cond::Ne,
            Self::Less => Cond::Lt,
            Self::NotLess => Cond::Ge,
            Self::Below => Cond::Lo,
            Self::NotBelow => Cond::Hs,
        }
    }
}

/// The ways in which instructions refer to places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refer {
    /// A branch: 1 MiB, or 32 KiB if it asks for a bit.
    Branch(Test),
    /// The same, as the opposite branch over a jump.
    OverJump(Test),
    /// A jump that puts the return address into a register: `b` without one, `bl` with the link register, otherwise
    /// `adr` before `b`.
    Jump(u8),
    /// Forms an address within 1 MiB in a register.
    Near(u8),
    /// The same within 16 MiB, by two instructions that need not know where their page begins.
    Address(u8),
    /// Loads 8 bytes that are within 1 MiB.
    Literal(u8),
}

impl Refer {
    /// Whether it leads to an instruction, or to a word that is as aligned.
    const fn is_aligned(self) -> bool {
        !matches!(self, Self::Near(_) | Self::Address(_))
    }
}

impl Reference for Refer {
    fn form(self) -> JumpForm {
        const BIT: u64 = 1 << 15;
        const BRANCH: u64 = 1 << 20;
        /// What `add` and `sub` reach in units of 4 KiB.
        const UNITS: u64 = 0xFFF << 12;
        match self {
            Self::Branch(Test::Clear(..) | Test::Set(..)) => JumpForm::plain(LEN, BIT, BIT - LEN),
            Self::Branch(_) | Self::Literal(_) => JumpForm::plain(LEN, BRANCH, BRANCH - LEN),
            // The jump is the second instruction.
            Self::OverJump(_) => JumpForm::plain(2 * LEN, JUMP_REACH - LEN, JUMP_REACH),
            Self::Jump(ZERO | LINK) => JumpForm::plain(LEN, JUMP_REACH, JUMP_REACH - LEN),
            Self::Jump(_) => JumpForm::plain(2 * LEN, JUMP_REACH - LEN, JUMP_REACH),
            Self::Near(_) => JumpForm::plain(LEN, BRANCH, BRANCH - 1),
            Self::Address(_) => JumpForm::plain(2 * LEN, UNITS, UNITS + 0xFFF),
        }
    }

    fn longer(self) -> Option<Self> {
        match self {
            Self::Branch(test) => Some(Self::OverJump(test)),
            Self::Near(register) => Some(Self::Address(register)),
            _ => None,
        }
    }

    fn write(self, bytes: &mut [u8], distance: i64) {
        debug_assert!(!self.is_aligned() || distance % LEN as i64 == 0);
        let over = 2 * LEN as i64;
        let words = match self {
            Self::Branch(test) => [test_and_branch(test, distance), 0],
            Self::OverJump(test) => [
                test_and_branch(test.not(), over),
                branch(false, distance - LEN as i64),
            ],
            Self::Jump(ZERO) => [branch(false, distance), 0],
            Self::Jump(LINK) => [branch(true, distance), 0],
            Self::Jump(link) => [adr(link, over), branch(false, distance - LEN as i64)],
            Self::Near(register) => [adr(register, distance), 0],
            Self::Address(register) => {
                let (units, rest) = (distance >> 12, distance & 0xFFF);
                let opcode = if units < 0 { SUB } else { ADD };
                let number = units.unsigned_abs() as u32;
                [
                    adr(register, rest),
                    add_immediate(WIDE | opcode, register, register, number, true),
                ]
            }
            Self::Literal(register) => [literal(register, distance), 0],
        };
        for (bytes, word) in bytes.chunks_exact_mut(4).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
    }

    fn fill(bytes: &mut Vec<u8>, len: usize) {
        let len = bytes.len() + len;
        fill(bytes, len);
    }
}

fn test_and_branch(test: Test, distance: i64) -> u32 {
    match test {
        Test::Flags(condition) => conditional(condition as u32, distance),
        Test::Zero { wide, register } => compare_zero(wide, false, register, distance),
        Test::NotZero { wide, register } => compare_zero(wide, true, register, distance),
        Test::Clear(register, bit) => test_bit(false, register, bit, distance),
        Test::Set(register, bit) => test_bit(true, register, bit, distance),
    }
}

/// The distance of a reference to an address.
fn reached(reference: Refer, from: u64, to: u64) -> Result<i64, OutOfRange> {
    let distance = to.wrapping_sub(from).cast_signed();
    let aligned = !reference.is_aligned() || distance % LEN as i64 == 0;
    match aligned && reference.form().leads(distance) {
        true => Ok(distance),
        false => Err(OutOfRange),
    }
}

/// Code being written for a known address.
#[derive(Debug)]
pub struct Code<'a> {
    buffer: Buffer<'a, Refer>,
}

impl<'a> Deref for Code<'a> {
    type Target = Buffer<'a, Refer>;

    fn deref(&self) -> &Self::Target {
        &self.buffer
    }
}

impl DerefMut for Code<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.buffer
    }
}

impl Insns for Code<'_> {
    fn word(&mut self, word: u32) {
        Code::word(self, word);
    }

    /// # Panics
    /// If the label is known to be out of reach.
    fn reference(&mut self, reference: Refer, to: Label) {
        self.buffer.refer(reference, to);
    }
}

impl<'a> Code<'a> {
    /// Appends to `bytes`, whose first byte will be at `base`.
    #[must_use]
    pub fn new(bytes: &'a mut Vec<u8>, base: u64) -> Self {
        Self {
            buffer: Buffer::new(bytes, base),
        }
    }

    /// Appends an instruction.
    pub fn word(&mut self, word: u32) {
        self.raw(&word.to_le_bytes());
    }

    /// Overwrites the instruction at an offset.
    pub fn replace(&mut self, at: u32, word: u32) {
        self.bytes[at as usize..][..4].copy_from_slice(&word.to_le_bytes());
    }

    /// Appends this many bytes of breakpoints, a multiple of 4.
    pub fn breakpoints(&mut self, len: usize) {
        Refer::fill(self.bytes, len);
    }

    /// Puts the address of a label within 1 MiB into a register.
    pub fn address_of_label(&mut self, rd: u8, of: Label) {
        self.adr(rd, of);
    }

    /// Appends a reference to an address.
    fn refer_to(&mut self, reference: Refer, to: u64) -> Result<(), OutOfRange> {
        let distance = reached(reference, self.here(), to)?;
        let mut bytes = [0; 8];
        let bytes = &mut bytes[..reference.form().len as usize];
        reference.write(bytes, distance);
        self.raw(bytes);
        Ok(())
    }

    /// `adrp` for an address.
    fn page_of(&mut self, rd: u8, value: u64) -> Result<(), OutOfRange> {
        const REACH: i64 = 1 << 20;
        let pages = (value & !0xFFF).wrapping_sub(self.here() & !0xFFF);
        let pages = pages.cast_signed() >> 12;
        if !(-REACH..REACH).contains(&pages) {
            return Err(OutOfRange);
        }
        self.word(page(rd, pages));
        Ok(())
    }

    /// Puts an address into a register.
    ///
    /// # Errors
    /// If it is too far away.
    pub fn address(&mut self, rd: u8, value: u64, reach: Reach) -> Result<(), OutOfRange> {
        if reach == Reach::Any {
            for part in 0..4 {
                let opcode = if part == 0 { MOVZ } else { MOVK };
                let bits = (value >> (16 * part)) as u16;
                self.word(encode::move_wide(WIDE | opcode, rd, bits, part));
            }
            return Ok(());
        }
        self.page_of(rd, value)?;
        let low = value as u32 & 0xFFF;
        self.word(add_immediate(WIDE | ADD, rd, rd, low, false));
        Ok(())
    }

    /// A jump. `register` is overwritten if the jump needs one.
    ///
    /// # Errors
    /// If it is too far away, or is not the address of an instruction.
    pub fn jump(&mut self, to: u64, reach: Reach, register: u8) -> Result<(), OutOfRange> {
        self.jump_and_link(to, reach, register, ZERO)
    }

    /// A jump that puts the return address into a register, which may be the one that is overwritten if it is the link
    /// register. With any other but the zero register, it is one instruction longer.
    ///
    /// # Errors
    /// If it is too far away, or is not the address of an instruction.
    pub fn jump_and_link(
        &mut self,
        to: u64,
        reach: Reach,
        register: u8,
        link: u8,
    ) -> Result<(), OutOfRange> {
        if reach == Reach::Jump {
            return self.refer_to(Refer::Jump(link), to);
        }
        if !to.is_multiple_of(LEN) {
            return Err(OutOfRange);
        }
        self.address(register, to, reach)?;
        match link {
            ZERO => self.br(register),
            LINK => self.word(call(register)),
            _ => {
                debug_assert_ne!(link, register);
                self.word(adr(link, 2 * LEN as i64));
                self.br(register);
            }
        }
        Ok(())
    }

    /// A jump to anywhere through the address that follows it: 16 bytes. `register` is overwritten.
    pub fn jump_by_literal(&mut self, to: u64, register: u8) {
        self.word(literal(register, 2 * LEN as i64));
        self.br(register);
        self.data(to);
    }

    /// `ldr` of 8 bytes from an address that is a multiple of 8, by `adrp`.
    ///
    /// # Errors
    /// If it is not, or is not within 4 GiB.
    pub fn load_from(&mut self, rd: u8, address: u64) -> Result<(), OutOfRange> {
        if !address.is_multiple_of(8) {
            return Err(OutOfRange);
        }
        self.page_of(rd, address)?;
        self.ldr(rd, operand::mem(rd, (address & 0xFFF).cast_signed()));
        Ok(())
    }

    /// `ldr` of 8 bytes from an address that is a multiple of 4, by one instruction.
    ///
    /// # Errors
    /// If it is not, or is not within 1 MiB.
    pub fn load_literal(&mut self, rd: u8, address: u64) -> Result<(), OutOfRange> {
        self.refer_to(Refer::Literal(rd), address)
    }

    /// A call of the address in a register.
    pub fn call(&mut self, register: u8) {
        self.blr(register);
    }

    /// Moves the stack pointer by 16 up or down.
    pub fn move_stack(&mut self, up: bool) {
        self.addi(super::regs::SP, super::regs::SP, if up { 16 } else { -16 });
    }

    /// Saves a register on the stack.
    pub fn keep(&mut self, register: u8) {
        self.word(push(register));
    }

    /// Restores it.
    pub fn take_back(&mut self, register: u8) {
        self.word(pop(register));
    }
}

#[cfg(test)]
mod tests;
