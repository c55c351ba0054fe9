//! The usual case in assembly: the only hooks are those for entries and returns, and all that is needed is there
//! (`State::quick`). These instructions do what `graph.rs` does in this case. Each call and return costs about a
//! nanosecond, and Rust code must save registers for each. In all other cases, these instructions change nothing but
//! registers that `enter` and `leave` take no arguments in, and jump to label 8, where one of these is called.

use core::mem::offset_of;

use crate::call::Call;
use crate::state::{GraphOps, State};
use crate::thread::{Open, Thread};

pub(crate) const QUICK: usize = offset_of!(State, quick);
pub(crate) const QUICK_GRAPH: usize = offset_of!(State, quick_graph);
pub(crate) const MINUS_DISTANCE: isize = -super::SHADOW_DISTANCE.cast_signed();
pub(crate) const THREAD_OFFSET: usize = offset_of!(State, thread_offset);
pub(crate) const BUSY: usize = offset_of!(Thread, busy);
pub(crate) const DEPTH: usize = offset_of!(Thread, depth);
pub(crate) const LIMIT: usize = offset_of!(Thread, limit);
pub(crate) const CALLS: usize = offset_of!(Thread, calls);
pub(crate) const SHADOW_FROM: usize = offset_of!(Thread, shadow_from);
pub(crate) const SHADOW_SIZE: usize = offset_of!(Thread, shadow_size);
pub(crate) const SLOT: usize = offset_of!(Open, slot);
pub(crate) const PARENT: usize = offset_of!(Open, parent);
pub(crate) const FRAME_POINTER: usize = offset_of!(Open, frame_pointer);
pub(crate) const OPS: usize = offset_of!(Open, ops);
pub(crate) const CALL: usize = offset_of!(Open, call);
pub(crate) const FUNC: usize = CALL + offset_of!(Call, func);
pub(crate) const RETURNS_TO: usize = CALL + offset_of!(Call, parent);
pub(crate) const AT_DEPTH: usize = CALL + offset_of!(Call, depth);
pub(crate) const DATA: usize = CALL + offset_of!(Call, data);
pub(crate) const ENTRY: usize = offset_of!(GraphOps, entry);
pub(crate) const EXIT: usize = offset_of!(GraphOps, exit);
// As the instructions have it.
const _: () = assert!(size_of::<Open>() == 64);

/// At a call of `mcount` or `__fentry__`, before [`quick_enter`]: finds its address, `r8`, by the return address of the
/// stub, `rdx`. See `call_size`.
macro_rules! quick_site {
    () => {
        "mov r9, [rip + hodo_ftrace_state + {quick}]
        lea r8, [rdx - 6]
        cmp byte ptr [r8], 0x67
        je 2f
        xor ecx, ecx
        cmp byte ptr [rdx - 5], 0xE8
        sete cl
        add r8, rcx
        2:"
    };
}

/// At an entry: `rdi` is the slot, `rsi` the caller's frame pointer, `r8` the address of the call, `r9` the hooks. The
/// stack is aligned. Keeps `rdx`. Continues at label 9.
macro_rules! quick_enter {
    () => {
        "test r9, r9
        jz 8f
        mov rax, [rip + hodo_ftrace_state + {thread_offset}]
        add rax, fs:0
        cmp rdi, [rax + {busy}]
        jb 8f
        mov rcx, [rdi]
        lea r11, [rip + hodo_ftrace_return_to_handler]
        // A tail call.
        cmp rcx, r11
        je 8f
        mov r11, [rax + {depth}]
        cmp r11, [rax + {limit}]
        jae 8f
        mov r10, rdi
        sub r10, [rax + {shadow_from}]
        cmp r10, [rax + {shadow_size}]
        jae 8f
        mov r10, r11
        shl r10, 6
        add r10, [rax + {calls}]
        // Calls to be dropped.
        test r11, r11
        jz 3f
        cmp [r10 - 64 + {slot}], rdi
        jbe 8f
        3: mov [rax + {busy}], rdi
        mov [r10 + {slot}], rdi
        mov [r10 + {parent}], rdi
        mov [r10 + {frame_pointer}], rsi
        mov [r10 + {ops}], r9
        mov [r10 + {func}], r8
        mov [r10 + {returns_to}], rcx
        mov [r10 + {at_depth}], r11
        mov qword ptr [r10 + {data}], 0
        movabs r8, {minus_distance}
        mov [rdi + r8], rcx
        lea r8, [rip + hodo_ftrace_return_to_handler]
        mov [rdi], r8
        inc r11
        mov [rax + {depth}], r11
        push rax
        push r10
        lea rdi, [r10 + {call}]
        call [r9 + {entry}]
        pop r10
        pop rcx
        test eax, eax
        jnz 4f
        // It is of no interest.
        mov rdi, [r10 + {slot}]
        movabs r8, {minus_distance}
        mov rdx, [rdi + r8]
        mov [rdi], rdx
        dec qword ptr [rcx + {depth}]
        4: mov qword ptr [rcx + {busy}], 0
        jmp 9f"
    };
}

