//! The functions that are traced.

use std::arch::global_asm;

global_asm!(
    r#"
    .text
    .option push
    .option arch, +d
    .option norvc
    .option norelax
    .p2align 2
    .macro TEST_FUNCTION name
    .globl hodo_test_\name
    .type hodo_test_\name, @function
hodo_test_\name:
    .endm

    # (a + b) * 2
    TEST_FUNCTION leaf
    .cfi_startproc
    add a5, a0, a1
    slli a5, a5, 1
    mv a0, a5
    nop
    ret
    .cfi_endproc

    # leaf(a, b) + 1
    TEST_FUNCTION outer
    .cfi_startproc
    addi sp, sp, -16
    .cfi_def_cfa_offset 16
    sd ra, 8(sp)
    .cfi_offset ra, -8
    mv a4, a0
    mv a5, a1
    jal ra, hodo_test_leaf
    ld ra, 8(sp)
    .cfi_restore ra
    addi a0, a0, 1
    addi sp, sp, 16
    .cfi_def_cfa_offset 0
    ret
    .cfi_endproc

    # leaf(a + 1, b + 1), through a jump
    TEST_FUNCTION tail
    .cfi_startproc
    addi a0, a0, 1
    addi a1, a1, 1
    nop
    nop
    j hodo_test_leaf
    .cfi_endproc

    # tail(a, b), through a jump
    TEST_FUNCTION tail2
    .cfi_startproc
    mv a4, a0
    mv a5, a1
    nop
    nop
    j hodo_test_tail
    .cfi_endproc

    # Fibonacci numbers
    TEST_FUNCTION fib
    .cfi_startproc
    li a5, 1
    bgtu a0, a5, 1f
    nop
    nop
    ret
1:  addi sp, sp, -32
    .cfi_def_cfa_offset 32
    sd ra, 24(sp)
    .cfi_offset ra, -8
    sd s0, 16(sp)
    .cfi_offset s0, -16
    sd s1, 8(sp)
    .cfi_offset s1, -24
    mv s0, a0
    addi a0, s0, -1
    jal ra, hodo_test_fib
    mv s1, a0
    addi a0, s0, -2
    jal ra, hodo_test_fib
    add a0, a0, s1
    ld ra, 24(sp)
    .cfi_restore ra
    ld s0, 16(sp)
    .cfi_restore s0
    ld s1, 8(sp)
    .cfi_restore s1
    addi sp, sp, 32
    .cfi_def_cfa_offset 0
    ret
    .cfi_endproc

    # f(x), with a frame that unwinders know
    TEST_FUNCTION call
    .cfi_startproc
    addi sp, sp, -16
    .cfi_def_cfa_offset 16
    sd ra, 8(sp)
    .cfi_offset ra, -8
    mv a5, a0
    mv a0, a1
    jalr a5
    ld ra, 8(sp)
    addi sp, sp, 16
    .cfi_def_cfa_offset 0
    ret
    .cfi_endproc

    # A signal handler with such a frame
    TEST_FUNCTION handler
    .cfi_startproc
    addi sp, sp, -16
    .cfi_def_cfa_offset 16
    sd ra, 8(sp)
    .cfi_offset ra, -8
    call hodo_test_handled
    ld ra, 8(sp)
    addi sp, sp, 16
    .cfi_def_cfa_offset 0
    ret
    .cfi_endproc

    # f(x) as above; throw(place, x) returns to its caller with x
    TEST_FUNCTION catch
    addi sp, sp, -32
    sd ra, 24(sp)
    sd s0, 16(sp)
    sd a2, 8(sp)
    sd sp, 0(a2)
    sd s1, 8(a2)
    mv a5, a0
    mv a0, a1
    jalr a5
hodo_test_caught:
    ld ra, 24(sp)
    ld s0, 16(sp)
    addi sp, sp, 32
    ret

    TEST_FUNCTION throw
    ld sp, 0(a0)
    ld s1, 8(a0)
    mv a0, a1
    j hodo_test_caught

    # The same without a return address, like a function that is jumped to at the beginning of a stack
    TEST_FUNCTION throw_from_nowhere
    li ra, 0
    j hodo_test_throw

    # x + 1; it returns with the stack pointer 32 bytes lower
    TEST_FUNCTION shift
    addi sp, sp, -32
    addi a0, a0, 1
    nop
    nop
    ret

    # shift(x); it restores the stack pointer itself
    TEST_FUNCTION moved
    addi sp, sp, -32
    sd ra, 24(sp)
    sd s0, 16(sp)
    mv s0, sp
    jal ra, hodo_test_shift
    mv sp, s0
    ld ra, 24(sp)
    ld s0, 16(sp)
    addi sp, sp, 32
    ret

    # prlimit(pid, resource, new, old) that returns the new limits as the old ones, and once more after them
    TEST_FUNCTION limits
    ld a4, 0(a2)
    ld a5, 8(a2)
    sd a4, 0(a3)
    sd a5, 8(a3)
    sd a4, 16(a3)
    sd a5, 24(a3)
    li a0, 0
    ret

    # x + 1 in a 32-bit instruction, x in a 16-bit instruction, and padding
    TEST_FUNCTION tiny
    addi a0, a0, 1
    .option push
    .option rvc
    ret
    TEST_FUNCTION tiny2
    ret
    .option pop
    TEST_FUNCTION room
    .skip 16, 0
    .p2align 2
    .skip 8192, 0
    TEST_FUNCTION slot
    .skip 16, 0

    # (a + b) * 2 with room for tracers: the number of bytes, and the distance of their start from a multiple of 8
    .macro TEST_ROOM name, bytes, off
    .p2align 3
    .skip \off, 0
    TEST_FUNCTION \name
    .rept \bytes / 2
    c.nop
    .endr
    add a5, a0, a1
    slli a5, a5, 1
    mv a0, a5
    ret
    .endm
    .option push
    .option rvc
    TEST_ROOM room8, 8, 2
    TEST_ROOM room16, 16, 6
    TEST_ROOM room24, 24, 6
    TEST_ROOM room32, 32, 0
    .option pop

    # Stores or loads all general registers except sp, gp and tp, at 8 * number from the base.
    .macro TEST_EACH instruction, base, at
    .irp number, 1, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
    \instruction x\number, \at + 8 * \number(\base)
    .endr
    .endm
    .macro TEST_EACH_FLOAT instruction, base, at
    .irp number, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
    \instruction f\number, \at + 8 * \number(\base)
    .endr
    .endm

    # registers(state): calls body with the registers in state, and stores those that it returns with. Each set has 32
    # words: before the call, seen by body, set by body, after the call; then the same for floating point.
    TEST_FUNCTION registers
    addi sp, sp, -224
    sd a0, 216(sp)
    sd ra, 200(sp)
    .irp number, 8, 9, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27
    sd x\number, 8 * (\number - 8)(sp)
    .endr
    mv t0, a0
    addi t1, t0, 1024
    TEST_EACH_FLOAT fld, t1, 0
    TEST_EACH ld, t0, 0
    ld t0, 40(t0)
    jal ra, hodo_test_body
    addi sp, sp, -16
    sd t0, 0(sp)
    ld t0, 232(sp)
    TEST_EACH sd, t0, 768
    addi t0, t0, 1024
    TEST_EACH_FLOAT fsd, t0, 768
    ld t1, 0(sp)
    sd t1, 768 - 1024 + 40(t0)
    addi sp, sp, 16
    .irp number, 8, 9, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27
    ld x\number, 8 * (\number - 8)(sp)
    .endr
    ld ra, 200(sp)
    addi sp, sp, 224
    ret

    # The pointer to its state is on its caller's stack.
    TEST_FUNCTION body
    addi sp, sp, -16
    sd t0, 0(sp)
    ld t0, 232(sp)
    nop
    TEST_EACH sd, t0, 256
    addi t0, t0, 1024
    TEST_EACH_FLOAT fsd, t0, 256
    addi t0, t0, -1024
    sd ra, 8(sp)
    ld t1, 0(sp)
    sd t1, 256 + 40(t0)
    .irp number, 6, 7, 10, 11, 12, 13, 14, 15, 16, 17, 28, 29, 30, 31
    ld x\number, 512 + 8 * \number(t0)
    .endr
    ld t0, 512 + 40(t0)
    ld ra, 8(sp)
    addi sp, sp, 16
    ret
    .option pop
    "#
);

