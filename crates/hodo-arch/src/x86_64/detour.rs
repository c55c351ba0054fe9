//! The detour of probes: moved instructions, and before each that has a probe the code that does the probe's work.
//!
//! A probe may be anywhere in a function, so all registers and the red zone below the stack pointer (System V ABI,
//! x86-64 supplement, 3.2.2) are live, and the flags unless the planner knows better. What a probe needs it pushes below
//! the red zone. Nothing here takes a lock; a signal handler that interrupts a probe and hits it again finds room of
//! its own, because the thread's cursor moves by one instruction.

mod block;
mod condition;
mod event;
mod hist;
mod returns;
mod saved;
mod syscall;
mod text;

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::emit::{Code, Pending};
use super::relocate::{RelocateError, relocate_apart};
use super::stub::{Layout, Runtime};
use super::track::Row;
pub use block::{Block, Deed, size};
pub use condition::{Arithmetic, Bits, Comparison, Test};
use event::emit_event;
pub use hist::{Histogram, Key, Part, Words};
use returns::emit_returns;
use saved::Saved;
use syscall::{BEHIND, without_syscalls};
pub use text::{Atom, Text};

/// Bytes that a fetched string has at most, with its end.
pub const STRING: usize = 128;

/// The general registers in the processor's numbering: rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 to r15.
pub type Register = u8;

const RAX: Register = 0;
const RCX: Register = 1;
const RDX: Register = 2;
const RSP: Register = 4;
const R8: Register = 8;
const R9: Register = 9;

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A register, whole.
    Register(Register),
    /// A number.
    Number(u64),
    /// The address of the instruction.
    Here,
    /// Where the function returns to; only in return probes. So far below the stack is its shadow.
    Caller(u64),
    /// An address so far from the instruction's.
    Near(i64),
    /// Eight bytes in memory at a value plus an offset.
    Memory(Box<Source>, i32),
    /// A value plus a number.
    Plus(Box<Source>, i64),
    /// The address of the thread's block, which libc keeps at the beginning of that block.
    ThreadPointer,
    /// The flags. The probe must keep them.
    Flags,
    /// A segment register by its number: es, cs, ss, ds, fs, gs.
    Segment(u8),
}

/// One value of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fetch {
    /// A word of eight bytes.
    Word(Source),
    /// So many bytes (1, 2, 4, 8) in memory at a value plus an offset, extended by zeros to a word.
    Load(Source, i32, u8),
    /// A string of bytes in memory at a value plus an offset; [`STRING`] bytes of the event.
    Text(Source, i32),
    /// So many bytes in memory at a value plus an offset: a word with the number of those that could be read, and these.
    Bytes(Source, i32, u32),
    /// So many words of the thread's control block from an offset on.
    Thread(u32, u8),
}

impl Fetch {
    /// Words of eight bytes that it takes in the event.
    #[must_use]
    pub fn words(&self) -> usize {
        match self {
            Self::Word(_) | Self::Load(..) => 1,
            Self::Text(..) => STRING / 8,
            Self::Bytes(_, _, bytes) => 1 + bytes.div_ceil(8) as usize,
            Self::Thread(_, words) => usize::from(*words),
        }
    }
}

/// A counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counter {
    /// Each thread has its own, so far from its control block.
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

/// An event: a record, and a payload of which the first word has the processor in its upper half and a bit for each value
/// that could not be fetched in its lower.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Upper half of the record.
    pub info: u32,
    /// Upper half of the payload's record.
    pub payload: u32,
    /// With the time counter.
    pub timed: bool,
    /// The processor has `rdpid`.
    pub rdpid: bool,
    /// The values. A bit for each of the first 32 is in the payload's first word, for the others in words behind it.
    pub values: Vec<Fetch>,
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
    /// What it does.
    pub action: &'a Action,
}

/// What was emitted. All addresses are those of the detour's place.
#[derive(Debug, Clone, Default)]
pub struct Detour {
    /// Loads that may fault, and where to go on then.
    pub faults: Vec<(u64, u64)>,
    /// Offset of each original instruction, and the address of the moved one behind its probe. Where the code goes on behind
    /// them, the last is that of the jump there.
    pub map: Vec<(usize, u64)>,
    /// Where the frame is, if there are return probes: offsets in the buffer.
    pub rows: Vec<Row>,
    /// In the same order, where the probes of each begin; without one, the moved instruction.
    pub before: Vec<u64>,
    /// Offset of each system call that a probe makes, and the address behind it.
    pub calls: Vec<(usize, u64)>,
    /// Moved system calls, and where they stood.
    pub syscalls: Vec<(u64, u64)>,
}

