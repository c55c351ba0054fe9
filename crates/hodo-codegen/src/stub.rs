//! The parameters and parts of a stub, for all instruction sets.

use alloc::vec::Vec;
use core::ops::Range;

use hodo_isa::cfa::Row;
use hodo_isa::{Signing, Via};

/// Offsets into the thread control block and bits of a record, given by the trace format.
#[derive(Debug, Clone, Copy, Default)]
pub struct Layout {
    /// Offset of the cursor, `u64`.
    pub cursor: u32,
    /// Offset of the chunk's limit, `u64`.
    pub limit: u32,
    /// Offset of the upper half of the counter, `u32`.
    pub epoch: u32,
    /// Offset of the first time that has a different upper half, `u64`.
    pub epoch_end: u32,
    /// Offset of the shadow range's start, `u64`.
    pub shadow_lo: u32,
    /// Offset of the shadow range's length, `u64`.
    pub shadow_len: u32,
    /// Offset of the start of the window of stack addresses, `u64`.
    pub window: u32,
    /// Offset of the same start minus 16, `u64`, followed by it minus 32. Only on RISC-V.
    pub lowered_windows: u32,
    /// Offset of the stack pointer and the return address that a function hands on to another, `u64` each.
    pub handed_on: u32,
    /// Bytes of that window, a power of two.
    pub window_size: u32,
    /// Offsets of start and length of the two island regions, `u64` each.
    pub islands: [(u32, u32); 2],
    /// Offset of the number of open frames of filter functions, `u64`.
    pub inside: u32,
    /// Offset of the number of bytes that the counting frames take, `u64`.
    pub depth: u32,
    /// Offset of the counting frames: their stack addresses, `u64` each.
    pub frames: u32,
    /// Offset of the address where the thread's list of return probes ends, `u64`.
    pub chain_top: u32,
    /// Offset of that list's address, `u64`.
    pub chain_lo: u32,
    /// Size of that list in bytes.
    pub chain_size: u32,
    /// Distance from a stack slot to its shadow.
    pub shadow_distance: u64,
    /// Offset of that distance, negated, `u64`.
    pub to_shadow: u32,
    /// Whether the processor adds to memory by one instruction. Only asked on AArch64.
    pub atomics: bool,
    /// Offset from the thread pointer of the word that holds the control block's address; not used if a segment begins
    /// at the control block.
    pub block: i32,
    /// Bytes of a record.
    pub record_size: u32,
    /// Left shift that moves the stack pointer to its field in the upper half of a record.
    pub sp_shift: u8,
    /// Mask of that field.
    pub sp_mask: u32,
    /// Offset of the address of the bucket, `u64`, where records go once recording has stopped.
    pub bucket: u32,
    /// Bytes of the bucket.
    pub bucket_size: u32,
    /// Offset of the number of lost records, `u64`.
    pub lost: u32,
    /// Offset of the address of the events file, `u64`.
    pub base: u32,
    /// Offset in that file of a byte that has [`UNTRACED`] set when nobody traces any more.
    pub owner: u32,
}

/// The bit in the highest byte of a robust futex that the kernel sets when its owner dies.
pub const UNTRACED: u8 = 0x40;

/// Addresses of the runtime's slow paths.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Runtime {
    /// The upper half of the counter changed.
    pub epoch: u64,
    /// The chunk is full.
    pub chunk: u64,
    /// The shadow of this stack may not be mapped yet.
    pub shadow: u64,
    /// The stack pointer is not in the window of stack addresses.
    pub window: u64,
    /// Writes one whole record (timed or not, as the stub is).
    pub record: u64,
    /// The frame at exit is not the one at entry.
    pub frame: u64,
    /// Takes back a short call that jumped to other functions.
    pub tails: u64,
    /// Whether a function was entered by a jump from another one; 0 if stubs find that out themselves.
    pub tail: u64,
    /// Called before and after a system call, if system calls are recorded.
    pub syscalls: Option<(u64, u64)>,
    /// Packs a stack, if an event needs that.
    pub stack: Option<u64>,
}

/// What is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Records {
    /// Upper half of the entry record, without the stack bits.
    pub entry: u32,
    /// Upper half of the exit record; `None`: only the entry is recorded.
    pub exit: Option<u32>,
    /// Upper half of the record for an entry by tail call.
    pub tail: u32,
    /// With the time counter, or without.
    pub timed: bool,
    /// Whether the function belongs to the scope of filter functions.
    pub scope: Scope,
    /// At most this many frames are open at once, counted from the outermost filter function.
    pub depth: Option<u32>,
    /// Function id, if exits check that the frame is that of the entry.
    pub check: Option<u32>,
    /// Calls shorter than this, in units of the time counter, are taken back if nothing was recorded in between.
    pub shortest: Option<u32>,
    /// Offset in the events file of a byte that is 0 while no entry is recorded, if recording can be switched.
    pub switch: Option<u32>,
    /// Also records the stack pointer if only the entry is recorded, because programs return there by jumps.
    pub placed: bool,
    /// The function jumps to another one, which may look at the return address or replace it. That one is recorded
    /// without an exit. Only if this one is, too.
    pub hands_on: bool,
    /// How the stub may use registers.
    pub registers: Registers,
}

/// The registers that a stub may use without saving them, on instruction sets whose stubs need free ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Registers {
    /// Free before the body, one bit for each number.
    pub free: u32,
    /// Free when the body has returned.
    pub free_after: u32,
    /// What the jump to the stub did with its register.
    pub via: Via,
    /// How the return address is signed where the jump is.
    pub signing: Signing,
}

/// What filter functions (`-F`) mean for a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// There are none.
    Any,
    /// It is recorded while a filter function is open.
    Inside,
    /// It is one.
    Filter,
}

/// What a stub runs for its function.
#[derive(Debug, Clone, Default)]
pub struct Body {
    /// Code.
    pub bytes: Vec<u8>,
    /// The address where execution continues, unless control never reaches the end of the code.
    pub resume: Option<u64>,
    /// Where the frame is; offsets are those in `bytes`.
    pub rows: Vec<Row>,
    /// It has return points of its own, which the rows describe.
    pub returns: bool,
}

/// The addresses of what was emitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Emitted {
    /// The address range of the body.
    pub body: Range<u64>,
    /// The stub's own loads that may fault, and where execution continues then.
    pub faults: Vec<(u64, u64)>,
}

impl From<Range<u64>> for Emitted {
    fn from(body: Range<u64>) -> Self {
        Self {
            body,
            faults: Vec::new(),
        }
    }
}
