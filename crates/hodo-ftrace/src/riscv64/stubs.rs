//! The functions that compilers call at entries on RISC-V, and the one to which traced functions return.
//!
//! These calls are ordinary calls: they come after the prologue, and the compiler preserves what it needs across them.
//! gcc calls `_mcount` with the return address of the function as the only argument. clang 14 passes nothing, and so
//! does rustc, which calls `mcount`. Nevertheless all general registers are kept except `t0` and `t1`, which linkers
//! may use for a call, too.

use crate::dynamic::Registers;
use crate::entry::enter;
use crate::graph::leave;
use crate::state::state;
use crate::{arch, dynamic, environment};
use core::arch::naked_asm;

/// Stores all general registers but `ra` that calls may change.
macro_rules! save_registers {
    () => {
        "sd a0, 0(sp)
        sd a1, 8(sp)
        sd a2, 16(sp)
        sd a3, 24(sp)
        sd a4, 32(sp)
        sd a5, 40(sp)
        sd a6, 48(sp)
        sd a7, 56(sp)
        sd t0, 64(sp)
        sd t1, 72(sp)
        sd t2, 80(sp)
        sd t3, 88(sp)
        sd t4, 96(sp)
        sd t5, 104(sp)
        sd t6, 112(sp)"
    };
}

/// Loads them again.
macro_rules! load_registers {
    () => {
        "ld a0, 0(sp)
        ld a1, 8(sp)
        ld a2, 16(sp)
        ld a3, 24(sp)
        ld a4, 32(sp)
        ld a5, 40(sp)
        ld a6, 48(sp)
        ld a7, 56(sp)
        ld t0, 64(sp)
        ld t1, 72(sp)
        ld t2, 80(sp)
        ld t3, 88(sp)
        ld t4, 96(sp)
        ld t5, 104(sp)
        ld t6, 112(sp)"
    };
}

/// Defines a function that compilers call.
macro_rules! stub {
    ($(#[$text:meta])* $name:ident) => {
        $(#[$text])*
        ///
        /// # Safety
        /// Only code that a compiler has made may call it.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            naked_asm!(
                ".cfi_startproc",
                "1: auipc t0, %pcrel_hi(hodo_ftrace_state)",
                "ld t0, %pcrel_lo(1b)(t0)",
                "bnez t0, 2f",
                "ret",
                // Registers, for tracers.
                "2: addi sp, sp, -272",
                ".cfi_def_cfa_offset 272",
                "sd ra, 0(sp)",
                ".cfi_offset ra, -272",
                ".irp n, 1,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
                "sd x\\n, 8 + 8 * \\n(sp)",
                ".endr",
                "sd zero, 8(sp)",
                "addi t0, sp, 272",
                "sd t0, 24(sp)",
                "mv a0, sp",
                "call {listened}",
                ".irp n, 1,5,6,7,10,11,12,13,14,15,16,17,28,29,30,31",
                "ld x\\n, 8 + 8 * \\n(sp)",
                ".endr",
                ".cfi_restore ra",
                "addi sp, sp, 272",
                ".cfi_def_cfa_offset 0",
                "ret",
                ".cfi_endproc",
                listened = sym listened,
            );
        }
    };
}

stub!(
    /// Called by `-pg` after the prologue, with the address to which the function returns.
    _mcount
);
stub!(
    /// The stub under the name that rustc calls.
    mcount
);
stub!(
    /// The stub under another name.
    __mcount
);

/// Finds the slot of the return address by the frame pointer, and calls the hooks. Without a frame pointer, only the
/// one for entries.
///
/// # Safety
/// The registers are those at the call, by the stub. `a0` is the return address of the function, or anything.
unsafe extern "C" fn listened(registers: *mut Registers) {
    const SP: usize = 2;
    const S0: usize = 8;
    const A0: usize = 10;
    // SAFETY: the stub has them on its stack.
    let (frompc, frame_pointer, back, stack) = unsafe {
        let x = &raw const (*registers).x;
        ((*x)[A0], (*x)[S0], (*registers).ip, (*x)[SP])
    };
    /// The largest frame in which a frame pointer is believed.
    const LARGEST: usize = 1 << 20;
    let frame = frame_pointer.wrapping_sub(stack);
    let is_frame = (16..LARGEST).contains(&frame) && frame_pointer.is_multiple_of(8);
    let slot = frame_pointer.wrapping_sub(8) as *mut usize;
    let caller = frame_pointer.wrapping_sub(16) as *const usize;
    // Either the address of the caller, which gcc passes, is in the slot; or the function has just set the frame
    // pointer.
    let is_own = || {
        // SAFETY: the slot is on the stack, above its end; and `back` is the return address of a call.
        unsafe { slot.read_volatile() == frompc || arch::sets_frame_pointer(back, frame) }
    };
    if is_frame && is_own() {
        // SAFETY: it is that slot. Below it is the frame pointer of the caller. The stub has saved the registers.
        unsafe { enter(slot, caller.read_volatile(), back, registers, arch::Signer) };
        return;
    }
    let Some(thread) = environment::thread() else {
        return;
    };
    if thread.start_hook(stack) {
        // SAFETY: `back` is the return address of a call.
        let selfpc = back.wrapping_sub(unsafe { arch::call_size(back) });
        let mask = dynamic::mask_of_static(selfpc);
        dynamic::call_tracers(thread, selfpc, frompc, mask, registers);
        if mask & dynamic::GRAPH != 0 && !state().graph.is_none() {
            thread.count_untraced();
        }
        thread.end_hook();
    }
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
#[unsafe(naked)]
unsafe extern "C" fn returned() {
    naked_asm!(
                ".cfi_startproc",
                ".cfi_def_cfa sp, -8",
                ".cfi_escape 0x16, 2, 2, 0x23, 8",
                ".cfi_escape 0x10, 1, 10, 0x0e, 0x40, 0x08, 0, 0, 0x18, 0, 0, 0, 0x1c",
                "nop",
                ".globl hodo_ftrace_return_to_handler",
                ".hidden hodo_ftrace_return_to_handler",
                "hodo_ftrace_return_to_handler:",
                "addi sp, sp, -128",
                ".cfi_def_cfa_offset 120",
                save_registers!(),
                "addi a0, sp, 128",
                "mv a1, s0",
                "call {leave}",
                "mv ra, a0",
                load_registers!(),
                "addi sp, sp, 128",
                ".cfi_def_cfa_offset -8",
                "ret",
                ".cfi_endproc",
                leave = sym leave,
    );
}
