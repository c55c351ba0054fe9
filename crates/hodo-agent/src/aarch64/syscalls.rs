//! What runs before and after each `svc` instruction when system calls are recorded. It writes one event with the
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

// The stack, from below: x0 to x17 by their numbers, of which the first are the arguments, and x8 is the number; the
// link; the flags; the time; the result; two words to work with.
//
// Registers: x15 = the control block, x14 = the event's place, x13 = where to go on, x12 = where no piece may begin any
// more, x7 = descriptors, x6 = the upper half of the record. Links: x30, then x5, then x4. For the agent: x16 and x17.
around_system_calls!(
    r#"
    .pushsection .rodata.hodo_agent_syscalls, "a", @progbits
    .p2align 6
    .globl hodo_sys_start, hodo_sys_enter, hodo_sys_exit, hodo_sys_faults, hodo_sys_faults_end, hodo_sys_end
    .hidden hodo_sys_start, hodo_sys_enter, hodo_sys_exit, hodo_sys_faults, hodo_sys_faults_end, hodo_sys_end

    .macro HODO_SYS_ENTER
    sub sp, sp, #{FRAME}
    stp x0, x1, [sp]
    stp x2, x3, [sp, #16]
    stp x4, x5, [sp, #32]
    stp x6, x7, [sp, #48]
    stp x8, x9, [sp, #64]
    stp x10, x11, [sp, #80]
    stp x12, x13, [sp, #96]
    stp x14, x15, [sp, #112]
    stp x16, x17, [sp, #128]
    mrs x9, nzcv
    stp x30, x9, [sp, #144]
    str x0, [sp, #{RESULT_AT}]
    mrs x15, tpidr_el0
    ldr x15, [x15, #{BLOCK}]
    // Without a control block this faults, and x15 is put right.
    ldr x9, [x15, #{LIMIT}]
    // The program's stack pointer, and the words for it.
    add x11, sp, #({FRAME} + 16)
    and x9, x11, #0x30
    add x9, x9, x15
    .endm

    // Takes them back. `result`: where the first is.
    .macro HODO_SYS_LEAVE result
    ldp x30, x9, [sp, #144]
    msr nzcv, x9
    ldr x0, [sp, #\result]
    ldr x1, [sp, #8]
    ldp x2, x3, [sp, #16]
    ldp x4, x5, [sp, #32]
    ldp x6, x7, [sp, #48]
    ldp x8, x9, [sp, #64]
    ldp x10, x11, [sp, #80]
    ldp x12, x13, [sp, #96]
    ldp x14, x15, [sp, #112]
    ldp x16, x17, [sp, #128]
    add sp, sp, #{FRAME}
    ret
    .endm

    // x10 = the entry of the number in x10. Clobbers x9.
    .macro HODO_SYS_ENTRY
    mov x9, #{ENTRY_SIZE}
    mul x10, x10, x9
    adr x9, hodo_sys_end + {HEADER}
    add x10, x10, x9
    .endm

    // A constant.
    .macro HODO_SYS_SET to, value
    movz \to, #((\value) & 0xffff)
    movk \to, #((\value) >> 16 & 0xffff), lsl #16
    movk \to, #((\value) >> 32 & 0xffff), lsl #32
    movk \to, #((\value) >> 48 & 0xffff), lsl #48
    .endm

    // Calls a function of the agent, whose address is this far after the end. As hodo's stubs describe: x15, x14, x11.
    .macro HODO_SYS_AGENT at
    adr x17, hodo_sys_end + \at
    ldr x17, [x17]
    sub sp, sp, #16
    adr x16, 79f
    br x17
79: .word 15 | 14 << 5 | 11 << 10 | 1 << 20
    add sp, sp, #16
    .endm

hodo_sys_start:

    // Before a system call. In: all registers are the program's, but x30, and sp, which is 16 below. Clobbers x30.
hodo_sys_enter:
    HODO_SYS_ENTER
    mov x10, x8
    mov x6, #{NUMBERS}
    cmp x10, x6
    csel x10, x10, x6, lo
    // The first word comes first: what comes in between leaves one that is not found again.
    mov x6, x11
    bfi x6, x10, #48, #16
    str x6, [x9, #{SLOTS}]
    str x0, [x9, #({SLOTS} + 8)]
    HODO_SYS_ENTRY
    ldr x11, [x10, #8]
    tbnz x11, #63, 9f
    ldr x7, [x10]
    lsr x5, x11, #48
    adr x9, hodo_sys_end
    ldr w6, [x9, #16]
    bl hodo_sys_begin
    ldr x9, [sp, #64]
    str x9, [x13], #8
    // The arguments.
    mov x10, sp
2:  cbz x5, 3f
    sub x5, x5, #1
    ldr x9, [x10], #8
    str x9, [x13], #8
    b 2b
3:  bl hodo_sys_pieces
9:  HODO_SYS_LEAVE 0

    // After a system call. As above.
hodo_sys_exit:
    HODO_SYS_ENTER
    // In a child, or when a signal handler's system calls came in between, the number is not known.
    ldr x6, [x9, #{SLOTS}]
    lsr x10, x6, #48
    and x6, x6, #0xffffffffffff
    and x11, x11, #0xffffffffffff
    cmp x6, x11
    b.ne 1f
    ldr x6, [x9, #({SLOTS} + 8)]
    str x6, [sp]
    b 2f
1:  mov x10, #({NUMBERS} + 1)
2:  HODO_SYS_ENTRY
    ldr x7, [x10, #8]
    tbnz x7, #63, 9f
    and x7, x7, #0xffffffffffff
    adr x9, hodo_sys_end
    ldr w6, [x9, #20]
    bl hodo_sys_begin
    ldr x9, [sp, #{RESULT_AT}]
    str x9, [x13], #8
    // What an error leaves after is not looked at.
    cmn x9, #1, lsl #12
    csel x7, xzr, x7, hs
    bl hodo_sys_pieces
9:  HODO_SYS_LEAVE {RESULT_AT}

    // Begins an event. Out: x14, x13, x12, and the time on the stack. Clobbers x9 to x11, x16, x17.
hodo_sys_begin:
    str xzr, [sp, #{TIME_AT}]
    adr x10, hodo_sys_end
    ldrb w9, [x10, #24]
    tbz w9, #0, 1f
    mrs x11, cntvct_el0
    ldr x9, [x15, #{EPOCH_END}]
    str x11, [sp, #{TIME_AT}]
    cmp x11, x9
    b.lo 1f
    HODO_SYS_AGENT 0
1:  adr x10, hodo_sys_end
    ldr w10, [x10, #{EVENT}]
4:  ldxr x14, [x15]
    add x9, x14, x10
    stxr w11, x9, [x15]
    cbnz w11, 4b
    ldr x10, [x15, #{LIMIT}]
    cmp x10, x9
    b.lo 2f
    // A signal handler may have opened another chunk between these instructions: is it still one chunk?
    sub x9, x9, #1
    eor x9, x9, x14
    lsr x9, x9, #16
    cbnz x9, hodo_sys_begin
    b 3f
2:  HODO_SYS_AGENT 8
    b hodo_sys_begin
    // The payload comes before its record: a reader must never take it for records.
3:  adr x12, hodo_sys_end
    ldr x10, [x12, #{PAYLOAD}]
    ldr w12, [x12, #{EVENT}]
    str x10, [x14, #8]
    mov x10, #0xffffffff00000000
    str x10, [x14, #16]
    add x13, x14, #24
    add x12, x12, x14
    sub x12, x12, #{MARGIN}
    ret

    // Fetches what the descriptors in x7 say, and ends the event. Clobbers all but x15.
hodo_sys_pieces:
    and x9, x7, #0xffff
    cbz x9, 5f
    and x0, x9, #7
    ubfx x1, x9, #3, #3
    lsr x3, x9, #6
    ldr x2, [sp, x1, lsl #3]
    adr x5, 4f
    b hodo_sys_piece
4:  lsr x7, x7, #16
    b hodo_sys_pieces
5:  sub x9, x13, x14
    lsr x9, x9, #3
    sub x9, x9, #2
    str w9, [x14, #8]
    ldr w10, [sp, #{TIME_AT}]
    orr x6, x10, x6, lsl #32
    stlr x6, [x14]
    add x10, x12, #{MARGIN}
6:  ldxr x9, [x15]
    cmp x9, x10
    b.ne 7f
    stxr w11, x13, [x15]
    cbnz w11, 6b
7:  ret

    // One piece. In: x0 = kind, x1 = number of the argument, x2 = its value, x3 = parameter. Link: x5. Keeps x6, x7.
hodo_sys_piece:
    cbz x2, hodo_sys_nothing
    cmp x13, x12
    b.hs hodo_sys_nothing
    mov x4, x5
    cmp x0, #{TEXT}
    b.eq hodo_sys_text
    mov x10, x3
    cmp x0, #{FIXED}
    b.eq hodo_sys_bytes
    cmp x0, #{SIZED}
    b.eq 1f
    cmp x0, #{RESULT}
    b.eq 2f
    cmp x0, #{TEXTS}
    b.eq hodo_sys_texts
    cmp x0, #{PARTS}
    b.eq hodo_sys_parts
    cmp x0, #{SPECIAL}
    b.eq hodo_sys_special
hodo_sys_nothing:
    br x5
    // As many bytes as another argument says.
1:  and x9, x3, #7
    ldr x10, [sp, x9, lsl #3]
    b 3f
    // As many as the result says.
2:  ldr x10, [sp, #{RESULT_AT}]
3:  ubfx x9, x3, #3, #3
    lsr x3, x3, #6
    lsl x3, x3, #4
    cbnz x3, 5f
    adr x3, hodo_sys_end
    ldr w3, [x3, #{BUFFER}]
    // x10 << x9, at most x3
5:  cmp x10, x3
    csel x10, x10, x3, lo
    lsl x10, x10, x9
    cmp x10, x3
    csel x10, x10, x3, lo

    // x10 bytes at x2. Link: x4. Clobbers x0, x2, x9 to x11.
    // Addresses may have a tag in their upper byte. Programs' have no bit 55, whatever is in that byte.
hodo_sys_bytes:
    mov x11, x13
    add x13, x13, #8
    cmp x12, x13
    b.lo 7f
    sub x9, x12, x13
    cmp x9, x10
    csel x10, x9, x10, lo
    mov x0, #1
    lsr x9, x2, #16
    cbz x9, 4f
    tbnz x2, #55, 4f
2:  cmp x10, #8
    b.lo 3f
hodo_sys_load8:
    ldr x9, [x2]
    add x2, x2, #8
    str x9, [x13], #8
    sub x10, x10, #8
    b 2b
3:  mov x0, #0
    cbz x10, 4f
hodo_sys_load1:
    ldrb w9, [x2]
    add x2, x2, #1
    strb w9, [x13], #1
    sub x10, x10, #1
    b 3b
hodo_sys_fault:
    mov x0, #1
    // The header: bytes, number of the argument, whether it is all.
4:  sub x9, x13, x11
    sub x9, x9, #8
    orr x9, x9, x1, lsl #16
    orr x9, x9, x0, lsl #24
    str x9, [x11]
    add x13, x13, #7
    and x13, x13, #-8
    br x4
7:  mov x13, x11
    br x4

    // A string at x2, of x3 bytes at most. Link: x4. Clobbers x0, x2, x3, x9 to x11.
hodo_sys_text:
    mov x11, x13
    add x13, x13, #8
    cmp x12, x13
    b.lo 7b
    sub x9, x12, x13
    cmp x9, x3
    csel x3, x9, x3, lo
    mov x0, #1
    lsr x9, x2, #16
    cbz x9, 4b
    tbnz x2, #55, 4b
    mov x0, #0
2:  cbz x3, 4b
hodo_sys_load_text:
    ldrb w9, [x2]
    cbz w9, 3f
    add x2, x2, #1
    strb w9, [x13], #1
    sub x3, x3, #1
    b 2b
    // It ends here, and it is all.
3:  mov x0, #2
    b 4b

    // Pointers at x2 up to a zero: the first as strings, of the others only how many there are. The parameter is
    // how many
    // strings there are at most.
hodo_sys_texts:
    lsr x9, x2, #12
    cbz x9, hodo_sys_nothing
    stp x2, x3, [sp, #{WORK}]
1:  ldr x9, [sp, #({WORK} + 8)]
    cbz x9, 3f
    sub x9, x9, #1
    str x9, [sp, #({WORK} + 8)]
    ldr x10, [sp, #{WORK}]
hodo_sys_load_pointer:
    ldr x2, [x10]
    add x10, x10, #8
    str x10, [sp, #{WORK}]
    cbz x2, hodo_sys_nothing
    adr x3, hodo_sys_end
    ldr w3, [x3, #{STRING}]
    adr x4, 2f
    b hodo_sys_text
2:  cmp x13, x12
    b.lo 1b
    // The others.
3:  ldr x10, [sp, #{WORK}]
    mov x11, #0
hodo_sys_load_other:
    ldr x9, [x10]
    cbz x9, 4f
    add x10, x10, #8
    add x11, x11, #1
    cmp x11, #16, lsl #12
    b.lo hodo_sys_load_other
4:  str x11, [x13, #8]
    mov x10, #0x8
    movk x10, #0x400, lsl #16
    orr x9, x10, x1, lsl #16
    str x9, [x13], #16
    br x5

    // Pairs of address and length at x2, as many as an argument says, and what they point to.
hodo_sys_parts:
    add x9, x13, #160
    cmp x12, x9
    b.lo hodo_sys_nothing
    and x0, x3, #7
    ldr x10, [sp, x0, lsl #3]
    cmp x0, #{MESSAGE}
    b.ne 6f
    // A struct msghdr has them.
    lsr x9, x2, #12
    cbz x9, hodo_sys_nothing
hodo_sys_load_message:
    ldr x10, [x2, #24]
hodo_sys_load_message2:
    ldr x2, [x2, #16]
6:  mov x9, #8
    cmp x10, x9
    csel x10, x10, x9, lo
    lsl x10, x10, #4
    adr x3, hodo_sys_end
    ldr w3, [x3, #{BUFFER}]
    add x9, x13, #8
    str x9, [sp, #{WORK}]
    adr x4, 1f
    b hodo_sys_bytes
    // From here on what was copied is read, as far as it was.
1:  str x13, [sp, #({WORK} + 8)]
2:  ldp x11, x9, [sp, #{WORK}]
    add x10, x11, #16
    cmp x9, x10
    b.lo hodo_sys_nothing
    str x10, [sp, #{WORK}]
    ldp x2, x10, [x11]
    cmp x10, x3
    csel x10, x10, x3, lo
    cbz x10, 2b
    cmp x13, x12
    b.hs hodo_sys_nothing
    adr x4, 2b
    b hodo_sys_bytes

    // What depends on another argument.
hodo_sys_special:
    cmp x3, #{WAIT}
    b.eq 3f
    cmp x3, #{NAME}
    b.eq 5f
    cmp x3, #{LOCK}
    b.eq 6f
    cmp x3, #{DEVICE}
    b.eq 8f
    // How many directory entries the result has.
    ldr x10, [sp, #{RESULT_AT}]
    mov x11, #0
    mov x0, #0
1:  cmp x0, x10
    b.hs 2f
    add x9, x2, x0
hodo_sys_load_entry:
    ldrh w9, [x9, #16]
    cbz w9, 2f
    add x0, x0, x9
    add x11, x11, #1
    b 1b
2:  str x11, [x13, #8]
    mov x9, #8
    orr x9, x9, x1, lsl #16
    str x9, [x13], #16
    br x5
    // The time limit of a futex operation that waits.
3:  ldr w9, [sp, #8]
    and w9, w9, #0x7f
    HODO_SYS_SET x11, {WAITING}
    mov x10, #16
    b 9f
    // The name that a thread gives itself.
5:  ldr w9, [sp]
    cmp w9, #15
    b.ne hodo_sys_nothing
    mov x3, #16
    b hodo_sys_text
    // The lock that fcntl is about.
6:  ldr w9, [sp, #8]
    mov x10, #32
    HODO_SYS_SET x11, {LOCKS}
    b 9f
    // The number or the size of a window that ioctl is about.
8:  ldr w9, [sp, #8]
    mov w10, #{DEVICE_FIRST}
    subs w9, w9, w10
    b.lo hodo_sys_nothing
    mov x10, #8
    HODO_SYS_SET x11, {DEVICES}
9:  cmp x9, #64
    b.hs hodo_sys_nothing
    lsr x11, x11, x9
    tbnz x11, #0, hodo_sys_bytes
    br x5

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
    .purgem HODO_SYS_AGENT
    .purgem HODO_SYS_SET
    .popsection
    "#,
    FRAME = const 192,
    TIME_AT = const 160,
    RESULT_AT = const 168,
    WORK = const 176,
    BLOCK = const BLOCK_WORD,
    EPOCH_END = const tcb::EPOCH_END,
);
