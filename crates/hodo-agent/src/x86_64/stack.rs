//! Packs a stack: keeps the words by which callers are found, which are those that may be addresses of code or of the
//! stack.
//!
//! A copy of the whole stack costs some microseconds an event, nearly all of it for fresh pages of the trace. The words
//! that unwinding needs are few: return addresses, and saved registers that lead to frames.

use hodo_trace::format::{STACK_SPAN, STACK_WORDS, tcb};

use crate::Stack;

core::arch::global_asm!(
    r#"
    .pushsection .rodata.hodo_agent_stack, "a", @progbits
    .p2align 6
    .globl hodo_stack_start, hodo_stack_load, hodo_stack_fault, hodo_stack_shadow, hodo_stack_plain, hodo_stack_end
    .hidden hodo_stack_start, hodo_stack_load, hodo_stack_fault, hodo_stack_shadow, hodo_stack_plain, hodo_stack_end

    # In: rax = the stack pointer, rcx = an event, rdx = its word for the length, which a bitmap of {STACK_WORDS}
    # bits and room for as
    # many words follow, r8 = the address after that. Clobbers rax, rdx, r8 and the flags.
    # The event gives back what it does not use, unless a signal handler has recorded meanwhile: then that stays a hole.
hodo_stack_start:
    push rbx
    push rsi
    push rdi
    push r8
    push r9
    push r10
    push r11
    push r12
    mov rsi, rax
    mov r11, rax
    mov r12, rdx
    lea rdi, [rdx + 8 + {BITMAP}]
    xor eax, eax
    mov r9d, {BITMAP} / 8
1:  mov [rdx + r9 * 8], rax
    dec r9d
    jnz 1b
    # No further than where the stack is known to end.
    mov r10d, {STACK_WORDS}
    mov rax, gs:[{STACK_TOP}]
    sub rax, r11
    jb 2f
    shr rax, 3
    cmp rax, r10
    cmovb r10, rax
2:  xor r8d, r8d
    test r10d, r10d
    jz 8f
    # rsi = the word's address, rdi = where it goes, r8 = bits of 64 words, r9 = its number, ebx = -1: keep it.
3:
hodo_stack_load:
    mov rax, [rsi]
    mov rdx, rax
    sub rdx, r11
    cmp rdx, {STACK_SPAN}
    sbb ebx, ebx
    mov rdx, rax
    sub rdx, gs:[{CODE0_LO}]
    cmp rdx, gs:[{CODE0_LEN}]
    sbb edx, edx
    or ebx, edx
    mov rdx, rax
    sub rdx, gs:[{CODE1_LO}]
    cmp rdx, gs:[{CODE1_LEN}]
    sbb edx, edx
    or ebx, edx
    # A traced function returns to a stub: its return address is in the shadow.
    mov rdx, rax
    sub rdx, gs:[{ISLAND0_LO}]
    cmp rdx, gs:[{ISLAND0_LEN}]
    jb 10f
    mov rdx, rax
    sub rdx, gs:[{ISLAND1_LO}]
    cmp rdx, gs:[{ISLAND1_LEN}]
    jb 10f
4:  mov [rdi], rax
    mov edx, ebx
    and edx, 8
    add rdi, rdx
    add ebx, ebx
    rcr r8, 1
    add rsi, 8
    inc r9d
    test r9b, 63
    jnz 5f
    mov edx, r9d
    shr edx, 3
    mov [r12 + rdx], r8
5:  cmp r9d, r10d
    jb 3b
    # The bits of the last words stand at the upper end.
8:  test r9b, 63
    jz 9f
    shr r8, 1
    inc r9d
    test r9b, 63
    jnz 8b
    mov edx, r9d
    shr edx, 3
    mov [r12 + rdx], r8
9:  shl r10d, 3
    mov [r12], r10
    pop r12
    pop r11
    pop r10
    pop r9
    mov rax, [rsp]
    cmpxchg gs:[{CURSOR}], rdi
    jne 11f
    sub rdi, rcx
    shr rdi, 3
    sub edi, 2
    mov [rcx + 8], edi
11: pop r8
    pop rdi
    pop rsi
    pop rbx
    ret
10: or ebx, -1
    mov rdx, gs:[{TO_SHADOW}]
hodo_stack_shadow:
    mov rdx, [rsi + rdx]
    btr rdx, 63
    test rdx, rdx
    cmovnz rax, rdx
hodo_stack_plain:
    jmp 4b
    # Here the stack ends: the next event will know.
hodo_stack_fault:
    mov gs:[{STACK_TOP}], rsi
    mov r10d, r9d
    jmp 8b
    .p2align 3
hodo_stack_end:
    .popsection
    "#,
    STACK_WORDS = const STACK_WORDS,
    BITMAP = const STACK_WORDS / 8,
    STACK_SPAN = const STACK_SPAN,
    STACK_TOP = const tcb::STACK_TOP,
    CODE0_LO = const tcb::CODE0_LO,
    CODE0_LEN = const tcb::CODE0_LEN,
    CODE1_LO = const tcb::CODE1_LO,
    CODE1_LEN = const tcb::CODE1_LEN,
    ISLAND0_LO = const tcb::ISLAND0_LO,
    ISLAND0_LEN = const tcb::ISLAND0_LEN,
    ISLAND1_LO = const tcb::ISLAND1_LO,
    ISLAND1_LEN = const tcb::ISLAND1_LEN,
    TO_SHADOW = const tcb::TO_SHADOW,
    CURSOR = const tcb::CURSOR,
);

unsafe extern "C" {
    static hodo_stack_start: u8;
    static hodo_stack_load: u8;
    static hodo_stack_fault: u8;
    static hodo_stack_shadow: u8;
    static hodo_stack_plain: u8;
    static hodo_stack_end: u8;
}

/// The code that packs a stack, ready to be copied into a target.
#[must_use]
pub fn stack() -> Option<Stack> {
    let start = &raw const hodo_stack_start;
    let offset = |symbol: *const u8| symbol.addr() - start.addr();
    Some(Stack {
        // SAFETY: start and end bound one object in read-only data, laid out by the assembly above.
        code: unsafe { core::slice::from_raw_parts(start, offset(&raw const hodo_stack_end)) },
        faults: [
            (
                offset(&raw const hodo_stack_load),
                offset(&raw const hodo_stack_fault),
            ),
            (
                offset(&raw const hodo_stack_shadow),
                offset(&raw const hodo_stack_plain),
            ),
        ],
    })
}
