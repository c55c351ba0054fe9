//! The base instructions, multiplication, atomics, bit manipulation, and system instructions.

use super::operand::Operand::{self, *};
use super::rows::{Kind, Row, exact, f3, f6, f7, f12, u};
use Kind::{Atomic, Load, LoadReserved, Plain, Store, StoreConditional};

const R: &[Operand] = &[Rd, Rs1, Rs2];
const R1: &[Operand] = &[Rd, Rs1];
const I: &[Operand] = &[Rd, Rs1, ImmI];
const SHIFT: &[Operand] = &[Rd, Rs1, Shamt6];
const SHIFT_WORD: &[Operand] = &[Rd, Rs1, Shamt5];
const LOADS: &[Operand] = &[Rd, MemI];
const STORES: &[Operand] = &[Rs2, MemS];
const BRANCH: &[Operand] = &[Rs1, Rs2, Branch];
const ATOMIC: &[Operand] = &[Rd, Rs2, Mem];
const CSR: &[Operand] = &[Rd, Csr, Rs1];
const CSR_IMM: &[Operand] = &[Rd, Csr, Zimm];

pub(crate) static LOAD: [Row; 7] = [
    f3("lb", 0x03, 0, LOADS, Load(1)),
    f3("lh", 0x03, 1, LOADS, Load(2)),
    f3("lw", 0x03, 2, LOADS, Load(4)),
    f3("ld", 0x03, 3, LOADS, Load(8)),
    f3("lbu", 0x03, 4, LOADS, Load(1)),
    f3("lhu", 0x03, 5, LOADS, Load(2)),
    f3("lwu", 0x03, 6, LOADS, Load(4)),
];

const fn block(name: &'static str, number: u32) -> Row {
    Row {
        name,
        mask: 0xFFF0_7FFF,
        value: number << 20 | 2 << 12 | 0x0F,
        operands: &[Mem],
        kind: Kind::CacheBlock,
    }
}

pub(crate) static MISC_MEM: [Row; 8] = [
    exact("fence.tso", 0x8330_000F, Kind::Fence),
    exact("pause", 0x0100_000F, Kind::Fence),
    f3("fence", 0x0F, 0, &[Pred, Succ], Kind::Fence),
    f3("fence.i", 0x0F, 1, &[], Kind::FenceI),
    block("cbo.inval", 0),
    block("cbo.clean", 1),
    block("cbo.flush", 2),
    block("cbo.zero", 4),
];

const fn prefetch(name: &'static str, number: u32) -> Row {
    Row {
        name,
        mask: 0x01F0_7FFF,
        value: number << 20 | 6 << 12 | 0x13,
        operands: &[MemPrefetch],
        kind: Plain,
    }
}

pub(crate) static OP_IMM: [Row; 24] = [
    f3("addi", 0x13, 0, I, Plain),
    f3("slti", 0x13, 2, I, Plain),
    f3("sltiu", 0x13, 3, I, Plain),
    f3("xori", 0x13, 4, I, Plain),
    prefetch("prefetch.i", 0),
    prefetch("prefetch.r", 1),
    prefetch("prefetch.w", 3),
    f3("ori", 0x13, 6, I, Plain),
    f3("andi", 0x13, 7, I, Plain),
    f6("slli", 0x13, 1, 0b00_0000, SHIFT, Plain),
    f6("srli", 0x13, 5, 0b00_0000, SHIFT, Plain),
    f6("srai", 0x13, 5, 0b01_0000, SHIFT, Plain),
    f12("clz", 0x13, 1, 0x600, R1, Plain),
    f12("ctz", 0x13, 1, 0x601, R1, Plain),
    f12("cpop", 0x13, 1, 0x602, R1, Plain),
    f12("sext.b", 0x13, 1, 0x604, R1, Plain),
    f12("sext.h", 0x13, 1, 0x605, R1, Plain),
    f12("orc.b", 0x13, 5, 0x287, R1, Plain),
    f12("rev8", 0x13, 5, 0x6B8, R1, Plain),
    f6("rori", 0x13, 5, 0b01_1000, SHIFT, Plain),
    f6("bseti", 0x13, 1, 0b00_1010, SHIFT, Plain),
    f6("bclri", 0x13, 1, 0b01_0010, SHIFT, Plain),
    f6("binvi", 0x13, 1, 0b01_1010, SHIFT, Plain),
    f6("bexti", 0x13, 5, 0b01_0010, SHIFT, Plain),
];