/// At a return: `rdi` is the stack pointer after it. The stack is aligned. Continues at label 9, with the return
/// address in `rax`.
macro_rules! quick_leave {
    () => {
        "mov r9, [rip + hodo_ftrace_state + {quick}]
        test r9, r9
        jz 8f
        mov rax, [rip + hodo_ftrace_state + {thread_offset}]
        add rax, fs:0
        cmp rdi, [rax + {busy}]
        jb 8f
        mov rcx, [rax + {depth}]
        test rcx, rcx
        jz 8f
        mov r10, rcx
        shl r10, 6
        add r10, [rax + {calls}]
        lea r8, [rdi - 8]
        cmp [r10 - 64 + {slot}], r8
        jne 8f
        cmp [r10 - 64 + {ops}], r9
        jne 8f
        // Another call that has ended.
        cmp rcx, 1
        je 2f
        cmp [r10 - 128 + {slot}], rdi
        jb 8f
        2: mov [rax + {busy}], rdi
        push rax
        push rcx
        lea rdi, [r10 - 64 + {call}]
        call [r9 + {exit}]
        pop rcx
        pop rdx
        dec rcx
        mov [rdx + {depth}], rcx
        mov qword ptr [rdx + {busy}], 0
        movabs rcx, {minus_distance}
        mov rax, [rbp + rcx + 8]
        jmp 9f"
    };
}

/// [`naked_asm!`](core::arch::naked_asm) for a stub that has [`quick_enter`], with what that needs. `$quick` is the word of
/// the state with the hooks.
macro_rules! quick_enter_asm {
    ($quick:expr, $($stub:tt)*) => {
        naked_asm!(
            $($stub)*
            quick = const $quick,
            thread_offset = const quick::THREAD_OFFSET,
            busy = const quick::BUSY,
            depth = const quick::DEPTH,
            limit = const quick::LIMIT,
            calls = const quick::CALLS,
            shadow_from = const quick::SHADOW_FROM,
            shadow_size = const quick::SHADOW_SIZE,
            slot = const quick::SLOT,
            parent = const quick::PARENT,
            frame_pointer = const quick::FRAME_POINTER,
            ops = const quick::OPS,
            func = const quick::FUNC,
            returns_to = const quick::RETURNS_TO,
            at_depth = const quick::AT_DEPTH,
            data = const quick::DATA,
            call = const quick::CALL,
            entry = const quick::ENTRY,
            minus_distance = const quick::MINUS_DISTANCE,
        )
    };
}

/// Stores all general registers below the frame pointer that calls may change; `rax` is the first.
macro_rules! push_registers {
    () => {
        "push rax
        push rcx
        push rdx
        push rsi
        push rdi
        push r8
        push r9
        push r10
        push r11"
    };
}

/// Loads them again, except `rax`.
macro_rules! load_registers {
    () => {
        "mov rcx, [rbp - 16]
        mov rdx, [rbp - 24]
        mov rsi, [rbp - 32]
        mov rdi, [rbp - 40]
        mov r8, [rbp - 48]
        mov r9, [rbp - 56]
        mov r10, [rbp - 64]
        mov r11, [rbp - 72]"
    };
}

pub(crate) use {
    load_registers, push_registers, quick_enter, quick_enter_asm, quick_leave, quick_site,
};
