//! What instruction sets share whose calls put the return address in a register.

mod code;
mod libc_of;

use hodo_isa::native::asm::SYSTEM_CALL;
use hodo_ptrace::Memory;

use super::Restorer;
pub use code::{called_before, follows_call, jump_at};
pub use libc_of::unsuited;

/// Whether code contains an instruction that makes system calls.
pub fn makes_call(code: &[u8]) -> bool {
    code.windows(SYSTEM_CALL.len())
        .any(|bytes| bytes == SYSTEM_CALL)
}

/// Bytes of the stack frames of hooks, at their calls. The word above is no return address here.
pub const HOOK_FRAMES: [u64; 0] = [];

/// Handlers return to the kernel's code.
pub const RESTORER: Option<Restorer> = None;

/// How much address space, from a program on and below the libraries, gets a shadow at once.
pub const SHADOW_ROOM: u64 = 12 << 30;

/// The range that has a shadow from the beginning: from some way below the libraries up to the first stack. `linker`:
/// the address of the dynamic linker; `sp`: the first stack.
pub fn stacks(sp: u64, linker: Option<u64>) -> std::ops::Range<u64> {
    // Address spaces have different sizes; nothing is mapped above the first stack unless a program asks for that.
    let top = sp.next_power_of_two();
    // Far less than the distance of the shadow, which must not be where libraries are.
    const MOST: u64 = 64 << 30;
    let low = linker.filter(|&base| base > top - MOST).unwrap_or(sp);
    (low.min(sp) - SHADOW_ROOM).max(top - MOST)..top
}

/// How far below S a function's return address is on the stack. `kept`: what unwind tables say. `None`: it is not
/// known.
pub fn return_below(kept: impl FnOnce() -> Option<i32>) -> Option<u64> {
    u64::try_from(kept()?).ok()
}

/// The maximum of this distance.
pub const RETURNS_BELOW: u64 = 1024;

/// Unwinders recognize a stub's frame by the address this far below S,
pub const STUB_FRAME: u64 = 8;

/// which is lower by this much than that of the function's own frame would be.
pub const STUB_LOWER: u64 = 8;

/// How far above S the stack pointer is when a function has returned.
pub const CFA_ABOVE: u64 = 0;

/// hodo's jump that a copy of changed code would take: not known, because it may have changed registers and the
/// stack.
pub fn copied_jump(_memory: &Memory, _at: u64) -> Option<(u64, u64)> {
    None
}

/// Checks that stacks and their shadow are apart, for first stacks and dynamic linkers at these addresses.
#[cfg(test)]
pub(super) fn check_stacks(addresses: &[(u64, Option<u64>)]) {
    for &(sp, linker) in addresses {
        let range = stacks(sp, linker);
        assert!(range.contains(&sp));
        assert!(range.end - hodo_trace::format::SHADOW_DISTANCE <= range.start);
    }
}
