//! Functions that are traced.

use std::arch::global_asm;

global_asm!(
    r#"
    .text
    .option push
    .option norvc
    .option norelax
    .p2align 2

    # (a + b) * 2
    .globl hodo_test_leaf
hodo_test_leaf:
    add a5, a0, a1
    slli a5, a5, 1
    mv a0, a5
    ret

    # leaf(a, b) + 1
    .globl hodo_test_outer
hodo_test_outer:
    addi sp, sp, -16
    sd ra, 8(sp)
    jal ra, hodo_test_leaf
    ld ra, 8(sp)
    addi a0, a0, 1
    addi sp, sp, 16
    ret

    # leaf(a + 1, b + 1), by a jump
    .globl hodo_test_tail
hodo_test_tail:
    addi a0, a0, 1
    addi a1, a1, 1
    j hodo_test_leaf

    # tail(a, b), by a jump
    .globl hodo_test_tail2
hodo_test_tail2:
    addi a0, a0, 0
    addi a1, a1, 0
    j hodo_test_tail

    # Fibonacci's numbers
    .globl hodo_test_fib
hodo_test_fib:
    li a5, 1
    bgtu a0, a5, 1f
    ret
1:  addi sp, sp, -32
    sd ra, 24(sp)
    sd s0, 16(sp)
    sd s1, 8(sp)
    mv s0, a0
    addi a0, s0, -1
    jal ra, hodo_test_fib
    mv s1, a0
    addi a0, s0, -2
    jal ra, hodo_test_fib
    add a0, a0, s1
    ld ra, 24(sp)
    ld s0, 16(sp)
    ld s1, 8(sp)
    addi sp, sp, 32
    ret
    .option pop
    "#
);

unsafe extern "C" {
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
}
