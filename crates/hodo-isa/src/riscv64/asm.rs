//! The assembler. There are two ways to write code:
//!
//! * [`Code`] writes it where it will stay: each instruction is final, and only references to labels are filled in
//!   later.
//! * [`Asm`](relax::Asm) keeps it until all of it is known: instructions take 16 bits where they can, and branches
//!   become as long as they need to be.
//!
//! [`Insns`](ops::Insns) has the single instructions for both.

use alloc::vec::Vec;
use core::ops::{Deref, DerefMut};

pub mod ops;
pub mod relax;
mod short;

use super::decode::operand::signed;
use super::encode::{AUIPC, JALR, LUI, OP_IMM, OP_IMM_32, b, i, j, u};
use super::regs::ZERO;
use crate::buffer::{Buffer, JumpForm, Reference};
pub use crate::buffer::{Label, OutOfRange};
pub use crate::linked::If;

/// How far away the addresses that code refers to can be, at most. This decides the length of jumps and constants,
/// whatever the actual distance is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// 1 MiB for jumps: one instruction and no register. 2 GiB for addresses.
    Jump,
    /// 2 GiB: two instructions, and a register for jumps.
    Pair,
    /// Anywhere: sign-extended addresses of 56 bits. Six instructions, and a register for jumps.
    Any,
}

impl Reach {
    /// Bytes of the instructions that form an address in a register.
    #[must_use]
    pub const fn address_len(self) -> usize {
        match self {
            Self::Jump | Self::Pair => 8,
            Self::Any => 20,
        }
    }

    /// Bytes of a jump.
    #[must_use]
    pub const fn jump_len(self) -> usize {
        match self {
            Self::Jump => 4,
            Self::Pair => 8,
            Self::Any => 24,
        }
    }

    /// Whether a jump needs a register.
    #[must_use]
    pub const fn needs_register(self) -> bool {
        !matches!(self, Self::Jump)
    }
}

/// `ecall`, which enters the kernel.
pub const SYSTEM_CALL: [u8; 4] = [0x73, 0, 0, 0];
/// A nop of the same length.
pub const SYSTEM_CALL_NOP: [u8; 4] = [0x13, 0, 0, 0];
/// `c.ebreak`
pub const BREAKPOINT: [u8; 2] = [0x02, 0x90];

/// `c.j` to itself
pub const WAIT: [u8; 2] = [0x01, 0xA0];
/// `c.li a0, 0; c.jr ra`: a function that returns 0.
pub const RETURN_ZERO: [u8; 4] = [0x01, 0x45, 0x82, 0x80];

/// Fills up to a length with breakpoints.
pub fn fill(bytes: &mut Vec<u8>, len: usize) {
    let more = len.saturating_sub(bytes.len());
    bytes.extend(BREAKPOINT.into_iter().cycle().take(more));
}

/// Whether a number fits this many bits, sign included.
#[must_use]
pub const fn fits(value: i64, bits: u32) -> bool {
    let shift = 64 - bits;
    value << shift >> shift == value
}

/// Splits a number into its sign-extended lower 12 bits and the rest.
#[must_use]
pub const fn split(value: i64) -> (i64, i64) {
    let low = signed(value as u32 & 0xFFF, 12);
    (value.wrapping_sub(low), low)
}

/// The three bits of a branch that say when it is taken.
#[must_use]
pub const fn condition_bits(condition: If) -> u32 {
    match condition {
        If::Equal => 0,
        If::NotEqual => 1,
        If::Less => 4,
        If::NotLess => 5,
        If::Below => 6,
        If::NotBelow => 7,
    }
}

/// The ways in which instructions refer to places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refer {
    /// A branch that compares two registers.
    Branch(If, u8, u8),
    /// The same, as the opposite branch over a jump.
    OverJump(If, u8, u8),
    /// A jump that puts the return address into a register.
    Jump(u8),
    /// Forms an address in a register.
    Address(u8),
    /// A jump through the first register, in which the address is formed; the second receives the return address.
    Pair(u8, u8),
}

impl Reference for Refer {
    fn form(self) -> JumpForm {
        const BRANCH: u64 = 1 << 12;
        const JUMP: u64 = 1 << 20;
        // The second instruction adds a sign-extended number of 12 bits.
        const PAIR: u64 = 1 << 31;
        match self {
            Self::Branch(..) => JumpForm::plain(4, BRANCH, BRANCH - 2),
            Self::OverJump(..) => JumpForm::plain(8, JUMP - 4, JUMP - 2 + 4),
            Self::Jump(_) => JumpForm::plain(4, JUMP, JUMP - 2),
            Self::Address(_) | Self::Pair(..) => JumpForm::plain(8, PAIR + 0x800, PAIR - 0x800 - 1),
        }
    }

    fn longer(self) -> Option<Self> {
        match self {
            Self::Branch(condition, left, right) => Some(Self::OverJump(condition, left, right)),
            _ => None,
        }
    }

