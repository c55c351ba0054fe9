//! Operands of instructions: memory, registers that are shifted or extended, conditions, system registers.

use super::super::encode::three;
use super::super::regs::ZERO;

/// How many bytes an access has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// One.
    Byte = 0,
    /// Two.
    Half = 1,
    /// Four.
    Word = 2,
    /// Eight.
    Double = 3,
}

/// One byte.
pub const BYTE: Size = Size::Byte;
/// Two bytes.
pub const HALF: Size = Size::Half;
/// Four bytes.
pub const WORD: Size = Size::Word;
/// Eight bytes.
pub const DOUBLE: Size = Size::Double;

impl Size {
    /// The size of this many bytes: 1, 2, 4 or 8.
    #[must_use]
    pub const fn of(bytes: u8) -> Self {
        match bytes {
            1 => Self::Byte,
            2 => Self::Half,
            4 => Self::Word,
            _ => Self::Double,
        }
    }

    /// The two highest bits of an instruction.
    pub(super) const fn bits(self) -> u32 {
        (self as u32) << 30
    }

    /// An access of this size that is in no order with others.
    #[must_use]
    pub const fn relaxed(self) -> Access {
        Access {
            size: self,
            acquires: false,
            releases: false,
        }
    }

    /// The same; accesses after it are performed after it.
    #[must_use]
    pub const fn acquire(self) -> Access {
        Access {
            acquires: true,
            ..self.relaxed()
        }
    }

    /// The same; accesses before it are performed before it.
    #[must_use]
    pub const fn release(self) -> Access {
        Access {
            releases: true,
            ..self.relaxed()
        }
    }

    /// Both.
    #[must_use]
    pub const fn acquire_release(self) -> Access {
        Access {
            acquires: true,
            releases: true,
            ..self.relaxed()
        }
    }
}

/// An access to memory that threads share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    pub(super) size: Size,
    pub(super) acquires: bool,
    pub(super) releases: bool,
}

impl From<Size> for Access {
    fn from(size: Size) -> Self {
        size.relaxed()
    }
}

/// What an atomic instruction does to memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rmw {
    /// Adds the register.
    Add = 0,
    /// Clears the bits that are set in the register.
    Clear = 1,
    /// Flips them.
    Flip = 2,
    /// Sets them.
    Set = 3,
    /// Leaves the larger of the two, as numbers with a sign.
    SignedMax = 4,
    /// Leaves the smaller of the two, as numbers with a sign.
    SignedMin = 5,
    /// Leaves the larger of the two, as numbers without a sign.
    UnsignedMax = 6,
    /// Leaves the smaller of the two, as numbers without a sign.
    UnsignedMin = 7,
    /// Stores the register.
    Swap = 8,
}

/// How a register is shifted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shift {
    /// Left.
    Left = 0,
    /// Right, with zeros.
    Right = 1,
    /// Right, with the sign.
    Signed = 2,
    /// Rotated right. Arithmetic has no such operand, but logic has.
    Rotated = 3,
}

/// The last operand of arithmetic and logic: a register, perhaps a shifted one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rm {
    pub(super) register: u8,
    pub(super) shift: Shift,
    pub(super) by: u8,
}

impl From<u8> for Rm {
    fn from(register: u8) -> Self {
        shifted(register, Shift::Left, 0)
    }
}

/// A shifted register.
#[must_use]
pub const fn shifted(register: u8, shift: Shift, by: u8) -> Rm {
    Rm {
        register,
        shift,
        by,
    }
}

/// A register shifted left.
#[must_use]
pub const fn lsl(register: u8, by: u8) -> Rm {
    shifted(register, Shift::Left, by)
}

/// A register shifted right, with zeros.
#[must_use]
pub const fn lsr(register: u8, by: u8) -> Rm {
    shifted(register, Shift::Right, by)
}

/// The part of a register that is used, and how it becomes 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names that mnemonics have")]
pub enum Extend {
    Uxtb = 0,
    Uxth = 1,
    Uxtw = 2,
    Uxtx = 3,
    Sxtb = 4,
    Sxth = 5,
    Sxtw = 6,
    Sxtx = 7,
}

