//! Code as planners see it, in terms that fit every instruction set. [`instruction_set`] returns the one of a file.

use alloc::vec::Vec;

mod isa;
pub(crate) mod readers;

pub use isa::{Convention, InstructionSet, NAMES, NotMovable, Relocation, instruction_set};
pub use readers::{Read, ReadInsns, Room, Steps, Sweep};

/// What an instruction does with control.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// Goes on to the next.
    Next,
    /// A conditional branch to an address.
    Branch(u64),
    /// A jump to an address.
    Jump(u64),
    /// A call of an address.
    Call(u64),
    /// A jump through a register or memory.
    IndirectJump,
    /// A call through a register or memory.
    IndirectCall,
    /// A return.
    Return {
        /// What it does beside.
        how: How,
    },
    /// An instruction that only faults.
    Fault,
    /// No instruction.
    Invalid,
}

/// A call or jump by a register that was loaded from a slot just before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotCall {
    /// The register.
    pub register: u8,
    /// The address after the call or jump.
    pub end: u64,
    /// It is a call.
    pub call: bool,
}

/// How a function returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// As calls expect it.
    Plain,
    /// It also drops arguments from the stack.
    Drops,
    /// By another register than that of most calls.
    OtherLink,
}

impl Flow {
    /// Whether control never goes on to the next instruction.
    #[must_use]
    pub fn is_end(self) -> bool {
        matches!(
            self,
            Self::Jump(_) | Self::IndirectJump | Self::Return { .. } | Self::Fault
        )
    }
}

/// An address that an instruction holds, alone or with those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reference {
    /// None.
    None,
    /// It computes the address.
    Forms(u64),
    /// It has it as a constant, which may as well be a number.
    Constant(u64),
    /// It uses the memory there.
    Memory(u64),
    /// It jumps through a table of addresses there.
    Table(u64),
}

/// A place on the stack, by a distance alone.
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
    /// It loads 32 bits at this distance from an address in a register: perhaps of a table.
    pub word: Option<i32>,
}

impl Insn {
    /// The address after it.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.addr.wrapping_add(u64::from(self.len))
    }
}

/// One instruction as a planner of probes sees it. What a probe may have to keep is one bit each: arithmetic flags
/// where the instruction set has them, general registers where it has none.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    /// Its address.
    pub addr: u64,
    /// What it does with control.
    pub flow: Flow,
    /// Its length.
    pub len: u8,
    /// What it uses of what a probe may have to keep.
    pub reads: u32,
    /// What it overwrites of it whatever happens.
    pub writes: u32,
    /// It does nothing: padding, where nothing leads to it.
    pub padding: bool,
    /// It can be moved.
    pub movable: bool,
    /// It begins or ends a transaction.
    pub transaction: Transaction,
    /// It enters the kernel or ends a transaction at will, and what happens then is not the instruction's to say.
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

/// What an instruction does with sequences that fail if anything else happens in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transaction {
    /// Nothing.
    None,
    /// It begins a hardware transaction.
    Begin,
    /// It ends one.
    End,
    /// It makes a reservation of memory: it and what follows it up to the store that depends on that can only be moved
    /// together.
    Reserves,
    /// It is between the two, or is the store.
    Reserved,
}

/// Where a jump through a register goes, as far as the instructions before it tell; what is known best comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// To an address that was in memory or in a register at the start: what the image itself puts there is known.
    Loaded,
    /// By a table of 32-bit distances from the table's own start.
    Table,
    /// By a table of 32-bit distances, perhaps from somewhere else.
    Distances,
    /// It is computed otherwise.
    Computed,
    /// The instructions do not tell.
    Open,
}

/// What a function does with its return address along all ways from its entry, where calls leave that in a register.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LinkUse {
    /// Instructions that read it as a value, in its register or where it is on the stack: they neither save it there
    /// nor return by it.
    pub reads: Vec<u64>,
    /// Instructions that save it on the stack, and the place that each uses.
    pub saves: Vec<(u64, Slot)>,
    /// It returns by that register with what was neither the return address nor taken from the stack.
    pub moves: bool,
    /// It finds out by a call where to go, from what callers pass no arguments in, and jumps there with the return
    /// address that it was entered with: lazy binding. What it leads to may return twice, or look at its return
    /// address.
    pub leads_on: bool,
}

/// What the straight line of code from a function's entry does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EntryFacts {
    /// It reads the return address.
    pub reads_return: bool,
    /// It overwrites the return address or takes it off the stack.
    pub moves_return: bool,
    /// It makes a frame before its first branch, so that a jump to its entry can only be a tail call.
    pub makes_frame: bool,
    /// It keeps the caller's frame pointer and makes its own.
    pub frame_pointer: bool,
    /// It uses the status flags that it is entered with.
    pub reads_flags: bool,
    /// It reads memory below the stack pointer before it writes there.
    pub reads_red_zone: bool,
}
