//! Encodes instructions. Intel's manual, volume 2, chapter 2.

use super::{Base, Code, Field, Marked, Mem, Reg, Segment, Size, Width, distance};

/// The operand that may be a register or memory.
#[derive(Debug, Clone, Copy)]
pub(super) enum Rm {
    Reg(Reg),
    Mem(Mem),
}

impl From<Reg> for Rm {
    #[inline]
    fn from(reg: Reg) -> Self {
        Self::Reg(reg)
    }
}

impl From<Mem> for Rm {
    #[inline]
    fn from(mem: Mem) -> Self {
        Self::Mem(mem)
    }
}

/// An opcode: its mandatory prefix or 0, and its bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Opcode {
    prefix: u8,
    /// The first byte is 0x0F.
    two: bool,
    byte: u8,
    /// Works on whole registers, which needs a prefix.
    wide: bool,
}

/// A one-byte opcode.
#[inline]
pub(super) const fn one(byte: u8, size: Size) -> Opcode {
    Opcode {
        prefix: 0,
        two: false,
        byte,
        wide: matches!(size, Size::Qword),
    }
}

/// A two-byte opcode that begins with 0x0F.
#[inline]
pub(super) const fn two(byte: u8, size: Size) -> Opcode {
    Opcode {
        two: true,
        ..one(byte, size)
    }
}

/// The same after a prefix.
#[inline]
pub(super) const fn prefixed(prefix: u8, opcode: Opcode) -> Opcode {
    Opcode { prefix, ..opcode }
}

/// An opcode whose even form works on bytes. Two bytes need a prefix.
#[inline]
pub(super) const fn sized(byte: u8, size: Size) -> Opcode {
    let opcode = one(byte | !matches!(size, Size::Byte) as u8, size);
    match size {
        Size::Word => prefixed(0x66, opcode),
        _ => opcode,
    }
}

/// Bytes of an instruction before its immediate operand.
struct Bytes {
    bytes: [u8; 16],
    len: usize,
}

impl Bytes {
    #[inline]
    fn push(&mut self, byte: u8) {
        self.bytes[self.len] = byte;
        self.len += 1;
    }

    #[inline]
    fn opcode(&mut self, opcode: Opcode) {
        if opcode.two {
            self.push(0x0F);
        }
        self.push(opcode.byte);
    }
}

/// The prefix of instructions that work on whole registers.
const REX_WIDE: u8 = 0x48;
/// Values of the ModRM byte, which follows the opcode: how memory is addressed.
const NO_DISPLACEMENT: u8 = 0;
const BYTE_DISPLACEMENT: u8 = 0x40;
const LONG_DISPLACEMENT: u8 = 0x80;
const REGISTER: u8 = 0xC0;
/// In place of a base: another byte with two registers follows.
const PAIR: u8 = 4;
/// In place of an index: there is none.
const NO_INDEX: u8 = 4;
/// In place of a base without displacement: there is only a displacement.
const NO_BASE: u8 = 5;

