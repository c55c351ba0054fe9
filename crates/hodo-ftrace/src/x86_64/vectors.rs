//! Keeps floating-point and vector registers around a call.

use core::arch::x86_64::__cpuid_count;
use core::arch::{asm, global_asm, naked_asm};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// How the registers are saved.
#[repr(C)]
struct Vectors {
    /// 0: `fxsave`, 1: `xsave`, 2: `xsavec`.
    kind: AtomicU32,
    /// The number of bytes.
    size: AtomicU32,
    /// The parts of the state, for `xsave` and `xsavec`.
    mask: AtomicU64,
}

// Hidden, like `hodo_ftrace_state`.
global_asm!(
    ".pushsection .bss.hodo_ftrace_vectors, \"aw\", @nobits",
    ".balign 16",
    ".globl hodo_ftrace_vectors",
    ".hidden hodo_ftrace_vectors",
    ".type hodo_ftrace_vectors, @object",
    ".size hodo_ftrace_vectors, 16",
    "hodo_ftrace_vectors:",
    ".zero 16",
    ".popsection",
);

unsafe extern "C" {
    safe static hodo_ftrace_vectors: Vectors;
}

/// Parts of the state that are no registers of floating-point or vector code: protection keys (9) and AMX tiles (17,
/// 18), which have 8 KB. (Intel SDM, volume 1, section 13.1.)
const OTHERS: u64 = 1 << 9 | 1 << 17 | 1 << 18;
/// The size of what `fxsave` saves, and of the header that `xsave` adds.
const LEGACY: u32 = 512;
const HEADER: u32 = 64;

/// Finds out what the processor and the kernel offer. (Intel SDM, volume 1, sections 13.2 and 13.4.)
pub(crate) fn find_vectors() {
    const OSXSAVE: u32 = 1 << 27;
    const XSAVEC: u32 = 1 << 1;
    let vectors = &hodo_ftrace_vectors;
    if vectors.size.load(Ordering::Relaxed) != 0 {
        return;
    }
    let (mut kind, mut size, mut mask) = (0, LEGACY, 0);
    if __cpuid_count(1, 0).ecx & OSXSAVE != 0 {
        let (low, high): (u32, u32);
        // SAFETY: the kernel has enabled this instruction. It reads a register.
        unsafe {
            asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high, options(nomem, nostack));
        }
        mask = (u64::from(high) << 32 | u64::from(low)) & !OTHERS;
        kind = 1 + u32::from(__cpuid_count(13, 1).eax & XSAVEC != 0);
        size = LEGACY + HEADER;
        for part in (2..63).filter(|part| mask >> part & 1 != 0) {
            let part = __cpuid_count(13, part);
            // `xsave` puts it at the offset in `ebx`. `xsavec` puts it after the others, perhaps aligned to 64 bytes.
            size = size.max(part.ebx + part.eax).next_multiple_of(64);
        }
    }
    vectors.mask.store(mask, Ordering::Relaxed);
    vectors.kind.store(kind, Ordering::Relaxed);
    vectors.size.store(size, Ordering::Relaxed);
}

