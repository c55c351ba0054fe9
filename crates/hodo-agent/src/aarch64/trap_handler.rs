//! The handler of SIGTRAP, for AArch64: see [`crate::TrapHandler`].

core::arch::global_asm!(
    r#"
    .pushsection .rodata.hodo_agent_trap, "a", @progbits
    .globl hodo_trap_start, hodo_trap_action, hodo_trap_default, hodo_trap_head, hodo_trap_end
    .hidden hodo_trap_start, hodo_trap_action, hodo_trap_default, hodo_trap_head, hodo_trap_end
    // x0: the signal, x1: siginfo_t, x2: ucontext_t
    .p2align 3
hodo_trap_start:
    ldr w9, [x1, #{CODE}]
    cmp w9, #{TRAP_BRKPT}
    b.ne 8f
    ldr x9, [x2, #{PC}]
    ldr x10, hodo_trap_head
1:  cbz x10, 9f
    ldp x11, x12, [x10]
    add x13, x10, #16
2:  cbz x12, 3f
    ldp x14, x15, [x13], #16
    cmp x14, x9
    b.eq 4f
    sub x12, x12, #1
    b 2b
3:  mov x10, x11
    b 1b
4:  str x15, [x2, #{PC}]
    // If a branch through a register led to the breakpoint, only an instruction for such branches might be next now.
    ldr x9, [x2, #{PSTATE}]
    and x9, x9, #~{BRANCH_TYPE}
    str x9, [x2, #{PSTATE}]
    ret
    // Another signal: it waits until this one returns, and comes without a handler.
8:  mov x8, #172                  // getpid
    svc #0
    mov x9, x0
    mov x8, #178                  // gettid
    svc #0
    mov x1, x0
    mov x0, x9
    mov x2, #{SIGTRAP}
    mov x8, #131                  // tgkill
    svc #0
    // So does a breakpoint of the program, which the thread meets again.
9:  mov x0, #{SIGTRAP}
    adr x1, hodo_trap_default
    mov x2, #0
    mov x3, #8
    mov x8, #134                  // rt_sigaction
    svc #0
    ret
    .p2align 3
    // Two struct sigaction of the kernel: handler, flags, what handlers return to, mask.
hodo_trap_action:
    .quad 0, {FLAGS}, 0, 0
hodo_trap_default:
    .quad 0, 0, 0, 0
hodo_trap_head:
    .quad 0
hodo_trap_end:
    .popsection
    "#,
    CODE = const 8,
    TRAP_BRKPT = const 1,
    // `uc_mcontext.pc` and `uc_mcontext.pstate`, sys/ucontext.h
    PC = const 440,
    PSTATE = const 448,
    // PSTATE.BTYPE
    BRANCH_TYPE = const 3 << 10,
    SIGTRAP = const 5,
    // SA_SIGINFO, SA_ONSTACK
    FLAGS = const 0x4 | 0x0800_0000,
);
