//! Floating point of single and double precision.

use super::operand::Operand::{self, *};
use super::rows::{Kind, Row, f3};
use Kind::{Float, Load, Plain, Store};

const SINGLE: u32 = 0;
const DOUBLE: u32 = 1;

pub(crate) static LOAD_FP: [Row; 2] = [
    f3("flw", 0x07, 2, &[Fd, MemI], Load(4)),
    f3("fld", 0x07, 3, &[Fd, MemI], Load(8)),
];

pub(crate) static STORE_FP: [Row; 2] = [
    f3("fsw", 0x27, 2, &[Fs2, MemS], Store(4)),
    f3("fsd", 0x27, 3, &[Fs2, MemS], Store(8)),
];

const fn fused(name: &'static str, opcode: u32, format: u32) -> Row {
    Row {
        name,
        mask: 0x0600_007F,
        value: format << 25 | opcode,
        operands: &[Fd, Fs1, Fs2, Fs3, Rm],
        kind: Float,
    }
}

pub(crate) static MADD: [Row; 2] = [
    fused("fmadd.s", 0x43, SINGLE),
    fused("fmadd.d", 0x43, DOUBLE),
];

pub(crate) static MSUB: [Row; 2] = [
    fused("fmsub.s", 0x47, SINGLE),
    fused("fmsub.d", 0x47, DOUBLE),
];

pub(crate) static NMSUB: [Row; 2] = [
    fused("fnmsub.s", 0x4B, SINGLE),
    fused("fnmsub.d", 0x4B, DOUBLE),
];

pub(crate) static NMADD: [Row; 2] = [
    fused("fnmadd.s", 0x4F, SINGLE),
    fused("fnmadd.d", 0x4F, DOUBLE),
];

/// Two sources, rounded.
const fn rounded(name: &'static str, f5: u32, format: u32) -> Row {
    Row {
        name,
        mask: 0xFE00_007F,
        value: f5 << 27 | format << 25 | 0x53,
        operands: &[Fd, Fs1, Fs2, Rm],
        kind: Float,
    }
}

/// Two sources, not rounded.
const fn exact(
    name: &'static str,
    f5: u32,
    format: u32,
    f3: u32,
    operands: &'static [Operand],
    kind: Kind,
) -> Row {
    Row {
        name,
        mask: 0xFE00_707F,
        value: f5 << 27 | format << 25 | f3 << 12 | 0x53,
        operands,
        kind,
    }
}

/// One source, rounded; the field of the second source selects the conversion.
const fn convert(
    name: &'static str,
    f5: u32,
    format: u32,
    which: u32,
    operands: &'static [Operand],
) -> Row {
    Row {
        name,
        mask: 0xFFF0_007F,
        value: f5 << 27 | format << 25 | which << 20 | 0x53,
        operands,
        kind: Float,
    }
}

/// One source, not rounded.
const fn unary(
    name: &'static str,
    f5: u32,
    format: u32,
    f3: u32,
    operands: &'static [Operand],
) -> Row {
    Row {
        name,
        mask: 0xFFF0_707F,
        value: f5 << 27 | format << 25 | f3 << 12 | 0x53,
        operands,
        kind: Plain,
    }
}

const F: &[Operand] = &[Fd, Fs1, Fs2];
const COMPARE: &[Operand] = &[Rd, Fs1, Fs2];
const TO_X: &[Operand] = &[Rd, Fs1, Rm];
const FROM_X: &[Operand] = &[Fd, Rs1, Rm];
const F1: &[Operand] = &[Fd, Fs1, Rm];

