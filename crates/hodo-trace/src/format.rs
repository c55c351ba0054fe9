//! The layout of the `events` file, shared by the code that runs in the target, the controller and the reader.
//!
//! `docs/trace-format.md` describes the whole trace directory in prose; this module is its machine-readable half.
//! Everything is little endian.

/// The thread control blocks are in the control area of the `events` file.
pub use hodo_abi::{BLOCK_WORD, SHADOW_DISTANCE, tcb};

/// Version of the whole trace directory. The reader refuses any other.
pub const FORMAT_VERSION: u32 = 1;
/// Name of the format, the value of `"format"` in `info.json`.
pub const FORMAT_NAME: &str = "hodoscope-trace";

/// First eight bytes of the `events` file.
pub const FILE_MAGIC: [u8; 8] = *b"HODOEVT\x01";
/// Bytes of the control area at the start of the `events` file: the file header page and the thread control blocks.
pub const CONTROL_SIZE: u64 = 16 << 20;
/// Bytes of one chunk of records.
pub const CHUNK_SIZE: u64 = 64 << 10;
/// Bytes of a chunk's header; records follow it.
pub const CHUNK_HEADER_SIZE: u64 = 64;
/// First four bytes of a chunk that was handed to a thread.
pub const CHUNK_MAGIC: u32 = u32::from_le_bytes(*b"HCHK");
/// Bytes of one record.
pub const RECORD_SIZE: u64 = 8;

/// Byte offsets in the file header page.
pub mod file_header {
    /// `[u8; 8]`: [`super::FILE_MAGIC`].
    pub const MAGIC: u64 = 0;
    /// `u32`: [`super::FORMAT_VERSION`].
    pub const VERSION: u64 = 8;
    /// `u32`: [`super::CHUNK_SIZE`].
    pub const CHUNK_SIZE: u64 = 12;
    /// `u64`: [`super::CONTROL_SIZE`].
    pub const CONTROL_SIZE: u64 = 16;
    /// `u64`: number of chunks handed out so far; incremented atomically by any thread of any traced process,
    /// never beyond [`ROOM_CHUNKS`].
    pub const NEXT_CHUNK: u64 = 24;
    /// `u64`: chunks that fit into the file.
    pub const MAX_CHUNKS: u64 = 32;
    /// `u64`: bit 0: records carry timestamps.
    pub const FLAGS: u64 = 40;
    /// `u64`: chunks that the file has room for so far. It grows while the recording goes on; whoever finds no chunk
    /// below this number loses records. 0 once the recording has ended.
    pub const ROOM_CHUNKS: u64 = 48;
    /// `u32`: the tracing thread of the recorder, or [`OWNER_DIED`]. The word is part of a robust futex, so the kernel
    /// sets that bit when the thread ends, however it ends.
    pub const OWNER: u64 = 56;
    /// In that word: nobody traces any more. Then nothing is recorded, and no breakpoint may be reached.
    pub const OWNER_DIED: u32 = 0x4000_0000;
    /// `[u8]`: 1, or 0 for what actions of probes have switched off. The first bytes stand for the recording of events
    /// and of function entries, the others for probes.
    pub const SWITCHES: u64 = 1024;
    /// The end of the switches.
    pub const SWITCHES_END: u64 = 4096;
}

/// Byte offsets in a chunk header.
pub mod chunk_header {
    /// `u32`: [`super::CHUNK_MAGIC`].
    pub const MAGIC: u64 = 0;
    /// `u32`: running number of this chunk within its task, from 0.
    pub const SEQ: u64 = 4;
    /// `u32`: the task (the `id` of a `task` line of `log.jsonl`).
    pub const TASK: u64 = 8;
    /// `u32`: upper half of the time counter for the first records.
    pub const EPOCH: u64 = 12;
    /// `u64`: records this task had lost when the chunk was opened.
    pub const LOST: u64 = 16;
    /// `u32`: where in the same 64 KiB the chunk of another task begins, with a header of its own; 0: nowhere. This one
    /// ends there.
    pub const REST: u64 = 24;
}

/// The `counters` file, in which probes count their hits. It is sparse, and as long as the half of the address space
/// that one instruction can reach. It is mapped into targets so that it ends where the events file begins.
///
/// Counters 0 to [`counters::PER_THREAD`] exist once for each thread. 128 of them make a row, in which the thread with
/// TCB number `n` has the 1 KiB at `n * tcb::SIZE`. So a thread's counter is at a constant distance from its TCB. The
/// other counters exist only once.
pub mod counters {
    use hodo_abi::tcb;

    /// The size of the file in bytes.
    pub const SIZE: u64 = 1 << 31;
    /// The size of the part at its end for the counters that exist only once, in bytes.
    pub const SHARED_SIZE: u64 = 64 << 20;
    /// Before that part are lists, one of [`CHAIN_SIZE`] for each of [`THREADS`]. In them, return probes keep the
    /// return addresses of functions that were jumped to. This is their size in bytes.
    pub const CHAINS_SIZE: u64 = THREADS * CHAIN_SIZE;
    /// The size of such a list in bytes. Its entries are a stack address (0: free, 1: no longer used) and a return
    /// address.
    pub const CHAIN_SIZE: u64 = 64 << 10;
    /// Threads with TCB numbers below this one have their own counters.
    pub const THREADS: u64 = 1024;
    /// The distance between rows in bytes. It is a little more than the size of a row, so that a thread's rows do not
    /// all share the same sets of the processor's cache.
    pub const ROW: u64 = (THREADS + 1) * tcb::SIZE;
    /// How many counters a thread has in a row.
    pub const IN_ROW: u64 = tcb::SIZE / 8;
    /// How many counters exist once for each thread.
    pub const PER_THREAD: u64 = (SIZE - SHARED_SIZE - CHAINS_SIZE) / ROW * IN_ROW;
    /// How many counters there are in all.
    pub const COUNT: u64 = PER_THREAD + SHARED_SIZE / 8;

