//! What runs before and after each `ecall` instruction when system calls are recorded. It writes one event with the
//! number and the arguments, and one with the result, each with the data that the arguments point to.
//!
//! A table that follows the code says of each system call what that is; `hodo_trace::syscalls` makes it. An event takes
//! as much room as the largest may need, and gives back what it did not use, unless a signal handler has recorded
//! meanwhile: then that stays a hole.
//!
//! The kernel puts the result where the first argument was; so that argument is kept in the thread's control block,
//! with the number and the stack pointer, by which it is found again.

use crate::constants::MARGIN;
use hodo_trace::format::{BLOCK_WORD, tcb};
use hodo_trace::syscalls::{ENTRY_SIZE, HEADER, NUMBERS, header, kind};

// The stack, from below: the arguments, their first six registers and the next, with the number in the last; temporary
// ones; the link; the time; the result; four words to work with.
//
// Registers: t6 = the control block, t5 = the event's place, t4 = where to go on, t3 = where no piece may begin any
// more, a7 = descriptors, a6 = the upper half of the record. Links: ra, then a5, then a4.
around_system_calls!(
    r#"
    .pushsection .rodata.hodo_agent_syscalls, "a", @progbits
    .option push
    .option norelax
    .option arch, +m, +a, +c
    .p2align 6
    .globl hodo_sys_start, hodo_sys_enter, hodo_sys_exit, hodo_sys_faults, hodo_sys_faults_end, hodo_sys_end
    .hidden hodo_sys_start, hodo_sys_enter, hodo_sys_exit, hodo_sys_faults, hodo_sys_faults_end, hodo_sys_end

    .macro HODO_SYS_ENTER
    addi sp, sp, -{FRAME}
    sd a0, 0(sp)
    sd a1, 8(sp)
    sd a2, 16(sp)
    sd a3, 24(sp)
    sd a4, 32(sp)
    sd a5, 40(sp)
    sd a6, 48(sp)
    sd a7, 56(sp)
    sd t0, 64(sp)
    sd t1, 72(sp)
    sd t2, 80(sp)
    sd t3, 88(sp)
    sd t4, 96(sp)
    sd t5, 104(sp)
    sd t6, 112(sp)
    sd ra, 120(sp)
    sd a0, {RESULT_AT}(sp)
    ld t6, {BLOCK}(tp)
    # Without a control block this faults, and t6 is put right.
    ld t0, {LIMIT}(t6)
    # The program's stack pointer, and the words for it.
    addi t2, sp, {FRAME} + 16
    andi t0, t2, 0x30
    add t0, t0, t6
    .endm

    # Takes them back. `result`: where the first is.
    .macro HODO_SYS_LEAVE result
    ld a0, \result(sp)
    ld a1, 8(sp)
    ld a2, 16(sp)
    ld a3, 24(sp)
    ld a4, 32(sp)
    ld a5, 40(sp)
    ld a6, 48(sp)
    ld a7, 56(sp)
    ld t0, 64(sp)
    ld t1, 72(sp)
    ld t2, 80(sp)
    ld t3, 88(sp)
    ld t4, 96(sp)
    ld t5, 104(sp)
    ld t6, 112(sp)
    ld ra, 120(sp)
    addi sp, sp, {FRAME}
    ret
    .endm

    # t1 = the entry of the number in t1. Clobbers t0.
    .macro HODO_SYS_ENTRY
    li t0, {ENTRY_SIZE}
    mul t1, t1, t0
    lla t0, hodo_sys_end + {HEADER}
    add t1, t1, t0
    .endm

hodo_sys_start:

    # Before a system call. In: all registers are the program's, but ra, and sp, which is 16 below. Clobbers ra.
hodo_sys_enter:
    HODO_SYS_ENTER
    mv t1, a7
    li a6, {NUMBERS}
    bltu t1, a6, 1f
    mv t1, a6
    # The first word comes first: what comes in between leaves one that is not found again.
1:  slli a6, t1, 48
    or a6, a6, t2
    sd a6, {SLOTS}(t0)
    sd a0, {SLOTS} + 8(t0)
    HODO_SYS_ENTRY
    ld t2, 8(t1)
    bltz t2, 9f
    ld a7, 0(t1)
    srli a5, t2, 48
    lla t0, hodo_sys_end
    lw a6, 16(t0)
    jal ra, hodo_sys_begin
    ld t0, 56(sp)
    sd t0, 0(t4)
    addi t4, t4, 8
    # The arguments.
    mv t1, sp
2:  beqz a5, 3f
    addi a5, a5, -1
    ld t0, 0(t1)
    sd t0, 0(t4)
    addi t1, t1, 8
    addi t4, t4, 8
    j 2b
3:  jal ra, hodo_sys_pieces
9:  HODO_SYS_LEAVE 0

    # Behind a system call. As above.
    .p2align 2
hodo_sys_exit:
    HODO_SYS_ENTER
    # In a child, or when a signal handler's system calls came in between, the number is not known.
    ld a6, {SLOTS}(t0)
    srli t1, a6, 48
    slli a6, a6, 16
    srli a6, a6, 16
    bne a6, t2, 1f
    ld a6, {SLOTS} + 8(t0)
    sd a6, 0(sp)
    j 2f
1:  li t1, {NUMBERS} + 1
2:  HODO_SYS_ENTRY
    ld a7, 8(t1)
    bltz a7, 9f
    slli a7, a7, 16
    srli a7, a7, 16
    lla t0, hodo_sys_end
    lw a6, 20(t0)
    jal ra, hodo_sys_begin
    ld t0, {RESULT_AT}(sp)
    sd t0, 0(t4)
    addi t4, t4, 8
    # What an error leaves after is not looked at.
    li t1, -4096
    bgeu t1, t0, 3f
    li a7, 0
3:  jal ra, hodo_sys_pieces
9:  HODO_SYS_LEAVE {RESULT_AT}

    # Begins an event. Out: t5, t4, t3, and the time on the stack. Clobbers t0 to t2.
    .p2align 2
hodo_sys_begin:
    sd zero, {TIME_AT}(sp)
    lla t1, hodo_sys_end
    lbu t0, 24(t1)
    andi t0, t0, 1
    beqz t0, 1f
    rdtime t2
    sd t2, {TIME_AT}(sp)
    ld t0, {EPOCH_END}(t6)
    bltu t2, t0, 1f
    ld t1, 0(t1)
    addi sp, sp, -16
    jalr t0, 0(t1)
    # As hodo's stubs describe: t6, t5, t2.
    .word 31 | 30 << 5 | 7 << 10 | 1 << 20
    addi sp, sp, 16
1:  lla t1, hodo_sys_end
    lwu t1, {EVENT}(t1)
    amoadd.d t5, t1, (t6)
    add t1, t1, t5
    ld t0, {LIMIT}(t6)
    bltu t0, t1, 2f
    # A signal handler may have opened another chunk between these instructions: is it still one chunk?
    addi t1, t1, -1
    xor t1, t1, t5
    srli t1, t1, 16
    bnez t1, hodo_sys_begin
    j 3f
2:  lla t1, hodo_sys_end
    ld t1, 8(t1)
    addi sp, sp, -16
    jalr t0, 0(t1)
    .word 31 | 30 << 5 | 7 << 10 | 1 << 20
    addi sp, sp, 16
    j hodo_sys_begin
    # The payload comes before its record: a reader must never take it for records.
3:  lla t3, hodo_sys_end
    ld t1, {PAYLOAD}(t3)
    lwu t3, {EVENT}(t3)
    sd t1, 8(t5)
    li t1, -1
    slli t1, t1, 32
    sd t1, 16(t5)
    addi t4, t5, 24
    add t3, t3, t5
    addi t3, t3, -{MARGIN}
    ret

    # Fetches what the descriptors in a7 say, and ends the event. Clobbers all but t6.
    .p2align 2
hodo_sys_pieces:
    slli t0, a7, 48
    beqz t0, 5f
    srli t0, t0, 48
    andi a0, t0, 7
    srli a1, t0, 3
    andi a1, a1, 7
    srli a3, t0, 6
    slli t1, a1, 3
    add t1, t1, sp
    ld a2, 0(t1)
    jal a5, hodo_sys_piece
    srli a7, a7, 16
    j hodo_sys_pieces
5:  sub t0, t4, t5
    srli t0, t0, 3
    addi t0, t0, -2
    sw t0, 8(t5)
    ld t1, {TIME_AT}(sp)
    slli t1, t1, 32
    srli t1, t1, 32
    slli a6, a6, 32
    or a6, a6, t1
    fence w, w
    sd a6, 0(t5)
    addi t1, t3, {MARGIN}
6:  lr.d t0, (t6)
    bne t0, t1, 7f
    sc.d t0, t4, (t6)
    bnez t0, 6b
7:  ret

    # One piece. In: a0 = kind, a1 = number of the argument, a2 = its value, a3 = parameter. Link: a5. Keeps a6, a7.
    .p2align 2
hodo_sys_piece:
    beqz a2, hodo_sys_nothing
    bgeu t4, t3, hodo_sys_nothing
    mv a4, a5
    li t0, {TEXT}
    beq a0, t0, hodo_sys_text
    mv t1, a3
    li t0, {FIXED}
    beq a0, t0, hodo_sys_bytes
    li t0, {SIZED}
    beq a0, t0, 1f
    li t0, {RESULT}
    beq a0, t0, 2f
    li t0, {TEXTS}
    beq a0, t0, hodo_sys_texts
    li t0, {PARTS}
    beq a0, t0, hodo_sys_parts
    li t0, {SPECIAL}
    beq a0, t0, hodo_sys_special
hodo_sys_nothing:
    jr a5
    # As many bytes as another argument says.
1:  andi t0, a3, 7
    slli t0, t0, 3
    add t0, t0, sp
    ld t1, 0(t0)
    j 3f
    # As many as the result says.
2:  ld t1, {RESULT_AT}(sp)
3:  srli t0, a3, 3
    andi t0, t0, 7
    srli a3, a3, 6
    slli a3, a3, 4
    bnez a3, 5f
    lla a3, hodo_sys_end
    lwu a3, {BUFFER}(a3)
5:
    # t1 << t0, at most a3
    bgeu a3, t1, 4f
    mv t1, a3
4:  sll t1, t1, t0
    bgeu a3, t1, hodo_sys_bytes
    mv t1, a3

    # t1 bytes at a2. Link: a4. Clobbers t0 to t2, a0, a2.
hodo_sys_bytes:
    mv t2, t4
    addi t4, t4, 8
    bltu t3, t4, 7f
    sub t0, t3, t4
    bgeu t0, t1, 1f
    mv t1, t0
1:  li a0, 1
    srli t0, a2, 16
    beqz t0, 4f
    srli t0, t0, 31
    bnez t0, 4f
2:  sltiu t0, t1, 8
    bnez t0, 3f
hodo_sys_load8:
    ld t0, 0(a2)
    sd t0, 0(t4)
    addi a2, a2, 8
    addi t4, t4, 8
    addi t1, t1, -8
    j 2b
3:  li a0, 0
    beqz t1, 4f
hodo_sys_load1:
    lbu t0, 0(a2)
    sb t0, 0(t4)
    addi a2, a2, 1
    addi t4, t4, 1
    addi t1, t1, -1
    j 3b
hodo_sys_fault:
    li a0, 1
    # The header: bytes, number of the argument, whether it is all.
4:  sub t0, t4, t2
    addi t0, t0, -8
    slli t1, a1, 16
    or t0, t0, t1
    slli t1, a0, 24
    or t0, t0, t1
    sd t0, 0(t2)
    addi t4, t4, 7
    andi t4, t4, -8
    jr a4
7:  mv t4, t2
    jr a4

    # A string at a2, of a3 bytes at most. Link: a4. Clobbers t0 to t2, a0, a2, a3.
    .p2align 2
hodo_sys_text:
    mv t2, t4
    addi t4, t4, 8
    bltu t3, t4, 7b
    sub t0, t3, t4
    bgeu t0, a3, 1f
    mv a3, t0
1:  li a0, 1
    srli t0, a2, 16
    beqz t0, 4b
    srli t0, t0, 31
    bnez t0, 4b
    li a0, 0
2:  beqz a3, 4b
hodo_sys_load_text:
    lbu t0, 0(a2)
    beqz t0, 3f
    sb t0, 0(t4)
    addi a2, a2, 1
    addi t4, t4, 1
    addi a3, a3, -1
    j 2b
    # It ends here, and it is all.
3:  li a0, 2
    j 4b

    # Pointers at a2 up to a zero: the first as strings, of the others only how many there are. The parameter is
    # how many
    # strings there are at most.
    .p2align 2
hodo_sys_texts:
    srli t0, a2, 12
    beqz t0, hodo_sys_nothing
    sd a2, {WORK}(sp)
    sd a3, {WORK} + 8(sp)
1:  ld t0, {WORK} + 8(sp)
    beqz t0, 3f
    addi t0, t0, -1
    sd t0, {WORK} + 8(sp)
    ld t1, {WORK}(sp)
hodo_sys_load_pointer:
    ld a2, 0(t1)
    addi t1, t1, 8
    sd t1, {WORK}(sp)
    beqz a2, hodo_sys_nothing
    lla a3, hodo_sys_end
    lwu a3, {STRING}(a3)
    jal a4, hodo_sys_text
    bltu t4, t3, 1b
    # The others.
3:  ld t1, {WORK}(sp)
    li t2, 0
    li a0, 65536
hodo_sys_load_other:
    ld t0, 0(t1)
    beqz t0, 4f
    addi t1, t1, 8
    addi t2, t2, 1
    bltu t2, a0, hodo_sys_load_other
4:  sd t2, 8(t4)
    slli t0, a1, 16
    li t1, 0x04000008
    or t0, t0, t1
    sd t0, 0(t4)
    addi t4, t4, 16
    jr a5

    # Pairs of address and length at a2, as many as an argument says, and what they point to.
    .p2align 2
hodo_sys_parts:
    addi t0, t4, 160
    bltu t3, t0, hodo_sys_nothing
    andi a0, a3, 7
    slli t0, a0, 3
    add t0, t0, sp
    ld t1, 0(t0)
    li t0, {MESSAGE}
    bne a0, t0, 6f
    # A struct msghdr has them.
    srli t0, a2, 12
    beqz t0, hodo_sys_nothing
hodo_sys_load_message:
    ld t1, 24(a2)
hodo_sys_load_message2:
    ld a2, 16(a2)
6:  li t0, 8
    bgeu t0, t1, 1f
    mv t1, t0
1:  slli t1, t1, 4
    lla a3, hodo_sys_end
    lwu a3, {BUFFER}(a3)
    addi t0, t4, 8
    sd t0, {WORK}(sp)
    jal a4, hodo_sys_bytes
    # From here on what was copied is read, as far as it was.
    sd t4, {WORK} + 8(sp)
2:  ld t2, {WORK}(sp)
    ld t0, {WORK} + 8(sp)
    addi t1, t2, 16
    bltu t0, t1, hodo_sys_nothing
    sd t1, {WORK}(sp)
    ld a2, 0(t2)
    ld t1, 8(t2)
    bgeu a3, t1, 3f
    mv t1, a3
3:  beqz t1, 2b
    bgeu t4, t3, hodo_sys_nothing
    jal a4, hodo_sys_bytes
    j 2b

    # What depends on another argument.
    .p2align 2
hodo_sys_special:
    li t0, {WAIT}
    beq a3, t0, 3f
    li t0, {NAME}
    beq a3, t0, 5f
    li t0, {LOCK}
    beq a3, t0, 6f
    li t0, {DEVICE}
    beq a3, t0, 8f
    # How many directory entries the result has.
    ld t1, {RESULT_AT}(sp)
    li t2, 0
    li a0, 0
1:  bgeu a0, t1, 2f
    add t0, a2, a0
hodo_sys_load_entry:
    lhu t0, 16(t0)
    beqz t0, 2f
    add a0, a0, t0
    addi t2, t2, 1
    j 1b
2:  sd t2, 8(t4)
    slli t0, a1, 16
    ori t0, t0, 8
    sd t0, 0(t4)
    addi t4, t4, 16
    jr a5
    # The time limit of a futex operation that waits.
3:  lw t0, 8(sp)
    andi t0, t0, 0x7F
    li t2, {WAITING}
    li t1, 16
    j 9f
    # The name that a thread gives itself.
5:  lw t0, 0(sp)
    li t1, 15
    bne t0, t1, hodo_sys_nothing
    li a3, 16
    j hodo_sys_text
    # The lock that fcntl is about.
6:  lw t0, 8(sp)
    li t1, 32
    li t2, {LOCKS}
    j 9f
    # The number or the size of a window that ioctl is about.
8:  lw t0, 8(sp)
    li t1, {DEVICE_FIRST}
    sub t0, t0, t1
    li t1, 8
    li t2, {DEVICES}
9:  sltiu a0, t0, 64
    beqz a0, hodo_sys_nothing
    srl t2, t2, t0
    andi t2, t2, 1
    bnez t2, hodo_sys_bytes
    jr a5

    .p2align 3
hodo_sys_end:
hodo_sys_faults:
    .word hodo_sys_load8 - hodo_sys_start, hodo_sys_fault - hodo_sys_start
    .word hodo_sys_load1 - hodo_sys_start, hodo_sys_fault - hodo_sys_start
    .word hodo_sys_load_text - hodo_sys_start, hodo_sys_fault - hodo_sys_start
    .word hodo_sys_load_pointer - hodo_sys_start, hodo_sys_nothing - hodo_sys_start
    .word hodo_sys_load_other - hodo_sys_start, hodo_sys_nothing - hodo_sys_start
    .word hodo_sys_load_message - hodo_sys_start, hodo_sys_nothing - hodo_sys_start
    .word hodo_sys_load_message2 - hodo_sys_start, hodo_sys_nothing - hodo_sys_start
    .word hodo_sys_load_entry - hodo_sys_start, hodo_sys_nothing - hodo_sys_start
hodo_sys_faults_end:
    .purgem HODO_SYS_ENTER
    .purgem HODO_SYS_LEAVE
    .purgem HODO_SYS_ENTRY
    .option pop
    .popsection
    "#,
    FRAME = const 176,
    TIME_AT = const 128,
    RESULT_AT = const 136,
    WORK = const 144,
    BLOCK = const BLOCK_WORD,
    EPOCH_END = const tcb::EPOCH_END,
);
