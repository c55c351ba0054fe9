//! Lowers what probes compute to code: walks conditions, texts, events and histograms, once for all instruction sets.
//!
//! Through [`Target`], [`Texts`] and [`Tables`], an instruction set says how each step is written. The result of a step
//! is in one register, *the value*; an operator's other operand is wherever the instruction set puts it. No other
//! register keeps anything between steps.

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

/// How an instruction set accesses what a probe asks for.
pub(crate) trait Sources {
    /// A load that may fault.
    type Load;

    /// The address of the probed instruction.
    fn here(&self) -> u64;
    /// The value becomes a number, through code whose length is the same at all addresses.
    fn wide_number(&mut self, number: u64);
    /// The value becomes the content of one of the program's registers.
    fn register(&mut self, register: Register);
    /// The value becomes the address that the function returns to, which is in the shadow, this far below the stack.
    fn caller(&mut self, distance: u64);
    /// The value becomes the address of the program's thread block.
    fn thread_pointer(&mut self, loads: &mut Vec<Self::Load>);
    /// The value becomes the flags, if the instruction set has any.
    fn flags(&mut self) -> Result<(), DetourError>;
    /// The value becomes a segment register, if the instruction set has any.
    fn segment(&mut self, register: u8) -> Result<(), DetourError>;
    /// The value becomes eight bytes of the thread's control block.
    fn thread_word(&mut self, at: u32);
    /// Adds a number to the value.
    fn plus(&mut self, number: i64);
    /// Adds an offset to the value.
    fn offset(&mut self, offset: i32);
    /// The value becomes the memory at this offset from it: this many bytes, zero-extended.
    fn load_from(&mut self, size: u8, offset: i32, loads: &mut Vec<Self::Load>);
}

/// How an instruction set computes.
pub(crate) trait Target: Sources {
    /// Where the two operands of an operator are.
    type Pair: Copy;

    /// A new label.
    fn label(&mut self) -> Label;
    /// Binds a label to what comes next.
    fn bind(&mut self, label: Label);
    /// Jumps to a label.
    fn jump(&mut self, to: Label);
    /// Jumps to a label if the value is not 0 (`when`), or is 0 (`!when`).
    fn jump_if(&mut self, when: bool, to: Label);

    /// The value becomes a number.
    fn number(&mut self, number: u64);
    /// The value becomes four bytes of the thread's control block.
    fn thread(&mut self, at: u32);
    /// The value becomes the number of the processor.
    fn processor(&mut self, rdpid: bool);
    /// The value becomes a word of the frame.
    fn load(&mut self, word: usize);
    /// Stores the value in a word of the frame.
    fn store(&mut self, word: usize);
    /// The value becomes some of its bits.
    fn cut(&mut self, bits: Bits);
    /// Inverts all bits of the value.
    fn complement(&mut self);
    /// Negates the value.
    fn negate(&mut self);

    /// Pairs the value with a number, if this operator has a form for that which changes nothing else.
    fn with_number(&mut self, operator: Operator, number: u64) -> Option<Self::Pair>;
    /// Sets the value aside, where the loads of a leaf do not overwrite it.
    fn set_aside(&mut self);
    /// Pairs what was set aside with the value.
    fn with_aside(&mut self) -> Self::Pair;
    /// Pairs a word of the frame with the value.
    fn with_word(&mut self, word: usize) -> Self::Pair;
    /// The value becomes 0 or 1.
    fn compare(&mut self, how: Comparison, signed: bool, pair: Self::Pair);
    /// Jumps to a label if a comparison gives `when`.
    fn jump_compared(
        &mut self,
        comparison: (Comparison, bool),
        pair: Self::Pair,
        when: bool,
        to: Label,
    );
    /// Jumps to a label if the right operand is 0.
    fn jump_without_divisor(&mut self, pair: Self::Pair, to: Label);
    /// The value becomes the result.
    fn combine(&mut self, how: Arithmetic, signed: bool, pair: Self::Pair);
}

/// How an instruction set works on texts. The value is the address of the text, or of the current place in it.
pub(crate) trait Texts: Target {
    /// What else is known about an address.
    type Place: Copy;

