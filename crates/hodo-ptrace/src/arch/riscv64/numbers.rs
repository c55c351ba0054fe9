//! Which registers are for what, and which of their bits are an address.

use std::ops::Range;

use hodo_isa::riscv64::regs::ZERO;
pub use hodo_isa::riscv64::regs::{A7 as NUMBER, RA as LINK, SP as STACK};

/// Words of the kernel's set of general registers: the program counter, then all but the first, which is zero.
pub const WORDS: usize = 32;
/// Of the program counter in it.
pub const PC: usize = 0;

/// Where a register is in the set; `None`: nowhere, it is always zero.
pub fn register(number: u8) -> Option<usize> {
    (number != ZERO).then_some(usize::from(number & 31))
}

/// Those that may hold an address.
pub const REGISTERS: Range<u8> = 1..32;
/// The first argument of a function or system call, and its result: `a0`.
pub const ARGUMENT: u8 = 10;
/// The frame pointer: `s0`.
pub const FRAME: u8 = 8;
/// Those that functions keep: `s0` and `s1`, `s2` to `s11`.
pub fn kept() -> impl Iterator<Item = u8> {
    (8..10).chain(18..28)
}

/// In which hooks ask: `t2`.
pub const ASKS: u8 = 7;
/// In which they are answered, and which holds a return address while contexts are saved: `t1`.
pub const ANSWERS: u8 = 6;

/// An address without its tag: it has none.
pub fn untagged(address: u64) -> u64 {
    address
}
