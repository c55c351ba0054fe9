//! Encodes 32-bit instructions, and a few 16-bit ones.

/// The opcode of loads of general registers.
pub const LOAD: u32 = 0x03;
/// The opcode of loads of floating-point and vector registers.
pub const LOAD_FP: u32 = 0x07;
/// The opcode of arithmetic with an immediate.
pub const OP_IMM: u32 = 0x13;
/// The opcode of `auipc`.
pub const AUIPC: u32 = 0x17;
/// The opcode of 32-bit arithmetic with an immediate.
pub const OP_IMM_32: u32 = 0x1B;
/// The opcode of stores of general registers.
pub const STORE: u32 = 0x23;
/// The opcode of stores of floating-point and vector registers.
pub const STORE_FP: u32 = 0x27;
/// The opcode of atomic operations.
pub const AMO: u32 = 0x2F;
/// The opcode of arithmetic on two registers.
pub const OP: u32 = 0x33;
/// The opcode of `lui`.
pub const LUI: u32 = 0x37;
/// The opcode of 32-bit arithmetic on two registers.
pub const OP_32: u32 = 0x3B;
/// The opcode of conditional branches.
pub const BRANCH: u32 = 0x63;
/// The opcode of `jalr`.
pub const JALR: u32 = 0x67;
/// The opcode of `jal`.
pub const JAL: u32 = 0x6F;

/// `fence w, w`: stores before it become visible before stores after it.
pub const FENCE_STORES: u32 = 0x0110_000F;
/// `fence r, r`: loads before it are performed before loads after it.
pub const FENCE_LOADS: u32 = 0x0220_000F;
/// `c.nop`
pub const C_NOP: u16 = 0x0001;

/// `rdtime`
#[must_use]
pub const fn rdtime(rd: u8) -> u32 {
    const SYSTEM: u32 = 0x73;
    const CSRRS: u32 = 2;
    const TIME: i64 = 0xC01;
    i(SYSTEM, CSRRS, rd, 0, TIME)
}

/// `c.jr`, for any register but the zero register.
#[must_use]
pub const fn c_jr(register: u8) -> u16 {
    0x8002 | (register as u16) << 7
}

/// `c.ldsp register, 0(sp)`
#[must_use]
pub const fn c_ldsp(register: u8) -> u16 {
    0x6002 | (register as u16) << 7
}

/// `c.sdsp register, 0(sp)`
#[must_use]
pub const fn c_sdsp(register: u8) -> u16 {
    0xE002 | (register as u16) << 2
}

/// `c.j`, to an even distance that fits 12 bits, sign included.
#[must_use]
pub const fn c_j(distance: i64) -> u16 {
    // From bit 2 of the instruction on: bits 5, 3 to 1, 7, 6, 10, 9 and 8, 4, 11 of the distance.
    let d = distance as u16;
    let low = (d >> 5 & 1) << 2 | (d >> 1 & 7) << 3 | (d >> 7 & 1) << 6 | (d >> 6 & 1) << 7;
    let high = (d >> 10 & 1) << 8 | (d >> 8 & 3) << 9 | (d >> 4 & 1) << 11 | (d >> 11 & 1) << 12;
    0xA001 | low | high
}

/// An instruction with two source registers.
#[must_use]
pub const fn r(opcode: u32, f3: u32, f7: u32, rd: u8, rs1: u8, rs2: u8) -> u32 {
    f7 << 25 | (rs2 as u32) << 20 | (rs1 as u32) << 15 | f3 << 12 | (rd as u32) << 7 | opcode
}

/// An instruction with a source register and a 12-bit immediate: `addi`, loads, `jalr`.
#[must_use]
pub const fn i(opcode: u32, f3: u32, rd: u8, rs1: u8, value: i64) -> u32 {
    ((value as u32) & 0xFFF) << 20 | (rs1 as u32) << 15 | f3 << 12 | (rd as u32) << 7 | opcode
}

/// A store.
#[must_use]
pub const fn s(opcode: u32, f3: u32, rs2: u8, rs1: u8, distance: i64) -> u32 {
    let distance = distance as u32;
    (distance >> 5 & 0x7F) << 25
        | (rs2 as u32) << 20
        | (rs1 as u32) << 15
        | f3 << 12
        | (distance & 0x1F) << 7
        | opcode
}

/// An instruction with a 20-bit upper immediate; the lower 12 bits of `value` are ignored.
#[must_use]
pub const fn u(opcode: u32, rd: u8, value: i64) -> u32 {
    (value as u32) & 0xFFFF_F000 | (rd as u32) << 7 | opcode
}

/// A branch; the three bits select the condition.
#[must_use]
pub const fn b(f3: u32, rs1: u8, rs2: u8, distance: i64) -> u32 {
    let d = distance as u32;
    (d >> 12 & 1) << 31
        | (d >> 5 & 0x3F) << 25
        | (rs2 as u32) << 20
        | (rs1 as u32) << 15
        | f3 << 12
        | (d >> 1 & 0xF) << 8
        | (d >> 11 & 1) << 7
        | BRANCH
}

/// `jal`.
#[must_use]
pub const fn j(rd: u8, distance: i64) -> u32 {
    let d = distance as u32;
    (d >> 20 & 1) << 31
        | (d >> 1 & 0x3FF) << 21
        | (d >> 11 & 1) << 20
        | (d >> 12 & 0xFF) << 12
        | (rd as u32) << 7
        | JAL
}

#[cfg(test)]
mod tests {
    use super::super::decode::operand::{imm_b, imm_i, imm_j, imm_s, imm_u, rd, rs1, rs2};
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded() {
        for distance in [-4096, -2050, -2048, -2, 0, 2, 30, 32, 2046, 2048, 4094] {
            let word = b(5, 7, 9, distance);
            assert_eq!((imm_b(word), rs1(word), rs2(word)), (distance, 7, 9));
        }
        for distance in [
            -1 << 20,
            -4096,
            -2,
            0,
            2046,
            2048,
            4094,
            4096,
            (1 << 20) - 2,
        ] {
            let word = j(31, distance);
            assert_eq!((imm_j(word), rd(word)), (distance, 31));
        }
        for value in [-2048, -1, 0, 31, 32, 2047] {
            assert_eq!(imm_i(i(OP_IMM, 0, 1, 2, value)), value);
            assert_eq!(imm_s(s(STORE, 3, 1, 2, value)), value);
        }
        for value in [-0x8000_0000, -0x1000, 0, 0x7FFF_F000] {
            assert_eq!(imm_u(u(LUI, 1, value)), value);
        }
    }
}
