//! Calls handlers: the part that all instruction sets share.

use super::Registers;
use crate::layout::{Handler, Thread};

/// `global_asm!` with the offsets of fields in [`Head`](crate::layout::Head), [`Thread`] and
/// [`Node`](crate::layout::Node).
macro_rules! calling_asm {
    ($text:literal, $($operands:tt)*) => {
        core::arch::global_asm!(
            $text,
            ADDR = const core::mem::offset_of!($crate::layout::Head, addr),
            LIST = const core::mem::offset_of!($crate::layout::Head, list),
            KEEP = const core::mem::offset_of!($crate::layout::Head, keep),
            BUSY = const core::mem::offset_of!($crate::layout::Thread, busy),
            SEQUENCE = const core::mem::offset_of!($crate::layout::Thread, sequence),
            RECOVER_PC = const core::mem::offset_of!($crate::layout::Thread, recover_pc),
            RECOVER_SP = const core::mem::offset_of!($crate::layout::Thread, recover_sp),
            PROBE = const core::mem::offset_of!($crate::layout::Thread, probe),
            ENABLED = const core::mem::offset_of!($crate::layout::Node, enabled),
            BEFORE = const core::mem::offset_of!($crate::layout::Node, before),
            DATA = const core::mem::offset_of!($crate::layout::Node, data),
            COUNTS = const core::mem::offset_of!($crate::layout::Node, counts),
            MISSED = const core::mem::offset_of!($crate::layout::Node, missed),
            $($operands)*
        );
    };
}
pub(super) use calling_asm;

unsafe extern "C" {
    /// Calls the handler. Returns 0, or 1 if the handler faulted and was left.
    pub(super) fn hodo_engine_guarded(
        thread: *const Thread,
        handler: Handler,
        registers: *mut Registers,
        data: *mut core::ffi::c_void,
    ) -> u32;
}

/// Calls a handler. Returns whether it returned by itself.
///
/// # Safety
/// The thread must be the running one and marked as busy; the handler must be sound here.
pub(crate) unsafe fn guarded(
    thread: &Thread,
    handler: Handler,
    registers: &mut Registers,
    data: *mut core::ffi::c_void,
) -> bool {
    // SAFETY: as the caller promises.
    unsafe { hodo_engine_guarded(thread, handler, registers, data) == 0 }
}