/// Calls a function with two words, and returns what it returns. All floating-point and vector registers are afterwards
/// as before, with their control registers. The function starts with an empty x87 stack, which is not empty after a
/// function has returned a `long double`.
///
/// # Safety
/// `function` takes no more than two words, and may be called with these.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn call_with_vectors(
    function: usize,
    first: usize,
    second: usize,
) -> usize {
    naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset rbp, -16",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "push rbx",
        ".cfi_offset rbx, -24",
        "mov rbx, rdi",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov ecx, [rip + hodo_ftrace_vectors + 4]",
        "sub rsp, rcx",
        "and rsp, -64",
        "mov eax, [rip + hodo_ftrace_vectors + 8]",
        "mov edx, [rip + hodo_ftrace_vectors + 12]",
        "cmp dword ptr [rip + hodo_ftrace_vectors], 1",
        "ja 2f",
        "jb 3f",
        // The header must be zero, except for what is written.
        "xor ecx, ecx",
        "mov [rsp + 512], rcx",
        "mov [rsp + 520], rcx",
        "mov [rsp + 528], rcx",
        "mov [rsp + 536], rcx",
        "mov [rsp + 544], rcx",
        "mov [rsp + 552], rcx",
        "mov [rsp + 560], rcx",
        "mov [rsp + 568], rcx",
        "xsave64 [rsp]",
        "jmp 4f",
        // This writes the first 16 bytes of the header.
        "2: xor ecx, ecx",
        "mov [rsp + 528], rcx",
        "mov [rsp + 536], rcx",
        "mov [rsp + 544], rcx",
        "mov [rsp + 552], rcx",
        "mov [rsp + 560], rcx",
        "mov [rsp + 568], rcx",
        "xsavec64 [rsp]",
        "jmp 4f",
        "3: fxsave64 [rsp]",
        "4: fninit",
        "call rbx",
        "mov rbx, rax",
        "mov eax, [rip + hodo_ftrace_vectors + 8]",
        "mov edx, [rip + hodo_ftrace_vectors + 12]",
        "cmp dword ptr [rip + hodo_ftrace_vectors], 0",
        "je 5f",
        "xrstor64 [rsp]",
        "jmp 6f",
        "5: fxrstor64 [rsp]",
        "6: mov rax, rbx",
        "mov rbx, [rbp - 8]",
        ".cfi_restore rbx",
        "leave",
        ".cfi_def_cfa rsp, 8",
        ".cfi_restore rbp",
        "ret",
        ".cfi_endproc",
    );
}

/// [`call_with_vectors`] for a function that changes nothing but the lower 128 bits of vector registers 0 to 15, and
/// MXCSR: all of these are kept, because a caller may have seen that a function leaves them alone.
///
/// # Safety
/// `function` takes no more than two words, and may be called with these.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn call_with_part(
    function: usize,
    first: usize,
    second: usize,
) -> usize {
    naked_asm!(
        ".cfi_startproc",
        "sub rsp, 280",
        ".cfi_def_cfa_offset 288",
        // Arithmetic sets flags in the control word.
        "stmxcsr [rsp + 256]",
        "movaps [rsp + 0], xmm0",
        "movaps [rsp + 16], xmm1",
        "movaps [rsp + 32], xmm2",
        "movaps [rsp + 48], xmm3",
        "movaps [rsp + 64], xmm4",
        "movaps [rsp + 80], xmm5",
        "movaps [rsp + 96], xmm6",
        "movaps [rsp + 112], xmm7",
        "movaps [rsp + 128], xmm8",
        "movaps [rsp + 144], xmm9",
        "movaps [rsp + 160], xmm10",
        "movaps [rsp + 176], xmm11",
        "movaps [rsp + 192], xmm12",
        "movaps [rsp + 208], xmm13",
        "movaps [rsp + 224], xmm14",
        "movaps [rsp + 240], xmm15",
        "mov rax, rdi",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "call rax",
        "movaps xmm0, [rsp + 0]",
        "movaps xmm1, [rsp + 16]",
        "movaps xmm2, [rsp + 32]",
        "movaps xmm3, [rsp + 48]",
        "movaps xmm4, [rsp + 64]",
        "movaps xmm5, [rsp + 80]",
        "movaps xmm6, [rsp + 96]",
        "movaps xmm7, [rsp + 112]",
        "movaps xmm8, [rsp + 128]",
        "movaps xmm9, [rsp + 144]",
        "movaps xmm10, [rsp + 160]",
        "movaps xmm11, [rsp + 176]",
        "movaps xmm12, [rsp + 192]",
        "movaps xmm13, [rsp + 208]",
        "movaps xmm14, [rsp + 224]",
        "movaps xmm15, [rsp + 240]",
        "ldmxcsr [rsp + 256]",
        "add rsp, 280",
        ".cfi_def_cfa_offset 8",
        "ret",
        ".cfi_endproc",
    );
}