/// Why a detour cannot be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DetourError {
    /// An instruction cannot be moved.
    #[error("{0}")]
    Relocate(#[from] RelocateError),
    /// A probe stands at no instruction of the code.
    #[error("no instruction begins at offset {0}")]
    NoInstruction(usize),
    /// A return probe does not stand at the first instruction.
    #[error("a return probe is not at the function's beginning")]
    NotFirst,
    /// An event is larger than there is room for.
    #[error("its event has more than {MOST_WORDS} words")]
    TooLarge,
    /// It has more values than there is room for.
    #[error("it has more than {MOST_VALUES} values")]
    TooManyValues,
}

/// Words that the values of an event may have.
pub const MOST_WORDS: usize = 4096;
/// Values that an event may have.
pub const MOST_VALUES: usize = 512;

/// Words in front of an event's values for the faults of so many.
#[must_use]
pub fn fault_words(values: usize) -> usize {
    values.saturating_sub(32).div_ceil(64)
}

/// Slow paths, emitted behind the hot code.
#[derive(Default)]
struct Cold {
    epoch: Vec<(Pending, u64)>,
    chunk: Vec<(Pending, u64)>,
    /// Events for which the bucket is too small: the jump, where they begin again, where they end.
    large: Vec<(Pending, u64, u64)>,
    /// Where the value is stored that could not be fetched, its number, and the faulting instruction.
    fault: Vec<(u64, u32, u64)>,
    /// Loads of conditions, and where to go on if they fault.
    leave: Vec<(u64, u64)>,
}

