//! AArch64's part of the tests.

use std::arch::asm;
use std::cell::Cell;

use hodo_isa::Via;
use hodo_isa::aarch64::asm;

use crate::common::Random;
use crate::detours::BLOCK;
use crate::machine::{Outcome, State};

pub const LINK: usize = 30;
pub const STACK: usize = 31;
pub const RESULT: usize = 0;
pub const SECOND: usize = 1;
/// The register with the number of a system call.
pub const NUMBER: usize = 8;
/// The link register of calls of the runtime.
pub const RUNTIME_LINK: usize = 16;
/// The jump back needs no register.
pub const BACK: Via = Via::Nothing;
/// Nothing.
pub const DEAD: u32 = 0;
/// What the code needs, and what is never free.
pub const NEEDED: u32 = 0b11 | 1 << 18 | 1 << 30 | 1 << 31;
/// How many registers from the fifth on may hold an address of the program.
pub const POINTERS: u64 = 26;

/// The control block's address is here, from the thread pointer on.
pub const BLOCK_AT: i32 = 8;

/// Whether there are instructions that add to memory: every other time.
pub fn atomics() -> bool {
    thread_local!(static NEXT: Cell<bool> = const { Cell::new(false) });
    NEXT.replace(!NEXT.get())
}

/// `add x0, x0, #1`
pub const ADD_FIRST: [u8; 4] = 0x9100_0400u32.to_le_bytes();
/// `add x1, x1, #1`
pub const ADD_SECOND: [u8; 4] = 0x9100_0421u32.to_le_bytes();
/// `add x0, x0, #1`, `add x1, x1, x0`
pub const TWO: [u8; 8] = 0x8B00_0021_9100_0400u64.to_le_bytes();
/// `svc #0`
pub const SYSTEM_CALL: [u8; 4] = asm::SYSTEM_CALL;
/// `ret`
pub const RET: [u8; 4] = 0xD65F_03C0u32.to_le_bytes();
/// A jump over 0xFC bytes.
pub const JUMP_FC: [u8; 4] = 0x1400_003Fu32.to_le_bytes();

pub fn pc(state: &mut State) -> &mut u64 {
    &mut state.pc
}

/// Where a run stopped.
pub fn at(outcome: &Outcome) -> u64 {
    outcome.state.pc
}

pub fn register(state: &State, register: u8) -> u64 {
    state.x[usize::from(register)]
}

pub fn thread_pointer() -> u64 {
    let thread: u64;
    // SAFETY: only reads a register.
    unsafe { asm!("mrs {}, tpidr_el0", out(reg) thread) };
    thread
}

/// Makes the thread find its control block.
pub fn set_thread(state: &mut State, random: &mut Random) {
    // SAFETY: memory of the tests.
    unsafe { set_block(BLOCK) };
    state.flags = random.below(16) << 28;
}

/// Takes over the flags if nobody needs them.
pub fn let_flags(expected: &mut State, found: &State, dead: bool) {
    if dead {
        expected.flags = found.flags;
    }
}

/// The jump at a site.
pub fn jump(from: u64, to: u64) -> Vec<u8> {
    asm::jump(from, to).expect("near").to_vec()
}

/// The address with the signature that `paciasp` gives it.
pub fn signed(address: u64, stack: u64) -> u64 {
    let signed;
    // SAFETY: only computes.
    unsafe { asm!("hint #8", inout("x17") address => signed, in("x16") stack) };
    signed
}

/// Calls a function with an argument.
///
/// # Safety
/// It changes no other register.
pub unsafe fn call(code: usize, mut value: u64) -> u64 {
    // SAFETY: as the caller promises.
    unsafe {
        asm!(
            "blr {code}",
            code = in(reg) code,
            inout("x0") value,
            out("x30") _,
        );
    }
    value
}

/// Gives this thread a control block.
///
/// # Safety
/// It is there.
pub unsafe fn set_block(block: u64) {
    // SAFETY: libc does not use the second word from the thread pointer on.
    unsafe { asm!("mrs {0}, tpidr_el0", "str {1}, [{0}, #8]", out(reg) _, in(reg) block) };
}
