//! Operands: which bits of an instruction hold them.

/// What an operand is and where it is encoded, in the order in which assemblers write operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operand {
    /// General registers: written, and read.
    Rd,
    Rs1,
    Rs2,
    /// Pairs of general registers, named by the even one: written and read, and read.
    PairRd,
    PairRs2,
    /// General register that is read and written.
    RdRead,
    /// Floating-point registers.
    Fd,
    Fs1,
    Fs2,
    Fs3,
    /// Vector registers.
    Vd,
    Vs1,
    Vs2,
    /// The register that is read and written.
    VdRead,
    /// The register that a store reads.
    Vs3,
    /// Constants.
    ImmI,
    ImmU,
    Shamt6,
    Shamt5,
    Simm5,
    Uimm5,
    /// Immediate operand of instructions on control registers.
    Zimm,
    /// Addresses of code.
    Branch,
    Jump,
    /// Base register and distance.
    MemI,
    MemS,
    /// Base register, and a distance in multiples of 32.
    MemPrefetch,
    /// Base register alone.
    Mem,
    Csr,
    /// What a fence orders.
    Pred,
    Succ,
    /// Rounding mode.
    Rm,
    /// Types of vectors.
    Vtype,
    VtypeImm,
    /// The mask, if there is one.
    Mask,
    /// The mask register as an operand.
    V0,
}

/// The field of this many bits from `low` on.
#[must_use]
pub const fn field(word: u32, low: u32, bits: u32) -> u32 {
    word >> low & ((1 << bits) - 1)
}

/// Sign-extends a number of this many bits.
#[must_use]
pub const fn signed(value: u32, bits: u32) -> i64 {
    let shift = 32 - bits;
    (((value << shift) as i32) >> shift) as i64
}

/// The number of the general register that is written.
#[must_use]
pub const fn rd(word: u32) -> u8 {
    field(word, 7, 5) as u8
}

/// The number of the first register that is read.
#[must_use]
pub const fn rs1(word: u32) -> u8 {
    field(word, 15, 5) as u8
}

/// The number of the second register that is read.
#[must_use]
pub const fn rs2(word: u32) -> u8 {
    field(word, 20, 5) as u8
}

/// The number of the third register that is read.
#[must_use]
pub const fn rs3(word: u32) -> u8 {
    field(word, 27, 5) as u8
}

/// The three bits that distinguish instructions of one opcode.
#[must_use]
pub const fn funct3(word: u32) -> u32 {
    field(word, 12, 3)
}

/// The immediate of `addi` and loads.
#[must_use]
pub const fn imm_i(word: u32) -> i64 {
    signed(word >> 20, 12)
}

/// The offset of stores.
#[must_use]
pub const fn imm_s(word: u32) -> i64 {
    signed(field(word, 25, 7) << 5 | field(word, 7, 5), 12)
}

/// The distance of branches.
#[must_use]
pub const fn imm_b(word: u32) -> i64 {
    let value = field(word, 31, 1) << 12
        | field(word, 7, 1) << 11
        | field(word, 25, 6) << 5
        | field(word, 8, 4) << 1;
    signed(value, 13)
}

/// The immediate of `lui` and `auipc`, shifted.
#[must_use]
pub const fn imm_u(word: u32) -> i64 {
    (word & 0xFFFF_F000) as i32 as i64
}

/// The distance of `jal`.
#[must_use]
pub const fn imm_j(word: u32) -> i64 {
    let value = field(word, 31, 1) << 20
        | field(word, 12, 8) << 12
        | field(word, 20, 1) << 11
        | field(word, 21, 10) << 1;
    signed(value, 21)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_have_their_signs() {
        // addi a0, a0, -1; sd ra, -8(sp); beq x0, x0, -2; jal x0, -2; lui a0, 0x80000
        assert_eq!(imm_i(0xFFF5_0513), -1);
        assert_eq!(imm_s(0xFE11_3C23), -8);
        assert_eq!(imm_b(0xFE00_0FE3), -2);
        assert_eq!(imm_j(0xFFFF_F06F), -2);
        assert_eq!(imm_u(0x8000_0537), -0x8000_0000);
    }
}
