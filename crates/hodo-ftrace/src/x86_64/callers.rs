//! What trampolines lead to: `ftrace_caller`, and `ftrace_regs_caller` of the kernel.
//!
//! A trampoline has pushed `rax`, and loaded the mask of the site into it. Above it on the stack is the address after
//! the site.

use core::arch::naked_asm;

use super::quick::{self, quick_enter};
use crate::dynamic::entered;

/// The registers of a function at its site.
///
/// A tracer with [`crate::dynamic::IP_MODIFY`] may change all but `rsp`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Registers {
    pub r15: usize,
    pub r14: usize,
    pub r13: usize,
    pub r12: usize,
    pub rbp: usize,
    pub rbx: usize,
    pub r11: usize,
    pub r10: usize,
    pub r9: usize,
    pub r8: usize,
    pub rax: usize,
    pub rcx: usize,
    pub rdx: usize,
    pub rsi: usize,
    pub rdi: usize,
    /// Where execution goes on: after the site.
    pub ip: usize,
    /// Unspecified at first; those that are here are restored.
    pub flags: usize,
    /// The stack pointer at the site. Changes have no effect.
    pub rsp: usize,
}

/// The length of a site's call.
pub(crate) const SITE: usize = 5;

/// Calls the tracers. `back` is the address after the site.
unsafe extern "C" fn enter(slot: *mut usize, frame_pointer: usize, back: usize, mask: u64) {
    let none = core::ptr::null_mut();
    // SAFETY: the stubs pass what it requires.
    unsafe {
        entered(
            slot,
            slot as usize,
            slot as usize,
            frame_pointer,
            back - SITE,
            mask,
            none,
        )
    };
}

/// The same with registers.
unsafe extern "C" fn enter_registers(
    slot: *mut usize,
    frame_pointer: usize,
    registers: *mut Registers,
    mask: u64,
) {
    // SAFETY: the stub passes a reference to what it has on the stack.
    let ip = unsafe { (*registers).ip } - SITE;
    // SAFETY: the stubs pass what `entered` requires.
    unsafe {
        entered(
            slot,
            slot as usize,
            slot as usize,
            frame_pointer,
            ip,
            mask,
            registers,
        )
    };
}

/// Defines the stub for one kind of entry: its name, and how it finds the slot of the return address (`rdi`) and the
/// caller's frame pointer (`rsi`) when `rbp` points to the frame pointer at the site.
macro_rules! caller {
    ($name:ident, $($find:literal),+) => {
        /// Keeps all general registers around [`enter`].
        #[unsafe(naked)]
        pub(super) unsafe extern "C" fn $name() {
            naked_asm!(
                ".cfi_startproc",
                ".cfi_def_cfa_offset 16",
                ".cfi_offset rax, -16",
                "push rbp",
                ".cfi_def_cfa_offset 24",
                ".cfi_offset rbp, -24",
                "mov rbp, rsp",
                ".cfi_def_cfa_register rbp",
                "push rcx",
                "push rdx",
                "push rsi",
                "push rdi",
                "push r8",
                "push r9",
                "push r10",
                "push r11",
                "push rax",
                $($find,)+
                "mov rdx, [rbp + 16]",
                // The stack is not aligned at these calls.
                "and rsp, -16",
                // Is the graph tracer the only one?
                "add rax, rax",
                "jnz 8f",
                "mov r9, [rip + hodo_ftrace_state + {quick}]",
                "lea r8, [rdx - {site}]",
                quick_enter!(),
                // The registers of the arguments that were changed.
                "8: mov rcx, [rbp - 72]",
                "call {enter}",
                "9: mov rax, [rbp + 8]",
                "mov rcx, [rbp - 8]",
                "mov rdx, [rbp - 16]",
                "mov rsi, [rbp - 24]",
                "mov rdi, [rbp - 32]",
                "mov r8, [rbp - 40]",
                "mov r9, [rbp - 48]",
                "mov r10, [rbp - 56]",
                "mov r11, [rbp - 64]",
                "leave",
                ".cfi_def_cfa rsp, 16",
                ".cfi_restore rbp",
                "lea rsp, [rsp + 8]",
                ".cfi_def_cfa_offset 8",
                ".cfi_restore rax",
                "ret",
                ".cfi_endproc",
                enter = sym enter,
                site = const SITE,
                quick = const quick::QUICK_GRAPH,
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
            );
        }
    };
}

