//! Replacements for the few functions of an unwinder that must know of islands.
//!
//! A traced frame returns into a stub, so unwinders meet addresses in islands. An island has frame information that
//! leads them through (see `frames`), and these hooks make them find it, and keep such frames out of backtraces that
//! the program asks for. All hooks are ordinary C functions to their callers: they may use call-clobbered registers.

use super::emit::{Code, Pending};
use super::stub::Layout;
pub use crate::hooks::{IslandLayout, LimitCall, Raise};
use crate::hooks::{RLIMIT_AS, RLIMIT_DATA};
use alloc::vec::Vec;

/// Bytes of the stack frame of every hook that calls.
const FRAME: u8 = 88;

const JB: &[u8] = &[0x0F, 0x82];
const JA: &[u8] = &[0x0F, 0x87];
const JNE: &[u8] = &[0x0F, 0x85];
const JE: &[u8] = &[0x0F, 0x84];
const CALL: &[u8] = &[0xE8];
const JMP: &[u8] = &[0xE9];

/// `sub reg-copy, lo; cmp reg-copy, len; jb` for `rax`.
fn in_island(code: &mut Code<'_>, (lo, len): (u32, u32)) -> Pending {
    code.op32(&[0x65, 0x48, 0x2B, 0x04, 0x25], lo); // sub rax, gs:[lo]
    code.op32(&[0x65, 0x48, 0x3B, 0x04, 0x25], len); // cmp rax, gs:[len]
    code.forward(JB)
}

/// Prologue for glibc's `_dl_find_object(pc, result)`; the function's own code follows.
/// The result's fields are those of `struct dl_find_object` (glibc 2.35, `dlfcn/dlfcn.h`).
pub fn find_object(code: &mut Code<'_>, layout: &Layout, island: IslandLayout) {
    let mut ours = Vec::new();
    for range in layout.islands {
        code.raw(&[0x48, 0x89, 0xF8]); // mov rax, rdi
        ours.push((in_island(code, range), range));
    }
    let theirs = code.forward(JMP);
    for (pending, (lo, len)) in ours {
        code.bind(pending);
        code.op32(&[0x65, 0x48, 0x8B, 0x14, 0x25], lo); // mov rdx, gs:[lo]
        code.raw(&[0x48, 0x89, 0xD1]); // mov rcx, rdx
        code.op32(&[0x65, 0x48, 0x03, 0x0C, 0x25], len); // add rcx, gs:[len]
        code.raw(&[0x31, 0xC0]); // xor eax, eax
        code.raw(&[0x48, 0x89, 0x06]); // mov [rsi], rax: flags
        code.raw(&[0x48, 0x89, 0x56, 0x08]); // mov [rsi+8], rdx: start
        code.raw(&[0x48, 0x89, 0x4E, 0x10]); // mov [rsi+16], rcx: end
        code.raw(&[0x48, 0x89, 0x46, 0x18]); // mov [rsi+24], rax: no link map
        // The second program header's address, which is relative to the island.
        code.op32(&[0x48, 0x8B, 0x8A], island.program_headers + 56 + 16); // mov rcx, [rdx+…]
        code.raw(&[0x48, 0x01, 0xD1]); // add rcx, rdx
        code.raw(&[0x48, 0x89, 0x4E, 0x20]); // mov [rsi+32], rcx
        code.raw(&[0xC3]); // ret
    }
    code.bind(theirs);
}

/// A function that stands for `_Unwind_Backtrace(callback, argument)`: frames in islands are not reported. `get_ip` is the
/// address of `_Unwind_GetIP`. The function's own code, to be called, follows.
pub fn backtrace(code: &mut Code<'_>, layout: &Layout, get_ip: u64) {
    code.raw(&[0x48, 0x83, 0xEC, FRAME]); // sub rsp, FRAME
    code.raw(&[0x48, 0x89, 0x3C, 0x24]); // mov [rsp], rdi
    code.raw(&[0x48, 0x89, 0x74, 0x24, 0x08]); // mov [rsp+8], rsi
    let filter = code.forward(&[0x48, 0x8D, 0x3D]); // lea rdi, [filter]
    code.raw(&[0x48, 0x89, 0xE6]); // mov rsi, rsp
    let body = code.forward(CALL);
    code.raw(&[0x48, 0x83, 0xC4, FRAME]); // add rsp, FRAME
    code.raw(&[0xC3]);

    code.bind(filter);
    code.raw(&[0x48, 0x83, 0xEC, FRAME]);
    code.raw(&[0x48, 0x89, 0x3C, 0x24]); // mov [rsp], rdi: the context
    code.raw(&[0x48, 0x89, 0x74, 0x24, 0x08]); // mov [rsp+8], rsi
    code.branch(CALL, get_ip);
    code.raw(&[0x48, 0x89, 0xC2]); // mov rdx, rax
    let mut inside = Vec::new();
    for range in layout.islands {
        code.raw(&[0x48, 0x89, 0xD0]); // mov rax, rdx
        inside.push(in_island(code, range));
    }
    code.raw(&[0x48, 0x8B, 0x3C, 0x24]); // mov rdi, [rsp]
    code.raw(&[0x48, 0x8B, 0x74, 0x24, 0x08]); // mov rsi, [rsp+8]
    code.raw(&[0x48, 0x83, 0xC4, FRAME]);
    code.raw(&[0x48, 0x8B, 0x06]); // mov rax, [rsi]: the callback
    code.raw(&[0x48, 0x8B, 0x76, 0x08]); // mov rsi, [rsi+8]: its argument
    code.raw(&[0xFF, 0xE0]); // jmp rax
    for pending in inside {
        code.bind(pending);
    }
    code.raw(&[0x31, 0xC0]); // xor eax, eax: go on
    code.raw(&[0x48, 0x83, 0xC4, FRAME]);
    code.raw(&[0xC3]);
    code.bind(body);
}

