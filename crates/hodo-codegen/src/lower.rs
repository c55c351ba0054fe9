//! Lowers what probes compute to code: the walk over conditions, texts, events and histograms, once for all instruction
//! sets.
//!
//! An instruction set says by [`Target`], [`Texts`] and [`Tables`] how each step is written. What is computed is in one
//! register, *the value*; an operator's other operand is wherever the instruction set puts it. Nothing else is kept in
//! registers between steps.

mod block;
mod condition;
mod event;
mod hist;
mod text;

use alloc::vec::Vec;
use core::ops::Range;

use crate::detour::{
    Arithmetic, Bits, Block, Comparison, Counter, DetourError, Event, Fetch, Part, Register, Words,
    computed,
};
pub(crate) use block::{condition, deeds};
pub(crate) use condition::{Lowering, Needs};
pub(crate) use event::record;
pub(crate) use hist::histogram;
use hodo_isa::buffer::Label;

/// An operator between two numbers, signed or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operator {
    Compare(Comparison),
    Combine(Arithmetic),
}

/// How an instruction set gets at what a probe is asked for.
pub(crate) trait Sources {
    /// A load that may fault.
    type Load;

    /// The address of the probed instruction.
    fn here(&self) -> u64;
    /// The value becomes a number, by code whose length is the same at all addresses.
    fn wide_number(&mut self, number: u64);
    /// The value becomes what the program has in a register.
    fn register(&mut self, register: Register);
    /// The value becomes the address that the function returns to, from the shadow this far below the stack.
    fn caller(&mut self, distance: u64);
    /// The value becomes the address of the thread's block.
    fn thread_pointer(&mut self, loads: &mut Vec<Self::Load>);
    /// The value becomes the flags, if there are any.
    fn flags(&mut self) -> Result<(), DetourError>;
    /// The value becomes a segment register, if there are any.
    fn segment(&mut self, register: u8) -> Result<(), DetourError>;
    /// The value becomes eight bytes of the control block.
    fn thread_word(&mut self, at: u32);
    /// Adds a number to the value.
    fn plus(&mut self, number: i64);
    /// Adds an offset to the value.
    fn offset(&mut self, offset: i32);
    /// The value becomes what is this far after it: this many bytes, extended by zeros.
    fn load_from(&mut self, size: u8, offset: i32, loads: &mut Vec<Self::Load>);
}

/// How an instruction set computes.
pub(crate) trait Target: Sources {
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
    /// Goes to a label if two texts differ: that of an address in a word of the frame, which it may change, and that of
    /// the value.
    fn unless_same(
        &mut self,
        left: (Self::Place, usize),
        right: Self::Place,
        to: Label,
        loads: &mut Vec<Self::Load>,
    );
    /// Finds the end of the text; the next four know it.
    fn find_end(&mut self, place: Self::Place, loads: &mut Vec<Self::Load>);
    /// Goes to a label if this many bytes do not fit; `exactly`: or do not reach the end.
    fn unless_room(&mut self, bytes: usize, exactly: bool, to: Label);
    /// Goes to where this many bytes are left, or to a label if that is before the value.
    fn go_to_last(&mut self, bytes: usize, to: Label);
    /// Goes on by one byte.
    fn step(&mut self);
    /// Goes on by this many bytes.
    fn skip(&mut self, bytes: usize);
}

/// How an instruction set works on the table of a histogram. Between steps it keeps the addresses of the table and of
/// the slot that is looked at, that slot's number, which is the value, and the tag; keys and sums are words of a frame
/// of their own.
pub(crate) trait Tables: Texts {
    /// The value goes into a word of keys or sums.
    fn store_key(&mut self, word: usize);
    /// Words of keys become zeros.
    fn clear_keys(&mut self, words: Range<usize>);
    /// Copies the text at the value into words of keys, up to its end.
    fn copy_key(&mut self, word: usize, loads: &mut Vec<Self::Load>);
    /// The value becomes what it is counted as.
    fn part(&mut self, part: Part);

    /// Finds a table: this far from an address that the control block has.
    fn table(&mut self, base: u32, table: i64);
    /// The value becomes the hash of this many keys.
    fn hash(&mut self, keys: usize);
    /// Makes a tag of the hash, and of its bits from one on the number of a slot.
    fn tag(&mut self, from: u32);
    /// Finds the slot, of this many bytes.
    fn slot(&mut self, bytes: u64);
    /// Goes to a label unless the slot has the tag.
    fn unless_tag(&mut self, to: Label);
    /// Goes to a label unless a word of the slot is that of a key.
    fn unless_key(&mut self, at: u32, word: usize, to: Label);
    /// Goes to a label if the slot has another tag, after [`Self::unless_tag`].
    fn if_taken(&mut self, to: Label);
    /// Adds 1 to a word of the slot.
    fn count_in_slot(&mut self, at: u32);
    /// Adds a sum to a word of the slot.
    fn add_in_slot(&mut self, at: u32, word: usize);
    /// Adds 1 to a word of the table.
    fn count_in_table(&mut self, at: u32);
    /// Takes an entry: goes to `full` if there are more than `most` in use, to `over` if that is found once it has been
    /// taken.
    fn take_entry(&mut self, most: u32, full: Label, over: Label);
    /// Takes an entry back.
    fn give_entry_back(&mut self);
    /// Makes the slot's tag that of one whose keys are being written, or goes to a label if it is not free any more. It
    /// may keep the slot's number in a word.
    fn claim(&mut self, spare: usize, to: Label);
    /// The slot's number is the value again, after that.
    fn number_again(&mut self, spare: usize);
    /// Writes a key into the slot.
    fn put_key(&mut self, at: u32, word: usize);
    /// Gives the slot its tag, when its keys are written.
    fn publish(&mut self);
    /// Goes on to the next slot; the mask is that of their numbers.
    fn next_slot(&mut self, mask: u64);
}

