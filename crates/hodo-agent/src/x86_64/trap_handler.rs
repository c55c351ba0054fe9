//! The handler of SIGTRAP, for x86-64: see [`TrapHandler`].

use crate::TrapHandler;

core::arch::global_asm!(
    r#"
    .pushsection .rodata.hodo_agent_trap, "a", @progbits
    .globl hodo_trap_start, hodo_trap_action, hodo_trap_default, hodo_trap_head, hodo_trap_restorer, hodo_trap_end
    .hidden hodo_trap_start, hodo_trap_action, hodo_trap_default, hodo_trap_head, hodo_trap_restorer, hodo_trap_end
    # edi: the signal, rsi: siginfo_t, rdx: ucontext_t
hodo_trap_start:
    cmp dword ptr [rsi + {CODE}], {SI_KERNEL}     # a breakpoint
    jne 8f
    mov r8, [rdx + {RIP}]
    dec r8
    mov rax, [rip + hodo_trap_head]
1:  test rax, rax
    jz 7f
    mov rcx, [rax + 8]
    lea rdi, [rax + 16]
2:  test rcx, rcx
    jz 3f
    cmp [rdi], r8
    je 4f
    add rdi, 16
    dec rcx
    jmp 2b
3:  mov rax, [rax]
    jmp 1b
4:  mov rax, [rdi + 8]
    mov [rdx + {RIP}], rax
    ret
    # A breakpoint of the program: the thread meets it again, without a handler.
7:  cmp byte ptr [r8], 0xCC
    jne 8f
    mov [rdx + {RIP}], r8
    jmp 9f
    # Another signal: it waits until this one returns, and comes without a handler, too.
8:  mov eax, 39                   # getpid
    syscall
    mov edi, eax
    mov eax, 186                  # gettid
    syscall
    mov esi, eax
    mov edx, {SIGTRAP}
    mov eax, 234                  # tgkill
    syscall
9:  mov edi, {SIGTRAP}
    lea rsi, [rip + hodo_trap_default]
    xor edx, edx
    mov r10d, 8
    mov eax, 13                   # rt_sigaction
    syscall
    ret
    .p2align 4
hodo_trap_restorer:
    mov rax, 15                   # rt_sigreturn; debuggers know these bytes
    syscall
    .p2align 3
    # Two struct sigaction of the kernel: handler, flags, restorer, mask.
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
    SI_KERNEL = const 0x80,
    // `uc_mcontext.gregs[REG_RIP]`, sys/ucontext.h
    RIP = const 40 + 16 * 8,
    SIGTRAP = const 5,
    // SA_SIGINFO, SA_ONSTACK, SA_RESTORER
    FLAGS = const 0x4 | 0x0800_0000 | 0x0400_0000,
);

unsafe extern "C" {
    static hodo_trap_start: u8;
    static hodo_trap_restorer: u8;
    static hodo_trap_action: u8;
    static hodo_trap_default: u8;
    static hodo_trap_head: u8;
    static hodo_trap_end: u8;
}

/// That code.
#[must_use]
pub fn trap_handler() -> TrapHandler {
    let start = &raw const hodo_trap_start;
    let offset = |symbol: *const u8| symbol.addr() - start.addr();
    // SAFETY: start and end bound one object in read-only data, laid out by the assembly above.
    let code = unsafe { core::slice::from_raw_parts(start, offset(&raw const hodo_trap_end)) };
    TrapHandler {
        code,
        restorer: Some(offset(&raw const hodo_trap_restorer)),
        action: offset(&raw const hodo_trap_action),
        default: offset(&raw const hodo_trap_default),
        head: offset(&raw const hodo_trap_head),
    }
}
