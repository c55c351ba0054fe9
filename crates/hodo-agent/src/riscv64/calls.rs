//! System calls of the agent on RISC-V: a piece of its assembly, which runs with its frame on the stack.
//!
//! Linux forgets the vector registers at each system call, and a function may be entered with some that are in use: as
//! arguments, or because its caller knows that it leaves them alone. So they are put on the stack meanwhile, where the
//! control block says that the thread may use such registers. In any other thread no vector instruction is executed.

/// Bytes of a vector register, at most, that the agent keeps. A stack may have no room for 32 that are longer: then it
/// makes no system calls.
pub(crate) const MOST_KEPT: u64 = 512;

/// The piece.
macro_rules! system_calls {
    () => {
        r#"
    # t1 = 0: system calls may be made. Link: t2. Clobbers t5.
hodo_agent_may_call:
    ld t5, {FLAGS}(a6)
    andi t1, t5, {NO_CALLS}
    bnez t1, 31f
    andi t1, t5, {VECTORS}
    beqz t1, 31f
    .option push
    .option arch, +v
    csrr t1, vlenb
    .option pop
    sltiu t1, t1, {MOST_KEPT} + 1
    xori t1, t1, 1
31: jr t2

    # A system call. Link: t2. Clobbers a0, which has the result, and t1.
hodo_agent_call:
    ld t1, {FLAGS}(a6)
    andi t1, t1, {VECTORS}
    bnez t1, 32f
    ecall
    jr t2
    # Where the frame would have registers that functions keep, there are two that this takes, and what controls
    # the others.
32: sd t3, 144(sp)
    sd t4, 152(sp)
    .option push
    .option arch, +v
    csrr t3, vstart
    sd t3, 160(sp)
    csrr t3, vl
    sd t3, 168(sp)
    csrr t3, vtype
    sd t3, 176(sp)
    csrr t3, vcsr
    sd t3, 184(sp)
    # Whole registers are stored from the element at which the next instruction would begin.
    csrwi vstart, 0
    csrr t3, vlenb
    slli t4, t3, 5
    slli t3, t3, 3
    # While the stack pointer is another one, frame tables find the frame by t1.
    mv t1, sp
    sub sp, sp, t4
    # From above, a page at most at a time: after the end of a stack, what marks it is met first.
    mv t4, t1
    .irp first, 24, 16, 8, 0
    sub t4, t4, t3
    vs8r.v v\first, (t4)
    .endr
    ecall
    csrwi vstart, 0
    .irp first, 0, 8, 16, 24
    vl8re8.v v\first, (t4)
    add t4, t4, t3
    .endr
    mv sp, t1
    ld t3, 168(sp)
    ld t4, 176(sp)
    vsetvl zero, t3, t4
    ld t3, 184(sp)
    csrw vcsr, t3
    ld t3, 160(sp)
    csrw vstart, t3
    .option pop
    ld t3, 144(sp)
    ld t4, 152(sp)
    jr t2
"#
    };
}
pub(crate) use system_calls;