    /// The value is an address in the program.
    fn program_text(&self) -> Self::Place;
    /// The value becomes the address of a text in the control block.
    fn thread_text(&mut self, at: u32) -> Self::Place;
    /// Jumps to a label if a byte is not this one.
    fn unless_byte(
        &mut self,
        at: (Self::Place, usize),
        byte: u8,
        to: Label,
        loads: &mut Vec<Self::Load>,
    );
    /// Jumps to a label if a byte is in a range.
    fn if_within(
        &mut self,
        at: (Self::Place, usize),
        range: (u8, u8),
        to: Label,
        loads: &mut Vec<Self::Load>,
    );
    /// Jumps to a label if two texts differ: one whose address is in a word of the frame, which it may change, and one
    /// whose address is the value.
    fn unless_same(
        &mut self,
        left: (Self::Place, usize),
        right: Self::Place,
        to: Label,
        loads: &mut Vec<Self::Load>,
    );
    /// Finds the end of the text, which the next four methods use.
    fn find_end(&mut self, place: Self::Place, loads: &mut Vec<Self::Load>);
    /// Jumps to a label if fewer than this many bytes are left; `exactly`: or more.
    fn unless_room(&mut self, bytes: usize, exactly: bool, to: Label);
    /// Moves to where this many bytes are left; jumps to a label if that is before the value.
    fn go_to_last(&mut self, bytes: usize, to: Label);
    /// Moves on by one byte.
    fn step(&mut self);
    /// Moves on by this many bytes.
    fn skip(&mut self, bytes: usize);
}

/// How an instruction set works on the table of a histogram. Between steps it keeps the addresses of the table and of
/// the current slot, that slot's number, which is the value, and the tag. Keys and sums are words of a frame of their
/// own.
pub(crate) trait Tables: Texts {
    /// Stores the value in a word of keys or sums.
    fn store_key(&mut self, word: usize);
    /// Zeroes words of keys.
    fn clear_keys(&mut self, words: Range<usize>);
    /// Copies the text at the value into words of keys, up to the text's end.
    fn copy_key(&mut self, word: usize, loads: &mut Vec<Self::Load>);
    /// The value becomes the number of the range that it is counted in.
    fn part(&mut self, part: Part);

    /// Finds a table, at this distance from an address in the control block.
    fn table(&mut self, base: u32, table: i64);
    /// The value becomes the hash of this many keys.
    fn hash(&mut self, keys: usize);
    /// Makes a tag from the hash, and a slot number from its bits starting at `from`.
    fn tag(&mut self, from: u32);
    /// Finds the slot; slots have this many bytes.
    fn slot(&mut self, bytes: u64);
    /// Jumps to a label unless the slot has the tag.
    fn unless_tag(&mut self, to: Label);
    /// Jumps to a label unless a word of the slot equals a word of the keys.
    fn unless_key(&mut self, at: u32, word: usize, to: Label);
    /// Jumps to a label if the slot has another tag; follows [`Self::unless_tag`].
    fn if_taken(&mut self, to: Label);
    /// Adds 1 to a word of the slot.
    fn count_in_slot(&mut self, at: u32);
    /// Adds a sum to a word of the slot.
    fn add_in_slot(&mut self, at: u32, word: usize);
    /// Adds 1 to a word of the table.
    fn count_in_table(&mut self, at: u32);
    /// Reserves an entry: jumps to `full` if more than `most` are in use, or to `over` if that turns out after the
    /// reservation.
    fn take_entry(&mut self, most: u32, full: Label, over: Label);
    /// Releases the entry.
    fn give_entry_back(&mut self);
    /// Marks the slot as one whose keys are being written, or jumps to a label if it is no longer free. This may save
    /// the slot's number in a word.
    fn claim(&mut self, spare: usize, to: Label);
    /// The value becomes the slot's number again after that.
    fn number_again(&mut self, spare: usize);
    /// Writes a key into the slot.
    fn put_key(&mut self, at: u32, word: usize);
    /// Sets the slot's tag, after its keys are written.
    fn publish(&mut self);
    /// Moves on to the next slot; slot numbers wrap around by the mask.
    fn next_slot(&mut self, mask: u64);
}