/// A place in memory. The base may be the stack pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mem {
    base: u8,
    offset: Offset,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Offset {
    Number(i64),
    /// Is added to the base register before the access.
    Before(i64),
    /// Is added to the base register after the access.
    After(i64),
    /// Another register, which may be multiplied by the size of the access.
    Register(u8, Extend, bool),
}

/// A register plus a number.
#[must_use]
pub const fn mem(base: u8, distance: i64) -> Mem {
    Mem {
        base,
        offset: Offset::Number(distance),
    }
}

/// A register to which a number is added before the access.
#[must_use]
pub const fn before(base: u8, distance: i64) -> Mem {
    Mem {
        base,
        offset: Offset::Before(distance),
    }
}

/// A register to which a number is added after the access.
#[must_use]
pub const fn after(base: u8, distance: i64) -> Mem {
    Mem {
        base,
        offset: Offset::After(distance),
    }
}

/// A register plus another one.
#[must_use]
pub const fn indexed(base: u8, index: u8) -> Mem {
    extended(base, index, Extend::Uxtx)
}

/// A register plus another one, of which 32 or 64 bits are used.
#[must_use]
pub const fn extended(base: u8, index: u8, extend: Extend) -> Mem {
    Mem {
        base,
        offset: Offset::Register(index, extend, false),
    }
}

impl Mem {
    /// The same, with the index register multiplied by the size of the access.
    #[must_use]
    pub const fn scaled(mut self) -> Self {
        if let Offset::Register(_, _, scaled) = &mut self.offset {
            *scaled = true;
        }
        self
    }

    /// Whether this changes a general register that a load or store has as an operand besides: what that does is not
    /// defined.
    const fn moves(self, opcode: u32, register: u8) -> bool {
        const VECTOR: u32 = 1 << 26;
        let changes = matches!(self.offset, Offset::Before(_) | Offset::After(_));
        changes && opcode & VECTOR == 0 && register == self.base && register != ZERO
    }

    /// A load or store of one register, whose opcode is that of the form with an unsigned offset, and whose size is a
    /// power of two.
    ///
    /// # Panics
    /// If the offset does not fit.
    pub(super) fn single(self, opcode: u32, power: u32, register: u8) -> u32 {
        /// Marks the form with an unsigned offset.
        const UNSIGNED: u32 = 1 << 24;
        debug_assert!(!self.moves(opcode, register), "the base is replaced twice");
        let plain = three(opcode & !UNSIGNED, register, self.base, 0);
        let nine = |distance: i64, mode: u32| {
            assert!((-256..256).contains(&distance), "an offset of {distance}");
            plain | (distance as u32 & 0x1FF) << 12 | mode << 10
        };
        match self.offset {
            Offset::Number(distance) if is_multiple(distance, power) => {
                plain | UNSIGNED | ((distance >> power) as u32) << 10
            }
            Offset::Number(distance) => nine(distance, 0),
            Offset::After(distance) => nine(distance, 1),
            Offset::Before(distance) => nine(distance, 3),
            Offset::Register(index, extend, scaled) => {
                debug_assert!(extend as u32 & 2 != 0, "an index has 32 or 64 bits");
                let how = (extend as u32) << 13 | u32::from(scaled) << 12 | 2 << 10;
                three(plain | 1 << 21, 0, 0, index) | how
            }
        }
    }

    /// A load or store of two registers, whose size is a power of two each.
    ///
    /// # Panics
    /// If the offset does not fit.
    pub(super) fn pair(self, opcode: u32, power: u32, (first, second): (u8, u8)) -> u32 {
        let twice = self.moves(opcode, first) || self.moves(opcode, second);
        debug_assert!(!twice, "the base is replaced twice");
        let (distance, mode) = match self.offset {
            Offset::After(distance) => (distance, 1),
            Offset::Number(distance) => (distance, 2),
            Offset::Before(distance) => (distance, 3),
            Offset::Register(..) => panic!("pairs have no index"),
        };
        let units = distance >> power;
        assert!(
            (-64..64).contains(&units) && units << power == distance,
            "an offset of {distance}"
        );
        let fields = mode << 23 | (units as u32 & 0x7F) << 15 | u32::from(second) << 10;
        three(opcode, first, self.base, 0) | fields
    }

