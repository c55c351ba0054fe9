//! The rows of the instruction tables, and how to write them.

use super::operand::Operand;

/// What users of the code must know about an instruction besides its operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Nothing more: it computes registers from registers.
    Plain,
    /// Floating point that raises exceptions, with a rounding mode of its own.
    Float,
    /// A load of this many bytes.
    Load(u8),
    /// A store of this many bytes.
    Store(u8),
    /// `lr` of this many bytes.
    LoadReserved(u8),
    /// `sc` of this many bytes.
    StoreConditional(u8),
    /// An atomic operation on this many bytes.
    Atomic(u8),
    /// `auipc`.
    Auipc,
    /// `jal`.
    Jal,
    /// `jalr`.
    Jalr,
    /// A conditional branch.
    Branch,
    /// Any `fence`.
    Fence,
    /// `fence.i`.
    FenceI,
    /// `ecall`.
    Ecall,
    /// `ebreak`.
    Ebreak,
    /// An instruction that is defined to be illegal: it faults.
    Unimp,
    /// An access to a control and status register.
    Csr,
    /// An instruction for operating systems.
    Privileged,
    /// `wfi`, and waiting for a reservation to be lost.
    Wait,
    /// An operation on a cache block, or one that zeroes it.
    CacheBlock,
    /// Vectors of integers, permutations, masks.
    Vector,
    /// Fixed-point vector instructions, with a rounding mode.
    VectorFixed,
    /// Vectors of floating-point numbers.
    VectorFloat,
    /// Whole vector registers, regardless of the vector type.
    VectorWhole,
    /// `vsetvli` and its like.
    VectorSet,
    /// A load or store of vectors.
    VectorMemory,
    /// Not an instruction.
    Invalid,
}

/// One instruction of the set.
#[derive(Debug)]
pub(crate) struct Row {
    pub name: &'static str,
    /// The bits that distinguish this instruction from others.
    pub mask: u32,
    /// Their values.
    pub value: u32,
    pub operands: &'static [Operand],
    pub kind: Kind,
}

impl Row {
    pub(crate) const fn matches(&self, word: u32) -> bool {
        word & self.mask == self.value
    }
}

/// The opcode alone decides.
pub(crate) const fn u(
    name: &'static str,
    opcode: u32,
    operands: &'static [Operand],
    kind: Kind,
) -> Row {
    Row {
        name,
        mask: 0x7F,
        value: opcode,
        operands,
        kind,
    }
}

/// Opcode and three-bit function.
pub(crate) const fn f3(
    name: &'static str,
    opcode: u32,
    f3: u32,
    operands: &'static [Operand],
    kind: Kind,
) -> Row {
    Row {
        name,
        mask: 0x707F,
        value: f3 << 12 | opcode,
        operands,
        kind,
    }
}

/// Opcode, three-bit and seven-bit function.
pub(crate) const fn f7(
    name: &'static str,
    opcode: u32,
    f3: u32,
    f7: u32,
    operands: &'static [Operand],
    kind: Kind,
) -> Row {
    Row {
        name,
        mask: 0xFE00_707F,
        value: f7 << 25 | f3 << 12 | opcode,
        operands,
        kind,
    }
}

/// Opcode, three-bit function, and the upper six bits: for shifts by a six-bit number.
pub(crate) const fn f6(
    name: &'static str,
    opcode: u32,
    f3: u32,
    f6: u32,
    operands: &'static [Operand],
    kind: Kind,
) -> Row {
    Row {
        name,
        mask: 0xFC00_707F,
        value: f6 << 26 | f3 << 12 | opcode,
        operands,
        kind,
    }
}

/// Opcode, three-bit function, and the upper twelve bits: for instructions with one source.
pub(crate) const fn f12(
    name: &'static str,
    opcode: u32,
    f3: u32,
    f12: u32,
    operands: &'static [Operand],
    kind: Kind,
) -> Row {
    Row {
        name,
        mask: 0xFFF0_707F,
        value: f12 << 20 | f3 << 12 | opcode,
        operands,
        kind,
    }
}

/// All bits.
pub(crate) const fn exact(name: &'static str, value: u32, kind: Kind) -> Row {
    Row {
        name,
        mask: u32::MAX,
        value,
        operands: &[],
        kind,
    }
}
