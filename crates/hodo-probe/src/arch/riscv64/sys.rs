//! What the kernel does differently per instruction set: system call numbers and signals.

pub(crate) use crate::arch::kernel::{barrier, number, window};
use hodo_sys::auxv;
use hodo_sys::sys::{Errno, call};

const RT_SIGACTION: usize = 134;
const PRCTL: usize = 167;

/// What a signal does, in the kernel's form. It has no restorer: the kernel supplies the end of handlers.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Action {
    pub handler: usize,
    pub flags: u64,
    pub mask: u64,
}

/// The form that qemu's user mode emulator uses, and writes in full: with a word for the restorer before the mask.
#[repr(C)]
struct Wide {
    action: Action,
    mask: u64,
}

impl From<Action> for Wide {
    fn from(action: Action) -> Self {
        let mask = action.mask;
        Self { action, mask }
    }
}

/// Sets what a signal does, and returns what it did before.
///
/// # Safety
/// The action's handler must be a signal handler.
pub(crate) unsafe fn sigaction(signal: i32, new: Option<&Action>) -> Result<Action, Errno> {
    let new = new.map(|&action| Wide::from(action));
    let mut old = Wide::from(Action::default());
    let pointer = new
        .as_ref()
        .map_or(0, |action| core::ptr::from_ref(action) as usize);
    let args = [signal as usize, pointer, &raw mut old as usize, 8, 0, 0];
    // SAFETY: both have the kernel's form, and are no shorter than what is written; the caller answers for the handler.
    unsafe { call(RT_SIGACTION, args) }.map(|_| old.action)
}

/// Returns whether this process may use vector registers: the processor has them, and the kernel allows it
/// (`PR_RISCV_V_GET_CONTROL`).
pub(crate) fn has_vectors() -> bool {
    const V: u64 = 1 << (b'V' - b'A');
    const PR_RISCV_V_GET_CONTROL: usize = 70;
    const OFF: usize = 1;
    let features = auxv::own(auxv::AT_HWCAP).ok().flatten().unwrap_or(0);
    // SAFETY: plain numbers.
    let control = unsafe { call(PRCTL, [PR_RISCV_V_GET_CONTROL, 0, 0, 0, 0, 0]) };
    features & V != 0 && control.map_or(true, |control| control & 3 != OFF)
}
