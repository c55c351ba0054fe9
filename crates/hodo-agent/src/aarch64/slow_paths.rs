//! The slow paths for AArch64, as a blob of position-independent code.
//!
//! A stub works with registers that differ from site to site. It puts `x16` on the stack, in 16 bytes of its own, and
//! calls with `x16` as link. The words after the call say where things are (`stub/slow.rs` of `hodo-codegen`): the
//! first
//! one has, from bit 0 on, the numbers of three registers (the control block's address; an argument or result; the
//! time), how many times 16 bytes the stack pointer of the stub is below S, and whether records have a time. These are
//! registers up to `x17`; the time may also be in `x30`. All registers and the flags are kept, but the result's.
//!
//! The link register `x30` is never changed here, and neither is `x16`: so unwinders find their way from any
//! instruction, by the stack pointer alone. If return addresses are signed, the stub has removed the signature.
//!
//! Words that signal handlers change, too, are changed by exclusive loads and stores, which every processor has.

use hodo_trace::format::{
    BUCKET_ROOM, BUCKET_SIZE, CHUNK_HEADER_SIZE, CHUNK_MAGIC, CHUNK_SIZE, CONTROL_SIZE,
    RECORD_SIZE, WINDOW_SIZE, chunk_header, file_header, record, tcb,
};

use super::calls::system_calls;
use super::macros::macros;
use super::windows::windows;
use crate::constants::{PIECES, SHADOW_STEP, SPARE, TRIES};
use crate::linked::ATTEMPTS;

