//! Operands of instructions: registers and memory.

use crate::buffer::Label;

/// How many bytes an instruction works on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// One.
    Byte,
    /// Two.
    Word,
    /// Four.
    Dword,
    /// Eight.
    Qword,
}

/// Four bytes.
pub const DWORD: Size = Size::Dword;
/// Eight bytes.
pub const QWORD: Size = Size::Qword;
/// One byte.
pub const BYTE: Size = Size::Byte;

/// A general register, or its lower part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reg {
    pub(super) number: u8,
    pub(super) size: Size,
}

impl Reg {
    /// A whole register by its number: `rax`, `rcx`, `rdx`, `rbx`, `rsp`, `rbp`, `rsi`, `rdi`, `r8` to `r15`.
    #[must_use]
    pub const fn whole(number: u8) -> Self {
        Self {
            number: number & 15,
            size: Size::Qword,
        }
    }

    /// The lower part of this size.
    #[must_use]
    pub const fn part(self, size: Size) -> Self {
        Self {
            number: self.number,
            size,
        }
    }
}

macro_rules! registers {
    ($($size:ident: $($name:ident = $number:literal)*;)*) => {
        $($(
            #[doc = concat!("`", stringify!($name), "`")]
            pub const $name: Reg = Reg { number: $number, size: Size::$size };
        )*)*
    };
}

registers! {
    Qword: RAX = 0 RCX = 1 RDX = 2 RBX = 3 RSP = 4 RSI = 6 RDI = 7 R8 = 8 R9 = 9 R10 = 10 R11 = 11;
    Dword: EAX = 0 ECX = 1 EDX = 2 EBX = 3 ESI = 6 EDI = 7 R8D = 8 R11D = 11;
    Word: AX = 0;
    Byte: AL = 0 CL = 1 DL = 2 R9B = 9;
}

/// A segment register whose base is added to addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Segment {
    /// The program's thread block.
    Fs,
    /// Our control block.
    Gs,
}

/// What an address is relative to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Base {
    Register(Reg),
    /// Nothing: the displacement is the address within the segment.
    Zero,
    /// The instruction pointer; the displacement leads to this address.
    Address(u64),
    /// The instruction pointer; the displacement leads to this label.
    Label(Label),
}

/// How many bytes a displacement has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Width {
    /// As few as possible.
    Least,
    /// One.
    Byte,
    /// Four.
    Long,
}

/// A place in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mem {
    pub(super) segment: Option<Segment>,
    pub(super) base: Base,
    pub(super) index: Option<Reg>,
    /// What the index is multiplied by, as a power of two.
    pub(super) scale: u8,
    pub(super) displacement: i32,
    pub(super) width: Width,
}

impl Mem {
    const fn new(base: Base, displacement: i32, width: Width) -> Self {
        Self {
            segment: None,
            base,
            index: None,
            scale: 0,
            displacement,
            width,
        }
    }

    /// The same with an index register added.
    #[must_use]
    pub const fn plus(mut self, index: Reg) -> Self {
        self.index = Some(index);
        self
    }

    /// The same with an index register added that is multiplied by 1, 2, 4 or 8: a power of two.
    #[must_use]
    pub const fn plus_scaled(mut self, index: Reg, power: u8) -> Self {
        self.index = Some(index);
        self.scale = power & 3;
        self
    }

    /// The same in the control block's segment.
    #[must_use]
    pub const fn in_gs(mut self) -> Self {
        self.segment = Some(Segment::Gs);
        self
    }
}

/// A register plus a number, in as few bytes as possible.
#[must_use]
pub const fn mem(base: Reg, displacement: i32) -> Mem {
    Mem::new(Base::Register(base), displacement, Width::Least)
}

/// A register plus a number, which takes one byte even if it is 0.
#[must_use]
pub const fn mem8(base: Reg, displacement: i8) -> Mem {
    Mem::new(Base::Register(base), displacement as i32, Width::Byte)
}

/// A register plus a number, which always takes four bytes.
#[must_use]
pub const fn mem32(base: Reg, displacement: u32) -> Mem {
    Mem::new(
        Base::Register(base),
        displacement.cast_signed(),
        Width::Long,
    )
}

/// At an offset of the control block.
#[must_use]
pub const fn gs(offset: u32) -> Mem {
    Mem::new(Base::Zero, offset.cast_signed(), Width::Long).in_gs()
}

/// A register that is multiplied by 1, 2, 4 or 8, a power of two, plus a number.
#[must_use]
pub const fn scaled(index: Reg, power: u8, displacement: i32) -> Mem {
    Mem::new(Base::Zero, displacement, Width::Long).plus_scaled(index, power)
}

/// At an offset of the program's thread block.
#[must_use]
pub const fn fs(offset: u32) -> Mem {
    let mut mem = gs(offset);
    mem.segment = Some(Segment::Fs);
    mem
}

/// At a label.
#[must_use]
pub const fn label(label: Label) -> Mem {
    Mem::new(Base::Label(label), 0, Width::Long)
}

/// At an address below 2 GiB.
#[must_use]
pub const fn absolute(address: u32) -> Mem {
    Mem::new(Base::Zero, address.cast_signed(), Width::Long)
}

/// At an address within 2 GiB.
#[must_use]
pub const fn address(address: u64) -> Mem {
    Mem::new(Base::Address(address), 0, Width::Long)
}

/// A condition of jumps, as its four bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names that mnemonics have")]
pub enum Cond {
    B = 2,
    AE = 3,
    E = 4,
    NE = 5,
    BE = 6,
    A = 7,
    NS = 9,
    L = 12,
    GE = 13,
    LE = 14,
    G = 15,
}

impl Cond {
    /// The opposite.
    #[must_use]
    pub const fn not(self) -> Self {
        match self {
            Self::B => Self::AE,
            Self::AE => Self::B,
            Self::E => Self::NE,
            Self::NE => Self::E,
            Self::BE => Self::A,
            Self::A => Self::BE,
            Self::L => Self::GE,
            Self::GE => Self::L,
            Self::LE => Self::G,
            Self::G => Self::LE,
            Self::NS => panic!("nothing asks for a sign"),
        }
    }
}
