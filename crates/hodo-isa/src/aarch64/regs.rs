//! Registers, and sets of them.

/// The number of the stack pointer in some operands, and of the zero register in the others.
pub const SP: u8 = 31;
/// The number of the zero register.
pub const ZERO: u8 = 31;
/// The link register of calls.
pub const LINK: u8 = 30;
/// The frame pointer.
pub const FRAME: u8 = 29;
/// The registers that code between a call and its callee may change: linker veneers, and the PLT.
pub const BETWEEN: [u8; 2] = [16, 17];
/// The register that jumps save on the stack if they need one.
pub const KEPT: u8 = BETWEEN[0];
/// The register that is reserved for the platform; on Linux it holds a shadow call stack, if anything.
pub const PLATFORM: u8 = 18;

/// A set of general registers: `x0`–`x30` by their numbers, the stack pointer, and the flags.
pub type Set = u64;

/// The stack pointer in a [`Set`].
pub const STACK: Set = 1 << 31;
/// The flags N, Z, C and V in a [`Set`].
pub const FLAGS: Set = 1 << 32;
/// All of a [`Set`].
pub const ALL: Set = (1 << 33) - 1;
/// `x0`–`x30`.
pub const GENERAL: Set = (1 << 31) - 1;

/// `x0`–`x7`.
pub const ARGUMENTS: Set = 0xFF;
/// Those that functions may change: `x0`–`x17`, the link register, and the flags.
pub const VOLATILE: Set = 0x3_FFFF | 1 << LINK | FLAGS;

/// The set of one register, where number 31 is the zero register.
#[must_use]
#[inline]
pub const fn general(number: u8) -> Set {
    match number {
        ZERO => 0,
        _ => 1 << number,
    }
}

/// The set of one register, where number 31 is the stack pointer.
#[must_use]
#[inline]
pub const fn or_stack(number: u8) -> Set {
    1 << number
}
