//! What probes compute, as code: the walk over conditions and texts, once for all instruction sets.
//!
//! An instruction set says by [`Target`] and [`Texts`] how each step is written. What is computed is in one register, *the value*; an
//! operator's other operand is wherever the instruction set puts it. Nothing else is kept in registers between steps.

mod condition;
mod text;

use alloc::vec::Vec;

use crate::buffer::Label;
use crate::detour::{Arithmetic, Bits, Comparison, DetourError, Fetch};
pub(crate) use condition::{Lowering, Needs};

/// An operator between two numbers, signed or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operator {
    Compare(Comparison),
    Combine(Arithmetic),
}

/// How an instruction set computes.
pub(crate) trait Target {
    /// A load that may fault.
    type Load;
    /// Where the two operands of an operator are.
    type Pair: Copy;

    /// A label of a place that comes later.
    fn label(&mut self) -> Label;
    /// Makes a label that of what comes next.
    fn bind(&mut self, label: Label);
    /// Goes to a label.
    fn jump(&mut self, to: Label);
    /// Goes to a label if it is so that the value is not 0.
    fn jump_if(&mut self, when: bool, to: Label);

    /// The value becomes a number.
    fn number(&mut self, number: u64);
    /// The value becomes four bytes of the thread's control block.
    fn thread(&mut self, at: u32);
    /// The value becomes the number of the processor.
    fn processor(&mut self, rdpid: bool);
    /// The value becomes what is fetched; of a text its address.
    fn fetch(&mut self, value: &Fetch, loads: &mut Vec<Self::Load>) -> Result<(), DetourError>;
    /// The value comes from a word of the frame.
    fn load(&mut self, word: usize);
    /// The value goes into a word of the frame.
    fn store(&mut self, word: usize);
    /// Some bits of the value.
    fn cut(&mut self, bits: Bits);
    /// All bits of the value are inverted.
    fn complement(&mut self);
    /// The value is negated.
    fn negate(&mut self);

    /// The value and a number, if there is a way for that operator that leaves the rest alone.
    fn with_number(&mut self, operator: Operator, number: u64) -> Option<Self::Pair>;
    /// The value is put aside, where loads of a leaf leave it.
    fn set_aside(&mut self);
    /// What was set aside, and the value.
    fn with_aside(&mut self) -> Self::Pair;
    /// A word of the frame, and the value.
    fn with_word(&mut self, word: usize) -> Self::Pair;
    /// The value becomes 0 or 1.
    fn compare(&mut self, how: Comparison, signed: bool, pair: Self::Pair);
    /// Goes to a label if a comparison gives `when`.
    fn jump_compared(
        &mut self,
        comparison: (Comparison, bool),
        pair: Self::Pair,
        when: bool,
        to: Label,
    );
    /// Goes to a label if the right operand is 0.
    fn jump_without_divisor(&mut self, pair: Self::Pair, to: Label);
    /// The value becomes the result.
    fn combine(&mut self, how: Arithmetic, signed: bool, pair: Self::Pair);
}

/// How an instruction set works on texts. The address of the text, or of what is looked at in it, is the value.
pub(crate) trait Texts: Target {
    /// What else belongs to an address.
    type Place: Copy;

    /// The value is an address of the program.
    fn program_text(&self) -> Self::Place;
    /// The value becomes the address of a text in the control block.
    fn thread_text(&mut self, at: u32) -> Self::Place;
    /// Goes to a label if a byte is not this one.
    fn unless_byte(
        &mut self,
        at: (Self::Place, usize),
        byte: u8,
        to: Label,
        loads: &mut Vec<Self::Load>,
    );
    /// Goes to a label if a byte is in a range.
    fn if_within(
        &mut self,
        at: (Self::Place, usize),
        range: (u8, u8),
        to: Label,
        loads: &mut Vec<Self::Load>,
    );
    /// Goes to a label if two texts differ: that of an address in a word of the frame, which it may change, and that of the value.
    fn unless_same(
        &mut self,
        left: (Self::Place, usize),
        right: Self::Place,
        to: Label,
        loads: &mut Vec<Self::Load>,
    );
    /// Finds the end of the text; the next four know it.
    fn find_end(&mut self, place: Self::Place, loads: &mut Vec<Self::Load>);
    /// Goes to a label if so many bytes do not fit; `exactly`: or do not reach the end.
    fn unless_room(&mut self, bytes: usize, exactly: bool, to: Label);
    /// Goes to where so many bytes are left, or to a label if that is before the value.
    fn go_to_last(&mut self, bytes: usize, to: Label);
    /// Goes on by one byte.
    fn step(&mut self);
    /// Goes on by so many bytes.
    fn skip(&mut self, bytes: usize);
}
