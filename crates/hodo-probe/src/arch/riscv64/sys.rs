//! What the kernel does differently per instruction set: system call numbers and signals.

use crate::environment::Window;
use hodo_sys::auxv;
use hodo_sys::sys::{Errno, call};

/// Numbers of system calls.
pub(crate) mod number {
    pub const RT_SIGPROCMASK: usize = 135;
    pub const MADVISE: usize = 233;
}
const RT_SIGACTION: usize = 134;
const MEMBARRIER: usize = 283;
const PRCTL: usize = 167;

/// A memory barrier in all running threads of the process. `fence.i` everywhere is not one for data.
pub(crate) fn barrier() {
    const REGISTER: usize = 1 << 4;
    const BARRIER: usize = 1 << 3;
    // SAFETY: plain numbers.
    let command = |command| unsafe { call(MEMBARRIER, [command, 0, 0, 0, 0, 0]) };
    while command(BARRIER).is_err() {
        // A child of `fork` has to register again.
        if command(REGISTER).is_err() {
            // The kernel has no such call, so what remains is what every thread does when it is interrupted for a code
            // change.
            hodo_sys::sys::sync_core();
            return;
        }
    }
}

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

/// How far a stack is from its shadow. It is no multiple of a page, or a load of one would seem to depend on a store to
/// the other. The first value is for address spaces of 39 bits, of which programs have half.
const DISTANCE: u64 = 0x20_0000_0840;
const WIDE: u64 = 0x2000_0000_0840;
/// The areas below and above the library mappings that may hold stacks, in small and in large address spaces.
const BELOW: u64 = 1 << 35;
const ABOVE: u64 = 1 << 33;
const BELOW_WIDE: u64 = 1 << 40;

/// Where the shadow goes in a process that maps memory at `here`.
pub(crate) fn window(here: u64) -> Window {
    let (distance, below, above) = if here < 1 << 39 {
        (DISTANCE, BELOW, ABOVE)
    } else {
        (WIDE, BELOW_WIDE, BELOW_WIDE)
    };
    Window {
        low: (here - below) & !0xFFFF,
        top: (here + above) & !0xFFFF,
        distance,
    }
}
