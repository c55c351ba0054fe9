//! What the detours of probes do, for all instruction sets: values, events, conditions, histograms.
//!
//! The function `emit` in an instruction set's module `detour` generates the code for it.

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

use hodo_isa::cfa::Row;
use hodo_isa::{Signing, Via};

/// How many stack words [`Fetch::Stack`] looks at, at most.
pub const PACKED_WORDS: usize = 1024;

/// Maximum length of a fetched string in bytes, including its end.
pub const STRING: usize = 128;

/// The number of a general register in the instruction set.
///
/// * x86-64: rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 to r15.
/// * RISC-V: x0 to x31.
/// * AArch64: x0 to x30, sp.
pub type Register = u8;

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A register, whole.
    Register(Register),
    /// A number.
    Number(u64),
    /// The address of the probed instruction.
    Here,
    /// The address that the function returns to; only in return probes. Its shadow is this far below the stack.
    Caller(u64),
    /// The address at this distance from the instruction's.
    Near(i64),
    /// Eight bytes in memory at a value plus an offset.
    Memory(Box<Source>, i32),
    /// A value plus a number.
    Plus(Box<Source>, i64),
    /// The address of the thread's block, which libc stores at the beginning of that block.
    ThreadPointer,
    /// The flags of x86-64. The probe must save them.
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
    /// This many bytes (1, 2, 4, 8) in memory at a value plus an offset, zero-extended to a word.
    Load(Source, i32, u8),
    /// A string in memory at a value plus an offset; it takes [`STRING`] bytes of the event.
    Text(Source, i32),
    /// This many bytes in memory at a value plus an offset: a word with the number of bytes that could be read,
    /// followed by these.
    Bytes(Source, i32, u32),
    /// This many words of the thread's control block, from an offset on.
    Thread(u32, u8),
    /// The stack words that show the callers, from the stack pointer on: a word with the number of bytes that were
    /// inspected, one bit for each word of these, and the words that were kept. The last value of its event, which ends
    /// there. Needs [`Runtime::stack`](crate::stub::Runtime::stack).
    Stack,
}

impl Fetch {
    /// Whether fetching it twice could give different values, or is expensive.
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

    /// How many eight-byte words it takes in the event.
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
    /// Each thread has its own, at this offset from its control block.
    Thread(i32),
    /// One for all threads.
    Shared {
        /// Offset of the control block's word that holds an address.
        base: u32,
        /// Offset of the counter from that address.
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
    /// Records the system call that the instruction makes. The last action of its instruction.
    Syscall,
    /// Does something around the system calls with certain numbers that the instruction makes, sorted by number. The
    /// last action of its instruction.
    Calls(Vec<Call>),
    /// Does several things, if a condition holds.
    Block(Box<Block>),
}

impl Action {
    /// Whether it makes the system call of its instruction.
    #[must_use]
    pub const fn makes_call(&self) -> bool {
        matches!(self, Self::Syscall | Self::Calls(_))
    }
}

/// What is done around a system call. Code that is executed only for its number makes the call, so the number is known
/// after it, whatever has happened meanwhile: signal handlers that call the kernel, too, a restart, a new thread or
/// process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Its number. The kernel looks at the lower 32 bits of the register.
    pub number: u32,
    /// Before the call: counts, events and blocks.
    pub enter: Vec<Action>,
    /// After it, in each thread that comes back from it.
    pub exit: Vec<Action>,
}

/// An event: a record, and a payload. The upper half of the payload's first word holds the processor; the lower half
/// has a bit for each value that could not be fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Upper half of the record.
    pub info: u32,
    /// Upper half of the payload's record.
    pub payload: u32,
    /// With the time.
    pub timed: bool,
    /// Reads the number of the processor with `rdpid`, which the machine has.
    pub rdpid: bool,
    /// The values. The payload's first word has a bit for each of the first 32; the words after it have bits for the
    /// others.
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

/// When a probe acts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum When {
    /// Before its instruction is executed.
    #[default]
    Hit,
    /// When the function returns that begins with this instruction, which is the first of the code.
    Return,
    /// When that function is entered, but its return cannot be seen.
    Missed,
}

