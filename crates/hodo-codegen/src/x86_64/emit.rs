//! A buffer of machine code with forward references inside one stub.

use alloc::vec::Vec;

/// Fills up to a length with breakpoints.
pub fn fill(bytes: &mut Vec<u8>, len: usize) {
    if bytes.len() < len {
        bytes.resize(len, 0xCC);
    }
}

/// Machine code being written for a known address.
#[derive(Debug)]
pub struct Code<'a> {
    bytes: &'a mut Vec<u8>,
    /// Address of `bytes[0]`.
    base: u64,
    /// Fields that depend on where the code is and for whom, if somebody wants to know them.
    pub(super) marks: Option<Vec<Mark>>,
}

/// A field of four bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    /// Its offset in the buffer.
    pub at: usize,
    /// What it has.
    pub field: Field,
}

/// What a field of four bytes has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Field {
    /// The distance to an address.
    To(u64),
    /// The distance to an offset in the buffer that comes later.
    Forward(usize),
    /// An operand.
    Operand(u32),
}

/// A rel32 field whose target is not known yet.
#[derive(Debug)]
#[must_use = "a reference that is not bound leads nowhere"]
pub struct Pending(usize);

/// What an instruction that ends at `next` has as the distance to `target`.
///
/// # Panics
/// If that is more than 2 GiB away.
pub(super) fn distance(next: u64, target: u64) -> u32 {
    let distance = target.wrapping_sub(next).cast_signed();
    let distance = i32::try_from(distance).expect("branch target within 2 GiB");
    distance.cast_unsigned()
}

impl<'a> Code<'a> {
    /// Appends to `bytes`, whose first byte will be at `base`.
    pub fn new(bytes: &'a mut Vec<u8>, base: u64) -> Self {
        Self {
            bytes,
            base,
            marks: None,
        }
    }

    /// Address of the next byte.
    #[must_use]
    pub fn here(&self) -> u64 {
        self.base + self.bytes.len() as u64
    }

    /// Offset of the next byte in the buffer.
    #[must_use]
    pub fn offset(&self) -> u32 {
        u32::try_from(self.bytes.len()).expect("an island is smaller than 4 GiB")
    }

    /// What was appended from an offset on.
    #[must_use]
    pub fn from(&self, offset: u32) -> &[u8] {
        &self.bytes[offset as usize..]
    }

    /// Appends bytes as they are.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Appends an opcode and a 32-bit operand.
    pub fn op32(&mut self, opcode: &[u8], operand: u32) {
        self.raw(opcode);
        self.mark(self.bytes.len(), Field::Operand(operand));
        self.raw(&operand.to_le_bytes());
    }

    fn mark(&mut self, at: usize, field: Field) {
        if let Some(marks) = &mut self.marks {
            marks.push(Mark { at, field });
        }
    }

    /// Appends an opcode and a 64-bit operand.
    pub fn op64(&mut self, opcode: &[u8], operand: u64) {
        self.raw(opcode);
        self.raw(&operand.to_le_bytes());
    }

    /// Appends an instruction that ends in a rel32 to a known address.
    ///
    /// # Panics
    /// If the target is more than 2 GiB away; islands are placed so that it never is.
    pub fn branch(&mut self, opcode: &[u8], target: u64) {
        self.raw(opcode);
        self.mark(self.bytes.len(), Field::To(target));
        let displacement = distance(self.here() + 4, target);
        self.raw(&displacement.to_le_bytes());
    }

    /// Appends an instruction that ends in a rel32 to a place in this stub that comes later.
    pub fn forward(&mut self, opcode: &[u8]) -> Pending {
        self.raw(opcode);
        self.raw(&[0; 4]);
        Pending(self.bytes.len())
    }

    /// Makes a forward reference lead here.
    ///
    /// # Panics
    /// If a stub is larger than 2 GiB.
    pub fn bind(&mut self, pending: Pending) {
        let distance = u32::try_from(self.bytes.len() - pending.0).expect("a stub is small");
        self.mark(pending.0 - 4, Field::Forward(self.bytes.len()));
        self.bytes[pending.0 - 4..pending.0].copy_from_slice(&distance.to_le_bytes());
    }

    /// Writes a field of four bytes anew.
    pub(super) fn set(&mut self, at: usize, value: u32) {
        self.bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    /// Pads with breakpoints up to a multiple of `alignment`, a power of two.
    pub fn align(&mut self, alignment: u64) {
        let missing = self.here().wrapping_neg() & (alignment - 1);
        let len = self.bytes.len() + missing as usize;
        fill(self.bytes, len);
    }
}