caller!(first, "lea rdi, [rbp + 24]", "mov rsi, [rbp]");
caller!(framed, "mov rdi, [rbp]", "mov rsi, [rdi]", "add rdi, 8");

/// Defines the stub with registers.
macro_rules! caller_registers {
    ($name:ident, $end:literal, $($find:literal),+) => {
        /// Keeps and gives all general registers around [`enter_registers`]: `ftrace_regs_caller`.
        #[unsafe(naked)]
        pub(super) unsafe extern "C" fn $name() {
            naked_asm!(
                ".cfi_startproc",
                ".cfi_def_cfa_offset 16",
                ".cfi_offset rax, -16",
                "push rbp",
                ".cfi_def_cfa_offset 24",
                ".cfi_offset rbp, -24",
                "mov rbp, rsp",
                ".cfi_def_cfa_register rbp",
                // Below: `Registers`, aligned.
                "lea rsp, [rsp - 144]",
                "and rsp, -16",
                "mov [rsp], r15",
                "mov [rsp + 8], r14",
                "mov [rsp + 16], r13",
                "mov [rsp + 24], r12",
                "mov [rsp + 40], rbx",
                "mov [rsp + 48], r11",
                "mov [rsp + 56], r10",
                "mov [rsp + 64], r9",
                "mov [rsp + 72], r8",
                "mov [rsp + 88], rcx",
                "mov [rsp + 96], rdx",
                "mov [rsp + 104], rsi",
                "mov [rsp + 112], rdi",
                "mov rcx, rax",
                "pushfq",
                "pop rax",
                "mov [rsp + 128], rax",
                "mov rax, [rbp]",
                "mov [rsp + 32], rax",
                "mov rax, [rbp + 8]",
                "mov [rsp + 80], rax",
                "mov rax, [rbp + 16]",
                "mov [rsp + 120], rax",
                "lea rax, [rbp + 24]",
                "mov [rsp + 136], rax",
                $($find,)+
                "mov rdx, rsp",
                "call {enter}",
                // What a `ret` takes, and what `leave` and the last instructions restore.
                "mov rax, [rsp + 120]",
                "mov [rbp + 16], rax",
                "mov rax, [rsp + 80]",
                "mov [rbp + 8], rax",
                "mov rax, [rsp + 32]",
                "mov [rbp], rax",
                "push qword ptr [rsp + 128]",
                "popfq",
                "mov r15, [rsp]",
                "mov r14, [rsp + 8]",
                "mov r13, [rsp + 16]",
                "mov r12, [rsp + 24]",
                "mov rbx, [rsp + 40]",
                "mov r11, [rsp + 48]",
                "mov r10, [rsp + 56]",
                "mov r9, [rsp + 64]",
                "mov r8, [rsp + 72]",
                "mov rcx, [rsp + 88]",
                "mov rdx, [rsp + 96]",
                "mov rsi, [rsp + 104]",
                "mov rdi, [rsp + 112]",
                "mov rax, [rbp + 8]",
                "leave",
                ".cfi_def_cfa rsp, 16",
                ".cfi_restore rbp",
                "lea rsp, [rsp + 8]",
                ".cfi_def_cfa_offset 8",
                ".cfi_restore rax",
                "ret",
                concat!(".globl ", $end),
                concat!(".hidden ", $end),
                concat!($end, ":"),
                ".cfi_endproc",
                enter = sym enter_registers,
            );
        }
    };
}

caller_registers!(
    first_registers,
    "hodo_ftrace_first_end",
    "lea rdi, [rbp + 24]",
    "mov rsi, [rbp]"
);
caller_registers!(
    framed_registers,
    "hodo_ftrace_framed_end",
    "mov rdi, [rbp]",
    "mov rsi, [rdi]",
    "add rdi, 8"
);

/// The code of the stub that can redirect functions.
pub(crate) fn redirecting() -> core::ops::Range<usize> {
    unsafe extern "C" {
        static hodo_ftrace_first_end: u8;
    }
    first_registers as *const () as usize..&raw const hodo_ftrace_first_end as usize
}