linked_slow_paths!(
    [r#"
    .pushsection .rodata.hodo_agent, "a", @progbits
    .p2align 6
    .globl hodo_agent_start, hodo_agent_epoch, hodo_agent_chunk, hodo_agent_shadow, hodo_agent_tail
    .globl hodo_agent_syscall, hodo_agent_end, hodo_agent_frame, hodo_agent_tails, hodo_agent_ret, hodo_agent_window, hodo_agent_home_end
    .hidden hodo_agent_start, hodo_agent_epoch, hodo_agent_chunk, hodo_agent_shadow, hodo_agent_tail
    .hidden hodo_agent_syscall, hodo_agent_end, hodo_agent_frame, hodo_agent_tails, hodo_agent_ret, hodo_agent_window, hodo_agent_home_end

    "#, macros!(), r#"
hodo_agent_start:

    // The time has another upper half.
hodo_agent_epoch:
    HODO_ENTER
    HODO_GET x0, 10
    HODO_CALL x11, hodo_agent_new_epoch
    b 9f

    // What others jump to, with the same stack pointer as here. Links are x9 to x12, from the outermost to the
    // innermost.

    // One record. In: w1 = the record's upper half without the stack bits. Clobbers x0 to x4, x10 to x12, x14,
    // x15, x17.
hodo_agent_record:
    mov x0, #0
    tbz w7, #20, 1f
    mrs x0, cntvct_el0
    ldr x17, [x6, #{EPOCH_END}]
    cmp x0, x17
    b.lo 1f
    mov w3, w1
    HODO_CALL x11, hodo_agent_new_epoch
    mov w1, w3
1:  HODO_CALL x10, hodo_agent_place
    ubfx x17, x5, #4, #{SP_BITS}
    orr w1, w1, w17, lsl #{SP_SHIFT}
    bfi x0, x1, #32, #32
    str x0, [x2]
    br x9

    // A record of the upper half of a time, x0. The record comes first: what records in between makes one of its own.
    // Link: x11. Clobbers x1, x2, x10, x12, x14, x15, x17.
hodo_agent_new_epoch:
    lsr x1, x0, #32
    HODO_CALL x10, hodo_agent_place
    HODO_CONSTANT w17, {EPOCH_INFO}
    orr x17, x1, x17, lsl #32
    str x17, [x2]
    str w1, [x6, #{EPOCH}]
    add x1, x1, #1
    lsl x1, x1, #32
    str x1, [x6, #{EPOCH_END}]
    br x11

    // x2 = a place for a record. Link: x10. Clobbers x12, x14, x15, x17.
hodo_agent_place:
    HODO_ADD x2, #{RECORD_SIZE}, x17, x6
    ldr x17, [x6, #{LIMIT}]
    cmp x2, x17
    b.hs 1f
    br x10
1:  HODO_CALL x12, hodo_agent_new_chunk
    br x10

    // x2 = a place in a new chunk. Link: x12. Clobbers x14, x15, x17.
    // The cursor is set before the limit: chunks come in ascending order, so a signal handler in between sees a cursor
    // above the limit and opens a chunk of its own.
hodo_agent_new_chunk:
    // Each chunk names its window: a reader may not have those before it.
    HODO_SET_WINDOW xzr
    stp x0, x1, [sp, #144]
    ldr x0, [x6, #{BASE}]
    // Without a recorder, nobody makes good what a full disk does.
    ldr w17, [x0, #{OWNER}]
    tst w17, #{OWNER_DIED}
    b.ne 2f
    ldr x17, [x6, #{MAX_CHUNKS}]
    // The file grows: what it has no room for yet must not be touched.
    ldr x1, [x0, #{ROOM_CHUNKS}]
    cmp x1, x17
    csel x17, x1, x17, lo
    add x1, x0, #{NEXT_CHUNK}
6:  ldaxr x2, [x1]
    cmp x2, x17
    b.hs 2f
    add x14, x2, #1
    stlxr w15, x14, [x1]
    cbnz w15, 6b
    add x2, x0, x2, lsl #{CHUNK_SHIFT}
    mov x17, #{CONTROL_SIZE}
    add x2, x2, x17
    add x0, x6, #{SEQ}
    HODO_ADD w17, #1, w14, x0
    str w17, [x2, #{H_SEQ}]
    ldr w17, [x6, #{TASK}]
    str w17, [x2, #{H_TASK}]
    ldr w17, [x6, #{EPOCH}]
    str w17, [x2, #{H_EPOCH}]
    ldr x17, [x6, #{LOST}]
    str x17, [x2, #{H_LOST}]
    HODO_CONSTANT w17, {CHUNK_MAGIC}
    str w17, [x2]
    add x17, x2, #{HEADER_AND_RECORD}
    str x17, [x6, #{CURSOR}]
    mov x17, #{CHUNK_LIMIT}
    add x17, x2, x17
    str x17, [x6, #{LIMIT}]
    add x2, x2, #{CHUNK_HEADER_SIZE}
    b 4f
    // There is no chunk, or recording has stopped: records go round in the bucket, and are counted.
2:  ldr x2, [x6, #{BUCKET}]
    mov x17, #{BUCKET_SIZE}
    add x17, x2, x17
    // This many bytes have gone round, if the limit is in it.
    ldr x1, [x6, #{LIMIT}]
    sub x1, x1, x2
    mov x0, #{BUCKET_ROOM}
    cmp x1, x0
    b.hi 3f
    lsr x1, x1, #{RECORD_SHIFT}
    add x0, x6, #{LOST}
    HODO_ADD x14, x1, x14, x0
    // The bucket is below all chunks, so here the limit is set first.
3:  str x17, [x6, #{LIMIT}]
    add x17, x2, #{RECORD_SIZE}
    str x17, [x6, #{CURSOR}]
4:  ldp x0, x1, [sp, #144]
    br x12

    // Only here: frame tables take it that nothing between the beginning and the end of a frame is outside of it.
9:  HODO_LEAVE 4

    // The chunk is full. The result is a place in a new one.
hodo_agent_chunk:
    HODO_ENTER
    HODO_CALL x12, hodo_agent_new_chunk
    HODO_SET x2
    HODO_LEAVE 4

    // A return address may be one in an island. The second word is the upper half of a record. The result is 1,
    // with that record, or 0.
hodo_agent_tail:
    HODO_ENTER
    ldr x17, [x6, #{ISLAND0_LO}]
    ldr x9, [x6, #{ISLAND0_LEN}]
    sub x17, x30, x17
    cmp x17, x9
    b.lo 1f
    ldr x17, [x6, #{ISLAND1_LO}]
    ldr x9, [x6, #{ISLAND1_LEN}]
    sub x17, x30, x17
    mov x0, #0
    cmp x17, x9
    b.hs 2f
1:  ldr w1, [x16, #4]
    HODO_CALL x9, hodo_agent_record
    mov x0, #1
2:  HODO_SET x0
    HODO_LEAVE 8

    // S is not in the window, or its shadow is not known to be mapped. The second word is the upper half of a
    // record; 0: there is none,
    // and the window stays. The result is 0, or 1 with that record if there can be no shadow.
    // The pieces that are mapped here are listed after the first range that the controller has mapped; without
    // one, what
    // is found mapped is taken for such a piece.
hodo_agent_shadow:
    HODO_ENTER
    // Was the function handed its return address by the one that jumped to it?
    ldr x17, [x6, #{HANDED_ON}]
    ldr x9, [x6, #({HANDED_ON} + 8)]
    str xzr, [x6, #{HANDED_ON}]
    cmp x17, x5
    b.ne 25f
    ldr w17, [x16, #4]
    cbz w17, 25f
    cmp x9, x30
    b.eq 26f
25:
    // It is known: only the window is another.
    ldr x17, [x6, #{SHADOW_LO}]
    ldr x9, [x6, #{SHADOW_LEN}]
    sub x10, x5, x17
    cmp x10, x9
    b.lo 8f
    // Mapped by the controller?
    ldr x17, [x6, #{REGION0_LO}]
    ldr x9, [x6, #{REGION0_LEN}]
    sub x10, x5, x17
    cmp x10, x9
    b.lo 11f
    ldr x17, [x6, #{REGION1_LO}]
    ldr x9, [x6, #{REGION1_LEN}]
    sub x10, x5, x17
    cmp x10, x9
    b.lo 11f
    ldr x10, [x6, #{TO_SHADOW}]
    add x0, x5, x10
    cmp x0, x5
    b.hs 9f
    and x0, x0, #-{SHADOW_STEP}
    cbz x0, 9f
    // Is it in the list of pieces that were mapped here?
    mov x11, #0
    ldr x17, [x6, #{REGION0_LEN}]
    cbz x17, 13f
    ldr x11, [x6, #{REGION0_LO}]
    add x11, x11, x17
    add x11, x11, x10
    add x17, x11, #({PIECES} * 8)
12: ldr x9, [x17, #-8]!
    cmp x9, x0
    b.eq 1f
    cmp x17, x11
    b.ne 12b
13: HODO_CALL x9, hodo_agent_may_call
    cbnz x17, 9f
    // It is listed first, so that other threads know whose it is as soon as it is mapped. Until then, the lowest
    // bit is set.
    mov x12, #0
    cbz x11, 15f
    add x1, x0, #1
    add x12, x11, #({PIECES} * 8)
14: sub x12, x12, #8
    cmp x12, x11
    b.lo 9f
19: ldaxr x17, [x12]
    cbnz x17, 14b
    stlxr w15, x1, [x12]
    cbnz w15, 19b
15: str x5, [sp, #160]
    mov x13, x0
    mov x1, #{SHADOW_STEP}
    mov x2, #3
    HODO_CONSTANT w3, 0x104022    // PRIVATE | ANONYMOUS | NORESERVE | FIXED_NOREPLACE
    mov x4, #-1
    mov x5, #0
    mov x8, #222                  // mmap
    HODO_CALL x9, hodo_agent_call
    ldr x5, [sp, #160]
    mov x9, x0
    mov x0, x13
    cmp x9, x0
    b.ne 21f
    cbz x12, 1f
    stlr x0, [x12]
    b 1f
21: cbz x12, 16f
    str xzr, [x12]
16: cmn x9, #17                   // EEXIST: mapped by another thread meanwhile, or by the program
    b.ne 17f
    cbz x11, 1f
    // Who has mapped it may not have said so yet.
    mov x2, #{TRIES}
    add x1, x0, #1
22: add x17, x11, #({PIECES} * 8)
18: ldr x9, [x17, #-8]!
    cmp x9, x0
    b.eq 1f
    cmp x9, x1
    b.eq 23f
    cmp x17, x11
    b.ne 18b
    b 9f
23: subs x2, x2, #1
    b.ne 22b
    b 9f
17: cmn x9, #1, lsl #12           // an error
    b.hs 9f
    // An old kernel ignored NOREPLACE and put it elsewhere: no shadow here.
    mov x0, x9
    mov x1, #{SHADOW_STEP}
    mov x8, #215                  // munmap
    HODO_CALL x9, hodo_agent_call
    b 9f
    // Keep the range [lo, lo + len) in the control block; neighbours are joined. A signal handler that comes in between
    // leaves the range alone. The length is 0 while the start changes.
1:  HODO_SET_BUSY x9, x14
    cbnz x9, 8f
    sub x0, x0, x10               // lo of the new piece
    ldr x17, [x6, #{SHADOW_LO}]
    ldr x9, [x6, #{SHADOW_LEN}]
    mov x1, #{SHADOW_STEP}
    add x11, x0, x1
    cmp x11, x17
    b.eq 2f
    add x11, x17, x9
    cmp x11, x0
    b.eq 3f
    mov x9, #0
    str xzr, [x6, #{SHADOW_LEN}]
2:  str x0, [x6, #{SHADOW_LO}]
3:  add x9, x9, x1
    str x9, [x6, #{SHADOW_LEN}]
    str xzr, [x6, #{SHADOW_BUSY}]
8:  ldr w17, [x16, #4]
    cbz w17, 24f
    HODO_CALL x9, hodo_agent_new_window
24: mov x0, #0
    b 10f
11: mov x0, x17
    HODO_SET_BUSY x10, x14
    cbnz x10, 8b
    str xzr, [x6, #{SHADOW_LEN}]
    str x0, [x6, #{SHADOW_LO}]
    str x9, [x6, #{SHADOW_LEN}]
    str xzr, [x6, #{SHADOW_BUSY}]
    b 8b
    "#, system_calls!(), windows!(), r#"
9:  add x0, x6, #{UNSHADOWED}
    HODO_ADD x14, #1, x14, x0
    ldr w17, [x16, #4]
    cbz w17, 20f
26: HODO_CALL x9, hodo_agent_new_window
    ldr w1, [x16, #4]
    HODO_CALL x9, hodo_agent_record
20: mov x0, #1
10: HODO_SET x0
    HODO_LEAVE 8

    // S is not in the window, and no shadow is needed.
hodo_agent_window:
    HODO_ENTER
    HODO_CALL x9, hodo_agent_new_window
    HODO_LEAVE 4

    // The frame at exit is not that at entry. In: the result's register = what its shadow has; the second word =
    // function id.
    // The result is the return address. The shadow of an open frame has its top bit set; the innermost such
    // frame is the one that
    // returns here.
hodo_agent_frame:
    HODO_ENTER
    HODO_GET x0, 5
    ldr x10, [x6, #{TO_SHADOW}]
    add x1, x6, #{BAD_FRAMES}
    HODO_ADD x14, #1, x14, x1
    mov x1, x5
    mov w11, #512
1:  sub x1, x1, #8
    ldr x9, [x1, x10]
    tbnz x9, #63, 5f
    subs w11, w11, #1
    b.ne 1b
    mov x1, x5
    mov w11, #512
3:  add x1, x1, #8
    ldr x9, [x1, x10]
    tbnz x9, #63, 5f
    subs w11, w11, #1
    b.ne 3b
    mov x1, #0
    b 6f
5:  str xzr, [x1, x10]
    and x0, x9, #0x7fffffffffffffff
6:  ldr x17, [x6, #{BAD_ID}]
    cbnz x17, 7f
    str x1, [x6, #{BAD_ENTRY}]
    str x5, [x6, #{BAD_EXIT}]
    ldr w17, [x16, #4]
    str x17, [x6, #{BAD_ID}]
7:  HODO_SET x0
    HODO_LEAVE 8

    // A call that was short ends. The second word = how long is short, the third = upper half of its entry
    // record. If its
    // entry and then only tail calls in its frame are the last records, they are taken back: the result is 1, or
    // else 0. The
    // records become holes first: a signal handler that comes before the cursor has moved records after them,
    // and then they
    // stay holes.
hodo_agent_tails:
    HODO_ENTER
    HODO_GET x0, 10
    mov w0, w0
    ldp w1, w2, [x16, #4]
    ubfx x17, x5, #4, #{SP_BITS}
    orr w2, w2, w17, lsl #{SP_SHIFT}
    ldr x3, [x6, #{CURSOR}]
    mov x4, x3
    mov w10, #64
1:  sub x4, x4, #{RECORD_SIZE}
    ldr w17, [x4, #4]
    cmp w17, w2
    b.eq 2f
    eor w9, w17, w2
    lsr w9, w9, #{SP_SHIFT}
    cbnz w9, 4f
    ubfx w17, w17, #{KIND_SHIFT}, #2
    cmp w17, #{TAIL}
    b.ne 4f
    subs w10, w10, #1
    b.ne 1b
    b 4f
2:  ldr w17, [x4]
    sub x17, x0, x17
    cmp x17, x1
    b.hs 4f
    mov x17, x4
3:  str xzr, [x17], #{RECORD_SIZE}
    cmp x17, x3
    b.lo 3b
5:  ldxr x17, [x6]
    cmp x17, x3
    b.ne 6f
    stxr w15, x4, [x6]
    cbnz w15, 5b
6:  mov x0, #1
    b 7f
4:  mov x0, #0
7:  HODO_SET x0
    HODO_LEAVE 12

    // The controller makes the target run single system calls here. If it ends meanwhile, the thread comes home,
    // by returning
    // from a signal handler.
hodo_agent_syscall:
    svc #0
    mov x8, #139                  // rt_sigreturn
    svc #0
hodo_agent_home_end:
hodo_agent_ret:
    ret
    .p2align 4
hodo_agent_end:
    .purgem HODO_ENTER
    .purgem HODO_LEAVE
    .purgem HODO_CALL
    .purgem HODO_GET
    .purgem HODO_SET
    .purgem HODO_SET_WINDOW
    .purgem HODO_CONSTANT
    .purgem HODO_ADD
    .purgem HODO_SET_BUSY
    .purgem HODO_EIGHT
    .popsection
    "#],
    STREAMS = const tcb::STREAMS,
);