/// How an instruction set writes events, and does what an action asks for. `begin…` makes registers available,
/// [`Self::end`] restores them.
pub(crate) trait Events: Target {
    /// Counts the hit.
    fn count(&mut self, counter: Counter);
    /// Jumps to a label if a byte of the events file is 0.
    fn unless_on(&mut self, base: u32, at: u32, off: Label);
    /// Jumps to a label if nobody traces the thread any more, because a load that faults would then kill the program.
    fn unless_traced(&mut self, off: Label);
    /// Sets a byte of the events file to 0 or 1 unless it has that value: so other processors keep it in their caches.
    fn switch(&mut self, base: u32, at: u32, on: bool);
    /// Makes available what a histogram of this many words needs.
    fn begin_histogram(&mut self, words: Words);
    /// Makes available what copying a text into the control block needs.
    fn begin_name(&mut self);
    /// Makes available what an event needs.
    fn begin_event(&mut self, event: &Event) -> Result<(), DetourError>;
    /// Restores it.
    fn end(&mut self);
    /// If one of these loads faults, control goes to a label.
    fn leave(&mut self, loads: Vec<Self::Load>, to: Label);
    /// Copies a text of at most 15 bytes from the value into the control block. Binds a label before the code that
    /// writes the text's end.
    fn copy_name(&mut self, at: u32, done: Label, loads: &mut Vec<Self::Load>);

    /// Reserves room for an event of this many bytes, and forms its record. Jumps to `again` if that must be repeated,
    /// and to `full` if there is no room.
    fn take_place(&mut self, event: &Event, size: u32, again: Label, full: Label);
    /// The value becomes the upper half of the payload's first word.
    fn processor_word(&mut self, rdpid: bool);
    /// Stores the value in the event.
    fn put(&mut self, at: u32);
    /// Stores a word of zeros in the event.
    fn clear(&mut self, at: u32);
    /// Packs the stack into the event, up to the event's end.
    fn pack(&mut self, at: u32, size: u32) -> Result<(), DetourError>;
    /// Copies a text from the value into the event. Binds a label after the code that does so.
    fn put_text(&mut self, at: u32, done: Label, loads: &mut Vec<Self::Load>);
    /// Starts to count copied bytes, at 0.
    fn begin_bytes(&mut self);
    /// Copies bytes from the value into the event, and counts them.
    fn copy_bytes(&mut self, bytes: u32, at: u32, loads: &mut Vec<Self::Load>);
    /// Stores the number of bytes that were copied.
    fn end_bytes(&mut self, at: u32);
    /// If one of these loads faults, the event is marked, and 0 is stored instead of the value with this number.
    fn failed(&mut self, loads: Vec<Self::Load>, number: u32, store: Label);
    /// Stores the record.
    fn publish_event(&mut self);
    /// Handles `full`: gets a new chunk, or loses the event. Continues at the first label or at the second one,
    /// respectively.
    fn chunk_is_full(&mut self, size: u32, full: Label, again_done: (Label, Label));
}

/// What actions know once the condition holds.
#[derive(Clone, Copy)]
pub(crate) struct Given<'b> {
    pub(crate) block: &'b Block,
    /// What the frame has room for.
    pub(crate) needs: Needs,
    /// The values that have been fetched.
    pub(crate) fetched: u64,
}

impl<'b> Given<'b> {
    /// Finds what a block's condition needs and what its actions compute, by lowering them into a scratch target.
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

    /// Jumps to `out` unless the condition holds. Returns the loads that may fault; then, too, control goes to `out`.
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

    /// A [`Lowering`] that knows what has been fetched, and jumps to `out` if something cannot be computed.
    pub(crate) fn lowering<'w, T: Texts>(&self, target: &'w mut T, out: Label) -> Lowering<'w, T>
    where
        'b: 'w,
    {
        let values: &'b [Fetch] = &self.block.values;
        Lowering::new(target, values, self.needs, self.fetched, out)
    }
}
