//! What trampolines lead to: `ftrace_caller`, and `ftrace_regs_caller` of the kernel.
//!
//! A trampoline has pushed `rax`, and loaded the mask of the site into it. Above it on the stack is the address after
//! the site.

use core::arch::naked_asm;

use super::quick::{self, load_registers, push_registers, quick_enter, quick_enter_asm};
use crate::dynamic::entered;

/// The registers of a function at its site.
///
/// A tracer with [`crate::dynamic::IP_MODIFY`] may change them.
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
    /// The stack pointer at the site, before the call.
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

/// What stubs call that have saved all registers for tracers.
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
            quick_enter_asm!(
                quick::QUICK_GRAPH,
                ".cfi_startproc",
                ".cfi_def_cfa_offset 16",
                ".cfi_offset rax, -16",
                "push rbp",
                ".cfi_def_cfa_offset 24",
                ".cfi_offset rbp, -24",
                "mov rbp, rsp",
                ".cfi_def_cfa_register rbp",
                push_registers!(),
                $($find,)+
                "mov rdx, [rbp + 16]",
                // The stack is not aligned at these calls.
                "and rsp, -16",
                // Is the graph tracer the only one? (Not for `LOOKED_UP`.)
                "add rax, rax",
                "jnz 8f",
                "mov r9, [rip + hodo_ftrace_state + {quick}]",
                "lea r8, [rdx - {site}]",
                quick_enter!(),
                // The registers of the arguments that were changed.
                "8: mov rcx, [rbp - 8]",
                "call {enter}",
                "9: mov rax, [rbp + 8]",
                load_registers!(),
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
            );
        }
    };
}

caller!(first, "lea rdi, [rbp + 24]", "mov rsi, [rbp]");
caller!(framed, "mov rdi, [rbp]", "mov rsi, [rdi]", "add rdi, 8");

/// Loads all registers but `rax`, `rbp` and `rsp` from a [`Registers`] at `rsp`.
macro_rules! registers_back {
    () => {
        concat!(
            "mov r15, [rsp]\n",
            "mov r14, [rsp + 8]\n",
            "mov r13, [rsp + 16]\n",
            "mov r12, [rsp + 24]\n",
            "mov rbx, [rsp + 40]\n",
            "mov r11, [rsp + 48]\n",
            "mov r10, [rsp + 56]\n",
            "mov r9, [rsp + 64]\n",
            "mov r8, [rsp + 72]\n",
            "mov rcx, [rsp + 88]\n",
            "mov rdx, [rsp + 96]\n",
            "mov rsi, [rsp + 104]\n",
            "mov rdi, [rsp + 112]\n",
        )
    };
}

/// Continues at the address in a [`Registers`] at `rsp`, with the stack pointer in `rdx`, which is in there, too. `rbp`
/// is the stub's.
macro_rules! other_stack {
    () => {
        concat!(
            // The registers are copied below the lower of the two stack pointers; the address goes below the new red
            // zone, from where `ret` takes it.
            ".cfi_def_cfa rbp, 24\n",
            ".cfi_offset rax, -16\n",
            ".cfi_offset rbp, -24\n",
            "7: mov r8, [rsp + 120]\n",
            "mov rdi, rsp\n",
            "mov rsi, rsp\n",
            "cmp rdx, rdi\n",
            "cmovb rdi, rdx\n",
            "sub rdi, 512\n",
            "mov rsp, rdi\n",
            "mov ecx, 18\n",
            "cld\n",
            "rep movsq\n",
            "sub rdx, 136\n",
            "mov [rdx], r8\n",
            "mov [rsp + 136], rdx\n",
            "push qword ptr [rsp + 128]\n",
            "popfq\n",
            registers_back!(),
            "mov rbp, [rsp + 32]\n",
            "mov rax, [rsp + 80]\n",
            "mov rsp, [rsp + 136]\n",
            "ret 128\n",
        )
    };
}

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
                // Is there another stack pointer?
                "mov rdx, [rsp + 136]",
                "lea rax, [rbp + 24]",
                "cmp rdx, rax",
                "jne 7f",
                // What a `ret` takes, and what `leave` and the last instructions restore.
                "mov rax, [rsp + 120]",
                "mov [rbp + 16], rax",
                "mov rax, [rsp + 80]",
                "mov [rbp + 8], rax",
                "mov rax, [rsp + 32]",
                "mov [rbp], rax",
                "push qword ptr [rsp + 128]",
                "popfq",
                registers_back!(),
                "mov rax, [rbp + 8]",
                "leave",
                ".cfi_def_cfa rsp, 16",
                ".cfi_restore rbp",
                "lea rsp, [rsp + 8]",
                ".cfi_def_cfa_offset 8",
                ".cfi_restore rax",
                "ret",
                other_stack!(),
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