pub(crate) static AUIPC: [Row; 1] = [u("auipc", 0x17, &[Rd, ImmU], Kind::Auipc)];

pub(crate) static LUI: [Row; 1] = [u("lui", 0x37, &[Rd, ImmU], Plain)];

pub(crate) static OP_IMM_32: [Row; 9] = [
    f3("addiw", 0x1B, 0, I, Plain),
    f7("slliw", 0x1B, 1, 0b000_0000, SHIFT_WORD, Plain),
    f7("srliw", 0x1B, 5, 0b000_0000, SHIFT_WORD, Plain),
    f7("sraiw", 0x1B, 5, 0b010_0000, SHIFT_WORD, Plain),
    f6("slli.uw", 0x1B, 1, 0b00_0010, SHIFT, Plain),
    f12("clzw", 0x1B, 1, 0x600, R1, Plain),
    f12("ctzw", 0x1B, 1, 0x601, R1, Plain),
    f12("cpopw", 0x1B, 1, 0x602, R1, Plain),
    f7("roriw", 0x1B, 5, 0b011_0000, SHIFT_WORD, Plain),
];

pub(crate) static STORE: [Row; 4] = [
    f3("sb", 0x23, 0, STORES, Store(1)),
    f3("sh", 0x23, 1, STORES, Store(2)),
    f3("sw", 0x23, 2, STORES, Store(4)),
    f3("sd", 0x23, 3, STORES, Store(8)),
];

/// Selected by the upper five bits; the two bits below them order accesses.
const fn atomic(name: &'static str, size: u8, f5: u32) -> Row {
    Row {
        name,
        mask: 0xF800_707F,
        value: f5 << 27 | (size.trailing_zeros()) << 12 | 0x2F,
        operands: ATOMIC,
        kind: Atomic(size),
    }
}

const fn reserve(name: &'static str, size: u8) -> Row {
    Row {
        name,
        mask: 0xF9F0_707F,
        value: 0b00010 << 27 | (size.trailing_zeros()) << 12 | 0x2F,
        operands: &[Rd, Mem],
        kind: LoadReserved(size),
    }
}

const fn conditional(name: &'static str, size: u8) -> Row {
    Row {
        kind: StoreConditional(size),
        ..atomic(name, size, 0b00011)
    }
}

const fn compare(name: &'static str, size: u8, operands: &'static [Operand]) -> Row {
    Row {
        operands,
        ..atomic(name, size, 0b00101)
    }
}

pub(crate) static AMO: [Row; 25] = [
    reserve("lr.w", 4),
    reserve("lr.d", 8),
    conditional("sc.w", 4),
    conditional("sc.d", 8),
    atomic("amoswap.w", 4, 0b00001),
    atomic("amoswap.d", 8, 0b00001),
    atomic("amoadd.w", 4, 0b00000),
    atomic("amoadd.d", 8, 0b00000),
    atomic("amoxor.w", 4, 0b00100),
    atomic("amoxor.d", 8, 0b00100),
    atomic("amoand.w", 4, 0b01100),
    atomic("amoand.d", 8, 0b01100),
    atomic("amoor.w", 4, 0b01000),
    atomic("amoor.d", 8, 0b01000),
    atomic("amomin.w", 4, 0b10000),
    atomic("amomin.d", 8, 0b10000),
    atomic("amomax.w", 4, 0b10100),
    atomic("amomax.d", 8, 0b10100),
    atomic("amominu.w", 4, 0b11000),
    atomic("amominu.d", 8, 0b11000),
    atomic("amomaxu.w", 4, 0b11100),
    atomic("amomaxu.d", 8, 0b11100),
    compare("amocas.w", 4, &[RdRead, Rs2, Mem]),
    compare("amocas.d", 8, &[RdRead, Rs2, Mem]),
    // Pairs of registers: only even ones.
    Row {
        mask: 0xF810_70FF,
        ..compare("amocas.q", 16, &[PairRd, PairRs2, Mem])
    },
];