/// A probe in the moved code.
#[derive(Debug, Clone)]
pub struct Probe<'a> {
    /// Offset of its instruction.
    pub offset: usize,
    /// When it acts.
    pub when: When,
    /// Whether the flags are dead there. Of a probe at the return: also when the function begins.
    pub flags_dead: bool,
    /// Registers that are dead there, one bit for each number. Only used on instruction sets that have no better way.
    pub free: u32,
    /// What it does.
    pub action: &'a Action,
}

/// A piece of code that is moved into a detour.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    /// Its bytes.
    pub code: &'a [u8],
    /// Its original address.
    pub from: u64,
    /// Where execution continues after the detour: at the next instruction, which stays in place and may also have
    /// probes, or at instructions before it that restore a saved register from the stack.
    pub resume: u64,
    /// What the jump to the detour did with its register.
    pub via: Via,
    /// The register that the jump back needs.
    pub back: Via,
    /// How the return address is signed before the code.
    pub signing: Signing,
    /// Returns the registers that are dead at the instruction at an address, one bit for each number.
    pub dead: &'a dyn Fn(u64) -> u32,
    /// Returns the pad through which control leaves the code at the instruction at an address if no register is dead
    /// there: our code near the target, which [`patch::pad`](crate::native::patch::pad) writes.
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
            signing: Signing::None,
            dead: &|_| 0,
            pads: &|_| None,
        }
    }
}

/// What was emitted. All addresses are for the detour's place.
#[derive(Debug, Clone, Default)]
pub struct Detour {
    /// Loads that may fault, and where to continue then.
    pub faults: Vec<(u64, u64)>,
    /// Offset of each original instruction, and the address of the moved one after its probes. If control reaches the
    /// end of the code, the last entry is that of the jump back.
    pub map: Vec<(usize, u64)>,
    /// Where the frame is, if there are return probes; offsets are those in the buffer.
    pub rows: Vec<Row>,
    /// In the same order, where the probes of each instruction begin; if there are none, the moved instruction.
    pub before: Vec<u64>,
    /// Offset of each system call that a probe makes, and the address after it.
    pub calls: Vec<(usize, u64)>,
    /// Where control leaves it with a register that is restored elsewhere.
    pub exits: Vec<Range<u64>>,
    /// Moved system calls, and their original addresses.
    pub syscalls: Vec<(u64, u64)>,
}

/// Why a detour cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DetourError {
    /// An instruction cannot be moved.
    #[error("{0}")]
    Relocate(String),
    /// A probe is not at an instruction of the code.
    #[error("no instruction begins at offset {0}")]
    NoInstruction(usize),
    /// An event asks for a register that the processor does not have.
    #[error("it asks for a register that this processor does not have")]
    NoRegister,
    /// A return probe is not at the first instruction.
    #[error("a return probe is not at the function's beginning")]
    NotFirst,
    /// An event is larger than the maximum.
    #[error("its event has more than {MOST_WORDS} words")]
    TooLarge,
    /// The island has no code that packs stacks.
    #[error("its event has a packed stack, which this island does not provide")]
    NoStack,
    /// An event has more values than the maximum.
    #[error("it has more than {MOST_VALUES} values")]
    TooManyValues,
}

/// The numbers that actions compute.
pub(crate) fn computed(deeds: &[Deed]) -> impl Iterator<Item = &Test> {
    let histograms = deeds.iter().filter_map(|deed| match deed {
        Deed::Histogram(histogram) => Some(histogram.tests()),
        _ => None,
    });
    histograms.flatten()
}

/// The size of chunks as a power of two; they begin at multiples of their size.
pub const CHUNK_SHIFT: u8 = 16;

/// Maximum number of words in the values of an event.
pub const MOST_WORDS: usize = 4096;
/// Maximum number of values in an event.
pub const MOST_VALUES: usize = 512;

/// How many words with fault bits precede this many values of an event.
#[must_use]
pub fn fault_words(values: usize) -> usize {
    values.saturating_sub(32).div_ceil(64)
}

#[cfg(test)]
mod tests;
