//! What the kernel does in the same way for instruction sets that share its newer numbers of system calls.

use crate::environment::Window;
use hodo_sys::sys::call;

/// Numbers of system calls.
pub(crate) mod number {
    pub const RT_SIGPROCMASK: usize = 135;
    pub const MADVISE: usize = 233;
}
const MEMBARRIER: usize = 283;

/// A memory barrier in all running threads of the process, for data: one for changed code need not be one.
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