pub(crate) static OP: [Row; 39] = [
    f7("add", 0x33, 0, 0b000_0000, R, Plain),
    f7("sub", 0x33, 0, 0b010_0000, R, Plain),
    f7("sll", 0x33, 1, 0b000_0000, R, Plain),
    f7("slt", 0x33, 2, 0b000_0000, R, Plain),
    f7("sltu", 0x33, 3, 0b000_0000, R, Plain),
    f7("xor", 0x33, 4, 0b000_0000, R, Plain),
    f7("srl", 0x33, 5, 0b000_0000, R, Plain),
    f7("sra", 0x33, 5, 0b010_0000, R, Plain),
    f7("or", 0x33, 6, 0b000_0000, R, Plain),
    f7("and", 0x33, 7, 0b000_0000, R, Plain),
    f7("mul", 0x33, 0, 0b000_0001, R, Plain),
    f7("mulh", 0x33, 1, 0b000_0001, R, Plain),
    f7("mulhsu", 0x33, 2, 0b000_0001, R, Plain),
    f7("mulhu", 0x33, 3, 0b000_0001, R, Plain),
    f7("div", 0x33, 4, 0b000_0001, R, Plain),
    f7("divu", 0x33, 5, 0b000_0001, R, Plain),
    f7("rem", 0x33, 6, 0b000_0001, R, Plain),
    f7("remu", 0x33, 7, 0b000_0001, R, Plain),
    f7("sh1add", 0x33, 2, 0b001_0000, R, Plain),
    f7("sh2add", 0x33, 4, 0b001_0000, R, Plain),
    f7("sh3add", 0x33, 6, 0b001_0000, R, Plain),
    f7("xnor", 0x33, 4, 0b010_0000, R, Plain),
    f7("orn", 0x33, 6, 0b010_0000, R, Plain),
    f7("andn", 0x33, 7, 0b010_0000, R, Plain),
    f7("clmul", 0x33, 1, 0b000_0101, R, Plain),
    f7("clmulr", 0x33, 2, 0b000_0101, R, Plain),
    f7("clmulh", 0x33, 3, 0b000_0101, R, Plain),
    f7("min", 0x33, 4, 0b000_0101, R, Plain),
    f7("minu", 0x33, 5, 0b000_0101, R, Plain),
    f7("max", 0x33, 6, 0b000_0101, R, Plain),
    f7("maxu", 0x33, 7, 0b000_0101, R, Plain),
    f7("czero.eqz", 0x33, 5, 0b000_0111, R, Plain),
    f7("czero.nez", 0x33, 7, 0b000_0111, R, Plain),
    f7("rol", 0x33, 1, 0b011_0000, R, Plain),
    f7("ror", 0x33, 5, 0b011_0000, R, Plain),
    f7("bset", 0x33, 1, 0b001_0100, R, Plain),
    f7("bclr", 0x33, 1, 0b010_0100, R, Plain),
    f7("bext", 0x33, 5, 0b010_0100, R, Plain),
    f7("binv", 0x33, 1, 0b011_0100, R, Plain),
];

