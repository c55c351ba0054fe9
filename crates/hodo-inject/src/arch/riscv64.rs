//! 64-bit RISC-V, with Linux's conventions for it.

mod code;
mod libc_of;
mod prologue;

use super::Restorer;
use anyhow::Result;
use hodo_abi::Isa;
use hodo_ptrace::{Memory, Regs};
use hodo_symbols::Registers;

pub use code::{called_before, follows_call, jump_at};
pub use hodo_isa::riscv64::asm::{RETURN_ZERO, WAIT};
pub use hodo_isa::riscv64::calls::{Called, called_by, jump_target, leaving_jump, slot_of};
pub use libc_of::unsuited;
pub use prologue::Made;

/// Whether this function only returns, and is followed by room for a long jump. No such functions are looked for here.
pub fn only_returns(_at: u64, _code: [u8; 5]) -> bool {
    false
}

/// Whether code contains an instruction that makes system calls.
pub fn makes_call(code: &[u8]) -> bool {
    code.windows(4).any(|bytes| bytes == [0x73, 0, 0, 0])
}

/// Bytes of the stack frames of hooks, at their calls. The word above is no return address here.
pub const HOOK_FRAMES: [u64; 0] = [];

/// Handlers return to the kernel's code.
pub const RESTORER: Option<Restorer> = None;

/// Where the trace may be mapped in targets: far from everything that programs use, sanitizers included. The last
/// address is for 38-bit address spaces, between the shadow of programs and that of stacks.
pub fn events_at(_linker: Option<u64>) -> [u64; 4] {
    [
        0x2000_0000_0000,
        0x3800_0000_0000,
        0x1800_0000_0000,
        0x13_0000_0000,
    ]
}

/// Where the ledger may be mapped: after the trace, or below it and its counters.
pub fn ledger_at(_linker: Option<u64>) -> [u64; 6] {
    [
        0x2080_0000_0000,
        0x3880_0000_0000,
        0x1880_0000_0000,
        0x12_0000_0000,
        0x11_0000_0000,
        0x1B_8000_0000,
    ]
}

/// How much address space, from a program on and below the libraries, gets a shadow at once.
pub const SHADOW_ROOM: u64 = 12 << 30;

/// The range that has a shadow from the beginning: from some way below the libraries up to the first stack. `linker`:
/// the address of the dynamic linker; `sp`: the first stack.
pub fn stacks(sp: u64, linker: Option<u64>) -> std::ops::Range<u64> {
    // Address spaces have 38, 47 or 56 bits; nothing is mapped above 47 unless a program asks for that.
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

/// Word offsets in the data that `getcontext` and `swapcontext` save: where the return address to the caller is, and
/// the stack pointer, which is this many bytes above S.
pub const SAVED_BACK: &[usize] = &[0, 1];

pub const SAVED_SP: usize = 2;

pub const SAVED_ABOVE: u64 = 0;

/// The maximum of this distance.
pub const RETURNS_BELOW: u64 = 1024;

/// Unwinders recognize a stub's frame by the address this far below S,
pub const STUB_FRAME: u64 = 8;

/// which is lower by this much than that of the function's own frame would be.
pub const STUB_LOWER: u64 = 8;

/// A thread's registers, for walking its frames.
pub fn for_unwinders(regs: &Regs) -> Option<Registers> {
    let mut known = Registers::new(Isa::Riscv64);
    for register in 1..32 {
        known.set(register, regs.get(register));
    }
    known.set_instruction(Some(regs.pc()));
    Some(known)
}

/// How far above S the stack pointer is when a function has returned.
pub const CFA_ABOVE: u64 = 0;

/// The jump of ours that a copy of changed code would take: not known, because it may have changed registers and the
/// stack.
pub fn copied_jump(_memory: &Memory, _at: u64) -> Option<(u64, u64)> {
    None
}

/// A thread that is this far inside code that [`take_time`] changes must restart it.
pub const INSIDE_TIME: u64 = 0;

/// Makes our code take the time elsewhere. Not needed here: programs cannot forbid themselves the time counter.
pub fn take_time(_code: &mut [u8]) -> Vec<usize> {
    Vec::new()
}

/// Whether our code was changed because it may not read the time counter: never, here.
///
/// # Errors
/// Never, here.
pub fn takes_time(_regs: &Regs, _memory: &Memory) -> Result<bool> {
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shadow_of_stacks_is_not_where_libraries_are() {
        for (sp, linker) in [
            (0x3F_FFF0_0000, Some(0x3F_A000_0000)),
            (0x3F_FFF0_0000, None),
            (0x7FFF_FFF0_0000, Some(0x7FFF_9000_0000)),
            (0x7FFF_FFF0_0000, Some(0x5555_0000_0000)),
        ] {
            let range = stacks(sp, linker);
            assert!(range.contains(&sp));
            assert!(range.end - hodo_trace::format::SHADOW_DISTANCE <= range.start);
        }
    }
}
