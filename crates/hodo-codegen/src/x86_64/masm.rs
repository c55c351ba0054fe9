//! The macro assembler: the instructions that we emit, by their names, into a buffer.
//!
//! A method's name is the mnemonic and what its operands are: `r` a register, `m` memory, `i` a number of four bytes
//! (of one where the instruction works on bytes), `i8` a number of one byte that is extended with its sign. The
//! destination comes first. There is a method for each instruction that we emit, and no other.

mod encode;
mod instructions;
mod operand;

use alloc::vec::Vec;

pub use crate::buffer::Label;
use crate::buffer::Labels;
pub use operand::*;

/// Fills up to a length with breakpoints.
pub fn fill(bytes: &mut Vec<u8>, len: usize) {
    if bytes.len() < len {
        bytes.resize(len, 0xCC);
    }
}

/// Machine code being written for a known address.
#[derive(Debug)]
pub struct Masm<'a> {
    bytes: &'a mut Vec<u8>,
    /// Address of `bytes[0]`.
    base: u64,
    labels: Labels<Field>,
    /// Fields that depend on where the code is and for whom, if somebody wants to know them.
    pub(super) marks: Option<Vec<Mark>>,
}

/// The last bytes of an instruction, which have the distance from there to a label.
#[derive(Debug, Clone, Copy)]
struct Field {
    /// Where they end.
    end: usize,
    /// One byte in place of four.
    short: bool,
}

/// A field of four bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    /// Its offset in the buffer.
    pub at: usize,
    /// What it has.
    pub value: Marked,
}

/// What a field of four bytes has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Marked {
    /// The distance to an address.
    To(u64),
    /// A number.
    Number(u32),
}

/// What an instruction that ends at `next` has as the distance to `target`.
///
/// # Panics
/// If that is more than 2 GiB away.
pub(super) fn distance(next: u64, target: u64) -> u32 {
    let distance = target.wrapping_sub(next).cast_signed();
    let distance = i32::try_from(distance).expect("branch target within 2 GiB");
    distance.cast_unsigned()
}

impl<'a> Masm<'a> {
    /// Appends to `bytes`, whose first byte will be at `base`.
    pub fn new(bytes: &'a mut Vec<u8>, base: u64) -> Self {
        Self {
            bytes,
            base,
            labels: Labels::default(),
            marks: None,
        }
    }

    /// Address of the next byte.
    #[must_use]
    pub fn here(&self) -> u64 {
        self.base + self.bytes.len() as u64
    }

    /// Offset of the next byte in the buffer.
    ///
    /// # Panics
    /// If the buffer has 4 GiB.
    #[must_use]
    pub fn offset(&self) -> u32 {
        u32::try_from(self.bytes.len()).expect("an island is smaller than 4 GiB")
    }

    /// What was appended from an offset on.
    #[must_use]
    pub fn from(&self, offset: u32) -> &[u8] {
        &self.bytes[offset as usize..]
    }

    /// Appends code that was made elsewhere.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Appends a number of eight bytes that code reads.
    pub fn data(&mut self, number: u64) {
        self.raw(&number.to_le_bytes());
    }

    /// Pads with breakpoints up to a multiple of `alignment`, a power of two.
    pub fn align(&mut self, alignment: u64) {
        let missing = self.here().wrapping_neg() & (alignment - 1);
        let len = self.bytes.len() + missing as usize;
        fill(self.bytes, len);
    }

    /// A label of a place that comes later.
    pub fn label(&mut self) -> Label {
        self.labels.label()
    }

    /// A label of what comes next.
    pub fn label_here(&mut self) -> Label {
        let label = self.label();
        self.bind(label);
        label
    }

    /// Makes a label that of what comes next.
    pub fn bind(&mut self, label: Label) {
        let place = self.bytes.len();
        for field in self.labels.bind(label, place) {
            write_distance(self.bytes, field, place);
            mark(&mut self.marks, self.base, field, place);
        }
    }

    /// The address of a label that is bound.
    pub(super) fn address_of(&self, label: Label) -> u64 {
        self.base + self.labels.at(label) as u64
    }

    /// Whether all labels are bound that something refers to.
    pub(super) fn all_bound(&self) -> bool {
        self.labels.all_bound()
    }

    /// The field that ends here has the distance to a label.
    fn refer(&mut self, label: Label, short: bool) {
        let end = self.bytes.len();
        if let Some((place, field)) = self.labels.place(label, Field { end, short }) {
            write_distance(self.bytes, field, place);
            mark(&mut self.marks, self.base, field, place);
        }
    }

    /// The field of four bytes that comes next has this.
    fn mark(&mut self, value: Marked) {
        let at = self.bytes.len();
        if let Some(marks) = &mut self.marks {
            marks.push(Mark { at, value });
        }
    }

    /// Writes a field of four bytes anew.
    pub(super) fn set(&mut self, at: usize, value: u32) {
        self.bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }
}

fn mark(marks: &mut Option<Vec<Mark>>, base: u64, field: Field, place: usize) {
    if let Some(marks) = marks
        && !field.short
    {
        marks.push(Mark {
            at: field.end - 4,
            value: Marked::To(base + place as u64),
        });
    }
}

/// Writes the distance to an offset.
///
/// # Panics
/// If it is too large for the field.
fn write_distance(bytes: &mut [u8], field: Field, place: usize) {
    let Field { end, short } = field;
    let distance = place as i64 - end as i64;
    if short {
        let distance = i8::try_from(distance).expect("a place within 127 bytes");
        bytes[end - 1] = distance.cast_unsigned();
    } else {
        let distance = i32::try_from(distance).expect("a place within 2 GiB");
        bytes[end - 4..end].copy_from_slice(&distance.to_le_bytes());
    }
}
