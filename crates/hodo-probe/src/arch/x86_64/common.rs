//! The code shared by all detours of an island, which calls handlers; and a way to call a handler from elsewhere.
//!
//! A detour lowers the stack pointer below the red zone, pushes the address of its site's [`Head`], and calls `enter`.
//! `enter` pushes the registers in the order of [`Registers`], so that the stack holds one, marks the thread as busy,
//! calls the handlers of the site's list, and restores the registers. All flags except DF, TF and AC are set by `sahf`
//! and an addition that overflows or does not: `popf` would cost more than all the rest.
//!
//! While a thread is busy, it misses all hits, which are counted. A handler that faults is left through `recover`. The
//! list that a thread reads after it was marked is not freed before the thread is done (see `threads.rs`).

use core::arch::{asm, global_asm, x86_64::__cpuid_count};
use core::mem::offset_of;

use super::Registers;
use crate::arch::calling::{calling_asm, hodo_engine_guarded};
use crate::layout::{KEEP_ALL, KEEP_SOME, Thread};

/// Bytes of [`Registers`], and what a detour's stack has above them: the return address, the site, the red zone.
const FRAME: usize = size_of::<Registers>();

calling_asm!(
    r#"
    .pushsection .text.hodo_engine_common,"ax",@progbits
    // Restores the registers, up to the flags.
    .macro hodo_engine_take
    pop rax
    pop rcx
    pop rdx
    pop rbx
    lea rsp, [rsp + 8]
    pop rbp
    pop rsi
    pop rdi
    pop r8
    pop r9
    pop r10
    pop r11
    pop r12
    pop r13
    pop r14
    pop r15
    .endm
    // Saves parts of the state below the stack pointer. The header of the save area must be zeros.
    .macro hodo_engine_xsave
    sub rsp, [rip + 92f]
    xor eax, eax
    mov [rsp + 512], rax
    mov [rsp + 520], rax
    mov [rsp + 528], rax
    mov [rsp + 536], rax
    mov [rsp + 544], rax
    mov [rsp + 552], rax
    mov [rsp + 560], rax
    mov [rsp + 568], rax
    mov eax, [rip + 93f]
    xor edx, edx
    xsave64 [rsp]
    .endm
    .balign 16
    .hidden hodo_engine_common
    .globl hodo_engine_common
hodo_engine_common:
    push rax
    pushfq
    push r15
    push r14
    push r13
    push r12
    push r11
    push r10
    push r9
    push r8
    push rdi
    push rsi
    push rbp
    push rax
    push rbx
    push rdx
    push rcx
    push rax
    test byte ptr [rsp + {FLAGS} + 1], 4
    jz 12f
    cld
12: mov rbx, rsp
    mov rbp, [rbx + {SITE}]
    lea rax, [rbx + {STACK}]
    mov [rbx + {RSP}], rax
    mov rax, [rbp + {ADDR}]
    mov [rbx + {PC}], rax
    mov rcx, [rip + 90f]
    mov r12, fs:[rcx]
    test r12, r12
    jz 60f
20: cmp dword ptr [r12 + {BUSY}], 0
    jne 70f
    mov dword ptr [r12 + {BUSY}], 1
    inc qword ptr [r12 + {SEQUENCE}]
    mov r13, [rbp + {LIST}]
    mov eax, [rbp + {KEEP}]
    and rsp, -64
    test eax, eax
    jnz 40f
    // What is saved is stored here, where the restoring code finds it.
41: sub rsp, 64
    mov [rsp + 8], eax
    mov r15, rsp
    push rbx
    push r15
    push r12
    push r13
    lea rax, [rip + 50f]
    mov [r12 + {RECOVER_PC}], rax
    mov [r12 + {RECOVER_SP}], rsp
31: mov r14, [r13]
    add r13, 8
    test r14, r14
    jz 33f
    cmp dword ptr [r14 + {ENABLED}], 0
    je 31b
    mov rax, [r14 + {BEFORE}]
    test rax, rax
    jz 32f
    mov [rsp], r13
    mov [r12 + {PROBE}], r14
    mov rdi, rbx
    mov rsi, [r14 + {DATA}]
    call rax
    jmp 31b
32: lock inc qword ptr [r14 + {COUNTS}]
    jmp 31b
33: mov rsp, r15
    mov rbp, [rbx + {SITE}]
    cmp dword ptr [rsp + 8], {KEEP_SSE}
    ja 46f
    je 47f
34: mov qword ptr [r12 + {RECOVER_PC}], 0
    mov dword ptr [r12 + {BUSY}], 0
    mov rax, [rbp + {ADDR}]
    cmp [rbx + {PC}], rax
    jne 80f
    lea rax, [rbx + {STACK}]
    cmp [rbx + {RSP}], rax
    jne 80f
35: mov rsp, rbx
    mov eax, [rbx + {FLAGS}]
    test eax, 0x40500
    jnz 36f
    mov edx, eax
    shr edx, 11
    and edx, 1
    mov ah, al
    mov al, dl
    add al, 127
    sahf
    hodo_engine_take
    lea rsp, [rsp + 16]
    ret
36: hodo_engine_take
    popfq
    lea rsp, [rsp + 8]
    ret
40: cmp eax, {KEEP_SSE}
    ja 42f
    // The control word is saved after the registers: arithmetic sets flags in it.
    sub rsp, 320
    stmxcsr [rsp + 256]
    movups [rsp], xmm0
    movups [rsp + 16], xmm1
    movups [rsp + 32], xmm2
    movups [rsp + 48], xmm3
    movups [rsp + 64], xmm4
    movups [rsp + 80], xmm5
    movups [rsp + 96], xmm6
    movups [rsp + 112], xmm7
    movups [rsp + 128], xmm8
    movups [rsp + 144], xmm9
    movups [rsp + 160], xmm10
    movups [rsp + 176], xmm11
    movups [rsp + 192], xmm12
    movups [rsp + 208], xmm13
    movups [rsp + 224], xmm14
    movups [rsp + 240], xmm15
    jmp 41b
42: mov ecx, eax
    hodo_engine_xsave
    mov eax, ecx
    jmp 41b
46: mov eax, [rip + 93f]
    xor edx, edx
    xrstor64 [rsp + 64]
    jmp 34b
47: movups xmm0, [rsp + 64]
    movups xmm1, [rsp + 80]
    movups xmm2, [rsp + 96]
    movups xmm3, [rsp + 112]
    movups xmm4, [rsp + 128]
    movups xmm5, [rsp + 144]
    movups xmm6, [rsp + 160]
    movups xmm7, [rsp + 176]
    movups xmm8, [rsp + 192]
    movups xmm9, [rsp + 208]
    movups xmm10, [rsp + 224]
    movups xmm11, [rsp + 240]
    movups xmm12, [rsp + 256]
    movups xmm13, [rsp + 272]
    movups xmm14, [rsp + 288]
    movups xmm15, [rsp + 304]
    stmxcsr [rsp + 12]
    mov eax, [rsp + 12]
    cmp eax, [rsp + 320]
    je 34b
    ldmxcsr [rsp + 320]
    jmp 34b
    // A handler faulted: continue with the next one. The stack pointer is that of the loop.
50: pop r13
    pop r12
    pop r15
    pop rbx
    sub rsp, 32
    mov rbp, [rbx + {SITE}]
    jmp 31b
    // The thread is new: give it an entry in the table.
60: and rsp, -64
    hodo_engine_xsave
    mov rax, [rip + 91f]
    call rax
    mov r12, rax
    mov eax, [rip + 93f]
    xor edx, edx
    xrstor64 [rsp]
    mov rsp, rbx
    test r12, r12
    jnz 20b
    mov rax, [rip + 94f]
    lock inc qword ptr [rax]
    jmp 35b
    // A handler is running in this thread.
70: mov r13, [rbp + {LIST}]
71: mov r14, [r13]
    add r13, 8
    test r14, r14
    jz 35b
    cmp dword ptr [r14 + {ENABLED}], 0
    je 71b
    cmp qword ptr [r14 + {BEFORE}], 0
    je 72f
    lock inc qword ptr [r14 + {MISSED}]
    jmp 71b
72: lock inc qword ptr [r14 + {COUNTS}]
    jmp 71b
    // The handler wants to continue elsewhere, or with another stack pointer. The registers are copied below the lower
    // of the two stack pointers; the address goes below the new red zone, from where `ret` takes it. Nothing is written
    // below the stack pointer: a signal handler or an interrupt would overwrite it.
80: lea rax, [rbx + {STACK}]
    mov rdx, [rbx + {RSP}]
    cmp rax, rdx
    cmova rax, rdx
    lea rdi, [rax - 512]
    mov rsp, rdi
    mov rsi, rbx
    mov ecx, {FRAME} / 8
    mov r8, rdi
    mov r9, [rbx + {PC}]
    rep movsq
    mov [rdx - 136], r9
    sub rdx, 136
    mov [r8 + {PC}], rdx
    hodo_engine_take
    popfq
    pop rsp
    ret 128
    .balign 8
90: .quad 0
91: .quad 0
92: .quad 0
93: .quad 0
94: .quad 0
    .hidden hodo_engine_common_end
    .globl hodo_engine_common_end
hodo_engine_common_end:
    .purgem hodo_engine_take
    .purgem hodo_engine_xsave
    .popsection
    "#,
    FLAGS = const offset_of!(Registers, flags),
    PC = const offset_of!(Registers, pc),
    RSP = const offset_of!(Registers, rsp),
    FRAME = const FRAME,
    SITE = const FRAME + 8,
    STACK = const FRAME + 16 + 128,
    KEEP_SSE = const KEEP_SOME,
);

