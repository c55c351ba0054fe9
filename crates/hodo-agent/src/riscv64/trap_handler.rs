//! The handler of SIGTRAP, for RISC-V: see [`crate::TrapHandler`].

core::arch::global_asm!(
    r#"
    .pushsection .rodata.hodo_agent_trap, "a", @progbits
    .option push
    .option norelax
    .globl hodo_trap_start, hodo_trap_action, hodo_trap_default, hodo_trap_head, hodo_trap_end
    .hidden hodo_trap_start, hodo_trap_action, hodo_trap_default, hodo_trap_head, hodo_trap_end
    # a0: the signal, a1: siginfo_t, a2: ucontext_t
    .p2align 3
hodo_trap_start:
    lw t0, {CODE}(a1)
    li t1, {TRAP_BRKPT}
    bne t0, t1, 8f
    ld t2, {PC}(a2)
    lla t3, hodo_trap_head
    ld t3, 0(t3)
1:  beqz t3, 9f
    ld t4, 8(t3)
    addi t5, t3, 16
2:  beqz t4, 3f
    ld t6, 0(t5)
    beq t6, t2, 4f
    addi t5, t5, 16
    addi t4, t4, -1
    j 2b
3:  ld t3, 0(t3)
    j 1b
4:  ld t6, 8(t5)
    sd t6, {PC}(a2)
    ret
    # Another signal: it waits until this one returns, and comes without a handler.
8:  li a7, 172                    # getpid
    ecall
    mv t3, a0
    li a7, 178                    # gettid
    ecall
    mv a1, a0
    mv a0, t3
    li a2, {SIGTRAP}
    li a7, 131                    # tgkill
    ecall
    # So does a breakpoint of the program, which the thread meets again.
9:  li a0, {SIGTRAP}
    lla a1, hodo_trap_default
    li a2, 0
    li a3, 8
    li a7, 134                    # rt_sigaction
    ecall
    ret
    .p2align 3
    # Two struct sigaction of the kernel: handler, flags, mask.
hodo_trap_action:
    .quad 0, {FLAGS}, 0
hodo_trap_default:
    .quad 0, 0, 0
hodo_trap_head:
    .quad 0
hodo_trap_end:
    .option pop
    .popsection
    "#,
    CODE = const 8,
    TRAP_BRKPT = const 1,
    // `uc_mcontext.__gregs[REG_PC]`, sys/ucontext.h
    PC = const 176,
    SIGTRAP = const 5,
    // SA_SIGINFO, SA_ONSTACK
    FLAGS = const 0x4 | 0x0800_0000,
);