pub(crate) static OP_32: [Row; 17] = [
    f7("addw", 0x3B, 0, 0b000_0000, R, Plain),
    f7("subw", 0x3B, 0, 0b010_0000, R, Plain),
    f7("sllw", 0x3B, 1, 0b000_0000, R, Plain),
    f7("srlw", 0x3B, 5, 0b000_0000, R, Plain),
    f7("sraw", 0x3B, 5, 0b010_0000, R, Plain),
    f7("mulw", 0x3B, 0, 0b000_0001, R, Plain),
    f7("divw", 0x3B, 4, 0b000_0001, R, Plain),
    f7("divuw", 0x3B, 5, 0b000_0001, R, Plain),
    f7("remw", 0x3B, 6, 0b000_0001, R, Plain),
    f7("remuw", 0x3B, 7, 0b000_0001, R, Plain),
    f7("add.uw", 0x3B, 0, 0b000_0100, R, Plain),
    f7("sh1add.uw", 0x3B, 2, 0b001_0000, R, Plain),
    f7("sh2add.uw", 0x3B, 4, 0b001_0000, R, Plain),
    f7("sh3add.uw", 0x3B, 6, 0b001_0000, R, Plain),
    f7("rolw", 0x3B, 1, 0b011_0000, R, Plain),
    f7("rorw", 0x3B, 5, 0b011_0000, R, Plain),
    f12("zext.h", 0x3B, 4, 0x080, R1, Plain),
];

pub(crate) static BRANCHES: [Row; 6] = [
    f3("beq", 0x63, 0, BRANCH, Kind::Branch),
    f3("bne", 0x63, 1, BRANCH, Kind::Branch),
    f3("blt", 0x63, 4, BRANCH, Kind::Branch),
    f3("bge", 0x63, 5, BRANCH, Kind::Branch),
    f3("bltu", 0x63, 6, BRANCH, Kind::Branch),
    f3("bgeu", 0x63, 7, BRANCH, Kind::Branch),
];

pub(crate) static JALR: [Row; 1] = [f3("jalr", 0x67, 0, &[Rd, MemI], Kind::Jalr)];

pub(crate) static JAL: [Row; 1] = [u("jal", 0x6F, &[Rd, Jump], Kind::Jal)];

/// An instruction for operating systems, with two sources.
const fn fence_vm(name: &'static str, f7: u32) -> Row {
    Row {
        name,
        mask: 0xFE00_7FFF,
        value: f7 << 25 | 0x73,
        operands: &[Rs1, Rs2],
        kind: Kind::Privileged,
    }
}

pub(crate) static SYSTEM: [Row; 24] = [
    exact("ecall", 0x0000_0073, Kind::Ecall),
    exact("ebreak", 0x0010_0073, Kind::Ebreak),
    exact("unimp", 0xC000_1073, Kind::Unimp),
    exact("sret", 0x1020_0073, Kind::Privileged),
    exact("mret", 0x3020_0073, Kind::Privileged),
    exact("dret", 0x7B20_0073, Kind::Privileged),
    exact("wfi", 0x1050_0073, Kind::Wait),
    exact("wrs.nto", 0x00D0_0073, Kind::Wait),
    exact("wrs.sto", 0x01D0_0073, Kind::Wait),
    exact("sfence.w.inval", 0x1800_0073, Kind::Privileged),
    exact("sfence.inval.ir", 0x1810_0073, Kind::Privileged),
    fence_vm("sfence.vma", 0x09),
    fence_vm("sinval.vma", 0x0B),
    fence_vm("hfence.vvma", 0x11),
    fence_vm("hinval.vvma", 0x13),
    fence_vm("hfence.gvma", 0x31),
    fence_vm("hinval.gvma", 0x33),
    f3("csrrw", 0x73, 1, CSR, Kind::Csr),
    f3("csrrs", 0x73, 2, CSR, Kind::Csr),
    f3("csrrc", 0x73, 3, CSR, Kind::Csr),
    f3("csrrwi", 0x73, 5, CSR_IMM, Kind::Csr),
    f3("csrrsi", 0x73, 6, CSR_IMM, Kind::Csr),
    f3("csrrci", 0x73, 7, CSR_IMM, Kind::Csr),
    exact("uret", 0x0020_0073, Kind::Privileged),
];
