//! AArch64, with Linux's conventions for it.

mod prologue;

use super::{Reach, Saved};
use anyhow::Result;
use hodo_abi::{Isa, tcb};
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

/// Where islands are: single jumps reach 128 MiB. Those that are farther away are slower.
pub const ISLANDS: Reach = Reach {
    jump: REACH - (1 << 20),
    far: 2 << 30,
    heap: 16 << 20,
    libraries: 32 << 20,
    slack: 8 << 20,
    island: 32 << 20,
    align: 64 << 10,
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

/// Where our code reads the time counter, then the end of the epoch: two words, of which the second one loads from the
/// control block.
fn reads_time(pair: [u32; 2]) -> bool {
    const READ: u32 = 0xD53B_E040;
    pair[0] & !0x1F == READ && pair[1] & !0x3FF == load_of_end()
}

/// What takes their place: the first register is loaded instead of the second one, which gets a number above all times.
/// [`tcb::NOW`] is where the end of the epoch was.
fn without_counter(pair: [u32; 2]) -> [u32; 2] {
    let [time, end] = pair.map(|word| word & 0x1F);
    [pair[1] & !0x1F | time, ABOVE_ALL | end]
}

/// `movz x0, #0x4000, lsl #48`.
const ABOVE_ALL: u32 = 0xD2E8_0000;

/// `ldr x0, [x0, #EPOCH_END]`.
fn load_of_end() -> u32 {
    const _: () = assert!(tcb::NOW == tcb::EPOCH_END);
    0xF940_0000 | (tcb::EPOCH_END as u32 / 8) << 10
}

/// A thread that is this far inside code that [`take_time`] changes must restart it.
pub const INSIDE_TIME: u64 = 4;

/// Makes our code take the time from the control block instead of the time counter. Returns where it was changed.
pub fn take_time(code: &mut [u8]) -> Vec<usize> {
    let mut places = Vec::new();
    for at in (0..code.len().saturating_sub(7)).step_by(4) {
        let pair = words(&code[at..at + 8]);
        if reads_time(pair) {
            for (index, word) in without_counter(pair).into_iter().enumerate() {
                code[at + 4 * index..][..4].copy_from_slice(&word.to_le_bytes());
            }
            places.push(at);
        }
    }
    places
}

/// Whether the thread is where [`take_time`] has changed our code.
///
/// # Errors
/// If the memory cannot be accessed.
pub fn takes_time(regs: &Regs, memory: &Memory) -> Result<bool> {
    let mut code = [0; 8];
    memory.read(TargetAddr(regs.pc()), &mut code)?;
    let [first, second] = words(&code);
    Ok(first & !0x3FF == load_of_end() && second & !0x1F == ABOVE_ALL)
}

fn words(code: &[u8]) -> [u32; 2] {
    core::array::from_fn(|index| {
        let word = code[4 * index..][..4].try_into();
        u32::from_le_bytes(word.expect("four bytes"))
    })
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

    #[test]
    fn time_is_taken_from_the_control_block() {
        let bytes = |words: &[u32]| -> Vec<u8> {
            let words = words.iter().flat_map(|word| word.to_le_bytes());
            words.collect()
        };
        // mrs x9, cntvct_el0; ldr x10, [x11, #1008]; sub x10, x9, x10
        let reads = [0xD53B_E049, 0xF941_F96A, 0xCB0A_012A];
        // The program's own, as it is at the end and before another load.
        let own = [0xD53B_E049, 0xF941_FD6A, 0xD53B_E049];
        let mut code = bytes(&[&reads[..], &reads, &own].concat());
        assert_eq!(take_time(&mut code), [0, 12]);
        // ldr x9, [x11, #1008]; mov x10, #1 << 62
        let takes = [0xF941_F969, 0xD2E8_000A, reads[2]];
        assert_eq!(code, bytes(&[&takes[..], &takes, &own].concat()));
        assert!(take_time(&mut code).is_empty());
    }
}