/// Emits the detour of `displaced`, which stands at `from`, at `code.here()`; `resume` is where it goes on: at the instruction
/// behind, which stays in its place and may have probes, too.
///
/// # Errors
/// If that cannot be done; what was emitted then is to be thrown away.
pub fn emit(
    code: &mut Code<'_>,
    layout: &Layout,
    runtime: &Runtime,
    displaced: &[u8],
    from: u64,
    resume: u64,
    probes: &[Probe<'_>],
) -> Result<Detour, DetourError> {
    let mut cold = Cold::default();
    let mut detour = Detour::default();
    let mut to_body = None;
    if probes.iter().any(|probe| probe.when != When::Hit) {
        if probes.iter().any(|p| p.when != When::Hit && p.offset != 0) {
            return Err(DetourError::NotFirst);
        }
        let out = (&mut cold, &mut detour.rows);
        to_body = Some(emit_returns(code, layout, runtime, probes, from, out)?);
    }
    let at = code.here();
    let mut gaps: Vec<(usize, usize)> = Vec::with_capacity(probes.len());
    let hits = || probes.iter().filter(|probe| probe.when == When::Hit);
    for probe in hits() {
        let mut bytes = Vec::new();
        // The length is the same everywhere.
        emit_probe(
            &mut Code::new(&mut bytes, at),
            (layout, runtime),
            probe,
            from,
            &mut Cold::default(),
        )?;
        match gaps.iter_mut().find(|gap| gap.0 == probe.offset) {
            Some(gap) => gap.1 += bytes.len(),
            None => gaps.push((probe.offset, bytes.len())),
        }
    }
    let replaced = without_syscalls(displaced, probes);
    let moved = relocate_apart(&replaced, from, at, &gaps)?;
    let end = displaced.len();
    if let Some((offset, _)) = gaps
        .iter()
        .filter(|(offset, _)| *offset != end || !moved.falls_through)
        .find(|(offset, _)| !moved.map.iter().any(|piece| piece.old == *offset))
    {
        return Err(DetourError::NoInstruction(*offset));
    }
    for (index, piece) in moved.map.iter().enumerate() {
        detour.before.push(code.here());
        for probe in hits().filter(|probe| probe.offset == piece.old) {
            if *probe.action == Action::Syscall {
                detour.calls.push((piece.old, code.here() + BEHIND));
                let at = code.here() + syscall::BEFORE;
                detour.syscalls.push((at, from + probe.offset as u64));
            }
            emit_probe(code, (layout, runtime), probe, from, &mut cold)?;
        }
        let gap = gaps.iter().find(|gap| gap.0 == piece.old);
        let start = piece.new + gap.map_or(0, |gap| gap.1);
        let end = moved.map.get(index + 1);
        let end = end.map_or(moved.bytes.len(), |next| next.new);
        debug_assert_eq!(code.here(), at + start as u64);
        detour.map.push((piece.old, code.here()));
        if piece.old == 0 {
            for pending in to_body.take().into_iter().flatten() {
                code.bind(pending);
            }
        }
        code.raw(&moved.bytes[start..end]);
    }
    debug_assert!(to_body.is_none());
    if moved.falls_through {
        detour.before.push(code.here());
        for probe in hits().filter(|probe| probe.offset == end) {
            emit_probe(code, (layout, runtime), probe, from, &mut cold)?;
        }
        detour.map.push((end, code.here()));
        code.branch(JMP, resume);
    }
    for (pending, back) in cold.epoch {
        code.bind(pending);
        code.branch(CALL, runtime.epoch);
        code.branch(JMP, back);
    }
    for (pending, again) in cold.chunk {
        code.bind(pending);
        // The place that it gives stays a hole: an event wants more.
        code.branch(CALL, runtime.chunk);
        code.branch(JMP, again);
    }
    for (pending, again, done) in cold.large {
        code.bind(pending);
        code.branch(CALL, runtime.chunk);
        code.op32(&[0x65, 0x48, 0x8B, 0x0C, 0x25], layout.bucket); // mov rcx, gs:[bucket]
        code.op32(&[0x48, 0x81, 0xC1], layout.bucket_size); // add rcx, size
        code.op32(&[0x65, 0x48, 0x3B, 0x0C, 0x25], layout.limit); // cmp rcx, gs:[limit]
        code.branch(JNE, again);
        code.op32(&[0x65, 0x48, 0xFF, 0x04, 0x25], layout.lost); // inc qword gs:[lost]
        code.branch(JMP, done);
    }
    detour.faults.append(&mut cold.leave);
    for (store, value, load) in cold.fault {
        detour.faults.push((load, code.here()));
        let word = match value {
            0..32 => 0x10,
            // Behind the first word of the payload.
            _ => 0x18 + (value / 32 - 1) * 4,
        };
        code.op32(&[0x81, 0x89], word); // or dword [rcx+word], bit
        code.raw(&(1u32 << (value % 32)).to_le_bytes());
        code.raw(&[0x31, 0xC0]); // xor eax, eax
        code.branch(JMP, store);
    }
    Ok(detour)
}

const CALL: &[u8] = &[0xE8];
const JMP: &[u8] = &[0xE9];
const JNE: &[u8] = &[0x0F, 0x85];
const JA: &[u8] = &[0x0F, 0x87];

fn emit_probe(
    code: &mut Code<'_>,
    (layout, runtime): (&Layout, &Runtime),
    probe: &Probe<'_>,
    from: u64,
    cold: &mut Cold,
) -> Result<(), DetourError> {
    let here = from + probe.offset as u64;
    match probe.action {
        Action::Count(Counter::Thread(at)) if probe.flags_dead => emit_count(code, *at),
        Action::Count(Counter::Thread(at)) => {
            let saved = Saved::begin(code, false);
            emit_count(code, *at);
            saved.end(code);
        }
        Action::Count(Counter::Shared { base, at }) => {
            let saved = Saved::begin(code, probe.flags_dead);
            code.op32(&[0x65, 0x48, 0x8B, 0x04, 0x25], *base); // mov rax, gs:[base]
            code.op32(&[0xF0, 0x48, 0xFF, 0x80], at.cast_unsigned()); // lock inc qword [rax+at]
            saved.end(code);
        }
        Action::Record(event) => {
            emit_event(code, layout, probe.flags_dead, event, here, cold)?;
        }
        Action::Syscall => syscall::emit(code, runtime, here),
        Action::Block(block) => {
            block::emit_block(code, layout, probe.flags_dead, block, here, cold)?;
        }
    }
    Ok(())
}

/// `inc qword gs:[at]`
fn emit_count(code: &mut Code<'_>, at: i32) {
    code.op32(&[0x65, 0x48, 0xFF, 0x04, 0x25], at.cast_unsigned());
}

#[cfg(test)]
mod tests;
