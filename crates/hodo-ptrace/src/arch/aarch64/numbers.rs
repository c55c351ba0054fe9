//! Which registers are for what, and which of their bits are an address.

use std::ops::Range;

use hodo_isa::aarch64::regs::{BETWEEN, SP};
pub use hodo_isa::aarch64::regs::{FRAME, LINK, SP as STACK};

/// Words of the kernel's set of general registers (`struct user_pt_regs`): `x0`–`x30`, the stack pointer, the program
/// counter, and the processor's state.
pub const WORDS: usize = 34;
/// Of the program counter in it.
pub const PC: usize = 32;
/// Of the processor's state in it.
pub const STATE: usize = 33;

/// Where a register is in the set. Number 31 is the stack pointer.
pub fn register(number: u8) -> Option<usize> {
    (number <= SP).then_some(usize::from(number))
}

/// Those that may hold an address.
pub const REGISTERS: Range<u8> = 0..32;
/// The first argument of a function or system call, and its result.
pub const ARGUMENT: u8 = 0;
/// The number of a system call.
pub const NUMBER: u8 = 8;
/// Those that functions keep.
pub fn kept() -> impl Iterator<Item = u8> {
    19..29
}

/// In which hooks ask.
pub const ASKS: u8 = BETWEEN[1];
/// In which they are answered, and which holds a return address while contexts are saved.
pub const ANSWERS: u8 = BETWEEN[0];

/// An address without its tag: the processor ignores its highest byte in accesses to memory. The lower ones say in
/// which half of the address space it is.
pub fn untagged(address: u64) -> u64 {
    const TAG: u32 = 8;
    ((address << TAG).cast_signed() >> TAG).cast_unsigned()
}
