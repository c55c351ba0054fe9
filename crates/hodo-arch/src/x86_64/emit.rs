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
}

/// A rel32 field whose target is not known yet.
#[derive(Debug)]
#[must_use = "a reference that is not bound leads nowhere"]
pub struct Pending(usize);

impl<'a> Code<'a> {
    /// Appends to `bytes`, whose first byte will be at `base`.
    pub fn new(bytes: &'a mut Vec<u8>, base: u64) -> Self {
        Self { bytes, base }
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
        self.raw(&operand.to_le_bytes());
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
        let next = self.here() + 4;
        let displacement = i32::try_from(target.wrapping_sub(next).cast_signed())
            .expect("branch target within 2 GiB");
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
        self.bytes[pending.0 - 4..pending.0].copy_from_slice(&distance.to_le_bytes());
    }

    /// Pads with breakpoints up to a multiple of `alignment`, a power of two.
    pub fn align(&mut self, alignment: u64) {
        while !self.here().is_multiple_of(alignment) {
            self.bytes.push(0xCC);
        }
    }
}
