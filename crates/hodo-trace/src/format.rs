//! The layout of the `events` file, shared by the code that runs in the target, the controller and the reader.
//!
//! `docs/trace-format.md` describes the whole trace directory in prose; this module is its machine-readable half.
//! Everything is little endian.

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
    /// `u64`: chunks that the file has room for so far. It grows while the recording goes on; whoever finds no chunk below this number
    /// loses records. 0 once the recording has ended.
    pub const ROOM_CHUNKS: u64 = 48;
    /// `u32`: the thread of the recorder that traces, or [`OWNER_DIED`]. The kernel sets that bit itself when that thread ends in whatever
    /// way: the word is that of a robust futex.
    pub const OWNER: u64 = 56;
    /// In that word: nobody traces any more. Nothing is recorded then, and no breakpoint must be reached.
    pub const OWNER_DIED: u32 = 0x4000_0000;
    /// `[u8]`: 1, or 0 for what actions of probes have switched off: first the recording of events and function entries, then probes.
    pub const SWITCHES: u64 = 1024;
    /// Behind the last of them.
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
}

/// The `counters` file, in which probes count their hits: as long as the half of the address space that one instruction
/// reaches, and mapped into targets so that it ends where the events file begins. Sparse.
///
/// Counters 0 to [`counters::PER_THREAD`] exist once for each thread: 128 of them make a row, in which the thread with
/// TCB number `n` has the 1 KiB at `n * tcb::SIZE`. So a thread's counter is at a constant distance from its TCB. The others
/// exist once.
pub mod counters {
    use super::tcb;

    /// Bytes of the file.
    pub const SIZE: u64 = 1 << 31;
    /// Bytes of it for the counters that exist once, at the end.
    pub const SHARED_SIZE: u64 = 64 << 20;
    /// Bytes before that for the lists of threads in which return probes keep where a function returns to that was jumped to:
    /// [`CHAIN_SIZE`] for each of [`THREADS`].
    pub const CHAINS_SIZE: u64 = THREADS * CHAIN_SIZE;
    /// Bytes of such a list: entries of a stack address (0: free, 1: not in use any more) and a return address.
    pub const CHAIN_SIZE: u64 = 64 << 10;
    /// TCB numbers below this one have counters of their own.
    pub const THREADS: u64 = 1024;
    /// Bytes from one row to the next: a little more than a row has, so that a thread's rows do not all lie in the same sets
    /// of the processor's cache.
    pub const ROW: u64 = (THREADS + 1) * tcb::SIZE;
    /// Counters of a thread in a row.
    pub const IN_ROW: u64 = tcb::SIZE / 8;
    /// Counters that exist once for each thread.
    pub const PER_THREAD: u64 = (SIZE - SHARED_SIZE - CHAINS_SIZE) / ROW * IN_ROW;
    /// Counters in all.
    pub const COUNT: u64 = PER_THREAD + SHARED_SIZE / 8;

    /// Distance of a counter from a thread's TCB; `None`: it exists once.
    #[must_use]
    pub fn of_thread(counter: u64) -> Option<i32> {
        let at = offset(counter, 0)?.cast_signed() - SIZE.cast_signed();
        i32::try_from(at).ok()
    }

    /// Distance of a counter that exists once from the address of the events file.
    #[must_use]
    pub fn shared(counter: u64) -> i32 {
        let at = ((counter - PER_THREAD) * 8).cast_signed() - SHARED_SIZE.cast_signed();
        i32::try_from(at).unwrap_or_default()
    }

    /// Offset in the file of a thread's counter; `None`: it exists once.
    #[must_use]
    pub fn offset(counter: u64, tcb: u64) -> Option<u64> {
        let (row, column) = (counter / IN_ROW, counter % IN_ROW);
        (counter < PER_THREAD).then_some(row * ROW + tcb * tcb::SIZE + column * 8)
    }

    /// Offset in the file of the list of a thread.
    #[must_use]
    pub fn chain_offset(tcb: u64) -> u64 {
        SIZE - SHARED_SIZE - CHAINS_SIZE + tcb * CHAIN_SIZE
    }

    /// Offset in the file of a counter that exists once.
    #[must_use]
    pub fn shared_offset(counter: u64) -> u64 {
        SIZE - SHARED_SIZE + (counter - PER_THREAD) * 8
    }
}

