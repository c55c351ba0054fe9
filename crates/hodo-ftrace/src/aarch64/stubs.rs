//! The functions that compilers call at entries on AArch64, and the one to which traced functions return.
//!
//! These calls are ordinary calls: they come after the prologue, and the compiler preserves what it needs across them.
//! gcc calls `_mcount` with the return address of the function as the only argument; clang 14 passes nothing.
//! Nevertheless all general registers are kept except `x16` and `x17`, which linkers may use for a call, too.
//!
//! The return address of a function is in its frame record, which may be anywhere in its frame: gcc puts it at the
//! lower end, and clang at the upper one. So neither the stack pointer after the return nor the frame tables there lead
//! to it. But the frame pointer after the return does lead to the frame record of the caller, and the record of the
//! function has its address. Therefore this address takes the place of the slot's: for the shadow, and for the order of
//! open calls.

use core::arch::naked_asm;
use core::sync::atomic::Ordering;

use crate::dynamic::Registers;
use crate::entry::enter;
use crate::graph;
use crate::state::state;
use crate::{arch, dynamic, environment};

/// Stores all general registers that calls may change, except those that linkers use for calls.
macro_rules! save_registers {
    () => {
        "stp x0, x1, [sp, #16]
        stp x2, x3, [sp, #32]
        stp x4, x5, [sp, #48]
        stp x6, x7, [sp, #64]
        stp x8, x9, [sp, #80]
        stp x10, x11, [sp, #96]
        stp x12, x13, [sp, #112]
        stp x14, x15, [sp, #128]
        str x18, [sp, #144]"
    };
}

/// Loads them again.
macro_rules! load_registers {
    () => {
        "ldp x0, x1, [sp, #16]
        ldp x2, x3, [sp, #32]
        ldp x4, x5, [sp, #48]
        ldp x6, x7, [sp, #64]
        ldp x8, x9, [sp, #80]
        ldp x10, x11, [sp, #96]
        ldp x12, x13, [sp, #112]
        ldp x14, x15, [sp, #128]
        ldr x18, [sp, #144]"
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
                // `bti c`: a target of calls through registers.
                "hint 34",
                "adrp x16, hodo_ftrace_state",
                "ldr x16, [x16, :lo12:hodo_ftrace_state]",
                "cbnz x16, 2f",
                "ret",
                // Registers, for tracers.
                "2: sub sp, sp, #288",
                ".cfi_def_cfa_offset 288",
                "stp x30, x0, [sp]",
                ".cfi_offset x30, -288",
                "stp x1, x2, [sp, #16]",
                "stp x3, x4, [sp, #32]",
                "stp x5, x6, [sp, #48]",
                "stp x7, x8, [sp, #64]",
                "stp x9, x10, [sp, #80]",
                "stp x11, x12, [sp, #96]",
                "stp x13, x14, [sp, #112]",
                "stp x15, x16, [sp, #128]",
                "stp x17, x18, [sp, #144]",
                "stp x19, x20, [sp, #160]",
                "stp x21, x22, [sp, #176]",
                "stp x23, x24, [sp, #192]",
                "stp x25, x26, [sp, #208]",
                "stp x27, x28, [sp, #224]",
                "stp x29, x30, [sp, #240]",
                ".cfi_offset x29, -48",
                "add x16, sp, #288",
                "str x16, [sp, #256]",
                // A frame record, for those who follow frame pointers.
                "stp x29, x30, [sp, #272]",
                "add x29, sp, #272",
                "mov x0, sp",
                "bl {listened}",
                "ldp x30, x0, [sp]",
                "ldp x1, x2, [sp, #16]",
                "ldp x3, x4, [sp, #32]",
                "ldp x5, x6, [sp, #48]",
                "ldp x7, x8, [sp, #64]",
                "ldp x9, x10, [sp, #80]",
                "ldp x11, x12, [sp, #96]",
                "ldp x13, x14, [sp, #112]",
                "ldr x15, [sp, #128]",
                "ldr x18, [sp, #152]",
                "ldr x29, [sp, #240]",
                ".cfi_restore x29",
                ".cfi_restore x30",
                "add sp, sp, #288",
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

/// Finds the frame record of the function by the frame pointer, and calls the hooks. Without a frame record, only the
/// one for entries.
///
/// # Safety
/// The registers are those at the call, by the stub. `x0` is the return address of the function, or anything.
unsafe extern "C" fn listened(registers: *mut Registers) {
    const FP: usize = 29;
    // SAFETY: the stub has them on its stack.
    let (frompc, frame_pointer, back, stack) = unsafe {
        let x = &raw const (*registers).x;
        ((*x)[0], (*x)[FP], (*registers).ip, (*registers).sp)
    };
    /// The largest frame in which a frame pointer is believed.
    const LARGEST: usize = 1 << 20;
    let frame = frame_pointer.wrapping_sub(stack);
    let slot = frame_pointer.wrapping_add(8) as *mut usize;
    let mut caller = arch::without_signature(frompc);
    if frame < LARGEST && frame_pointer.is_multiple_of(8) {
        // SAFETY: the slot is on the stack, above its end; and `back` is the return address of a call.
        let (there, prologue) = unsafe { (slot.read_volatile(), arch::prologue(back, frame)) };
        let plain = arch::without_signature(there);
        // Either the address of the caller, which gcc passes, is in the slot; or the function has just set the frame
        // pointer.
        if prologue.sets_frame_pointer || plain == caller {
            let signed_at = prologue.lowers.map(|by| stack + by);
            if let Some(signer) = arch::Signer::of(there, prologue.signs, signed_at) {
                // SAFETY: it is that slot. Below it is the frame pointer of the caller. The stub has saved the
                // registers.
                unsafe {
                    let caller = (frame_pointer as *const usize).read_volatile();
                    enter(slot, caller, back, registers, signer);
                };
                return;
            }
            caller = plain;
        }
    }
    let Some(thread) = environment::thread() else {
        return;
    };
    if thread.start_hook(stack) {
        let mask = dynamic::mask_of_static(back - 4);
        dynamic::call_tracers(thread, back - 4, caller, mask, registers);
        if mask & dynamic::GRAPH != 0 && !state().graph.is_none() {
            thread.count_untraced();
        }
        thread.end_hook();
    }
}

/// Finds the open call that returns. Usually it is known under the frame pointer. If the function has not restored
/// that, it is the outermost one whose frame is gone.
///
/// # Safety
/// As for [`graph::leave`].
unsafe extern "C" fn leave(stack: usize, frame_pointer: usize) -> usize {
    let mut key = frame_pointer;
    if let Some(thread) = environment::thread() {
        let mut number = thread.depth.load(Ordering::Relaxed);
        while number > 0 {
            number -= 1;
            // SAFETY: there are more than `number` of them.
            let open = unsafe { thread.call(number) };
            if open.parent.load(Ordering::Relaxed) >= stack {
                break;
            }
            key = open.slot.load(Ordering::Relaxed);
            if key == frame_pointer {
                break;
            }
        }
    }
    // SAFETY: the stack pointer is replaced by an address directly above that under which the call is known.
    unsafe { graph::leave(key.wrapping_add(8), frame_pointer) }
}

/// Only its second instruction is named elsewhere, so the compiler must know that it is needed.
#[used]
static RETURNED: unsafe extern "C" fn() = returned;

/// Traced functions return to the second instruction, whose name `shadow.rs` knows. The first is there because
/// unwinders look up what is before a return address.
///
/// Frame tables: the frame ends 8 bytes below the stack pointer (`CFA`). Otherwise the frame of the caller would have
/// the same end, and unwinders could not tell them apart when they look for the handler of an exception. Therefore the
/// stack pointer is `CFA` + 8 (the expression `plus_uconst 8`). The return address is in the shadow of the frame record
/// to which the frame pointer leads (`breg29 0; const8u SHADOW_DISTANCE; minus`).
#[unsafe(naked)]
unsafe extern "C" fn returned() {
    naked_asm!(
        ".cfi_startproc",
        ".cfi_def_cfa sp, -8",
        ".cfi_escape 0x16, 31, 2, 0x23, 8",
        ".cfi_escape 0x10, 30, 12, 0x8d, 0, 0x0e, 0x40, 0x08, 0, 0, 0x18, 0, 0, 0, 0x1c",
        "nop",
        ".globl hodo_ftrace_return_to_handler",
        ".hidden hodo_ftrace_return_to_handler",
        "hodo_ftrace_return_to_handler:",
        "sub sp, sp, #160",
        ".cfi_def_cfa_offset 152",
        save_registers!(),
        "add x0, sp, #160",
        "mov x1, x29",
        "bl {leave}",
        "mov x30, x0",
        load_registers!(),
        "add sp, sp, #160",
        ".cfi_def_cfa_offset -8",
        "ret",
        ".cfi_endproc",
        leave = sym leave,
    );
}