    /// Returns the distance of a counter from a thread's TCB, or `None` if the counter exists only once.
    #[must_use]
    pub fn of_thread(counter: u64) -> Option<i32> {
        let at = offset(counter, 0)?.cast_signed() - SIZE.cast_signed();
        i32::try_from(at).ok()
    }

    /// Returns the distance of a counter that exists only once from the address of the events file.
    #[must_use]
    pub fn shared(counter: u64) -> i32 {
        let at = ((counter - PER_THREAD) * 8).cast_signed() - SHARED_SIZE.cast_signed();
        i32::try_from(at).unwrap_or_default()
    }

    /// Returns the offset of a thread's counter in the file, or `None` if the counter exists only once.
    #[must_use]
    pub fn offset(counter: u64, tcb: u64) -> Option<u64> {
        let (row, column) = (counter / IN_ROW, counter % IN_ROW);
        (counter < PER_THREAD).then_some(row * ROW + tcb * tcb::SIZE + column * 8)
    }

    /// Returns the offset of a thread's list in the file.
    #[must_use]
    pub fn chain_offset(tcb: u64) -> u64 {
        SIZE - SHARED_SIZE - CHAINS_SIZE + tcb * CHAIN_SIZE
    }

    /// Returns the offset in the file of a counter that exists only once.
    #[must_use]
    pub fn shared_offset(counter: u64) -> u64 {
        SIZE - SHARED_SIZE + (counter - PER_THREAD) * 8
    }
}

/// Bits of the upper half of a record. The lower half is the lower half of the time counter.
pub mod record {
    use hodo_abi::Isa;

    /// Bits of the function id.
    pub const ID_BITS: u32 = 20;
    /// Mask of the function id.
    pub const ID_MASK: u32 = (1 << ID_BITS) - 1;
    /// Shift of the two kind bits.
    pub const KIND_SHIFT: u32 = ID_BITS;
    /// A function was called.
    pub const ENTRY: u32 = 0;
    /// A function returned; closes the frame of the same id and stack bits, and all frames above it.
    pub const EXIT: u32 = 1;
    /// A function was entered by a jump from a traced function; it has no exit of its own.
    pub const TAIL: u32 = 2;
    /// Anything else: the id says what.
    pub const SPECIAL: u32 = 3;
    /// Shift of the stack bits: bits 4.. of the stack pointer at entry.
    pub const SP_SHIFT: u32 = 22;
    /// Number of stack bits kept.
    pub const SP_BITS: u32 = 10;
    /// `SPECIAL` id: the lower half is the new upper half of the time counter.
    pub const SPECIAL_EPOCH: u32 = 1;
    /// `SPECIAL` id: the lower half is a number of 8-byte words that follow and belong to the record before.
    pub const SPECIAL_PAYLOAD: u32 = 2;
    /// `SPECIAL` id: the lower half is the number of records lost here.
    pub const SPECIAL_LOST: u32 = 3;
    /// `SPECIAL` id: the stack addresses of the entries that follow lie in a window of [`super::WINDOW_SIZE`] bytes.
    /// The lower half and the stack bits are 42 bits of its start, from [`window_shift`] on.
    pub const SPECIAL_WINDOW: u32 = 4;
    /// `SPECIAL` id: the same, but only for the next entry. The window of later entries does not change.
    pub const SPECIAL_STACK: u32 = 5;
    /// Returns the lowest bit of an address in [`SPECIAL_WINDOW`] and [`SPECIAL_STACK`]: programs' addresses
    /// have 47 bits
    /// at most, on AArch64 48.
    #[must_use]
    pub const fn window_shift(isa: Isa) -> u32 {
        match isa {
            Isa::X86_64 | Isa::Riscv64 => 5,
            Isa::Aarch64 => 6,
        }
    }
    /// The same for programs of this machine.
    pub const WINDOW_SHIFT: u32 = window_shift(Isa::NATIVE);
    /// The largest function id. Id 0 is never used, so a record with an upper half of zero is a hole.
    pub const MAX_FUNCTION_ID: u32 = ID_MASK;
}

/// The size of a window of stack addresses in bytes: all addresses in it have different stack bits.
pub const WINDOW_SIZE: u64 = 1 << (record::SP_BITS + 4);

/// Records go to the bucket once recording has stopped. It is at the end of the control area, and as large as a chunk.
/// If a record or an event of any size has begun in a chunk that turns out to have no room for it, it is redirected to
/// the same offset in the bucket.
pub const BUCKET_ROOM: u64 = CHUNK_SIZE;
/// The size of the part of the bucket that records fill again and again, in bytes. An event of a system call that had
/// no room there would be begun again forever.
pub const BUCKET_SIZE: u64 = 32_768;
const _: () = assert!(BUCKET_SIZE <= BUCKET_ROOM);
/// Offset of the bucket in the `events` file.
pub const BUCKET: u64 = CONTROL_SIZE - BUCKET_ROOM;

/// Thread control blocks with numbers below this one fit into the control area.
pub const TCBS: u64 = BUCKET / tcb::SIZE;

/// A packed stack covers at most this many words: a multiple of 64.
pub const STACK_WORDS: u64 = 1024;
/// Addresses up to this many bytes above the stack pointer may belong to frames.
pub const STACK_SPAN: u64 = 8 << 20;

/// The path in the `map` lines of our own code.
pub const ISLAND: &str = "[hodo]";
