//! The functions that compilers call at entries on x86-64, and the one to which traced functions return.
//!
//! Arguments of the function are in registers at its entry. Its caller may even hold values in registers that calls
//! usually change, because it has seen that this function does not change them (gcc's `-fipa-ra`), and gcc does not
//! count the call of `mcount`. So all registers are kept. Flags are dead at entries and returns (System V ABI, AMD64
//! supplement, section 3.2.1).

use core::arch::naked_asm;

use crate::arch;
use crate::arch::quick::{
    self, load_registers, push_registers, quick_enter, quick_enter_asm, quick_leave, quick_site,
};
use crate::graph::leave;

/// Defines a function that compilers call: it compares, and returns or jumps to what keeps registers.
macro_rules! stub {
    ($(#[$text:meta])* $name:ident, $listened:ident) => {
        $(#[$text])*
        ///
        /// # Safety
        /// Only code that a compiler has made may call it.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            naked_asm!(
                ".cfi_startproc",
                "endbr64",
                "cmp qword ptr [rip + hodo_ftrace_state], 0",
                "jne {listened}",
                "ret",
                ".cfi_endproc",
                listened = sym $listened,
            );
        }
    };
}

stub!(
    /// Called by `-pg` after the prologue: the frame pointer points to the caller's, next to the return address.
    mcount,
    listened_mcount
);
stub!(
    /// The stub under another name.
    _mcount,
    listened_mcount
);
stub!(
    /// The stub under another name.
    __mcount,
    listened_mcount
);
stub!(
    /// Called by `-mfentry` as the first instruction of a function: the return address is next on the stack.
    __fentry__,
    listened_fentry
);

/// Defines what follows when somebody listens: its name, and how it finds the slot of the return address (`rdi`) and
/// the caller's frame pointer (`rsi`) when `rbp` points to the frame pointer at the call.
macro_rules! listened {
    ($name:ident, $($find:literal),+) => {
        /// Keeps all general registers around [`enter`].
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            quick_enter_asm!(
                quick::QUICK,
                ".cfi_startproc",
                "push rbp",
                ".cfi_def_cfa_offset 16",
                ".cfi_offset rbp, -16",
                "mov rbp, rsp",
                ".cfi_def_cfa_register rbp",
                push_registers!(),
                $($find,)+
                "mov rdx, [rbp + 8]",
                // The stack is not aligned at these calls.
                "and rsp, -16",
                quick_site!(),
                quick_enter!(),
                // No registers.
                "8: xor ecx, ecx",
                "call {enter}",
                "9: mov rax, [rbp - 8]",
                load_registers!(),
                "leave",
                ".cfi_def_cfa rsp, 8",
                ".cfi_restore rbp",
                "ret",
                ".cfi_endproc",
                enter = sym enter,
            );
        }
    };
}

listened!(
    listened_mcount,
    "mov rax, [rbp]",
    "lea rdi, [rax + 8]",
    "mov rsi, [rax]"
);
listened!(listened_fentry, "lea rdi, [rbp + 16]", "mov rsi, [rbp]");

/// [`crate::entry::enter`] for addresses without signatures.
///
/// # Safety
/// As for that.
unsafe extern "C" fn enter(
    slot: *mut usize,
    frame_pointer: usize,
    back: usize,
    registers: *mut arch::Registers,
) {
    // SAFETY: as the caller promises.
    unsafe { crate::entry::enter(slot, frame_pointer, back, registers, arch::Signer) };
}

/// Only its second instruction is named elsewhere, so the compiler must know that it is needed.
#[used]
static RETURNED: unsafe extern "C" fn() = returned;

/// Traced functions return to the second instruction, whose name `shadow.rs` knows. The first is there because
/// unwinders look up what is before a return address.
///
/// Frame tables: the frame ends at the slot (`CFA`) of the function that has returned, not after it. Otherwise the
/// frame of the caller would have the same end, and unwinders could not tell them apart when they look for the handler
/// of an exception. Therefore the stack pointer is `CFA` + 8 (the expression `plus_uconst 8`), and the return address
/// in the slot's shadow (`const8u SHADOW_DISTANCE; minus`).
///
/// It does not end with `ret`: processors predict returns by the calls that they have seen. The function's own return
/// was predicted to go where this jump goes. Signal handlers leave the 128 bytes below the stack alone, so the slot is
/// still there. A kernel's interrupts do not, so a kernel has to use `ret`.
#[unsafe(naked)]
unsafe extern "C" fn returned() {
    naked_asm!(
        ".cfi_startproc",
        ".cfi_def_cfa rsp, -8",
        ".cfi_escape 0x16, 7, 2, 0x23, 8",
        ".cfi_escape 0x10, 16, 10, 0x0e, 0x40, 0x08, 0, 0, 0, 0x18, 0, 0, 0x1c",
        "nop",
        ".globl hodo_ftrace_return_to_handler",
        ".hidden hodo_ftrace_return_to_handler",
        "hodo_ftrace_return_to_handler:",
        "sub rsp, 8",
        ".cfi_def_cfa_offset 0",
        "push rbp",
        ".cfi_def_cfa_offset 8",
        ".cfi_offset rbp, -8",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        push_registers!(),
        "lea rdi, [rbp + 16]",
        "mov rsi, [rbp]",
        "and rsp, -16",
        quick_leave!(),
        "8: call {leave}",
        "9: mov [rbp + 8], rax",
        "mov rax, [rbp - 8]",
        load_registers!(),
        "leave",
        ".cfi_def_cfa rsp, 0",
        ".cfi_restore rbp",
        #[cfg(not(target_os = "none"))]
        "add rsp, 8",
        #[cfg(not(target_os = "none"))]
        ".cfi_def_cfa_offset -8",
        // The prefix allows a target without `endbr64`.
        #[cfg(not(target_os = "none"))]
        "notrack jmp qword ptr [rsp - 8]",
        #[cfg(target_os = "none")]
        "ret",
        ".globl hodo_ftrace_return_end",
        ".hidden hodo_ftrace_return_end",
        "hodo_ftrace_return_end:",
        ".cfi_endproc",
        leave = sym leave,
        quick = const quick::QUICK_GRAPH,
        thread_offset = const quick::THREAD_OFFSET,
        busy = const quick::BUSY,
        depth = const quick::DEPTH,
        calls = const quick::CALLS,
        slot = const quick::SLOT,
        ops = const quick::OPS,
        call = const quick::CALL,
        exit = const quick::EXIT,
        minus_distance = const quick::MINUS_DISTANCE,
    );
}
