//! The slow paths for RISC-V, as a blob of position-independent code.
//!
//! A stub works with registers that differ from site to site. It puts `t0` on the stack, in 16 bytes of its own, and
//! calls with `t0` as link. The words after the call say where things are (`stub/slow.rs` of `hodo-codegen`): the first
//! one has, from bit 0 on, the numbers of three registers (the control block's address; an argument or result; the
//! time), how many times 16 bytes the stack pointer of the stub is below S, and whether records have a time. All
//! registers are kept but the result's.
//!
//! The link register `ra` is never changed here, and neither is `t0`: so unwinders find their way from any instruction,
//! by the stack pointer alone.

use hodo_trace::format::{
    BUCKET_ROOM, BUCKET_SIZE, CHUNK_HEADER_SIZE, CHUNK_MAGIC, CHUNK_SIZE, CONTROL_SIZE,
    RECORD_SIZE, WINDOW_SIZE, chunk_header, file_header, record, tcb,
};

use super::calls::{MOST_KEPT, system_calls};
use super::macros::macros;
use super::windows::windows;
use crate::constants::{PIECES, SHADOW_STEP, SPARE, TRIES};
use crate::linked::ATTEMPTS;

linked_slow_paths!(
    [r#"
    .pushsection .rodata.hodo_agent, "a", @progbits
    .option push
    .option arch, +m, +a, +c
    .p2align 6
    .globl hodo_agent_start, hodo_agent_epoch, hodo_agent_chunk, hodo_agent_shadow, hodo_agent_tail
    .globl hodo_agent_syscall, hodo_agent_end, hodo_agent_frame, hodo_agent_tails, hodo_agent_ret, hodo_agent_window
    .hidden hodo_agent_start, hodo_agent_epoch, hodo_agent_chunk, hodo_agent_shadow, hodo_agent_tail
    .hidden hodo_agent_syscall, hodo_agent_end, hodo_agent_frame, hodo_agent_tails, hodo_agent_ret, hodo_agent_window

    "#, macros!(), r#"
hodo_agent_start:

    # The time has another upper half.
hodo_agent_epoch:
    HODO_ENTER
    HODO_GET a0, 10
    jal t4, hodo_agent_new_epoch
    j 9f

    # What others jump to, with the same stack pointer as here. Links are t2 to t5, from the outermost to the innermost.

    # One record. In: a1 = the record's upper half without the stack bits. Clobbers a0 to a4, t1, t3 to t5.
    .p2align 2
hodo_agent_record:
    li a0, 0
    slli t1, a7, 63 - 20
    bgez t1, 1f
    rdtime a0
    ld t1, {EPOCH_END}(a6)
    bltu a0, t1, 1f
    mv a3, a1
    jal t4, hodo_agent_new_epoch
    mv a1, a3
1:  jal t3, hodo_agent_place
    slli t1, a5, 64 - 4 - {SP_BITS}
    srli t1, t1, 64 - {SP_BITS}
    slli t1, t1, {SP_SHIFT}
    or a1, a1, t1
    sw a0, 0(a2)
    sw a1, 4(a2)
    jr t2

    # A record of the upper half of a time, a0. The record comes first: what records in between makes one of its
    # own. Clobbers a1,
    # a2, t1, t3, t5.
hodo_agent_new_epoch:
    srli a1, a0, 32
    jal t3, hodo_agent_place
    sw a1, 0(a2)
    li t1, {EPOCH_INFO}
    sw t1, 4(a2)
    sw a1, {EPOCH}(a6)
    addi a1, a1, 1
    slli a1, a1, 32
    sd a1, {EPOCH_END}(a6)
    jr t4

    # a2 = a place for a record. Clobbers t1, t5.
hodo_agent_place:
    li t1, {RECORD_SIZE}
    amoadd.d a2, t1, (a6)
    ld t1, {LIMIT}(a6)
    bgeu a2, t1, 1f
    jr t3
1:  jal t5, hodo_agent_new_chunk
    jr t3

    # a2 = a place in a new chunk. Clobbers t1.
    # The cursor is set before the limit: chunks come in ascending order, so a signal handler in between sees a cursor
    # above the limit and opens a chunk of its own.
hodo_agent_new_chunk:
    # Each chunk names its window: a reader may not have those before it.
    HODO_SET_WINDOW zero
    sd a0, 24(sp)
    sd a1, 32(sp)
    ld a0, {BASE}(a6)
    # Without a recorder, nobody makes good what a full disk does.
    lw t1, {OWNER}(a0)
    li a2, {OWNER_DIED}
    and t1, t1, a2
    bnez t1, 2f
    ld t1, {MAX_CHUNKS}(a6)
    # The file grows: what it has no room for yet must not be touched.
    ld a1, {ROOM_CHUNKS}(a0)
    bgeu a1, t1, 5f
    mv t1, a1
5:  addi a1, a0, {NEXT_CHUNK}
6:  lr.d.aqrl a2, (a1)
    bgeu a2, t1, 2f
    addi a0, a2, 1
    sc.d.aqrl a0, a0, (a1)
    bnez a0, 6b
    ld a0, {BASE}(a6)
    li a1, 1
    slli a2, a2, {CHUNK_SHIFT}
    add a2, a2, a0
    li t1, {CONTROL_SIZE}
    add a2, a2, t1
    addi t1, a6, {SEQ}
    amoadd.w t1, a1, (t1)
    sw t1, {H_SEQ}(a2)
    lw t1, {TASK}(a6)
    sw t1, {H_TASK}(a2)
    lw t1, {EPOCH}(a6)
    sw t1, {H_EPOCH}(a2)
    ld t1, {LOST}(a6)
    sd t1, {H_LOST}(a2)
    li t1, {CHUNK_MAGIC}
    sw t1, 0(a2)
    addi t1, a2, {HEADER_AND_RECORD}
    sd t1, {CURSOR}(a6)
    li t1, {CHUNK_LIMIT}
    add t1, a2, t1
    sd t1, {LIMIT}(a6)
    addi a2, a2, {CHUNK_HEADER_SIZE}
    j 4f
    # There is no chunk, or recording has stopped: records go round in the bucket, and are counted.
2:  ld a2, {BUCKET}(a6)
    li t1, {BUCKET_SIZE}
    add t1, a2, t1
    # This many bytes have gone round, if the limit is in it.
    ld a1, {LIMIT}(a6)
    sub a1, a1, a2
    li a0, {BUCKET_ROOM}
    bltu a0, a1, 3f
    srli a1, a1, {RECORD_SHIFT}
    addi a0, a6, {LOST}
    amoadd.d zero, a1, (a0)
    # The bucket is below all chunks, so here the limit is set first.
3:  sd t1, {LIMIT}(a6)
    addi t1, a2, {RECORD_SIZE}
    sd t1, {CURSOR}(a6)
4:  ld a0, 24(sp)
    ld a1, 32(sp)
    jr t5

9:  HODO_LEAVE 4

    # The chunk is full. The result is a place in a new one.
    .p2align 2
hodo_agent_chunk:
    HODO_ENTER
    jal t5, hodo_agent_new_chunk
    HODO_SET a2
    HODO_LEAVE 4

    # A return address may be one in an island. The second word is the upper half of a record. The result is 1,
    # with that record, or 0.
    .p2align 2
hodo_agent_tail:
    HODO_ENTER
    ld t1, {ISLAND0_LO}(a6)
    ld t2, {ISLAND0_LEN}(a6)
    sub t1, ra, t1
    bltu t1, t2, 1f
    ld t1, {ISLAND1_LO}(a6)
    ld t2, {ISLAND1_LEN}(a6)
    sub t1, ra, t1
    li a0, 0
    bgeu t1, t2, 2f
1:  lwu a1, 4(t0)
    jal t2, hodo_agent_record
    li a0, 1
2:  HODO_SET a0
    HODO_LEAVE 8

    # S is not in the window, or its shadow is not known to be mapped. The second word is the upper half of a
    # record; 0: there is none, and
    # the window stays. The result is 0, or 1 with that record if there can be no shadow.
    # The pieces that are mapped here are listed after the first range that the controller has mapped; without one, what
    # is found mapped is taken for such a piece.
    .p2align 2
hodo_agent_shadow:
    HODO_ENTER
    # Was the function handed its return address by the one that jumped to it?
    ld t1, {HANDED_ON}(a6)
    ld t2, {HANDED_ON} + 8(a6)
    sd zero, {HANDED_ON}(a6)
    bne t1, a5, 25f
    lwu t1, 4(t0)
    beqz t1, 25f
    beq t2, ra, 26f
25:
    # It is known: only the window is another.
    ld t1, {SHADOW_LO}(a6)
    ld t2, {SHADOW_LEN}(a6)
    sub t3, a5, t1
    bltu t3, t2, 8f
    # Mapped by the controller?
    ld t1, {REGION0_LO}(a6)
    ld t2, {REGION0_LEN}(a6)
    sub t3, a5, t1
    bltu t3, t2, 11f
    ld t1, {REGION1_LO}(a6)
    ld t2, {REGION1_LEN}(a6)
    sub t3, a5, t1
    bltu t3, t2, 11f
    ld t3, {TO_SHADOW}(a6)
    add a0, a5, t3
    bgeu a0, a5, 9f
    li t1, -{SHADOW_STEP}
    and a0, a0, t1
    beqz a0, 9f
    # Is it in the list of pieces that were mapped here?
    li t4, 0
    ld t1, {REGION0_LEN}(a6)
    beqz t1, 13f
    ld t4, {REGION0_LO}(a6)
    add t4, t4, t1
    add t4, t4, t3
    li t1, {PIECES} * 8
    add t1, t4, t1
12: addi t1, t1, -8
    ld t2, 0(t1)
    beq t2, a0, 1f
    bne t1, t4, 12b
13: jal t2, hodo_agent_may_call
    bnez t1, 9f
    # It is listed first, so that other threads know whose it is as soon as it is mapped. Until then, the lowest
    # bit is set.
    li t5, 0
    beqz t4, 15f
    addi a1, a0, 1
    li t5, {PIECES} * 8
    add t5, t4, t5
14: addi t5, t5, -8
    bltu t5, t4, 9f
19: lr.d.aqrl t1, (t5)
    bnez t1, 14b
    sc.d.aqrl t1, a1, (t5)
    bnez t1, 19b
15: sd a5, 0(sp)
    mv t6, a0
    li a1, {SHADOW_STEP}
    li a2, 3
    li a3, 0x104022               # PRIVATE | ANONYMOUS | NORESERVE | FIXED_NOREPLACE
    li a4, -1
    li a5, 0
    li a7, 222                    # mmap
    jal t2, hodo_agent_call
    ld a5, 0(sp)
    mv t2, a0
    mv a0, t6
    bne t2, a0, 21f
    beqz t5, 1f
    fence rw, w
    sd a0, 0(t5)
    j 1f
21: beqz t5, 16f
    sd zero, 0(t5)
16: li t1, -17                    # EEXIST: mapped by another thread meanwhile, or by the program
    bne t2, t1, 17f
    beqz t4, 1f
    # Who has mapped it may not have said so yet.
    li a2, {TRIES}
    addi a1, a0, 1
22: li t1, {PIECES} * 8
    add t1, t4, t1
18: addi t1, t1, -8
    ld t2, 0(t1)
    beq t2, a0, 1f
    beq t2, a1, 23f
    bne t1, t4, 18b
    j 9f
23: addi a2, a2, -1
    bnez a2, 22b
    j 9f
17: li t1, -4096
    bgeu t2, t1, 9f
    # An old kernel ignored NOREPLACE and put it elsewhere: no shadow here.
    mv a0, t2
    li a1, {SHADOW_STEP}
    li a7, 215                    # munmap
    jal t2, hodo_agent_call
    j 9f
    # Keep the range [lo, lo + len) in the control block; neighbours are joined. A signal handler that comes in between
    # leaves the range alone. The length is 0 while the start changes.
1:  addi t1, a6, {SHADOW_BUSY}
    li t2, 1
    amoswap.d t2, t2, (t1)
    bnez t2, 8f
    sub a0, a0, t3                # lo of the new piece
    ld t1, {SHADOW_LO}(a6)
    ld t2, {SHADOW_LEN}(a6)
    li a1, {SHADOW_STEP}
    add t4, a0, a1
    beq t4, t1, 2f
    add t4, t1, t2
    beq t4, a0, 3f
    li t2, 0
    sd zero, {SHADOW_LEN}(a6)
2:  sd a0, {SHADOW_LO}(a6)
3:  add t2, t2, a1
    sd t2, {SHADOW_LEN}(a6)
    sd zero, {SHADOW_BUSY}(a6)
8:  lwu t1, 4(t0)
    beqz t1, 24f
    jal t2, hodo_agent_new_window
24: li a0, 0
    j 10f
11: addi t3, a6, {SHADOW_BUSY}
    li t4, 1
    amoswap.d t4, t4, (t3)
    bnez t4, 8b
    sd zero, {SHADOW_LEN}(a6)
    sd t1, {SHADOW_LO}(a6)
    sd t2, {SHADOW_LEN}(a6)
    sd zero, {SHADOW_BUSY}(a6)
    j 8b
    "#, system_calls!(), windows!(), r#"
9:  addi t1, a6, {UNSHADOWED}
    li t2, 1
    amoadd.d zero, t2, (t1)
    lwu t1, 4(t0)
    beqz t1, 20f
26: jal t2, hodo_agent_new_window
    lwu a7, 0(t0)
    lwu a1, 4(t0)
    jal t2, hodo_agent_record
20: li a0, 1
10: lwu a7, 0(t0)
    HODO_SET a0
    HODO_LEAVE 8

    # S is not in the window, and no shadow is needed.
    .p2align 2
hodo_agent_window:
    HODO_ENTER
    jal t2, hodo_agent_new_window
    HODO_LEAVE 4

    # The frame at exit is not that at entry. In: the result's register = what its shadow has; the second word =
    # function id.
    # The result is the return address. The shadow of an open frame has its top bit set; the innermost such frame
    # is the one that
    # returns here.
    .p2align 2
hodo_agent_frame:
    HODO_ENTER
    HODO_GET a0, 5
    ld t3, {TO_SHADOW}(a6)
    addi t1, a6, {BAD_FRAMES}
    li t2, 1
    amoadd.d zero, t2, (t1)
    mv a1, a5
    li t4, 512
1:  addi a1, a1, -8
    add t1, a1, t3
    ld t2, 0(t1)
    bltz t2, 5f
    addi t4, t4, -1
    bnez t4, 1b
    mv a1, a5
    li t4, 512
3:  addi a1, a1, 8
    add t1, a1, t3
    ld t2, 0(t1)
    bltz t2, 5f
    addi t4, t4, -1
    bnez t4, 3b
    li a1, 0
    j 6f
5:  sd zero, 0(t1)
    slli a0, t2, 1
    srli a0, a0, 1
6:  ld t1, {BAD_ID}(a6)
    bnez t1, 7f
    sd a1, {BAD_ENTRY}(a6)
    sd a5, {BAD_EXIT}(a6)
    lwu t1, 4(t0)
    sd t1, {BAD_ID}(a6)
7:  HODO_SET a0
    HODO_LEAVE 8

    # A call that was short ends. The second word = how long is short, the third = upper half of its entry record.
    # If its
    # entry and then only tail calls in its frame are the last records, they are taken back: the result is 1, or
    # else 0. The
    # records become holes first: a signal handler that comes before the cursor has moved records after them, and
    # then they
    # stay holes.
    .p2align 2
hodo_agent_tails:
    HODO_ENTER
    HODO_GET a0, 10
    slli a0, a0, 32
    srli a0, a0, 32
    lwu a1, 4(t0)
    lwu a2, 8(t0)
    slli t1, a5, 64 - 4 - {SP_BITS}
    srli t1, t1, 64 - {SP_BITS}
    slli t1, t1, {SP_SHIFT}
    or a2, a2, t1
    ld a3, {CURSOR}(a6)
    mv a4, a3
    li t3, 64
1:  addi a4, a4, -{RECORD_SIZE}
    lwu t1, 4(a4)
    beq t1, a2, 2f
    xor t2, t1, a2
    srli t2, t2, {SP_SHIFT}
    bnez t2, 4f
    srli t1, t1, {KIND_SHIFT}
    andi t1, t1, 3
    li t2, {TAIL}
    bne t1, t2, 4f
    addi t3, t3, -1
    bnez t3, 1b
    j 4f
2:  lwu t1, 0(a4)
    sub t1, a0, t1
    bgeu t1, a1, 4f
    mv t1, a4
3:  sd zero, 0(t1)
    addi t1, t1, {RECORD_SIZE}
    bltu t1, a3, 3b
5:  lr.d t1, (a6)
    bne t1, a3, 6f
    sc.d t1, a4, (a6)
    bnez t1, 5b
6:  li a0, 1
    j 7f
4:  li a0, 0
7:  HODO_SET a0
    HODO_LEAVE 12

    # The controller makes the target run single system calls here.
    .p2align 2
hodo_agent_syscall:
    ecall
    ebreak
hodo_agent_ret:
    ret
    .p2align 4
hodo_agent_end:
    .purgem HODO_ENTER
    .purgem HODO_LEAVE
    .purgem HODO_GET
    .purgem HODO_SET
    .purgem HODO_SET_WINDOW
    .option pop
    .popsection
    "#],
    MOST_KEPT = const MOST_KEPT,
);
