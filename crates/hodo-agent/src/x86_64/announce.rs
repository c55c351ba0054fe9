//! Replaces the function by which the dynamic linker announces libraries to debuggers, for x86-64. The thread stops for
//! its tracer, if it has one. All registers are kept.
//!
//! The stop is a signal that the program neither handles nor blocks, and that is nothing to it: if the tracer is killed
//! before it has seen the signal, the kernel drops it. A breakpoint would end the program then; it is only met where
//! there is no such signal.

use hodo_trace::format::{file_header, tcb};

use crate::Announce;

core::arch::global_asm!(
    r#"
    .pushsection .rodata.hodo_agent_announce, "a", @progbits
    .globl hodo_announce_start, hodo_announce_signal, hodo_announce_breakpoint, hodo_announce_end
    .hidden hodo_announce_start, hodo_announce_signal, hodo_announce_breakpoint, hodo_announce_end
hodo_announce_start:
    push rax
    mov rax, gs:[{BASE}]
    test dword ptr [rax + {OWNER}], {OWNER_DIED}
    jnz 9f
    push rcx
    push rdx
    push rsi
    push rdi
    push r10
    push r11
    sub rsp, 40                   # what the kernel says of a signal; at its end, the signals that are blocked
    xor edi, edi
    xor esi, esi
    lea rdx, [rsp + 32]
    mov r10d, 8
    mov eax, 14                   # rt_sigprocmask: which are blocked?
    syscall
    test eax, eax
    jnz 5f
    mov edi, 23                   # SIGURG
1:  lea ecx, [rdi - 1]
    mov rax, [rsp + 32]
    bt rax, rcx
    jc 2f
    xor esi, esi
    mov rdx, rsp
    mov eax, 13                   # rt_sigaction: is it handled?
    syscall
    test eax, eax
    jnz 2f
    cmp qword ptr [rsp], 1        # SIG_IGN; SIG_DFL is 0
    jbe 3f
2:  mov eax, 28                   # SIGWINCH
    cmp edi, 23
    je 4f
    cmp edi, 28
    jne 5f
    mov eax, 17                   # SIGCHLD
4:  mov edi, eax
    jmp 1b
3:  mov edx, edi
    mov eax, 39                   # getpid
    syscall
    mov edi, eax
    mov eax, 186                  # gettid
    syscall
    mov esi, eax
    mov eax, 234                  # tgkill
    syscall
hodo_announce_signal:
    test eax, eax
    jz 6f
5:  int3
hodo_announce_breakpoint:
6:  add rsp, 40
    pop r11
    pop r10
    pop rdi
    pop rsi
    pop rdx
    pop rcx
9:  pop rax
    ret
hodo_announce_end:
    .popsection
    "#,
    BASE = const tcb::BASE,
    OWNER = const file_header::OWNER,
    OWNER_DIED = const file_header::OWNER_DIED,
);

unsafe extern "C" {
    static hodo_announce_start: u8;
    static hodo_announce_signal: u8;
    static hodo_announce_breakpoint: u8;
    static hodo_announce_end: u8;
}

/// That code.
#[must_use]
pub fn announce() -> Option<Announce> {
    let start = &raw const hodo_announce_start;
    let offset = |symbol: *const u8| symbol.addr() - start.addr();
    // SAFETY: start and end bound one object in read-only data, laid out by the assembly above.
    let code = unsafe { core::slice::from_raw_parts(start, offset(&raw const hodo_announce_end)) };
    Some(Announce {
        code,
        signal: offset(&raw const hodo_announce_signal),
        breakpoint: offset(&raw const hodo_announce_breakpoint),
    })
}
