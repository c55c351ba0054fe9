//! 64-bit RISC-V, with Linux's conventions for it.

mod prologue;

use super::{Reach, Saved};
use anyhow::Result;
use hodo_abi::Isa;
use hodo_ptrace::{Memory, Regs};
use hodo_symbols::Registers;

#[cfg(test)]
use super::linked::check_stacks;
pub use super::linked::*;
pub use hodo_isa::riscv64::asm::{RETURN_ZERO, WAIT};
pub use hodo_isa::riscv64::calls::{Called, called_by, jump_target, leaving_jump, slot_of};
pub use prologue::Made;

/// Whether musl leaves the word free where a thread's control block is: its vector of modules with thread-local
/// variables is there.
pub const FREE_WORD_IN_MUSL: bool = false;

/// Whether this function only returns, and is followed by room for a long jump. No such functions are looked for here.
pub fn only_returns(_at: u64, _code: [u8; 5]) -> bool {
    false
}

/// Where islands are.
pub const ISLANDS: Reach = super::FAR;

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

/// What `getcontext` and `swapcontext` save.
pub const SAVED: &[Saved] = &[Saved {
    back: &[0, 1],
    sp: 2,
    above: 0,
    equal: None,
}];

/// A thread's registers, for walking its frames.
pub fn for_unwinders(regs: &Regs) -> Option<Registers> {
    let mut known = Registers::new(Isa::Riscv64);
    for register in 1..32 {
        known.set(register, regs.get(register));
    }
    known.set_instruction(Some(regs.pc()));
    Some(known)
}

/// Whether a function signs its return address, and then whether by the second key: none does here.
pub fn signs(_code: impl Iterator<Item = [u8; 4]>) -> Option<bool> {
    None
}

/// Where a body begins that is called at an address: there.
pub fn after_signing(_memory: &Memory, called: u64) -> u64 {
    called
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
    use super::check_stacks;

    #[test]
    fn the_shadow_of_stacks_is_not_where_libraries_are() {
        check_stacks(&[
            (0x3F_FFF0_0000, Some(0x3F_A000_0000)),
            (0x3F_FFF0_0000, None),
            (0x7FFF_FFF0_0000, Some(0x7FFF_9000_0000)),
            (0x7FFF_FFF0_0000, Some(0x5555_0000_0000)),
        ]);
    }
}