// Calls a handler. The result is 1 if the handler faulted and was left.
global_asm!(
    r#"
    .pushsection .text.hodo_engine_guarded,"ax",@progbits
    .hidden hodo_engine_guarded
    .globl hodo_engine_guarded
    .type hodo_engine_guarded,@function
hodo_engine_guarded:
    push rbx
    push rbp
    push r12
    push r13
    push r14
    push r15
    push rdi
    lea rax, [rip + 2f]
    mov [rdi + {RECOVER_PC}], rax
    mov [rdi + {RECOVER_SP}], rsp
    mov rax, rsi
    mov rdi, rdx
    mov rsi, rcx
    call rax
    xor eax, eax
3:  pop rdi
    mov qword ptr [rdi + {RECOVER_PC}], 0
    pop r15
    pop r14
    pop r13
    pop r12
    pop rbp
    pop rbx
    ret
2:  mov eax, 1
    jmp 3b
    .size hodo_engine_guarded, . - hodo_engine_guarded
    .popsection
    .pushsection .tbss.hodo_engine,"awT",@nobits
    .balign 8
    .hidden hodo_engine_thread
    .globl hodo_engine_thread
    .type hodo_engine_thread,@object
    .size hodo_engine_thread, 8
hodo_engine_thread:
    .zero 8
    .popsection
    "#,
    RECOVER_PC = const offset_of!(Thread, recover_pc),
    RECOVER_SP = const offset_of!(Thread, recover_sp),
);

