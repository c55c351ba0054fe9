//! Vector instructions, version 1.0.
//!
//! Six bits name an operation, and the three bits of `funct3` give the kinds of its operands. A table has a row for
//! each operation, which lists the kinds that exist; the ending of the name follows from the kind.

use super::operand::Operand::{self, *};
use super::operand::{field, funct3};
use super::rows::{Kind, Row};

/// A vector instruction: its name without and with its ending, operands and kind.
pub(crate) struct Found {
    pub name: &'static str,
    pub suffix: &'static str,
    pub operands: &'static [Operand],
    pub kind: Kind,
}

/// Kinds of the last operand: a vector, a scalar register, an immediate.
const V: u8 = 1;
const X: u8 = 2;
const I: u8 = 4;
const VX: u8 = V | X;
const XI: u8 = X | I;
const VXI: u8 = V | X | I;

/// Which operands an operation has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// `.vv`, `.vx`, `.vi`: with a mask.
    Usual,
    /// The same with an unsigned immediate.
    Unsigned,
    /// `.wv`, `.wx`, `.wi`: the source `vs2` is twice as wide.
    Wide,
    /// The same with an unsigned immediate.
    WideUnsigned,
    /// `.vs`: the last operand is one element.
    Reduce,
    /// `.vvm`, …: the mask is an operand; there is no form without it.
    Carry,
    /// `.vvm`, or `.vv` without the mask.
    CarryOut,
    /// `.mm`: no mask.
    Masks,
    /// The destination is also a source, and the order of operands differs.
    Multiply,
}

use Shape::{Carry, CarryOut, Masks, Multiply, Reduce, Unsigned, Usual, Wide, WideUnsigned};

