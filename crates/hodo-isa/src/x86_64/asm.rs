//! The assembler: the instructions that we emit, by their names, into a buffer.
//!
//! A method's name is the mnemonic, followed by the operands: `r` a register, `m` memory, `i` a number of four bytes
//! (one byte if the instruction works on bytes), `i8` a sign-extended number of one byte. The destination comes first.
//! There is a method for each instruction that we emit, and for no other.

mod encode;
mod operand;
mod ops;
mod vector;
mod wide;

use alloc::vec::Vec;
use core::ops::{Deref, DerefMut};

pub use crate::buffer::Label;
use crate::buffer::{Buffer, JumpForm, OutOfRange, Reference};
pub use operand::*;
pub use wide::{WideOp, WidePlace};

/// `syscall`, which enters the kernel.
pub const SYSTEM_CALL: [u8; 2] = [0x0F, 0x05];
/// A nop of the same length.
pub const SYSTEM_CALL_NOP: [u8; 2] = [0x66, 0x90];
/// `int3`
pub const BREAKPOINT: [u8; 1] = [0xCC];

/// `jmp` to itself
pub const WAIT: [u8; 2] = [0xEB, 0xFE];
/// `xor eax, eax; ret`: a function that returns 0.
pub const RETURN_ZERO: [u8; 3] = [0x31, 0xC0, 0xC3];

/// Fills up to a length with breakpoints.
pub fn fill(bytes: &mut Vec<u8>, len: usize) {
    if bytes.len() < len {
        bytes.resize(len, BREAKPOINT[0]);
    }
}

/// `jmp to`, placed at an address within 2 GiB of it.
///
/// # Errors
/// If `to` is farther away.
pub fn jump(from: u64, to: u64) -> Result<[u8; 5], OutOfRange> {
    let mut bytes = Vec::with_capacity(5);
    let mut code = Code::new(&mut bytes, from);
    code.reach(5, to)?;
    code.jmp_to(to);
    let mut jump = [0; 5];
    jump.copy_from_slice(&bytes);
    Ok(jump)
}

/// Machine code being written for a known address.
#[derive(Debug)]
pub struct Code<'a> {
    buffer: Buffer<'a, Field>,
    /// Fields that depend on where the code is and whom it serves, if the caller asked for them.
    marks: Option<Vec<Mark>>,
}

/// The last bytes of an instruction, which hold the distance from their end to a label.
#[derive(Debug, Clone, Copy)]
pub enum Field {
    /// One byte.
    Short,
    /// Four.
    Long,
}

impl Field {
    const fn len(self) -> u8 {
        match self {
            Self::Short => 1,
            Self::Long => 4,
        }
    }
}

impl Reference for Field {
    fn form(self) -> JumpForm {
        let len = u64::from(self.len());
        let end = 1 << (8 * len - 1);
        JumpForm::plain(len, end - len, end - 1 + len)
    }

    /// A longer form has another opcode.
    fn longer(self) -> Option<Self> {
        None
    }

    fn write(self, bytes: &mut [u8], distance: i64) {
        let distance = distance - i64::from(self.len());
        let len = bytes.len();
        bytes.copy_from_slice(&distance.to_le_bytes()[..len]);
    }

    fn fill(bytes: &mut Vec<u8>, len: usize) {
        let len = bytes.len() + len;
        fill(bytes, len);
    }
}

/// A field of four bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// Its offset in the buffer.
    pub at: usize,
    /// What it holds.
    pub value: Marked,
}

/// What a four-byte field holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Marked {
    /// The distance to an address.
    To(u64),
    /// The distance to a label.
    Label(Label),
    /// A number.
    Number(u32),
}

/// The distance to `target` as an instruction that ends at `next` holds it.
///
/// # Panics
/// If `target` is more than 2 GiB away.
#[must_use]
pub fn distance(next: u64, target: u64) -> u32 {
    let distance = target.wrapping_sub(next).cast_signed();
    let distance = i32::try_from(distance).expect("branch target within 2 GiB");
    distance.cast_unsigned()
}

impl<'a> Deref for Code<'a> {
    type Target = Buffer<'a, Field>;

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
    pub fn new(bytes: &'a mut Vec<u8>, base: u64) -> Self {
        Self {
            buffer: Buffer::new(bytes, base),
            marks: None,
        }
    }

    /// Checks that the distance from the end of the next instruction, which has `len` bytes, to an address fits four
    /// bytes.
    ///
    /// # Errors
    /// If it does not.
    pub fn reach(&self, len: u64, to: u64) -> Result<(), OutOfRange> {
        let distance = to.wrapping_sub(self.here().wrapping_add(len)).cast_signed();
        i32::try_from(distance).map(drop).map_err(|_| OutOfRange)
    }

    /// From now on, records the fields that depend on where the code is and whom it serves.
    pub fn keep_marks(&mut self) {
        self.marks = Some(Vec::new());
    }

    /// The fields that were recorded. All labels must be bound.
    pub fn take_marks(&mut self) -> Vec<Mark> {
        let mut marks = self.marks.take().unwrap_or_default();
        for mark in &mut marks {
            if let Marked::Label(label) = mark.value {
                mark.value = Marked::To(self.address_of(label));
            }
        }
        marks
    }

    /// Appends the distance to a label.
    fn refer(&mut self, label: Label, field: Field) {
        if matches!(field, Field::Long) {
            self.mark(Marked::Label(label));
        }
        self.buffer.refer(field, label);
    }

    /// Records what the next four-byte field holds.
    fn mark(&mut self, value: Marked) {
        let at = self.bytes.len();
        if let Some(marks) = &mut self.marks {
            marks.push(Mark { at, value });
        }
    }

    /// Overwrites a four-byte field.
    pub fn set(&mut self, at: usize, value: u32) {
        self.bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }
}
