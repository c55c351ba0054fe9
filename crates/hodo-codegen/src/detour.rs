//! What the detours of probes do, for all instruction sets: values, events, conditions, histograms.
//!
//! `emit` of an instruction set's module `detour` makes code of it.

mod block;
mod condition;
mod hist;
mod text;

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;

pub use block::{Block, Deed};
pub(crate) use condition::kept_at;
pub use condition::{Arithmetic, Bits, Comparison, Test};
pub use hist::{HEAD, Histogram, Key, Part, Words};
pub use text::{Atom, Text, cut};

use hodo_isa::Via;
use hodo_isa::cfa::Row;

/// Words of the stack that [`Fetch::Stack`] looks at, at most.
pub const PACKED_WORDS: usize = 1024;

/// Bytes that a fetched string has at most, with its end.
pub const STRING: usize = 128;

/// The number of a general register, as the instruction set has it.
///
/// * x86-64: rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 to r15.
/// * RISC-V: x0 to x31.
pub type Register = u8;

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A register, whole.
    Register(Register),
    /// A number.
    Number(u64),
    /// The address of the instruction.
    Here,
    /// Where the function returns to; only in return probes. This far below the stack is its shadow.
    Caller(u64),
    /// An address this far from the instruction's.
    Near(i64),
    /// Eight bytes in memory at a value plus an offset.
    Memory(Box<Source>, i32),
    /// A value plus a number.
    Plus(Box<Source>, i64),
    /// The address of the thread's block, which libc keeps at the beginning of that block.
    ThreadPointer,
    /// The flags of x86-64. The probe must keep them.
    Flags,
    /// A segment register of x86-64 by its number: es, cs, ss, ds, fs, gs.
    Segment(u8),
}

impl Source {
    /// Whether it reads memory that may not be there.
    fn may_fault(&self) -> bool {
        match self {
            Self::Memory(..) | Self::ThreadPointer => true,
            Self::Plus(base, _) => base.may_fault(),
            _ => false,
        }
    }
}

/// One value of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fetch {
    /// A word of eight bytes.
    Word(Source),
    /// This many bytes (1, 2, 4, 8) in memory at a value plus an offset, extended by zeros to a word.
    Load(Source, i32, u8),
    /// A string of bytes in memory at a value plus an offset; [`STRING`] bytes of the event.
    Text(Source, i32),
    /// This many bytes in memory at a value plus an offset: a word with the number of those that could be read, and
    /// these.
    Bytes(Source, i32, u32),
    /// This many words of the thread's control block from an offset on.
    Thread(u32, u8),
    /// The words of the stack by which callers are found, from the stack pointer on: a word with the number of bytes
    /// that were looked at, a bit for each word of these, and the words that were kept. The last value of its event,
    /// which ends there. Needs [`Runtime::stack`](crate::stub::Runtime::stack).
    Stack,
}

impl Fetch {
    /// Whether fetching it twice could give two values, or costs.
    pub(crate) const fn is_kept(&self) -> bool {
        match self {
            Self::Word(source) => matches!(source, Source::Memory(..)),
            Self::Load(..) => true,
            Self::Text(..) | Self::Bytes(..) | Self::Thread(..) | Self::Stack => false,
        }
    }

    /// Whether it reads memory that may not be there.
    pub(crate) fn may_fault(&self) -> bool {
        match self {
            Self::Word(source) => source.may_fault(),
            Self::Load(..) | Self::Text(..) | Self::Bytes(..) | Self::Stack => true,
            Self::Thread(..) => false,
        }
    }

    /// Words of eight bytes that it takes in the event.
    #[must_use]
    pub fn words(&self) -> usize {
        match self {
            Self::Word(_) | Self::Load(..) => 1,
            Self::Text(..) => STRING / 8,
            Self::Bytes(_, _, bytes) => 1 + bytes.div_ceil(8) as usize,
            Self::Thread(_, words) => usize::from(*words),
            Self::Stack => 1 + PACKED_WORDS / 64 + PACKED_WORDS,
        }
    }
}

/// A counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counter {
    /// Each thread has its own, this far from its control block.
    Thread(i32),
    /// One for all threads.
    Shared {
        /// Where the control block has an address.
        base: u32,
        /// How far from that address the counter is.
        at: i32,
    },
}

/// What a probe does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Counts its hits.
    Count(Counter),
    /// Writes an event.
    Record(Event),
    /// Records the system call that the instruction makes, which is a `syscall`. The last action of its instruction.
    Syscall,
    /// Does several things, under a condition.
    Block(Box<Block>),
}

/// An event: a record, and a payload of which the first word has the processor in its upper half and a bit for each
/// value that could not be fetched in its lower.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Upper half of the record.
    pub info: u32,
    /// Upper half of the payload's record.
    pub payload: u32,
    /// With the time counter.
    pub timed: bool,
    /// The number of the processor comes from `rdpid`, which the machine has.
    pub rdpid: bool,
    /// The values. A bit for each of the first 32 is in the payload's first word, for the others in words after it.
    pub values: Vec<Fetch>,
}