/// A function that a traced function calls.
pub type Callback = extern "C-unwind" fn(u64) -> u64;

unsafe extern "C-unwind" {
    #[link_name = "hodo_test_leaf"]
    pub safe fn leaf(a: u64, b: u64) -> u64;
    #[link_name = "hodo_test_outer"]
    pub safe fn outer(a: u64, b: u64) -> u64;
    #[link_name = "hodo_test_tail"]
    pub safe fn tail(a: u64, b: u64) -> u64;
    #[link_name = "hodo_test_tail2"]
    pub safe fn tail2(a: u64, b: u64) -> u64;
    #[link_name = "hodo_test_fib"]
    pub safe fn fib(n: u64) -> u64;
    #[link_name = "hodo_test_call"]
    pub safe fn call(f: Callback, x: u64) -> u64;
    /// Calls `hodo_test_handled`.
    #[link_name = "hodo_test_handler"]
    pub fn handler(signal: i32);
    #[link_name = "hodo_test_catch"]
    pub safe fn catch(f: Callback, x: u64, place: &mut [u64; 2]) -> u64;
    /// Only from within a function that `catch` has called.
    #[link_name = "hodo_test_throw"]
    pub fn throw(place: *const [u64; 2], x: u64) -> !;
    #[link_name = "hodo_test_throw_from_nowhere"]
    pub fn throw_from_nowhere(place: *const [u64; 2], x: u64) -> !;
    #[link_name = "hodo_test_limits"]
    pub safe fn limits(pid: i32, resource: i32, new: &[u64; 2], old: &mut [u64; 4]) -> i32;
    #[link_name = "hodo_test_tiny"]
    pub safe fn tiny(x: u64) -> u64;
    /// Returns at once.
    #[link_name = "hodo_test_tiny2"]
    pub safe fn tiny2(x: u64) -> u64;
    /// Nothing here is executed; `room` is within 2 KiB of the functions before, `slot` is not.
    #[link_name = "hodo_test_room"]
    pub fn room();
    #[link_name = "hodo_test_slot"]
    pub fn slot();
    #[link_name = "hodo_test_room8"]
    pub safe fn room8(a: u64, b: u64) -> u64;
    #[link_name = "hodo_test_room16"]
    pub safe fn room16(a: u64, b: u64) -> u64;
    #[link_name = "hodo_test_room24"]
    pub safe fn room24(a: u64, b: u64) -> u64;
    #[link_name = "hodo_test_room32"]
    pub safe fn room32(a: u64, b: u64) -> u64;
    #[link_name = "hodo_test_moved"]
    pub safe fn moved(x: u64) -> u64;
    /// Returns with the stack pointer 32 bytes lower.
    #[link_name = "hodo_test_shift"]
    pub fn shift(x: u64) -> u64;
    #[link_name = "hodo_test_registers"]
    pub safe fn registers(state: &mut [[u64; 32]; 8]);
    #[link_name = "hodo_test_body"]
    pub fn body();
}

/// The Fibonacci numbers again.
pub fn fibonacci(n: u64) -> u64 {
    match n {
        0 | 1 => n,
        _ => fibonacci(n - 1) + fibonacci(n - 2),
    }
}

/// How many calls that takes.
pub fn fibonacci_calls(n: u64) -> u64 {
    match n {
        0 | 1 => 1,
        _ => 1 + fibonacci_calls(n - 1) + fibonacci_calls(n - 2),
    }
}