/// A function that stands for `dl_iterate_phdr(callback, data)`: islands are reported behind all modules, with the
/// short form of `struct dl_phdr_info` (32 bytes), which no unwinder caches. The function's own code follows.
pub fn iterate_phdr(code: &mut Code<'_>, layout: &Layout, island: IslandLayout) {
    code.raw(&[0x48, 0x83, 0xEC, FRAME]); // sub rsp, FRAME
    code.raw(&[0x48, 0x89, 0x7C, 0x24, 0x48]); // mov [rsp+72], rdi
    code.raw(&[0x48, 0x89, 0x74, 0x24, 0x50]); // mov [rsp+80], rsi
    let body = code.forward(CALL);
    code.raw(&[0x85, 0xC0]); // test eax, eax
    let mut out = vec![code.forward(JNE)];
    for (lo, len) in layout.islands {
        code.op32(&[0x65, 0x48, 0x8B, 0x14, 0x25], len); // mov rdx, gs:[len]
        code.raw(&[0x48, 0x85, 0xD2]); // test rdx, rdx
        let none = code.forward(JE);
        code.op32(&[0x65, 0x48, 0x8B, 0x14, 0x25], lo); // mov rdx, gs:[lo]
        code.raw(&[0x48, 0x89, 0x14, 0x24]); // mov [rsp], rdx: dlpi_addr
        code.op32(&[0x48, 0x8D, 0x8A], island.name); // lea rcx, [rdx+name]
        code.raw(&[0x48, 0x89, 0x4C, 0x24, 0x08]); // mov [rsp+8], rcx: dlpi_name
        code.op32(&[0x48, 0x8D, 0x8A], island.program_headers);
        code.raw(&[0x48, 0x89, 0x4C, 0x24, 0x10]); // mov [rsp+16], rcx: dlpi_phdr
        code.raw(&[0x48, 0xC7, 0x44, 0x24, 0x18, 2, 0, 0, 0]); // mov qword [rsp+24], 2: dlpi_phnum
        code.raw(&[0x48, 0x89, 0xE7]); // mov rdi, rsp
        code.raw(&[0xBE, 32, 0, 0, 0]); // mov esi, 32
        code.raw(&[0x48, 0x8B, 0x54, 0x24, 0x50]); // mov rdx, [rsp+80]
        code.raw(&[0xFF, 0x54, 0x24, 0x48]); // call [rsp+72]
        code.raw(&[0x85, 0xC0]);
        out.push(code.forward(JNE));
        code.bind(none);
        code.raw(&[0x31, 0xC0]); // xor eax, eax
    }
    for pending in out {
        code.bind(pending);
    }
    code.raw(&[0x48, 0x83, 0xC4, FRAME]); // add rsp, FRAME
    code.raw(&[0xC3]);
    code.bind(body);
}