pub(crate) static OP_FP: [Row; 50] = [
    rounded("fadd.s", 0b00000, SINGLE),
    rounded("fsub.s", 0b00001, SINGLE),
    rounded("fmul.s", 0b00010, SINGLE),
    rounded("fdiv.s", 0b00011, SINGLE),
    convert("fsqrt.s", 0b01011, SINGLE, 0, F1),
    exact("fsgnj.s", 0b00100, SINGLE, 0, F, Plain),
    exact("fsgnjn.s", 0b00100, SINGLE, 1, F, Plain),
    exact("fsgnjx.s", 0b00100, SINGLE, 2, F, Plain),
    exact("fmin.s", 0b00101, SINGLE, 0, F, Float),
    exact("fmax.s", 0b00101, SINGLE, 1, F, Float),
    exact("fle.s", 0b10100, SINGLE, 0, COMPARE, Float),
    exact("flt.s", 0b10100, SINGLE, 1, COMPARE, Float),
    exact("feq.s", 0b10100, SINGLE, 2, COMPARE, Float),
    convert("fcvt.w.s", 0b11000, SINGLE, 0, TO_X),
    convert("fcvt.wu.s", 0b11000, SINGLE, 1, TO_X),
    convert("fcvt.l.s", 0b11000, SINGLE, 2, TO_X),
    convert("fcvt.lu.s", 0b11000, SINGLE, 3, TO_X),
    convert("fcvt.s.w", 0b11010, SINGLE, 0, FROM_X),
    convert("fcvt.s.wu", 0b11010, SINGLE, 1, FROM_X),
    convert("fcvt.s.l", 0b11010, SINGLE, 2, FROM_X),
    convert("fcvt.s.lu", 0b11010, SINGLE, 3, FROM_X),
    unary("fmv.x.w", 0b11100, SINGLE, 0, &[Rd, Fs1]),
    unary("fclass.s", 0b11100, SINGLE, 1, &[Rd, Fs1]),
    unary("fmv.w.x", 0b11110, SINGLE, 0, &[Fd, Rs1]),
    convert("fcvt.s.d", 0b01000, SINGLE, 1, F1),
    rounded("fadd.d", 0b00000, DOUBLE),
    rounded("fsub.d", 0b00001, DOUBLE),
    rounded("fmul.d", 0b00010, DOUBLE),
    rounded("fdiv.d", 0b00011, DOUBLE),
    convert("fsqrt.d", 0b01011, DOUBLE, 0, F1),
    exact("fsgnj.d", 0b00100, DOUBLE, 0, F, Plain),
    exact("fsgnjn.d", 0b00100, DOUBLE, 1, F, Plain),
    exact("fsgnjx.d", 0b00100, DOUBLE, 2, F, Plain),
    exact("fmin.d", 0b00101, DOUBLE, 0, F, Float),
    exact("fmax.d", 0b00101, DOUBLE, 1, F, Float),
    exact("fle.d", 0b10100, DOUBLE, 0, COMPARE, Float),
    exact("flt.d", 0b10100, DOUBLE, 1, COMPARE, Float),
    exact("feq.d", 0b10100, DOUBLE, 2, COMPARE, Float),
    convert("fcvt.w.d", 0b11000, DOUBLE, 0, TO_X),
    convert("fcvt.wu.d", 0b11000, DOUBLE, 1, TO_X),
    convert("fcvt.l.d", 0b11000, DOUBLE, 2, TO_X),
    convert("fcvt.lu.d", 0b11000, DOUBLE, 3, TO_X),
    convert("fcvt.d.w", 0b11010, DOUBLE, 0, FROM_X),
    convert("fcvt.d.wu", 0b11010, DOUBLE, 1, FROM_X),
    convert("fcvt.d.l", 0b11010, DOUBLE, 2, FROM_X),
    convert("fcvt.d.lu", 0b11010, DOUBLE, 3, FROM_X),
    unary("fmv.x.d", 0b11100, DOUBLE, 0, &[Rd, Fs1]),
    unary("fclass.d", 0b11100, DOUBLE, 1, &[Rd, Fs1]),
    unary("fmv.d.x", 0b11110, DOUBLE, 0, &[Fd, Rs1]),
    convert("fcvt.d.s", 0b01000, DOUBLE, 0, F1),
];