    fn write(self, bytes: &mut [u8], distance: i64) {
        let (high, low) = split(distance);
        let words = match self {
            Self::Branch(condition, left, right) => {
                [b(condition_bits(condition), left, right, distance), 0]
            }
            Self::OverJump(condition, left, right) => [
                b(condition_bits(condition) ^ 1, left, right, 8),
                j(ZERO, distance - 4),
            ],
            Self::Jump(link) => [j(link, distance), 0],
            Self::Address(rd) => [u(AUIPC, rd, high), i(OP_IMM, 0, rd, rd, low)],
            Self::Pair(register, link) => {
                [u(AUIPC, register, high), i(JALR, 0, link, register, low)]
            }
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

impl<'a> Code<'a> {
    /// Appends to `bytes`, whose first byte will be at `base`.
    #[must_use]
    pub fn new(bytes: &'a mut Vec<u8>, base: u64) -> Self {
        Self {
            buffer: Buffer::new(bytes, base),
        }
    }

    /// Appends a 32-bit instruction.
    pub fn word(&mut self, word: u32) {
        self.raw(&word.to_le_bytes());
    }

    /// Overwrites the instruction at an offset with another 32-bit instruction.
    pub fn replace(&mut self, at: u32, word: u32) {
        self.bytes[at as usize..][..4].copy_from_slice(&word.to_le_bytes());
    }

    /// Appends a 16-bit instruction.
    pub fn half(&mut self, half: u16) {
        self.raw(&half.to_le_bytes());
    }

    /// Appends this many bytes of breakpoints, an even number.
    pub fn breakpoints(&mut self, len: usize) {
        Refer::fill(self.bytes, len);
    }

    /// A branch to a label within 4 KiB.
    ///
    /// # Panics
    /// If it is known to be farther away.
    pub fn branch(&mut self, condition: If, left: u8, right: u8, to: Label) {
        self.buffer.refer(Refer::Branch(condition, left, right), to);
    }

    /// A jump to a label within 1 MiB. The address after it goes into `link`.
    ///
    /// # Panics
    /// If it is known to be farther away.
    pub fn jal(&mut self, link: u8, to: Label) {
        self.buffer.refer(Refer::Jump(link), to);
    }

    /// Puts the address of a label into a register other than the zero register.
    pub fn address_of_label(&mut self, rd: u8, of: Label) {
        self.buffer.refer(Refer::Address(rd), of);
    }

    /// Appends a reference to an address.
    fn refer_to(&mut self, reference: Refer, to: u64) -> Result<(), OutOfRange> {
        let distance = to.wrapping_sub(self.here()).cast_signed();
        let form = reference.form();
        if !form.leads(distance) {
            return Err(OutOfRange);
        }
        let mut bytes = [0; 8];
        let bytes = &mut bytes[..form.len as usize];
        reference.write(bytes, distance);
        self.raw(bytes);
        Ok(())
    }

    /// Puts an address into a register other than the zero register.
    ///
    /// # Errors
    /// If it is too far away, or has too many bits.
    pub fn address(&mut self, rd: u8, value: u64, reach: Reach) -> Result<(), OutOfRange> {
        if reach != Reach::Any {
            return self.refer_to(Refer::Address(rd), value);
        }
        let (rest, third) = split(value as i64);
        let (rest, second) = split(rest >> 12);
        let first = rest >> 12;
        if !fits(first, 32) || !fits(value as i64, 56) {
            return Err(OutOfRange);
        }
        // Rounding may carry the upper part out of its range: 32-bit addition wraps around the same way.
        let (high, low) = split(first);
        self.word(u(LUI, rd, high));
        self.word(i(OP_IMM_32, 0, rd, rd, low));
        for part in [second, third] {
            self.shift(rd);
            self.word(i(OP_IMM, 0, rd, rd, part));
        }
        Ok(())
    }

    /// `c.slli rd, 12`
    fn shift(&mut self, rd: u8) {
        let half = 12 << 2 | u16::from(rd) << 7 | 2;
        self.half(half);
    }

    /// A jump. `register` is overwritten if the jump needs one.
    ///
    /// # Errors
    /// If it is too far away.
    pub fn jump(&mut self, to: u64, reach: Reach, register: u8) -> Result<(), OutOfRange> {
        self.jump_and_link(to, reach, register, ZERO)
    }

    /// A jump that puts the return address into a register, which may be the one that is overwritten.
    ///
    /// # Errors
    /// If it is too far away.
    pub fn jump_and_link(
        &mut self,
        to: u64,
        reach: Reach,
        register: u8,
        link: u8,
    ) -> Result<(), OutOfRange> {
        match reach {
            Reach::Jump => self.refer_to(Refer::Jump(link), to),
            Reach::Pair => self.refer_to(Refer::Pair(register, link), to),
            Reach::Any => {
                self.address(register, to, reach)?;
                self.word(i(JALR, 0, link, register, 0));
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::simulate::{Simulation, State};
    use super::super::text;
    use super::*;

    const T1: u8 = 6;

    /// Executes the two instructions of a pair.
    fn pair(code: &[u8], at: u64) -> State {
        let mut state = State { x: [0; 32], pc: at };
        let first = Simulation::new(code, at).expect("auipc");
        first.run(&mut state);
        let Some(second) = Simulation::new(&code[4..], at.wrapping_add(4)) else {
            // addi
            let value = super::super::decode::operand::imm_i(u32::from_le_bytes([
                code[4], code[5], code[6], code[7],
            ]));
            state.x[usize::from(T1)] = state.x[usize::from(T1)].wrapping_add_signed(value);
            return state;
        };
        second.run(&mut state);
        state
    }

    #[test]
    fn pairs_reach_two_gibibytes() {
        for distance in [
            0,
            0x7FF,
            0x800,
            -0x800,
            -0x801,
            0x7FFF_F7FE,
            -0x8000_0000,
            -0x8000_0800,
        ] {
            let at = 0x20_0000_0000;
            let to = 0x20_0000_0000u64.wrapping_add_signed(distance);
            let mut bytes = Vec::new();
            let jump = Code::new(&mut bytes, at).jump(to, Reach::Pair, T1);
            assert_eq!((jump, bytes.len()), (Ok(()), Reach::Pair.jump_len()));
            assert_eq!(pair(&bytes, at).pc, to & !1, "{distance:#x}");
            bytes.clear();
            let address = Code::new(&mut bytes, at).address(T1, to, Reach::Jump);
            assert_eq!((address, bytes.len()), (Ok(()), Reach::Jump.address_len()));
            assert_eq!(pair(&bytes, at).x[6], to, "{distance:#x}");
        }
        for distance in [0x7FFF_F800, -0x8000_0802, 1 << 40] {
            let mut bytes = Vec::new();
            let to = 0u64.wrapping_add_signed(distance);
            let jump = Code::new(&mut bytes, 0).jump(to, Reach::Pair, T1);
            assert_eq!((jump, bytes.len()), (Err(OutOfRange), 0));
        }
    }

    #[test]
    fn what_is_bound_leads_there() {
        let mut bytes = Vec::new();
        let mut code = Code::new(&mut bytes, 0x1000);
        let (start, end) = (code.label_here(), code.label());
        code.branch(If::NotEqual, 5, 6, end);
        code.jal(1, end);
        code.breakpoints(10);
        code.bind(end);
        code.branch(If::NotBelow, 5, 6, start);
        assert_eq!(text(&bytes, 0x1000), "bne t0, t1, 0x1012");
        assert_eq!(text(&bytes[4..], 0x1004), "jal ra, 0x1012");
        assert_eq!(text(&bytes[18..], 0x1012), "bgeu t0, t1, 0x1000");
    }

    #[test]
    fn jumps_reach_one_mebibyte() {
        let jump = |distance| {
            let mut bytes = Vec::new();
            let to = 0x100_0000u64.wrapping_add_signed(distance);
            Code::new(&mut bytes, 0x100_0000).jump(to, Reach::Jump, 0)?;
            Ok(text(&bytes, 0x100_0000))
        };
        assert_eq!(jump((1 << 20) - 2).as_deref(), Ok("jal zero, 0x10ffffe"));
        assert_eq!(jump(-1 << 20).as_deref(), Ok("jal zero, 0xf00000"));
        assert_eq!(jump(1 << 20), Err(OutOfRange));
        assert_eq!(jump((-1 << 20) - 2), Err(OutOfRange));
    }

    /// What the chain of six instructions computes.
    fn constant(value: u64) -> Result<i64, OutOfRange> {
        let mut bytes = Vec::new();
        Code::new(&mut bytes, 0).address(T1, value, Reach::Any)?;
        assert_eq!(bytes.len(), Reach::Any.address_len());
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four"));
        let imm = |at| super::super::decode::operand::imm_i(word(at));
        assert_eq!(text(&bytes[8..], 0), "c.slli t1, 0xc");
        assert_eq!(text(&bytes[14..], 0), "c.slli t1, 0xc");
        let first = super::super::decode::operand::imm_u(word(0)).wrapping_add(imm(4)) as i32;
        let upper = (i64::from(first) << 12) + imm(10);
        Ok((upper << 12) + imm(16))
    }

    #[test]
    fn constants_have_56_bits() {
        let mut values = vec![0u64, 1, 0x7FF, 0x800, 0xFFF_FFFF_FFFF, u64::MAX];
        for bit in 0..55 {
            for near in [0, 1, 0x7FF, 0x800, 0x801, 0x80_0800] {
                values.push((1u64 << bit).wrapping_add(near));
                values.push((1u64 << bit).wrapping_sub(near));
            }
        }
        for value in values {
            if fits(value as i64, 55) {
                assert_eq!(constant(value), Ok(value as i64), "{value:#x}");
            }
        }
        assert_eq!(constant(1 << 56), Err(OutOfRange));
        assert_eq!(constant(0x1234_5678_9ABC_DEF0), Err(OutOfRange));
    }
}