/// A function that stands for one of those that set or get limits. The function's own code, to be called, follows.
pub fn limits(code: &mut Code<'_>, call: LimitCall, extra: Raise) {
    // The frame: a changed copy of the new limits, where the old ones go, how much is added.
    const SAVE_OLD: u8 = 16;
    const SAVE_EXTRA: u8 = 24;
    let mut theirs = Vec::new();
    if call == LimitCall::Both {
        code.raw(&[0x85, 0xFF]); // test edi, edi
        theirs.push(code.forward(JNE));
    }
    // edi, or esi
    let resource = if call == LimitCall::Both { 0xFE } else { 0xFF };
    code.op64(&[0x48, 0xB8], extra.space); // movabs rax, extra.space
    code.raw(&[0x83, resource, RLIMIT_AS]); // cmp resource, RLIMIT_AS
    let space = code.forward(JE);
    code.op64(&[0x48, 0xB8], extra.data); // movabs rax, extra.data
    code.raw(&[0x83, resource, RLIMIT_DATA]); // cmp resource, RLIMIT_DATA
    theirs.push(code.forward(JNE));
    code.bind(space);
    if call == LimitCall::Get {
        code.raw(&[0x48, 0x85, 0xF6]); // test rsi, rsi
        theirs.push(code.forward(JE));
    } else {
        if call == LimitCall::Set {
            code.raw(&[0x48, 0x89, 0xF2]); // mov rdx, rsi
        }
        code.raw(&[0x48, 0x85, 0xD2]); // test rdx, rdx
        let none = code.forward(JE);
        // A soft limit above the hard one stays that, and is refused.
        code.raw(&[0x4C, 0x8B, 0x02]); // mov r8, [rdx]
        code.raw(&[0x4C, 0x3B, 0x42, 0x08]); // cmp r8, [rdx+8]
        theirs.push(code.forward(JA));
        code.bind(none);
    }
    code.raw(&[0x48, 0x83, 0xEC, FRAME]); // sub rsp, FRAME
    code.op64(&[0x49, 0xB9], extra.hard); // movabs r9, extra.hard
    code.raw(&[0x48, 0x89, 0x44, 0x24, SAVE_EXTRA]); // mov [rsp+SAVE_EXTRA], rax
    match call {
        LimitCall::Set => {}
        LimitCall::Get => code.raw(&[0x48, 0x89, 0x74, 0x24, SAVE_OLD]), // mov [rsp+SAVE_OLD], rsi
        LimitCall::Both => code.raw(&[0x48, 0x89, 0x4C, 0x24, SAVE_OLD]), // mov [rsp+SAVE_OLD], rcx
    }
    if call != LimitCall::Get {
        code.raw(&[0x48, 0x85, 0xD2]); // test rdx, rdx
        let none = code.forward(JE);
        // What becomes too large (infinity is the largest number) stays.
        for at in [0, 8] {
            code.raw(&[0x4C, 0x8B, 0x42, at]); // mov r8, [rdx+at]
            code.raw(&[0x4D, 0x89, 0xC2]); // mov r10, r8
            match at {
                0 => code.raw(&[0x49, 0x01, 0xC2]), // add r10, rax
                _ => code.raw(&[0x4D, 0x01, 0xCA]), // add r10, r9
            }
            code.raw(&[0x4D, 0x0F, 0x42, 0xD0]); // cmovb r10, r8
            code.raw(&[0x4C, 0x89, 0x54, 0x24, at]); // mov [rsp+at], r10
        }
        match call {
            LimitCall::Set => code.raw(&[0x48, 0x89, 0xE6]), // mov rsi, rsp
            _ => code.raw(&[0x48, 0x89, 0xE2]),              // mov rdx, rsp
        }
        code.bind(none);
    }
    let body = code.forward(CALL);
    if call != LimitCall::Set {
        code.raw(&[0x85, 0xC0]); // test eax, eax
        let failed = code.forward(JNE);
        code.raw(&[0x48, 0x8B, 0x74, 0x24, SAVE_OLD]); // mov rsi, [rsp+SAVE_OLD]
        code.raw(&[0x48, 0x85, 0xF6]); // test rsi, rsi
        let none = code.forward(JE);
        code.raw(&[0x48, 0x8B, 0x4C, 0x24, SAVE_EXTRA]); // mov rcx, [rsp+SAVE_EXTRA]
        code.op64(&[0x49, 0xB9], extra.hard); // movabs r9, extra.hard
        // What is too small, or infinite, was not changed.
        for at in [0, 8] {
            code.raw(&[0x48, 0x8B, 0x56, at]); // mov rdx, [rsi+at]
            code.raw(&[0x48, 0x89, 0xD7]); // mov rdi, rdx
            match at {
                0 => code.raw(&[0x48, 0x29, 0xCF]), // sub rdi, rcx
                _ => code.raw(&[0x4C, 0x29, 0xCF]), // sub rdi, r9
            }
            code.raw(&[0x48, 0x0F, 0x42, 0xFA]); // cmovb rdi, rdx
            code.raw(&[0x48, 0x83, 0xFA, 0xFF]); // cmp rdx, -1
            code.raw(&[0x48, 0x0F, 0x44, 0xFA]); // cmove rdi, rdx
            code.raw(&[0x48, 0x89, 0x7E, at]); // mov [rsi+at], rdi
        }
        code.bind(failed);
        code.bind(none);
    }
    code.raw(&[0x48, 0x83, 0xC4, FRAME]); // add rsp, FRAME
    code.raw(&[0xC3]);
    for pending in theirs {
        code.bind(pending);
    }
    code.bind(body);
}