/// How an instruction set writes events, and does what is done at a hit. What `begin…` has taken, [`Self::end`] gives
/// back.
pub(crate) trait Events: Target {
    /// Counts the hit.
    fn count(&mut self, counter: Counter);
    /// Goes to a label if a byte of the events file is 0.
    fn unless_on(&mut self, base: u32, at: u32, off: Label);
    /// Goes to a label if nobody traces the thread any more: who fetches a value then that is not there, faults for good.
    fn unless_traced(&mut self, off: Label);
    /// Makes a byte of the events file 0 or 1, if it is not yet: then no other processor's cache loses it.
    fn switch(&mut self, base: u32, at: u32, on: bool);
    /// Takes what a histogram of this many words needs.
    fn begin_histogram(&mut self, words: Words);
    /// Takes what copying a text into the control block needs.
    fn begin_name(&mut self);
    /// Takes what an event needs.
    fn begin_event(&mut self, event: &Event) -> Result<(), DetourError>;
    /// Gives it back.
    fn end(&mut self);
    /// Goes to a label if one of these loads faults.
    fn leave(&mut self, loads: Vec<Self::Load>, to: Label);
    /// Copies a text of 15 bytes at most from the value into the control block, and binds a label before its end is
    /// written.
    fn copy_name(&mut self, at: u32, done: Label, loads: &mut Vec<Self::Load>);

    /// Takes the place of an event of this many bytes, and makes the record. Goes to `again` if that must be done anew,
    /// to `full` if there is no room.
    fn take_place(&mut self, event: &Event, size: u32, again: Label, full: Label);
    /// The value becomes the upper half of the payload's first word.
    fn processor_word(&mut self, rdpid: bool);
    /// Stores the value in the event.
    fn put(&mut self, at: u32);
    /// Stores a word of zeros in the event.
    fn clear(&mut self, at: u32);
    /// Packs the stack into the event, up to its end.
    fn pack(&mut self, at: u32, size: u32) -> Result<(), DetourError>;
    /// Copies a text from the value into the event, and binds a label after that.
    fn put_text(&mut self, at: u32, done: Label, loads: &mut Vec<Self::Load>);
    /// No byte has been copied.
    fn begin_bytes(&mut self);
    /// Copies bytes from the value into the event, and counts them.
    fn copy_bytes(&mut self, bytes: u32, at: u32, loads: &mut Vec<Self::Load>);
    /// Stores how many bytes have been copied.
    fn end_bytes(&mut self, at: u32);
    /// If one of these loads faults, that is marked in the event, and 0 is stored in place of the value with this
    /// number.
    fn failed(&mut self, loads: Vec<Self::Load>, number: u32, store: Label);
    /// Stores the record.
    fn publish_event(&mut self);
    /// What is done at `full`: there is a new chunk, or the event is lost. Goes on at the one or other of the labels.
    fn chunk_is_full(&mut self, size: u32, full: Label, again_done: (Label, Label));
}

/// What deeds find when the condition holds.
#[derive(Clone, Copy)]
pub(crate) struct Given<'b> {
    pub(crate) block: &'b Block,
    /// What the frame has room for.
    pub(crate) needs: Needs,
    /// Values that have been fetched.
    pub(crate) fetched: u64,
}

impl<'b> Given<'b> {
    /// What the condition of a block needs, and what its deeds compute, found by writing it somewhere.
    pub(crate) fn new<T: Texts>(block: &'b Block, somewhere: &mut T) -> Self {
        let mut given = Self {
            block,
            needs: Needs::default(),
            fetched: 0,
        };
        let nowhere = somewhere.label();
        let mut needs = Needs::default();
        if let Some(condition) = &block.condition {
            let mut lowering = given.lowering(somewhere, nowhere);
            lowering.unless(condition);
            needs = lowering.needs;
        }
        for test in computed(&block.deeds) {
            let mut lowering = given.lowering(somewhere, nowhere);
            lowering.number(test);
            needs.scratch = needs.scratch.max(lowering.needs.scratch);
            needs.texts |= lowering.needs.texts;
        }
        given.needs = needs;
        given
    }

    /// Goes to `out` unless the condition holds. Returns the loads that may fault, for which that is so, too.
    pub(crate) fn condition<T: Texts>(
        &mut self,
        target: &mut T,
        out: Label,
    ) -> Result<Vec<T::Load>, DetourError> {
        let Some(condition) = &self.block.condition else {
            return Ok(Vec::new());
        };
        let mut lowering = self.lowering(target, out);
        lowering.unless(condition);
        let fetched = lowering.fetched;
        let loads = lowering.finish()?;
        self.fetched = fetched;
        Ok(loads)
    }

    /// What knows what has been fetched, and goes to `out` if something cannot be computed.
    pub(crate) fn lowering<'w, T: Texts>(&self, target: &'w mut T, out: Label) -> Lowering<'w, T>
    where
        'b: 'w,
    {
        let values: &'b [Fetch] = &self.block.values;
        Lowering::new(target, values, self.needs, self.fetched, out)
    }
}