impl Code<'_> {
    /// Appends an instruction that has no operands but those in its opcode.
    #[inline]
    pub(super) fn plain(&mut self, bytes: &[u8]) {
        self.raw(bytes);
    }

    /// Appends an opcode that works on `rax` or a part of it.
    #[inline]
    pub(super) fn short(&mut self, opcode: Opcode) {
        match opcode.wide {
            true => self.raw(&[REX_WIDE, opcode.byte]),
            false => self.raw(&[opcode.byte]),
        }
    }

    /// Appends an instruction with a register in the lowest bits of its opcode.
    #[inline]
    pub(super) fn in_opcode(&mut self, opcode: u8, size: Size, reg: Reg) {
        let mut out = Bytes {
            bytes: [0; 16],
            len: 0,
        };
        let wide = matches!(size, Size::Qword);
        let rex = rex(wide, 0, 0, reg.number, needs_rex(reg));
        if let Some(rex) = rex {
            out.push(rex);
        }
        out.push(opcode | reg.number & 7);
        self.write(&out);
    }

    /// Appends an instruction without its immediate operand. `reg` is a register, or the digit that extends the opcode.
    #[inline]
    pub(super) fn op(&mut self, opcode: Opcode, reg: Reg, rm: impl Into<Rm>) {
        match rm.into() {
            Rm::Reg(rm) => self.op_register(opcode, reg, rm),
            Rm::Mem(rm) => self.op_memory(opcode, reg, rm),
        }
    }

    #[inline]
    fn op_register(&mut self, opcode: Opcode, reg: Reg, rm: Reg) {
        let mut out = Bytes {
            bytes: [0; 16],
            len: 0,
        };
        if opcode.prefix != 0 {
            out.push(opcode.prefix);
        }
        let forced = needs_rex(reg) || needs_rex(rm);
        if let Some(rex) = rex(opcode.wide, reg.number, 0, rm.number, forced) {
            out.push(rex);
        }
        out.opcode(opcode);
        out.push(REGISTER | (reg.number & 7) << 3 | rm.number & 7);
        self.write(&out);
    }

    fn op_memory(&mut self, opcode: Opcode, reg: Reg, mem: Mem) {
        let mut out = Bytes {
            bytes: [0; 16],
            len: 0,
        };
        match mem.segment {
            Some(Segment::Fs) => out.push(0x64),
            Some(Segment::Gs) => out.push(0x65),
            None => {}
        }
        if opcode.prefix != 0 {
            out.push(opcode.prefix);
        }
        let index = mem.index.map_or(0, |index| index.number);
        let base = match mem.base {
            Base::Register(base) => base.number,
            _ => 0,
        };
        if let Some(rex) = rex(opcode.wide, reg.number, index, base, needs_rex(reg)) {
            out.push(rex);
        }
        out.opcode(opcode);
        let reg = (reg.number & 7) << 3;
        match mem.base {
            Base::Register(_) => based(&mut out, reg, base, &mem),
            Base::Zero => {
                out.push(NO_DISPLACEMENT | reg | PAIR);
                let index = mem.index.map_or(NO_INDEX, |index| index.number & 7);
                out.push(mem.scale << 6 | index << 3 | NO_BASE);
                long(&mut out, mem.displacement);
            }
            Base::Address(_) | Base::Label(_) => out.push(NO_DISPLACEMENT | reg | NO_BASE),
        }
        self.write(&out);
        match mem.base {
            Base::Address(address) => self.distance(address),
            Base::Label(label) => self.refer(label, Field::Long),
            _ => {}
        }
    }

    /// Appends the bytes. It copies all 16 of them, since a copy of a fixed length is much faster.
    #[inline]
    fn write(&mut self, out: &Bytes) {
        let len = self.bytes.len() + out.len;
        self.bytes.extend_from_slice(&out.bytes);
        self.bytes.truncate(len);
    }

    /// Appends the distance from the end of the next four bytes to an address.
    pub(super) fn distance(&mut self, address: u64) {
        self.mark(Marked::To(address));
        let distance = distance(self.here() + 4, address);
        self.raw(&distance.to_le_bytes());
    }

    /// Appends a four-byte number.
    #[inline]
    pub(super) fn number(&mut self, number: u32) {
        self.mark(Marked::Number(number));
        self.raw(&number.to_le_bytes());
    }
}

/// Appends the prefix for whole registers and the upper eight, if it is needed.
#[inline]
fn rex(wide: bool, reg: u8, index: u8, base: u8, forced: bool) -> Option<u8> {
    let upper = (reg >> 3) << 2 | (index >> 3) << 1 | base >> 3;
    let rex = 0x40 | u8::from(wide) << 3 | upper;
    (rex != 0x40 || forced).then_some(rex)
}

/// Whether a byte register can only be named with that prefix.
#[inline]
fn needs_rex(reg: Reg) -> bool {
    reg.size == Size::Byte && (4..8).contains(&reg.number)
}

/// A memory operand with a base register.
fn based(out: &mut Bytes, reg: u8, base: u8, mem: &Mem) {
    let displacement = mem.displacement;
    let least = match i8::try_from(displacement) {
        // Without a displacement, `rbp` and `r13` would mean that there is no base.
        Ok(0) if base & 7 != NO_BASE => NO_DISPLACEMENT,
        Ok(_) => BYTE_DISPLACEMENT,
        Err(_) => LONG_DISPLACEMENT,
    };
    let kind = match mem.width {
        Width::Least => least,
        Width::Byte => BYTE_DISPLACEMENT,
        Width::Long => LONG_DISPLACEMENT,
    };
    match mem.index {
        Some(index) => {
            debug_assert_ne!(index.number, NO_INDEX, "rsp is no index");
            out.push(kind | reg | PAIR);
            out.push(mem.scale << 6 | (index.number & 7) << 3 | base & 7);
        }
        // The number of `rsp` and `r12` means that a byte with two registers follows.
        None if base & 7 == PAIR => {
            out.push(kind | reg | PAIR);
            out.push(NO_INDEX << 3 | base & 7);
        }
        None => out.push(kind | reg | base & 7),
    }
    match kind {
        BYTE_DISPLACEMENT => out.push(displacement as u8),
        LONG_DISPLACEMENT => long(out, displacement),
        _ => {}
    }
}

fn long(out: &mut Bytes, displacement: i32) {
    for byte in displacement.to_le_bytes() {
        out.push(byte);
    }
}
