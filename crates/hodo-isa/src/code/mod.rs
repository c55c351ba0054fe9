//! Code as planners see it, in terms that fit every instruction set. [`instruction_set`] returns a file's instruction
//! set.

use alloc::vec::Vec;

mod isa;
pub(crate) mod readers;

pub use crate::effects::{Flow, How};
pub use isa::{Convention, InstructionSet, NAMES, NotMovable, Relocation, instruction_set};
pub use readers::{Read, ReadInsns, Room, Steps, Sweep};

/// A call or jump through a register that was loaded from a slot just before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotCall {
    /// The register.
    pub register: u8,
    /// The address after the call or jump.
    pub end: u64,
    /// It is a call.
    pub call: bool,
}

/// Bytes that may be an operand of an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operand {
    /// The address of its first byte.
    pub at: u64,
    /// Where it leads, or what it addresses. The instruction may have up to four more bytes after the operand, which
    /// the target may be further on by.
    pub to: u64,
    /// Whether the instruction may form the address.
    pub forms: bool,
    /// Whether it would be a constant, which rarely is an address.
    pub constant: bool,
}

/// An address that an instruction holds, alone or together with those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reference {
    /// None.
    None,
    /// It computes the address.
    Forms(u64),
    /// It holds the address as a constant, which may also be just a number.
    Constant(u64),
    /// It accesses the memory there.
    Memory(u64),
    /// It jumps through a table of addresses there.
    Table(u64),
}

/// A place on the stack, at a constant distance from a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slot {
    /// None.
    None,
    /// This far above the stack pointer.
    Stack(i32),
    /// This far above the frame pointer.
    Frame(i32),
}

/// One instruction.
#[derive(Debug, Clone, Copy)]
pub struct Insn {
    /// Its address.
    pub addr: u64,
    /// Its length.
    pub len: u8,
    /// What it does with control.
    pub flow: Flow,
    /// The address it holds.
    pub reference: Reference,
    /// It does nothing: padding.
    pub padding: bool,
    /// The place on the stack that it uses, or whose address it computes.
    pub slot: Slot,
    /// It loads 32 bits at this distance from an address in a register, perhaps from a table.
    pub word: Option<i32>,
}

impl Insn {
    /// The address after it.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.addr.wrapping_add(u64::from(self.len))
    }
}

/// One instruction as a planner of probes sees it. Each bit of a mask is something that a probe may have to preserve:
/// arithmetic flags on instruction sets that have them, general registers on the others.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    /// Its address.
    pub addr: u64,
    /// What it does with control.
    pub flow: Flow,
    /// Its length.
    pub len: u8,
    /// The parts of this state that it uses.
    pub reads: u32,
    /// The parts that it overwrites in any case.
    pub writes: u32,
    /// It does nothing: padding, if nothing leads to it.
    pub padding: bool,
    /// It can be moved.
    pub movable: bool,
    /// It begins or ends a transaction.
    pub transaction: Transaction,
    /// It enters the kernel or ends a transaction at will, so the instruction alone does not say what happens next.
    pub leaves: bool,
}

impl Step {
    /// The address after it.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.addr.wrapping_add(u64::from(self.len))
    }

    /// Whether it is a call.
    #[must_use]
    pub fn is_call(&self) -> bool {
        matches!(self.flow, Flow::Call(_) | Flow::IndirectCall)
    }
}

/// The part of an instruction in sequences that fail if anything else happens in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transaction {
    /// Nothing.
    None,
    /// It begins a hardware transaction.
    Begin,
    /// It ends one.
    End,
    /// It reserves memory: this instruction and everything up to the store that depends on the reservation can only be
    /// moved together.
    Reserves,
    /// It is between such a load and its store, or is the store.
    Reserved,
}

/// Where a jump through a register leads, as far as the instructions before it show; the best-known case comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// To an address that was in memory, or in a register at the start: one that the image itself stores is known.
    Loaded,
    /// Through a table of 32-bit distances from the table's own start.
    Table,
    /// Through a table of 32-bit distances, perhaps from another address.
    Distances,
    /// It is computed otherwise.
    Computed,
    /// The instructions do not show it.
    Open,
}

/// What a function does with its return address on all paths from its entry, if calls put it in a register.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LinkUse {
    /// Instructions that read it as a value, in its register or from the stack: they neither save it nor return with
    /// it.
    pub reads: Vec<u64>,
    /// Instructions that save it on the stack, and the slot that each uses.
    pub saves: Vec<(u64, Slot)>,
    /// It returns through that register with something that is neither the return address nor loaded from the stack.
    pub moves: bool,
    /// It calls code to find out where to go, based on registers that callers do not use for arguments, and jumps there
    /// with its own return address: lazy binding. The function that it jumps to may return twice, or look at its return
    /// address.
    pub leads_on: bool,
    /// It reads the return address, or takes the address of its place, and jumps to another function with it.
    pub hands_on: bool,
}

/// What the straight-line code from a function's entry does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EntryFacts {
    /// It reads the return address, or takes the address of its place.
    pub reads_return: bool,
    /// It does so, and then jumps to another function, which has the same return address at the same place.
    pub hands_return_on: bool,
    /// It overwrites the return address or takes it off the stack.
    pub moves_return: bool,
    /// It makes a frame before its first branch, so a jump to its entry can only be a tail call.
    pub makes_frame: bool,
    /// It saves the caller's frame pointer and sets its own.
    pub frame_pointer: bool,
    /// It uses the status flags as they are on entry.
    pub reads_flags: bool,
    /// It returns after an instruction that only sets status flags: for its caller.
    pub returns_flags: bool,
    /// It reads memory below the stack pointer before it writes there.
    pub reads_red_zone: bool,
}
