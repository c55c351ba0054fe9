//! Byte offsets in a thread control block (TCB), which code in the target finds by a register and the controller by its
//! number: TCB number `n` (from [`FIRST`] on) is at `n *` [`SIZE`] in the `events` file.

/// Bytes of one thread control block.
pub const SIZE: u64 = 1024;
/// First TCB after the header page.
pub const FIRST: u64 = 4096 / SIZE;
/// `u64`: target address where the next record goes.
pub const CURSOR: u64 = 0;
/// `u64`: target address after the last record slot of the chunk.
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
/// `u64`: records lost because no chunk was available.
pub const LOST: u64 = 80;
/// `u64`: target address of the file header.
pub const BASE: u64 = 88;
/// `u64`: target address of the bucket, where records go once recording has stopped.
pub const BUCKET: u64 = 96;
/// `u64`: [`NO_CALLS`], [`VECTORS`], [`STREAMS`].
pub const FLAGS: u64 = 104;
/// The agent must not make system calls in this thread: a seccomp filter is in place, or system calls would clear
/// registers that the agent cannot save.
pub const NO_CALLS: u64 = 1;
/// System calls clear vector registers, or parts of them, so the agent saves them. Only on RISC-V and AArch64.
pub const VECTORS: u64 = 2;
/// The thread may be in streaming mode, which system calls end. Then the agent makes none. Only on AArch64.
pub const STREAMS: u64 = 4;
/// `u64`: function entries recorded without an exit because their stack cannot have a shadow.
pub const UNSHADOWED: u64 = 112;
/// `u64`: frame-test failures (`--check-frames`).
pub const BAD_FRAMES: u64 = 120;
/// `u64`: the number of chunks that this thread may use; zero stops its recording.
pub const MAX_CHUNKS: u64 = 128;
/// `u64`: nonzero while this thread maps a part of the shadow.
pub const SHADOW_BUSY: u64 = 136;
/// `u64`: start of the first stack range whose shadow the controller has mapped.
pub const REGION0_LO: u64 = 144;
/// `u64`: bytes of that range; 0 if there is none.
pub const REGION0_LEN: u64 = 152;
/// `u64`: start of the second such range.
pub const REGION1_LO: u64 = 160;
/// `u64`: bytes of the second such range.
pub const REGION1_LEN: u64 = 168;
/// `u64`: frames of filter functions (`-F`) that this thread is in.
pub const INSIDE: u64 = 176;
/// `u64`: bytes of [`FRAMES`] in use.
pub const DEPTH: u64 = 184;
/// `u64`: function id of the first frame-test failure; 0 if there was none.
pub const BAD_ID: u64 = 192;
/// `u64`: its stack address at entry; 0 if not found.
pub const BAD_ENTRY: u64 = 200;
/// `u64`: its stack address at exit.
pub const BAD_EXIT: u64 = 208;
/// `u32`: process id, as the controller sees it.
pub const PID: u64 = 216;
/// `[u8; 16]`: the thread's name, terminated by a zero byte.
pub const COMM: u64 = 224;
/// `u64`: target address after the entries in use of the list of return probes (see `counters::CHAIN_SIZE`).
pub const CHAIN_TOP: u64 = 240;
/// `u64`: target address of that list. There is no list if this is more than the list's size below [`CHAIN_TOP`].
pub const CHAIN_LO: u64 = 248;
/// `[(u64, u64); 4]`: the stack pointers of the system calls that the thread is in, and their numbers in the table of
/// what is fetched. Two bits of a call's stack pointer (4 and 5) select its pair.
pub const SYSCALLS: u64 = 256;
/// `[u64; MAX_DEPTH]`: the stack addresses of the open frames that count for `-D`.
pub const FRAMES: u64 = 320;
/// Largest `-D` that is applied while recording; readers can apply larger ones.
pub const MAX_DEPTH: u64 = (HANDED_ON - FRAMES) / 8;
/// `[u64; 2]`: the stack pointer and the return address with which a function was entered that hands its return address
/// on to another. If the next function is entered with the same two, it may look at them, or replace them, so only its
/// entry is recorded. There is no [`WINDOW`] until then, so stubs ask the agent. The first word is 0 otherwise.
pub const HANDED_ON: u64 = LOWERED_WINDOWS - 16;
/// `[u64; 2]`: [`WINDOW`] minus 16 and minus 32, for stubs that have lowered the stack pointer by that much before they
/// compare it. Only on RISC-V and AArch64.
pub const LOWERED_WINDOWS: u64 = CODE0_LO - 16;
/// `u64`: start of the first range whose addresses count as code when they are found on a stack.
pub const CODE0_LO: u64 = SIZE - 64;
/// `u64`: bytes of that range.
pub const CODE0_LEN: u64 = SIZE - 56;
/// `u64`: start of the second such range.
pub const CODE1_LO: u64 = SIZE - 48;
/// `u64`: bytes of the second such range.
pub const CODE1_LEN: u64 = SIZE - 40;
/// `u64`: the address after the thread's stack; 0 if not known.
pub const STACK_TOP: u64 = SIZE - 32;
/// `u64`: the start of the current window of stack addresses (`WINDOW_SIZE` in the trace format). All addresses in it
/// have different stack bits. 0, or an invalid address, if there is none.
pub const WINDOW: u64 = SIZE - 24;
/// `u64`: the first time whose upper half is no longer [`EPOCH`].
pub const EPOCH_END: u64 = SIZE - 16;
/// `u32`: the lower half of the time for the records of a thread that must not read the time counter. On x86-64, which
/// has no [`EPOCH_END`], and on AArch64, where the code of such a thread does not read that.
pub const NOW: u64 = EPOCH_END;
/// `u64`: the negative of [`super::SHADOW_DISTANCE`].
pub const TO_SHADOW: u64 = SIZE - 8;