impl Event {
    /// Whether it has a value that may not be there.
    pub(crate) fn may_fault(&self) -> bool {
        self.values.iter().any(Fetch::may_fault)
    }
}

/// No processor is known.
pub const NO_PROCESSOR: u32 = u32::MAX;

/// When a probe does its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum When {
    /// Before its instruction is executed.
    #[default]
    Hit,
    /// When the function returns that begins with its instruction, the first of the code.
    Return,
    /// When that function is entered, but its return will not be seen.
    Missed,
}

/// A probe in the moved code.
#[derive(Debug, Clone)]
pub struct Probe<'a> {
    /// Offset of its instruction.
    pub offset: usize,
    /// When it does its work.
    pub when: When,
    /// Whether the flags are dead there.
    pub flags_dead: bool,
    /// Registers, as bits by their numbers, that are dead there. Only used where the instruction set has no better way.
    pub free: u32,
    /// What it does.
    pub action: &'a Action,
}

/// A piece of code that is moved into a detour.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    /// Its bytes.
    pub code: &'a [u8],
    /// Where it stands.
    pub from: u64,
    /// Where the detour goes on: at the instruction after, which stays in its place and may have probes, too, or at
    /// instructions that take a kept register from the stack before it.
    pub resume: u64,
    /// What the jump to the detour does with its register.
    pub via: Via,
    /// What the jump back takes.
    pub back: Via,
    /// The registers, as bits by their numbers, that are dead at the instruction at an address.
    pub dead: &'a dyn Fn(u64) -> u32,
    /// Where what leaves the code at the instruction at an address goes if none is dead there: to our bytes near
    /// its target, which [`patch::pad`](crate::native::patch::pad) writes.
    pub pads: &'a dyn Fn(u64) -> Option<u64>,
}

impl<'a> Place<'a> {
    /// For instruction sets whose long jumps need no register.
    #[must_use]
    pub fn new(code: &'a [u8], from: u64, resume: u64) -> Self {
        Self {
            code,
            from,
            resume,
            via: Via::Nothing,
            back: Via::Nothing,
            dead: &|_| 0,
            pads: &|_| None,
        }
    }
}

/// What was emitted. All addresses are those of the detour's place.
#[derive(Debug, Clone, Default)]
pub struct Detour {
    /// Loads that may fault, and where to go on then.
    pub faults: Vec<(u64, u64)>,
    /// Offset of each original instruction, and the address of the moved one after its probe. Where the code goes on
    /// after them, the last is that of the jump there.
    pub map: Vec<(usize, u64)>,
    /// Where the frame is, if there are return probes: offsets in the buffer.
    pub rows: Vec<Row>,
    /// In the same order, where the probes of each begin; without one, the moved instruction.
    pub before: Vec<u64>,
    /// Offset of each system call that a probe makes, and the address after it.
    pub calls: Vec<(usize, u64)>,
    /// Where control leaves it with a register that is taken back elsewhere.
    pub exits: Vec<Range<u64>>,
    /// Moved system calls, and where they stood.
    pub syscalls: Vec<(u64, u64)>,
}

/// Why a detour cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DetourError {
    /// An instruction cannot be moved.
    #[error("{0}")]
    Relocate(String),
    /// A probe stands at no instruction of the code.
    #[error("no instruction begins at offset {0}")]
    NoInstruction(usize),
    /// An event wants a register that the processor does not have.
    #[error("it asks for a register that this processor does not have")]
    NoRegister,
    /// A return probe does not stand at the first instruction.
    #[error("a return probe is not at the function's beginning")]
    NotFirst,
    /// An event is larger than there is room for.
    #[error("its event has more than {MOST_WORDS} words")]
    TooLarge,
    /// There is nothing here that packs stacks.
    #[error("its event has a packed stack, which this island does not provide")]
    NoStack,
    /// It has more values than there is room for.
    #[error("it has more than {MOST_VALUES} values")]
    TooManyValues,
}

/// The numbers that deeds compute.
pub(crate) fn computed(deeds: &[Deed]) -> impl Iterator<Item = &Test> {
    let histograms = deeds.iter().filter_map(|deed| match deed {
        Deed::Histogram(histogram) => Some(histogram.tests()),
        _ => None,
    });
    histograms.flatten()
}

/// Chunks have this many bytes, as a power of two, and begin at multiples of it.
pub const CHUNK_SHIFT: u8 = 16;

/// Words that the values of an event may have.
pub const MOST_WORDS: usize = 4096;
/// Values that an event may have.
pub const MOST_VALUES: usize = 512;

/// Words in front of an event's values for the faults of this many.
#[must_use]
pub fn fault_words(values: usize) -> usize {
    values.saturating_sub(32).div_ceil(64)
}

#[cfg(test)]
mod tests;
