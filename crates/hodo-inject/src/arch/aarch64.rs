//! AArch64, with Linux's conventions for it.

mod prologue;

use super::{Reach, Saved};
use hodo_abi::Isa;
use hodo_codegen::aarch64::patch::REACH;
use hodo_isa::aarch64::decode::Insn;
use hodo_isa::aarch64::regs::LINK;
use hodo_ptrace::{Memory, Regs, TargetAddr};
use hodo_symbols::Registers;

#[cfg(test)]
use super::linked::check_stacks;
pub use super::linked::*;
pub use hodo_isa::aarch64::asm::{RETURN_ZERO, WAIT};
pub use hodo_isa::aarch64::calls::{
    Called, called_by, jump_target, leaving_jump, only_returns, slot_of,
};
pub use prologue::Made;

/// Where islands are: jumps reach 128 MiB.
pub const ISLANDS: Reach = Reach {
    jump: REACH - (1 << 20),
    heap: 16 << 20,
    libraries: 32 << 20,
    slack: 8 << 20,
    island: 32 << 20,
};

/// Where the trace may be mapped in targets: far from everything that programs use, sanitizers included. The last
/// address is for address spaces of 39 bits, between the shadow of stacks and programs.
pub fn events_at(_linker: Option<u64>) -> [u64; 4] {
    [
        0x5000_0000_0000,
        0x3800_0000_0000,
        0x6800_0000_0000,
        0x44_0000_0000,
    ]
}

/// Where the ledger may be mapped: after the trace, or below it and its counters.
pub fn ledger_at(_linker: Option<u64>) -> [u64; 6] {
    [
        0x5080_0000_0000,
        0x3880_0000_0000,
        0x6880_0000_0000,
        0x43_0000_0000,
        0x42_0000_0000,
        0x4C_8000_0000,
    ]
}

/// Whether musl leaves the word free where a thread's control block is: it leaves 16 bytes between the thread pointer
/// and the first thread-local variable (`GAP_ABOVE_TP`), and uses what is below.
pub const FREE_WORD_IN_MUSL: bool = true;

/// What `getcontext` and `swapcontext` save. From version 2.41 on, glibc's `swapcontext` puts the return address in the
/// place of `x1`. Where it belongs, and in that of the program counter, there is an address in this function.
pub const SAVED: &[Saved] = &[
    Saved {
        back: &[0, 2],
        sp: 1,
        above: 0,
        equal: None,
    },
    Saved {
        back: &[0],
        sp: 30,
        above: 0,
        equal: Some((29, 31)),
    },
];

/// A thread's registers, for walking its frames.
pub fn for_unwinders(regs: &Regs) -> Option<Registers> {
    let mut known = Registers::new(Isa::Aarch64);
    // The last one is the stack pointer.
    for register in 0..=LINK + 1 {
        known.set(register, regs.get(register));
    }
    known.set_instruction(Some(regs.pc()));
    Some(known)
}

/// Whether the function with this code signs its return address, and then whether by the second key. The code may go on
/// after the function.
pub fn signs(code: impl IntoIterator<Item = [u8; 4]>) -> Option<bool> {
    /// `paciaz`, `paciasp`; `pacibz`, `pacibsp`.
    const FIRST: [u32; 2] = [24, 25];
    const SECOND: [u32; 2] = [26, 27];
    /// `pacia x30, sp`, `pacib x30, sp`: clang's words for processors that have these instructions.
    const WORDS: [u32; 2] = [0xDAC1_03FE, 0xDAC1_07FE];
    code.into_iter().find_map(|word| {
        let hint = Insn::new(&word, 0).hint();
        let is = |hints: [u32; 2], at: usize| {
            hint.is_some_and(|hint| hints.contains(&hint)) || u32::from_le_bytes(word) == WORDS[at]
        };
        match (is(FIRST, 0), is(SECOND, 1)) {
            (true, _) => Some(false),
            (_, true) => Some(true),
            _ => None,
        }
    })
}

/// Where a body begins that is called at an address: after the instruction with which it signs its return address.
pub fn after_signing(memory: &Memory, called: u64) -> u64 {
    let mut word = [0; 4];
    let read = memory.read(TargetAddr(called), &mut word);
    match read.is_ok() && signs([word]).is_some() {
        true => called + 4,
        false => called,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shadow_of_stacks_is_not_where_libraries_are() {
        check_stacks(&[
            (0xFFFF_FFF0_0000, Some(0xFFFF_9000_0000)),
            (0xFFFF_FFF0_0000, Some(0xAAAA_0000_0000)),
            (0xFFFF_FFF0_0000, None),
            (0x7F_FFF0_0000, Some(0x7F_A000_0000)),
            (0x7F_FFF0_0000, None),
        ]);
    }

    #[test]
    fn functions_that_sign_are_recognized() {
        let signs = |words: &[u32]| signs(words.iter().map(|word| word.to_le_bytes()));
        // stp x29, x30, [sp, #-32]!; mov x29, sp
        let plain = [0xA9BE_7BFD, 0x9100_03FD];
        assert_eq!(signs(&plain), None);
        // paciasp, pacibsp; bti c and autiasp sign nothing
        assert_eq!(signs(&[0xD503_233F, plain[0]]), Some(false));
        assert_eq!(signs(&[plain[0], 0xD503_237F]), Some(true));
        assert_eq!(signs(&[0xD503_245F, 0xD503_23BF]), None);
    }
}