    /// A load or store of a scalable register, whose offset counts such registers.
    ///
    /// # Panics
    /// If the offset does not fit.
    pub(super) fn vector(self, opcode: u32, register: u8) -> u32 {
        let Offset::Number(units) = self.offset else {
            panic!("a number of vectors")
        };
        assert!((-256..256).contains(&units), "an offset of {units}");
        let (high, low) = ((units >> 3) as u32 & 0x3F, units as u32 & 7);
        three(opcode, register, self.base, 0) | high << 16 | low << 10
    }
}

/// Whether the form with an unsigned offset has this distance.
const fn is_multiple(distance: i64, power: u32) -> bool {
    let units = distance >> power;
    units >= 0 && units < 1 << 12 && units << power == distance
}

/// Whether a load or store of this many bytes, a power of two, can have this distance from its base.
#[must_use]
pub const fn near(bytes: u8, distance: i64) -> bool {
    is_multiple(distance, bytes.trailing_zeros()) || (distance >= -256 && distance < 256)
}

/// A condition on the flags, as its four bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names that mnemonics have")]
pub enum Cond {
    Eq = 0,
    Ne = 1,
    Hs = 2,
    Lo = 3,
    Mi = 4,
    Pl = 5,
    Vs = 6,
    Vc = 7,
    Hi = 8,
    Ls = 9,
    Ge = 10,
    Lt = 11,
    Gt = 12,
    Le = 13,
}

impl Cond {
    /// The opposite.
    #[must_use]
    pub const fn not(self) -> Self {
        match self {
            Self::Eq => Self::Ne,
            Self::Ne => Self::Eq,
            Self::Hs => Self::Lo,
            Self::Lo => Self::Hs,
            Self::Mi => Self::Pl,
            Self::Pl => Self::Mi,
            Self::Vs => Self::Vc,
            Self::Vc => Self::Vs,
            Self::Hi => Self::Ls,
            Self::Ls => Self::Hi,
            Self::Ge => Self::Lt,
            Self::Lt => Self::Ge,
            Self::Gt => Self::Le,
            Self::Le => Self::Gt,
        }
    }
}

/// What a branch asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Test {
    /// Whether the flags satisfy a condition.
    Flags(Cond),
    /// Whether a register is 0; its lower 32 bits, if it is not wide.
    Zero {
        /// All 64 bits count.
        wide: bool,
        /// The register.
        register: u8,
    },
    /// Whether it is not.
    NotZero {
        /// All 64 bits count.
        wide: bool,
        /// The register.
        register: u8,
    },
    /// Whether a bit of a register is clear: the register, and the number of the bit.
    Clear(u8, u8),
    /// Whether it is set.
    Set(u8, u8),
}

impl Test {
    /// The opposite.
    #[must_use]
    pub const fn not(self) -> Self {
        match self {
            Self::Flags(condition) => Self::Flags(condition.not()),
            Self::Zero { wide, register } => Self::NotZero { wide, register },
            Self::NotZero { wide, register } => Self::Zero { wide, register },
            Self::Clear(register, bit) => Self::Set(register, bit),
            Self::Set(register, bit) => Self::Clear(register, bit),
        }
    }
}

/// A system register that programs may access, as the bits of `mrs` and `msr` that name it (Arm ARM, C5.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SystemRegister(pub(super) u32);

impl SystemRegister {
    /// The register with these fields; programs may access only those whose `op0` and `op1` are 3.
    #[must_use]
    pub const fn new(op1: u32, crn: u32, crm: u32, op2: u32) -> Self {
        Self(3 << 19 | op1 << 16 | crn << 12 | crm << 8 | op2 << 5)
    }
}

/// Where the thread's own data is.
pub const TPIDR_EL0: SystemRegister = SystemRegister::new(3, 13, 0, 2);
/// N, Z, C and V, as bits 31 to 28.
pub const NZCV: SystemRegister = SystemRegister::new(3, 4, 2, 0);
/// How floating-point instructions round, and what traps.
pub const FPCR: SystemRegister = SystemRegister::new(3, 4, 4, 0);
/// What floating-point instructions have met.
pub const FPSR: SystemRegister = SystemRegister::new(3, 4, 4, 1);
/// The time counter; its value may be read early.
pub const CNTVCT_EL0: SystemRegister = SystemRegister::new(3, 14, 0, 2);
/// How often that counts in a second.
pub const CNTFRQ_EL0: SystemRegister = SystemRegister::new(3, 14, 0, 0);