unsafe extern "C" {
    static hodo_engine_common: u8;
    static hodo_engine_common_end: u8;
}

/// The offset from the `fs` base to the running thread's pointer to its table entry.
pub(crate) fn tls_offset() -> u64 {
    let offset: u64;
    // SAFETY: the linker has put the number there.
    unsafe {
        asm!(
            "mov {}, qword ptr [rip + hodo_engine_thread@GOTTPOFF]",
            out(reg) offset,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    offset
}

/// The running thread's pointer to its table entry.
pub(crate) fn thread_pointer() -> *const Thread {
    let pointer;
    // SAFETY: each thread has eight bytes of its own memory there.
    unsafe {
        asm!("mov {}, fs:[{}]", out(reg) pointer, in(reg) tls_offset(), options(readonly, nostack, preserves_flags));
    }
    pointer
}

/// Sets that pointer.
///
/// # Safety
/// The entry must be this thread's own, and stay.
pub(crate) unsafe fn set_thread_pointer(thread: *const Thread) {
    // SAFETY: each thread has eight bytes of its own memory there.
    unsafe {
        asm!("mov fs:[{}], {}", in(reg) tls_offset(), in(reg) thread, options(nostack, preserves_flags));
    }
}

/// Parts of the state that are saved: x87, SSE, AVX, AVX-512.
const STATE: u32 = 0xE7;

/// The parts of [`STATE`] that this processor has, and their size in bytes; `None` if it has no `xsave`.
fn state_size() -> Option<(u32, u64)> {
    const OSXSAVE: u32 = 1 << 27;
    if __cpuid_count(1, 0).ecx & OSXSAVE == 0 {
        return None;
    }
    let parts = STATE & __cpuid_count(0xD, 0).eax;
    let mut size = 576;
    for part in (2..32).filter(|part| parts >> part & 1 == 1) {
        let leaf = __cpuid_count(0xD, part);
        size = size.max(leaf.ebx + leaf.eax);
    }
    Some((parts, u64::from(size).next_multiple_of(64)))
}

/// The shared code with its data, to be copied to an island's start. `None` if the processor has no `xsave`.
pub(crate) fn code(
    claim: extern "C" fn() -> *const Thread,
    unknown: *const u64,
) -> Option<alloc::vec::Vec<u8>> {
    let (parts, size) = state_size()?;
    // SAFETY: the two symbols are the start and the end of one piece of read-only code.
    let code = unsafe {
        let start = &raw const hodo_engine_common;
        let end = &raw const hodo_engine_common_end;
        core::slice::from_raw_parts(start, end as usize - start as usize)
    };
    let mut code = code.to_vec();
    let data = code.len() - 40;
    let values = [
        tls_offset(),
        claim as *const () as u64,
        size,
        u64::from(parts),
        unknown as u64,
    ];
    for (place, value) in code[data..].chunks_exact_mut(8).zip(values) {
        place.copy_from_slice(&value.to_le_bytes());
    }
    const { assert!(KEEP_ALL > KEEP_SOME) };
    Some(code)
}

/// Returns whether an address is in the assembly of this file.
pub(super) fn is_assembly(addr: u64) -> bool {
    let (start, end) = (
        &raw const hodo_engine_common,
        &raw const hodo_engine_common_end,
    );
    let guarded = hodo_engine_guarded as *const () as u64;
    (start as u64..end as u64).contains(&addr) || (guarded..guarded + 64).contains(&addr)
}
