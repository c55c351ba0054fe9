//! The few instructions that moved code needs. Callers check that distances are within reach.

/// `b`, or `bl`.
#[must_use]
pub const fn branch(link: bool, distance: i64) -> u32 {
    let opcode = if link { 0x9400_0000 } else { 0x1400_0000 };
    opcode | (distance >> 2) as u32 & 0x03FF_FFFF
}

/// `br`.
#[must_use]
pub const fn jump(register: u8) -> u32 {
    0xD61F_0000 | (register as u32) << 5
}

/// `blr`.
#[must_use]
pub const fn call(register: u8) -> u32 {
    0xD63F_0000 | (register as u32) << 5
}

/// `adrp`: an address without its low 12 bits.
#[must_use]
pub const fn page(register: u8, pages: i64) -> u32 {
    let pages = pages as u32;
    0x9000_0000 | (pages & 3) << 29 | (pages >> 2 & 0x7_FFFF) << 5 | register as u32
}

/// `add` of an immediate below 4096.
#[must_use]
pub const fn add(to: u8, from: u8, number: u32) -> u32 {
    0x9100_0000 | (number & 0xFFF) << 10 | (from as u32) << 5 | to as u32
}

/// `movz` of 16 bits, shifted left by `part` × 16 bits.
#[must_use]
pub const fn movz(register: u8, bits: u16, part: u32) -> u32 {
    0xD280_0000 | part << 21 | (bits as u32) << 5 | register as u32
}

/// `movk` of 16 bits, shifted left by `part` × 16 bits.
#[must_use]
pub const fn movk(register: u8, bits: u16, part: u32) -> u32 {
    0xF280_0000 | part << 21 | (bits as u32) << 5 | register as u32
}

/// `mov` of a register.
#[must_use]
pub const fn copy(to: u8, from: u8) -> u32 {
    0xAA00_03E0 | (from as u32) << 16 | to as u32
}

/// `str REGISTER, [sp, #-16]!`
#[must_use]
pub const fn push(register: u8) -> u32 {
    0xF81F_0FE0 | register as u32
}

/// `ldr REGISTER, [sp], #16`
#[must_use]
pub const fn pop(register: u8) -> u32 {
    0xF841_07E0 | register as u32
}

/// `nop`
pub const NOP: u32 = 0xD503_201F;
/// `ret`
pub const RET: u32 = 0xD65F_03C0;
/// `brk #0`
pub const BREAKPOINT: u32 = 0xD420_0000;
