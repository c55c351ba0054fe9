//! The functions that are traced.

use std::arch::global_asm;

global_asm!(
    r#"
    .text
    .p2align 2
    .macro TEST_FUNCTION name
    .globl hodo_test_\name
    .type hodo_test_\name, @function
hodo_test_\name:
    .endm

    // (a + b) * 2
    TEST_FUNCTION leaf
    .cfi_startproc
    add x5, x0, x1
    lsl x5, x5, #1
    mov x0, x5
    nop
    ret
    .cfi_endproc

    // leaf(a, b) + 1
    TEST_FUNCTION outer
    .cfi_startproc
    str x30, [sp, #-16]!
    .cfi_def_cfa_offset 16
    .cfi_offset x30, -16
    mov x4, x0
    mov x5, x1
    nop
    bl hodo_test_leaf
    add x0, x0, #1
    ldr x30, [sp], #16
    .cfi_restore x30
    .cfi_def_cfa_offset 0
    ret
    .cfi_endproc

    // leaf(a + 1, b + 1), through a jump
    TEST_FUNCTION tail
    .cfi_startproc
    add x0, x0, #1
    add x1, x1, #1
    nop
    nop
    b hodo_test_leaf
    .cfi_endproc

    // tail(a, b), through a jump
    TEST_FUNCTION tail2
    .cfi_startproc
    mov x4, x0
    mov x5, x1
    nop
    nop
    b hodo_test_tail
    .cfi_endproc

    // Fibonacci numbers
    TEST_FUNCTION fib
    .cfi_startproc
    sub x5, x0, #2
    tbz x5, #63, 1f
    nop
    nop
    ret
1:  stp x29, x30, [sp, #-32]!
    .cfi_def_cfa_offset 32
    .cfi_offset x29, -32
    .cfi_offset x30, -24
    stp x19, x20, [sp, #16]
    .cfi_offset x19, -16
    .cfi_offset x20, -8
    mov x19, x0
    sub x0, x19, #1
    bl hodo_test_fib
    mov x20, x0
    sub x0, x19, #2
    bl hodo_test_fib
    add x0, x0, x20
    ldp x19, x20, [sp, #16]
    .cfi_restore x19
    .cfi_restore x20
    ldp x29, x30, [sp], #32
    .cfi_restore x29
    .cfi_restore x30
    .cfi_def_cfa_offset 0
    ret
    .cfi_endproc

    // f(x), with a frame that unwinders know
    TEST_FUNCTION call
    .cfi_startproc
    str x30, [sp, #-16]!
    .cfi_def_cfa_offset 16
    .cfi_offset x30, -16
    mov x5, x0
    mov x0, x1
    nop
    blr x5
    ldr x30, [sp], #16
    .cfi_restore x30
    .cfi_def_cfa_offset 0
    ret
    .cfi_endproc

    // A signal handler with such a frame
    TEST_FUNCTION handler
    .cfi_startproc
    str x30, [sp, #-16]!
    .cfi_def_cfa_offset 16
    .cfi_offset x30, -16
    nop
    nop
    nop
    bl hodo_test_handled
    ldr x30, [sp], #16
    .cfi_restore x30
    .cfi_def_cfa_offset 0
    ret
    .cfi_endproc

    // f(x) as above; throw(place, x) returns to its caller with x
    TEST_FUNCTION catch
    stp x29, x30, [sp, #-32]!
    str x2, [sp, #16]
    mov x5, sp
    str x5, [x2]
    str x19, [x2, #8]
    mov x5, x0
    mov x0, x1
    blr x5
hodo_test_caught:
    ldp x29, x30, [sp], #32
    ret

    TEST_FUNCTION throw
    ldr x5, [x0]
    mov sp, x5
    ldr x19, [x0, #8]
    mov x0, x1
    b hodo_test_caught

    // The same without a return address, like a function that is jumped to at the beginning of a stack
    TEST_FUNCTION throw_from_nowhere
    mov x30, #0
    b hodo_test_throw

    // x + 1; it returns with the stack pointer 32 bytes lower
    TEST_FUNCTION shift
    sub sp, sp, #32
    add x0, x0, #1
    nop
    nop
    ret

    // shift(x); it restores the stack pointer itself
    TEST_FUNCTION moved
    stp x29, x30, [sp, #-32]!
    str x19, [sp, #16]
    mov x19, sp
    bl hodo_test_shift
    mov sp, x19
    ldr x19, [sp, #16]
    ldp x29, x30, [sp], #32
    ret

    // prlimit(pid, resource, new, old) that returns the new limits as the old ones, and once more after them
    TEST_FUNCTION limits
    ldp x4, x5, [x2]
    stp x4, x5, [x3]
    stp x4, x5, [x3, #16]
    mov x0, #0
    ret

    // Stores or loads all general registers but the platform's, two at a time, at 8 * number from the base.
    .macro TEST_EACH instruction, base, at
    .irp pair, "0, 1", "2, 3", "4, 5", "6, 7", "8, 9", "10, 11", "12, 13", "14, 15", "19, 20", "21, 22", "23, 24", "25, 26", "27, 28"
    TEST_PAIR \instruction, \base, \at, \pair
    .endr
    .endm
    .macro TEST_PAIR instruction, base, at, one, two
    \instruction x\one, [\base, #(\at + 8 * \one)]
    \instruction x\two, [\base, #(\at + 8 * \two)]
    .endm
    .macro TEST_EACH_FLOAT instruction, base, at
    .irp number, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
    \instruction d\number, [\base, #(\at + 8 * \number)]
    .endr
    .endm

    // registers(state): calls body with the registers in state, and stores those that it returns with. Each set has 32
    // words: before the call, seen by body, set by body, after the call; then the same for floating point. x17 has the
    // address of the state, which stubs leave alone, and x29 is not looked at.
    TEST_FUNCTION registers
    stp x29, x30, [sp, #-176]!
    stp x19, x20, [sp, #16]
    stp x21, x22, [sp, #32]
    stp x23, x24, [sp, #48]
    stp x25, x26, [sp, #64]
    stp x27, x28, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x17, x0
    TEST_EACH_FLOAT ldr, x17, 1024
    TEST_EACH ldr, x17, 0
    ldr x16, [x17, #(8 * 16)]
    bl hodo_test_body
    TEST_EACH str, x17, 768
    str x16, [x17, #(768 + 8 * 16)]
    TEST_EACH_FLOAT str, x17, 1792
    ldp x19, x20, [sp, #16]
    ldp x21, x22, [sp, #32]
    ldp x23, x24, [sp, #48]
    ldp x25, x26, [sp, #64]
    ldp x27, x28, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    ldp x29, x30, [sp], #176
    ret

    TEST_FUNCTION body
    nop
    nop
    nop
    nop
    TEST_EACH str, x17, 256
    str x16, [x17, #(256 + 8 * 16)]
    TEST_EACH_FLOAT str, x17, 1280
    .irp number, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16
    ldr x\number, [x17, #(512 + 8 * \number)]
    .endr
    ret
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