/// An operation: its six bits, name, kinds, shape, and what else must be known about it.
type Operation = (u32, &'static str, u8, Shape, Kind);

const INT: Kind = Kind::Vector;
const FIX: Kind = Kind::VectorFixed;
const FLT: Kind = Kind::VectorFloat;

static INTEGER: [Operation; 43] = [
    (0b00_0000, "vadd", VXI, Usual, INT),
    (0b00_0010, "vsub", VX, Usual, INT),
    (0b00_0011, "vrsub", XI, Usual, INT),
    (0b00_0100, "vminu", VX, Usual, INT),
    (0b00_0101, "vmin", VX, Usual, INT),
    (0b00_0110, "vmaxu", VX, Usual, INT),
    (0b00_0111, "vmax", VX, Usual, INT),
    (0b00_1001, "vand", VXI, Usual, INT),
    (0b00_1010, "vor", VXI, Usual, INT),
    (0b00_1011, "vxor", VXI, Usual, INT),
    (0b00_1100, "vrgather", VXI, Unsigned, INT),
    (0b00_1110, "vslideup", XI, Unsigned, INT),
    (0b00_1110, "vrgatherei16", V, Usual, INT),
    (0b00_1111, "vslidedown", XI, Unsigned, INT),
    (0b01_0000, "vadc", VXI, Carry, INT),
    (0b01_0001, "vmadc", VXI, CarryOut, INT),
    (0b01_0010, "vsbc", VX, Carry, INT),
    (0b01_0011, "vmsbc", VX, CarryOut, INT),
    (0b01_0111, "vmerge", VXI, Carry, INT),
    (0b01_1000, "vmseq", VXI, Usual, INT),
    (0b01_1001, "vmsne", VXI, Usual, INT),
    (0b01_1010, "vmsltu", VX, Usual, INT),
    (0b01_1011, "vmslt", VX, Usual, INT),
    (0b01_1100, "vmsleu", VXI, Usual, INT),
    (0b01_1101, "vmsle", VXI, Usual, INT),
    (0b01_1110, "vmsgtu", XI, Usual, INT),
    (0b01_1111, "vmsgt", XI, Usual, INT),
    (0b10_0000, "vsaddu", VXI, Usual, FIX),
    (0b10_0001, "vsadd", VXI, Usual, FIX),
    (0b10_0010, "vssubu", VX, Usual, FIX),
    (0b10_0011, "vssub", VX, Usual, FIX),
    (0b10_0101, "vsll", VXI, Unsigned, INT),
    (0b10_0111, "vsmul", VX, Usual, FIX),
    (0b10_1000, "vsrl", VXI, Unsigned, INT),
    (0b10_1001, "vsra", VXI, Unsigned, INT),
    (0b10_1010, "vssrl", VXI, Unsigned, FIX),
    (0b10_1011, "vssra", VXI, Unsigned, FIX),
    (0b10_1100, "vnsrl", VXI, WideUnsigned, INT),
    (0b10_1101, "vnsra", VXI, WideUnsigned, INT),
    (0b10_1110, "vnclipu", VXI, WideUnsigned, FIX),
    (0b10_1111, "vnclip", VXI, WideUnsigned, FIX),
    (0b11_0000, "vwredsumu", V, Reduce, INT),
    (0b11_0001, "vwredsum", V, Reduce, INT),
];

static MULTIPLY: [Operation; 49] = [
    (0b00_0000, "vredsum", V, Reduce, INT),
    (0b00_0001, "vredand", V, Reduce, INT),
    (0b00_0010, "vredor", V, Reduce, INT),
    (0b00_0011, "vredxor", V, Reduce, INT),
    (0b00_0100, "vredminu", V, Reduce, INT),
    (0b00_0101, "vredmin", V, Reduce, INT),
    (0b00_0110, "vredmaxu", V, Reduce, INT),
    (0b00_0111, "vredmax", V, Reduce, INT),
    (0b00_1000, "vaaddu", VX, Usual, FIX),
    (0b00_1001, "vaadd", VX, Usual, FIX),
    (0b00_1010, "vasubu", VX, Usual, FIX),
    (0b00_1011, "vasub", VX, Usual, FIX),
    (0b00_1110, "vslide1up", X, Usual, INT),
    (0b00_1111, "vslide1down", X, Usual, INT),
    (0b01_1000, "vmandn", V, Masks, INT),
    (0b01_1001, "vmand", V, Masks, INT),
    (0b01_1010, "vmor", V, Masks, INT),
    (0b01_1011, "vmxor", V, Masks, INT),
    (0b01_1100, "vmorn", V, Masks, INT),
    (0b01_1101, "vmnand", V, Masks, INT),
    (0b01_1110, "vmnor", V, Masks, INT),
    (0b01_1111, "vmxnor", V, Masks, INT),
    (0b10_0000, "vdivu", VX, Usual, INT),
    (0b10_0001, "vdiv", VX, Usual, INT),
    (0b10_0010, "vremu", VX, Usual, INT),
    (0b10_0011, "vrem", VX, Usual, INT),
    (0b10_0100, "vmulhu", VX, Usual, INT),
    (0b10_0101, "vmul", VX, Usual, INT),
    (0b10_0110, "vmulhsu", VX, Usual, INT),
    (0b10_0111, "vmulh", VX, Usual, INT),
    (0b10_1001, "vmadd", VX, Multiply, INT),
    (0b10_1011, "vnmsub", VX, Multiply, INT),
    (0b10_1101, "vmacc", VX, Multiply, INT),
    (0b10_1111, "vnmsac", VX, Multiply, INT),
    (0b11_0000, "vwaddu", VX, Usual, INT),
    (0b11_0001, "vwadd", VX, Usual, INT),
    (0b11_0010, "vwsubu", VX, Usual, INT),
    (0b11_0011, "vwsub", VX, Usual, INT),
    (0b11_0100, "vwaddu", VX, Wide, INT),
    (0b11_0101, "vwadd", VX, Wide, INT),
    (0b11_0110, "vwsubu", VX, Wide, INT),
    (0b11_0111, "vwsub", VX, Wide, INT),
    (0b11_1000, "vwmulu", VX, Usual, INT),
    (0b11_1010, "vwmulsu", VX, Usual, INT),
    (0b11_1011, "vwmul", VX, Usual, INT),
    (0b11_1100, "vwmaccu", VX, Multiply, INT),
    (0b11_1101, "vwmacc", VX, Multiply, INT),
    (0b11_1110, "vwmaccus", X, Multiply, INT),
    (0b11_1111, "vwmaccsu", VX, Multiply, INT),
];

/// Floating-point operations; [`X`] stands for a floating-point register.
static FLOAT: [Operation; 43] = [
    (0b00_0000, "vfadd", VX, Usual, FLT),
    (0b00_0001, "vfredusum", V, Reduce, FLT),
    (0b00_0010, "vfsub", VX, Usual, FLT),
    (0b00_0011, "vfredosum", V, Reduce, FLT),
    (0b00_0100, "vfmin", VX, Usual, FLT),
    (0b00_0101, "vfredmin", V, Reduce, FLT),
    (0b00_0110, "vfmax", VX, Usual, FLT),
    (0b00_0111, "vfredmax", V, Reduce, FLT),
    (0b00_1000, "vfsgnj", VX, Usual, INT),
    (0b00_1001, "vfsgnjn", VX, Usual, INT),
    (0b00_1010, "vfsgnjx", VX, Usual, INT),
    (0b00_1110, "vfslide1up", X, Usual, INT),
    (0b00_1111, "vfslide1down", X, Usual, INT),
    (0b01_0111, "vfmerge", X, Carry, INT),
    (0b01_1000, "vmfeq", VX, Usual, FLT),
    (0b01_1001, "vmfle", VX, Usual, FLT),
    (0b01_1011, "vmflt", VX, Usual, FLT),
    (0b01_1100, "vmfne", VX, Usual, FLT),
    (0b01_1101, "vmfgt", X, Usual, FLT),
    (0b01_1111, "vmfge", X, Usual, FLT),
    (0b10_0000, "vfdiv", VX, Usual, FLT),
    (0b10_0001, "vfrdiv", X, Usual, FLT),
    (0b10_0100, "vfmul", VX, Usual, FLT),
    (0b10_0111, "vfrsub", X, Usual, FLT),
    (0b10_1000, "vfmadd", VX, Multiply, FLT),
    (0b10_1001, "vfnmadd", VX, Multiply, FLT),
    (0b10_1010, "vfmsub", VX, Multiply, FLT),
    (0b10_1011, "vfnmsub", VX, Multiply, FLT),
    (0b10_1100, "vfmacc", VX, Multiply, FLT),
    (0b10_1101, "vfnmacc", VX, Multiply, FLT),
    (0b10_1110, "vfmsac", VX, Multiply, FLT),
    (0b10_1111, "vfnmsac", VX, Multiply, FLT),
    (0b11_0000, "vfwadd", VX, Usual, FLT),
    (0b11_0001, "vfwredusum", V, Reduce, FLT),
    (0b11_0010, "vfwsub", VX, Usual, FLT),
    (0b11_0011, "vfwredosum", V, Reduce, FLT),
    (0b11_0100, "vfwadd", VX, Wide, FLT),
    (0b11_0110, "vfwsub", VX, Wide, FLT),
    (0b11_1000, "vfwmul", VX, Usual, FLT),
    (0b11_1100, "vfwmacc", VX, Multiply, FLT),
    (0b11_1101, "vfwnmacc", VX, Multiply, FLT),
    (0b11_1110, "vfwmsac", VX, Multiply, FLT),
    (0b11_1111, "vfwnmsac", VX, Multiply, FLT),
];

const V_MASK: &[Operand] = &[Vd, Vs2, Mask];

/// One source; the five bits of the other source select the operation. `f3`: 1 for floating point, 2 for integers.
const fn unary(
    name: &'static str,
    f3: u32,
    f6: u32,
    which: u32,
    operands: &'static [Operand],
    kind: Kind,
) -> Row {
    Row {
        name,
        mask: 0xFC0F_F07F,
        value: f6 << 26 | which << 15 | f3 << 12 | 0x57,
        operands,
        kind,
    }
}

/// The same without a mask.
const fn whole(
    name: &'static str,
    f3: u32,
    f6: u32,
    which: u32,
    operands: &'static [Operand],
    kind: Kind,
) -> Row {
    Row {
        mask: 0xFE0F_F07F,
        value: 1 << 25 | f6 << 26 | which << 15 | f3 << 12 | 0x57,
        ..unary(name, f3, f6, which, operands, kind)
    }
}

/// The field of the second vector is unused: its bits are zero.
const fn source(
    name: &'static str,
    f3: u32,
    f6: u32,
    operands: &'static [Operand],
    kind: Kind,
) -> Row {
    Row {
        name,
        mask: 0xFFF0_707F,
        value: f6 << 26 | 1 << 25 | f3 << 12 | 0x57,
        operands,
        kind,
    }
}

const fn convert(name: &'static str, which: u32) -> Row {
    unary(name, 1, 0b01_0010, which, V_MASK, FLT)
}

const fn extend(name: &'static str, which: u32) -> Row {
    unary(name, 2, 0b01_0010, which, V_MASK, INT)
}

const fn masks(name: &'static str, which: u32) -> Row {
    unary(name, 2, 0b01_0100, which, V_MASK, INT)
}

static SPECIAL: [Row; 51] = [
    source("vmv.v.v", 0, 0b01_0111, &[Vd, Vs1], INT),
    source("vmv.v.x", 4, 0b01_0111, &[Vd, Rs1], INT),
    source("vmv.v.i", 3, 0b01_0111, &[Vd, Simm5], INT),
    source("vfmv.v.f", 5, 0b01_0111, &[Vd, Fs1], INT),
    source("vmv.s.x", 6, 0b01_0000, &[Vd, Rs1], INT),
    source("vfmv.s.f", 5, 0b01_0000, &[Vd, Fs1], INT),
    whole("vmv.x.s", 2, 0b01_0000, 0, &[Rd, Vs2], INT),
    whole("vfmv.f.s", 1, 0b01_0000, 0, &[Fd, Vs2], INT),
    unary("vcpop.m", 2, 0b01_0000, 16, &[Rd, Vs2, Mask], INT),
    unary("vfirst.m", 2, 0b01_0000, 17, &[Rd, Vs2, Mask], INT),
    extend("vzext.vf8", 2),
    extend("vsext.vf8", 3),
    extend("vzext.vf4", 4),
    extend("vsext.vf4", 5),
    extend("vzext.vf2", 6),
    extend("vsext.vf2", 7),
    masks("vmsbf.m", 1),
    masks("vmsof.m", 2),
    masks("vmsif.m", 3),
    masks("viota.m", 16),
    Row {
        name: "vid.v",
        mask: 0xFDFF_F07F,
        value: 0b01_0100 << 26 | 17 << 15 | 2 << 12 | 0x57,
        operands: &[Vd, Mask],
        kind: INT,
    },
    Row {
        name: "vcompress.vm",
        mask: 0xFE00_707F,
        value: 0b01_0111 << 26 | 1 << 25 | 2 << 12 | 0x57,
        operands: &[Vd, Vs2, Vs1],
        kind: INT,
    },
    whole("vmv1r.v", 3, 0b10_0111, 0, &[Vd, Vs2], Kind::VectorWhole),
    whole("vmv2r.v", 3, 0b10_0111, 1, &[Vd, Vs2], Kind::VectorWhole),
    whole("vmv4r.v", 3, 0b10_0111, 3, &[Vd, Vs2], Kind::VectorWhole),
    whole("vmv8r.v", 3, 0b10_0111, 7, &[Vd, Vs2], Kind::VectorWhole),
    convert("vfcvt.xu.f.v", 0),
    convert("vfcvt.x.f.v", 1),
    convert("vfcvt.f.xu.v", 2),
    convert("vfcvt.f.x.v", 3),
    convert("vfcvt.rtz.xu.f.v", 6),
    convert("vfcvt.rtz.x.f.v", 7),
    convert("vfwcvt.xu.f.v", 8),
    convert("vfwcvt.x.f.v", 9),
    convert("vfwcvt.f.xu.v", 10),
    convert("vfwcvt.f.x.v", 11),
    convert("vfwcvt.f.f.v", 12),
    convert("vfwcvt.rtz.xu.f.v", 14),
    convert("vfwcvt.rtz.x.f.v", 15),
    convert("vfncvt.xu.f.w", 16),
    convert("vfncvt.x.f.w", 17),
    convert("vfncvt.f.xu.w", 18),
    convert("vfncvt.f.x.w", 19),
    convert("vfncvt.f.f.w", 20),
    convert("vfncvt.rod.f.f.w", 21),
    convert("vfncvt.rtz.xu.f.w", 22),
    convert("vfncvt.rtz.x.f.w", 23),
    unary("vfsqrt.v", 1, 0b01_0011, 0, V_MASK, FLT),
    unary("vfrsqrt7.v", 1, 0b01_0011, 4, V_MASK, FLT),
    unary("vfrec7.v", 1, 0b01_0011, 5, V_MASK, FLT),
    unary("vfclass.v", 1, 0b01_0011, 16, V_MASK, INT),
];

static SET: [Row; 3] = [
    Row {
        name: "vsetvli",
        mask: 0x8000_707F,
        value: 0x7057,
        operands: &[Rd, Rs1, Vtype],
        kind: Kind::VectorSet,
    },
    Row {
        name: "vsetivli",
        mask: 0xC000_707F,
        value: 0xC000_7057,
        operands: &[Rd, Zimm, VtypeImm],
        kind: Kind::VectorSet,
    },
    Row {
        name: "vsetvl",
        mask: 0xFE00_707F,
        value: 0x8000_7057,
        operands: &[Rd, Rs1, Rs2],
        kind: Kind::VectorSet,
    },
];

fn plain(row: &'static Row) -> Found {
    Found {
        name: row.name,
        suffix: "",
        operands: row.operands,
        kind: row.kind,
    }
}

/// The operands of a shape, with the kind of the last one: `v`, `x`, `i` or `f`.
fn shaped(
    shape: Shape,
    kind: u8,
    float: bool,
    masked: bool,
) -> Option<(&'static str, &'static [Operand])> {
    let of = |v: (&'static str, &'static [Operand]),
              x: (&'static str, &'static [Operand]),
              f: (&'static str, &'static [Operand]),
              i: (&'static str, &'static [Operand])| match kind {
        V => v,
        X if float => f,
        X => x,
        _ => i,
    };
    const VV: &[Operand] = &[Vd, Vs2, Vs1, Mask];
    const VX: &[Operand] = &[Vd, Vs2, Rs1, Mask];
    const VF: &[Operand] = &[Vd, Vs2, Fs1, Mask];
    const VI: &[Operand] = &[Vd, Vs2, Simm5, Mask];
    const VU: &[Operand] = &[Vd, Vs2, Uimm5, Mask];
    const VV0: &[Operand] = &[Vd, Vs2, Vs1, V0];
    const VX0: &[Operand] = &[Vd, Vs2, Rs1, V0];
    const VF0: &[Operand] = &[Vd, Vs2, Fs1, V0];
    const VI0: &[Operand] = &[Vd, Vs2, Simm5, V0];
    Some(match shape {
        Usual => of((".vv", VV), (".vx", VX), (".vf", VF), (".vi", VI)),
        Unsigned => of((".vv", VV), (".vx", VX), (".vf", VF), (".vi", VU)),
        Wide => of((".wv", VV), (".wx", VX), (".wf", VF), (".wi", VI)),
        WideUnsigned => of((".wv", VV), (".wx", VX), (".wf", VF), (".wi", VU)),
        Reduce => (".vs", VV),
        Masks if masked => return None,
        Masks => (".mm", &[Vd, Vs2, Vs1]),
        Carry if !masked => return None,
        Carry | CarryOut if masked => {
            of((".vvm", VV0), (".vxm", VX0), (".vfm", VF0), (".vim", VI0))
        }
        Carry | CarryOut => of((".vv", VV), (".vx", VX), (".vf", VF), (".vi", VI)),
        Multiply => of(
            (".vv", &[VdRead, Vs1, Vs2, Mask]),
            (".vx", &[VdRead, Rs1, Vs2, Mask]),
            (".vf", &[VdRead, Fs1, Vs2, Mask]),
            (".vi", &[]),
        ),
    })
}

/// An instruction of the major opcode of vectors.
pub(crate) fn find(word: u32) -> Option<Found> {
    let (table, kind, float) = match funct3(word) {
        0 => (&INTEGER[..], V, false),
        1 => (&FLOAT[..], V, true),
        2 => (&MULTIPLY[..], V, false),
        3 => (&INTEGER[..], I, false),
        4 => (&INTEGER[..], X, false),
        5 => (&FLOAT[..], X, true),
        6 => (&MULTIPLY[..], X, false),
        _ => return SET.iter().find(|row| row.matches(word)).map(plain),
    };
    let bits = field(word, 26, 6);
    let masked = field(word, 25, 1) == 0;
    let operation = table
        .iter()
        .find(|operation| operation.0 == bits && operation.2 & kind != 0);
    if let Some(&(_, name, _, shape, what)) = operation
        && let Some((suffix, operands)) = shaped(shape, kind, float, masked)
    {
        return Some(Found {
            name,
            suffix,
            operands,
            kind: what,
        });
    }
    SPECIAL.iter().find(|row| row.matches(word)).map(plain)
}