/// Byte offsets in a thread control block (TCB). TCB number `n` (from [`tcb::FIRST`] on) is at `n *` [`tcb::SIZE`] in the
/// `events` file.
pub mod tcb {
    /// Bytes of one thread control block.
    pub const SIZE: u64 = 1024;
    /// The numbers below this one fit into the control area.
    pub const COUNT: u64 = super::BUCKET / SIZE;
    /// First TCB behind the header page.
    pub const FIRST: u64 = 4096 / SIZE;
    /// `u64`: target address where the next record goes.
    pub const CURSOR: u64 = 0;
    /// `u64`: target address behind the last record slot of the chunk.
    pub const LIMIT: u64 = 8;
    /// `u32`: upper half of the time counter of the last record.
    pub const EPOCH: u64 = 16;
    /// `u32`: task number.
    pub const TASK: u64 = 20;
    /// `u64`: lowest stack address whose shadow is mapped.
    pub const SHADOW_LO: u64 = 24;
    /// `u64`: bytes of stack from there whose shadow is mapped.
    pub const SHADOW_LEN: u64 = 32;
    /// `u64`: start of the first island region.
    pub const ISLAND0_LO: u64 = 40;
    /// `u64`: bytes of the first island region.
    pub const ISLAND0_LEN: u64 = 48;
    /// `u64`: start of the second island region.
    pub const ISLAND1_LO: u64 = 56;
    /// `u64`: bytes of the second island region.
    pub const ISLAND1_LEN: u64 = 64;
    /// `u32`: number of the next chunk of this task.
    pub const SEQ: u64 = 72;
    /// `u32`: thread id, as the controller sees it.
    pub const TID: u64 = 76;
    /// `u64`: records lost because no chunk was to be had.
    pub const LOST: u64 = 80;
    /// `u64`: target address of the file header.
    pub const BASE: u64 = 88;
    /// `u64`: target address of the bucket, where records go once recording has stopped.
    pub const BUCKET: u64 = 96;
    /// `u64`: [`NO_CALLS`], [`VECTORS`].
    pub const FLAGS: u64 = 104;
    /// The agent must make no system call in this thread: a seccomp filter is in place, or the kernel would forget registers that
    /// the agent cannot keep.
    pub const NO_CALLS: u64 = 1;
    /// The kernel forgets vector registers at system calls, so the agent keeps them. Only on RISC-V.
    pub const VECTORS: u64 = 2;
    /// `u64`: function entries recorded without an exit because their stack cannot have a shadow.
    pub const UNSHADOWED: u64 = 112;
    /// `u64`: frame-test failures (`--check-frames`).
    pub const BAD_FRAMES: u64 = 120;
    /// `u64`: chunks that this thread may reach; zero stops its recording.
    pub const MAX_CHUNKS: u64 = 128;
    /// `u64`: nonzero while this thread maps a part of the shadow.
    pub const SHADOW_BUSY: u64 = 136;
    /// `u64`: start of the first stack range whose shadow the controller has mapped.
    pub const REGION0_LO: u64 = 144;
    /// `u64`: bytes of that range; 0: there is none.
    pub const REGION0_LEN: u64 = 152;
    /// `u64`: start of the second such range.
    pub const REGION1_LO: u64 = 160;
    /// `u64`: bytes of the second such range.
    pub const REGION1_LEN: u64 = 168;
    /// `u64`: frames of filter functions (`-F`) that this thread is in.
    pub const INSIDE: u64 = 176;
    /// `u64`: bytes of [`FRAMES`] in use.
    pub const DEPTH: u64 = 184;
    /// `u64`: function id of the first frame-test failure; 0: there was none.
    pub const BAD_ID: u64 = 192;
    /// `u64`: its stack address at entry; 0: not found.
    pub const BAD_ENTRY: u64 = 200;
    /// `u64`: its stack address at exit.
    pub const BAD_EXIT: u64 = 208;
    /// `u32`: process id, as the controller sees it.
    pub const PID: u64 = 216;
    /// `[u8; 16]`: the thread's name, with a byte 0 at its end.
    pub const COMM: u64 = 224;
    /// `u64`: target address behind the entries in use of the list of return probes (see `counters::CHAIN_SIZE`).
    pub const CHAIN_TOP: u64 = 240;
    /// `u64`: target address of that list; more than its size below [`CHAIN_TOP`]: there is none.
    pub const CHAIN_LO: u64 = 248;
    /// `[(u64, u64); 4]`: the stack pointers of system calls that the thread is in, and their numbers as the table of
    /// what is fetched has them. A call is kept in the pair that two bits of its stack pointer (4 and 5) name.
    pub const SYSCALLS: u64 = 256;
    /// `[u64; MAX_DEPTH]`: the stack addresses of the open frames that count for `-D`.
    pub const FRAMES: u64 = 320;
    /// Largest `-D` that is applied while recording; readers apply any.
    pub const MAX_DEPTH: u64 = (LOWERED_WINDOWS - FRAMES) / 8;
    /// `[u64; 2]`: [`WINDOW`] less 16 and less 32, for stubs that compare a stack pointer with it that they have lowered by so much. Only
    /// on RISC-V.
    pub const LOWERED_WINDOWS: u64 = CODE0_LO - 16;
    /// `u64`: start of the first range in which words of a stack count as addresses of code.
    pub const CODE0_LO: u64 = SIZE - 64;
    /// `u64`: bytes of that range.
    pub const CODE0_LEN: u64 = SIZE - 56;
    /// `u64`: start of the second such range.
    pub const CODE1_LO: u64 = SIZE - 48;
    /// `u64`: bytes of the second such range.
    pub const CODE1_LEN: u64 = SIZE - 40;
    /// `u64`: the address after the thread's stack, as far as it is known; 0: it is not.
    pub const STACK_TOP: u64 = SIZE - 32;
    /// `u64`: where the window of stack addresses begins that the next entries are in ([`super::WINDOW_SIZE`]): no two of its addresses
    /// have the same stack bits. 0, or no address: there is none.
    pub const WINDOW: u64 = SIZE - 24;
    /// `u64`: the first time whose upper half is not [`EPOCH`] any more.
    pub const EPOCH_END: u64 = SIZE - 16;
    /// `u32`: the lower half of the time for the records of a thread that may not read the time counter. Only on x86-64, which has
    /// no [`EPOCH_END`].
    pub const NOW: u64 = EPOCH_END;
    /// `u64`: [`super::SHADOW_DISTANCE`] subtracted from zero.
    pub const TO_SHADOW: u64 = SIZE - 8;
}

