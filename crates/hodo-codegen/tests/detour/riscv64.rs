//! RISC-V's part of the tests.

use std::arch::asm;

use hodo_isa::Via;

use crate::common::Random;
use crate::detours::{BLOCK, model};
use crate::machine::{ARENA, Outcome, State};

pub const LINK: usize = 1;
pub const STACK: usize = 2;
pub const RESULT: usize = 10;
pub const SECOND: usize = 11;
/// The register with the number of a system call.
pub const NUMBER: usize = 17;
/// The link register of calls of the runtime.
pub const RUNTIME_LINK: usize = 5;
/// The register of the jump back.
pub const BACK: Via = Via::Free(6);
/// The same as a set.
pub const DEAD: u32 = 1 << 6;
/// What the code needs, and what is never free.
pub const NEEDED: u32 = 0b1_1111 | 1 << 10 | 1 << 11;
/// How many registers from the fifth on may hold an address of the program.
pub const POINTERS: u64 = 27;

/// The control block's address is here, from the thread pointer on.
pub const BLOCK_AT: i32 = -8;
const TP: u64 = ARENA + 0x3F0;

/// There are instructions that add to memory.
pub fn atomics() -> bool {
    true
}

/// `addi a0, a0, 1`
pub const ADD_FIRST: [u8; 4] = [0x13, 0x05, 0x15, 0];
/// `addi a1, a1, 1`
pub const ADD_SECOND: [u8; 4] = [0x93, 0x85, 0x15, 0];
/// `addi a0, a0, 1`, `add a1, a1, a0`
pub const TWO: [u8; 8] = [0x13, 0x05, 0x15, 0x00, 0xB3, 0x85, 0xA5, 0x00];
/// `ecall`
pub const SYSTEM_CALL: [u8; 4] = [0x73, 0, 0, 0];
/// `ret`
pub const RET: [u8; 4] = [0x67, 0x80, 0x00, 0x00];
/// A jump over 0xFC bytes.
pub const JUMP_FC: [u8; 4] = [0x6F, 0, 0xC0, 0x0F];

pub fn pc(state: &mut State) -> &mut u64 {
    &mut state.x[0]
}

/// Where a run stopped.
pub fn at(outcome: &Outcome) -> u64 {
    outcome.pc()
}

pub fn register(state: &State, register: u8) -> u64 {
    match register {
        0 => 0,
        register => state.x[usize::from(register)],
    }
}

pub fn thread_pointer() -> u64 {
    TP
}

/// Makes the thread find its control block.
pub fn set_thread(state: &mut State, _: &mut Random) {
    state.x[4] = TP;
    model::set(state, TP - 8, BLOCK);
}

/// There are no flags.
pub fn let_flags(_: &mut State, _: &State, _: bool) {}

/// The jump at a site: `auipc t1, …`, `jr t1`.
pub fn jump(from: u64, to: u64) -> Vec<u8> {
    let distance = (to - from) as u32;
    let high = distance.wrapping_add(0x800) & 0xFFFF_F000;
    let low = distance.wrapping_sub(high) & 0xFFF;
    let jump = [high | 6 << 7 | 0x17, low << 20 | 6 << 15 | 0x67];
    jump.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Calls a function with an argument.
///
/// # Safety
/// It changes no other register.
pub unsafe fn call(code: usize, mut value: u64) -> u64 {
    // SAFETY: as the caller promises.
    unsafe {
        asm!(
            "jalr ra, 0({code})",
            code = in(reg) code,
            inout("a0") value,
            out("ra") _,
        );
    }
    value
}

/// Gives this thread a control block.
///
/// # Safety
/// It is there.
pub unsafe fn set_block(block: u64) {
    // SAFETY: libc does not use the word below the thread pointer.
    unsafe { asm!("sd {}, -8(tp)", in(reg) block) };
}