/// Bits of the upper half of a record. The lower half is the lower half of the time counter.
pub mod record {
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
    /// `SPECIAL` id: the stack addresses of the entries that follow are in a window of [`super::WINDOW_SIZE`] bytes. The lower half
    /// and the stack bits are bits 5–46 of where it begins ([`WINDOW_SHIFT`]).
    pub const SPECIAL_WINDOW: u32 = 4;
    /// `SPECIAL` id: the same, but only for the next entry. The window of those after it stays the same.
    pub const SPECIAL_STACK: u32 = 5;
    /// The lowest bit of an address in [`SPECIAL_WINDOW`] and [`SPECIAL_STACK`].
    pub const WINDOW_SHIFT: u32 = 5;
    /// The largest function id. Id 0 is never used, so a record with an upper half of zero is a hole.
    pub const MAX_FUNCTION_ID: u32 = ID_MASK;
}

/// Bytes of a window of stack addresses: as many as have different stack bits.
pub const WINDOW_SIZE: u64 = 1 << (record::SP_BITS + 4);

/// The bucket is where records go once recording has stopped: the end of the control area. It has the bytes of a chunk, for what has
/// begun in one is led to the same place in the bucket, however large it is, when there turns out to be no room for it.
pub const BUCKET_ROOM: u64 = CHUNK_SIZE;
/// Bytes at the start of the bucket in which records go round.
pub const BUCKET_SIZE: u64 = 4096;
/// Offset of the bucket in the `events` file.
pub const BUCKET: u64 = CONTROL_SIZE - BUCKET_ROOM;

/// Words of a stack that a packed stack is about, at most: a multiple of 64.
pub const STACK_WORDS: u64 = 1024;
/// Addresses of the stack that are so many bytes above the stack pointer may be those of frames.
pub const STACK_SPAN: u64 = 8 << 20;

/// The path of `map` lines that tell of code of ours.
pub const ISLAND: &str = "[hodo]";

/// Distance from a stack slot to its shadow. Not a multiple of 4096, or loads from the slot would falsely depend on
/// stores to the shadow (measured: 28 ns a call instead of 5).
///
/// On RISC-V an address space may have 39 bits: a program's stack, its libraries and, if it is built to run anywhere, its own data are
/// so far above its beginning that their shadow is below all of them.
pub const SHADOW_DISTANCE: u64 = if cfg!(target_arch = "riscv64") {
    0x20_0000_0840
} else {
    0x1000_0000_0840
};
