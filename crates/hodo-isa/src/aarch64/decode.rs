//! Decodes an instruction: its class and its fields.
//!
//! An instruction has 32 bits; four of them select its group. Each group has a table of rows: which bits are fixed,
//! their values, and the class. The first row that matches counts. The names of groups and fields are those of the Arm
//! Architecture Reference Manual for A-profile ("A64 instruction set encoding").

mod rows;

/// The class of an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Not an instruction, or an unknown one.
    Invalid,
    /// `udf`, which faults by definition.
    Undefined,
    /// Faults in programs: `hvc`, `smc`, `hlt`, `eret` and their like.
    Privileged,

    /// `adr`
    Adr,
    /// `adrp`
    Adrp,
    /// `add`, `sub` of an immediate, with or without flags.
    AddImmediate,
    /// `smax`, `umax`, `smin`, `umin` with an immediate.
    MinMaxImmediate,
    /// `addg`, `subg`: on tagged addresses.
    AddTags,
    /// `and`, `orr`, `eor`, `ands` with an immediate.
    LogicalImmediate,
    /// `movn`, `movz`, `movk`
    MoveWide,
    /// `sbfm`, `bfm`, `ubfm`
    Bitfield,
    /// `extr`
    Extract,

    /// `b`
    Branch,
    /// `bl`
    BranchLink,
    /// `b.cond`, `bc.cond`
    Conditional,
    /// `cbz`, `cbnz`
    CompareZero,
    /// `tbz`, `tbnz`
    TestBit,
    /// `br`, and those that authenticate the address
    JumpRegister,
    /// `blr`, and those that authenticate the address
    CallRegister,
    /// `ret`, and those that authenticate the address
    Return,
    /// `svc`
    SystemCall,
    /// `brk`
    Breakpoint,
    /// Hints, including those that sign the return address and those that mark branch targets.
    Hint,
    /// `wfet`, `wfit`
    Wait,
    /// `dmb`, `dsb`, `isb`, `sb`
    Barrier,
    /// `clrex`
    ClearExclusive,
    /// `cfinv`, `axflag`, `xaflag`
    ChangeFlags,
    /// `tstart`
    TransactionStart,
    /// `tcommit`
    TransactionEnd,
    /// `tcancel`, `ttest`
    TransactionOther,
    /// `msr` of an immediate.
    SetState,
    /// `sys`: cache maintenance, address translation and so on.
    System,
    /// `sysl`
    SystemResult,
    /// `msr` of a register.
    WriteSystem,
    /// `mrs`
    ReadSystem,

    /// `ldxr` and its like, of one register or a pair.
    LoadExclusive,
    /// `stxr` and its like, of one register or a pair.
    StoreExclusive,
    /// `ldar`, `stlr` and their like
    Ordered,
    /// The same with an offset.
    OrderedUnscaled,
    /// The same for vector registers.
    OrderedVector,
    /// The same for a pair.
    OrderedPair,
    /// `cas`
    CompareSwap,
    /// `casp`
    CompareSwapPair,
    /// `swp`, `ldadd` and their like
    Atomic,
    /// `ldapr`
    LoadAcquire,
    /// `ld64b`, `st64b` and their like
    Bytes64,
    /// A load relative to the instruction's address.
    Literal,
    /// `ldp`, `stp` and their like, of general registers
    Pair,
    /// The same for vector registers.
    PairVector,
    /// `ldr`, `str` and their like, of a general register
    Single,
    /// The same for vector registers.
    SingleVector,
    /// `ldraa`, `ldrab`
    LoadAuthenticated,
    /// Loads and stores of allocation tags.
    Tags,
    /// `cpyp` and its like: a step of copying or setting memory.
    MemorySteps,
    /// `ld1` to `ld4`, `st1` to `st4`
    VectorStructure,

    /// `and`, `bic`, `orr` … of registers
    LogicalRegister,
    /// `add`, `sub` of registers
    AddRegister,
    /// `add`, `sub` of an extended register
    AddExtended,
    /// `addpt`, `subpt`
    AddPointer,
    /// `adc`, `sbc`
    AddCarry,
    /// `rmif`
    RotateFlags,
    /// `setf8`, `setf16`
    SetFlags,
    /// `ccmp`, `ccmn`
    ConditionalCompare,
    /// `csel`, `csinc` …
    ConditionalSelect,
    /// `udiv`, `lslv`, `crc32b` …
    TwoSources,
    /// `irg`, `gmi`, `subp`: on tagged addresses; operands may be the stack pointer
    TwoPointers,
    /// `subps`
    TwoPointersFlags,
    /// `rbit`, `clz` …
    OneSource,
    /// `pacia` …: signs an address with a modifier register.
    Sign,
    /// The same without a modifier.
    SignZero,
    /// `madd`, `umulh` …
    ThreeSources,

    /// Between vector and general registers: conversions, `fmov`.
    FloatGeneral,
    /// `fcmp`
    FloatCompare,
    /// `fccmp`
    FloatConditionalCompare,
    /// `fcsel`
    FloatSelect,
    /// `dup`, `ins` of a general register
    VectorFromGeneral,
    /// `smov`, `umov`
    VectorToGeneral,
    /// All other floating-point instructions, and those of vectors of a fixed length.
    Vector,
    /// SVE
    Scalable,
    /// SME
    Matrix,
}

/// An instruction.
#[derive(Debug, Clone, Copy)]
pub struct Insn {
    /// Its address.
    pub addr: u64,
    /// Its length: 4 bytes, or fewer at the end of the code.
    pub len: u8,
    /// The instruction.
    pub word: u32,
    /// Its class.
    pub kind: Kind,
}

impl Insn {
    /// The instruction at the start of `code`, whose address is `addr`.
    #[must_use]
    #[inline]
    pub fn new(code: &[u8], addr: u64) -> Self {
        match code.first_chunk() {
            Some(bytes) => Self::of(u32::from_le_bytes(*bytes), addr),
            None => Self {
                addr,
                len: code.len() as u8,
                word: 0,
                kind: Kind::Invalid,
            },
        }
    }

    /// Decodes these 32 bits.
    #[must_use]
    #[inline]
    pub fn of(word: u32, addr: u64) -> Self {
        Self {
            addr,
            len: 4,
            word,
            kind: rows::kind(word),
        }
    }

    /// The address after it.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.addr.wrapping_add(u64::from(self.len))
    }

    /// A field of this many bits.
    #[must_use]
    #[inline]
    pub const fn field(&self, low: u32, count: u32) -> u32 {
        self.word >> low & ((1 << count) - 1)
    }

    /// A field of this many bits, as a signed number.
    #[must_use]
    #[inline]
    pub const fn signed(&self, low: u32, count: u32) -> i64 {
        ((self.word << (32 - low - count)) as i32 >> (32 - count)) as i64
    }

    /// The field `Rd`, or `Rt`.
    #[must_use]
    #[inline]
    pub const fn rd(&self) -> u8 {
        self.field(0, 5) as u8
    }

    /// The field `Rn`.
    #[must_use]
    #[inline]
    pub const fn rn(&self) -> u8 {
        self.field(5, 5) as u8
    }

    /// The field `Rm`, or `Rs`.
    #[must_use]
    #[inline]
    pub const fn rm(&self) -> u8 {
        self.field(16, 5) as u8
    }

    /// The field `Ra`, or `Rt2`.
    #[must_use]
    #[inline]
    pub const fn ra(&self) -> u8 {
        self.field(10, 5) as u8
    }

    /// Whether a bit is set.
    #[must_use]
    #[inline]
    pub const fn bit(&self, number: u32) -> bool {
        self.word >> number & 1 != 0
    }

    /// The address that a branch, `adr`, `adrp` or PC-relative load contains.
    #[must_use]
    pub fn target(&self) -> Option<u64> {
        let distance = match self.kind {
            Kind::Branch | Kind::BranchLink => self.signed(0, 26) << 2,
            Kind::Conditional | Kind::CompareZero | Kind::Literal => self.signed(5, 19) << 2,
            Kind::TestBit => self.signed(5, 14) << 2,
            Kind::Adr => self.signed(5, 19) << 2 | i64::from(self.field(29, 2)),
            Kind::Adrp => {
                let pages = self.signed(5, 19) << 2 | i64::from(self.field(29, 2));
                return Some((self.addr & !0xFFF).wrapping_add_signed(pages << 12));
            }
            _ => return None,
        };
        Some(self.addr.wrapping_add_signed(distance))
    }

    /// Whether it is `nop`.
    #[must_use]
    pub fn is_nop(&self) -> bool {
        self.word == super::encode::NOP
    }

    /// The number of a hint.
    #[must_use]
    pub fn hint(&self) -> Option<u32> {
        (self.kind == Kind::Hint).then_some(self.field(5, 7))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_by_their_bits() {
        let cases = [
            (0x0000_0000, Kind::Undefined),
            (0x1000_0000, Kind::Adr),
            (0x9100_03FD, Kind::AddImmediate),      // mov x29, sp
            (0xD280_1168, Kind::MoveWide),          // mov x8, #139
            (0xD53B_D048, Kind::ReadSystem),        // mrs x8, tpidr_el0
            (0xD503_201F, Kind::Hint),              // nop
            (0xD503_3BBF, Kind::Barrier),           // dmb ish
            (0xA9BF_7BFD, Kind::Pair),              // stp x29, x30, [sp, #-16]!
            (0x885F_FC00, Kind::LoadExclusive),     // ldaxr w0, [x0]
            (0x8800_FC01, Kind::StoreExclusive),    // stlxr w0, w1, [x0]
            (0xB8E0_0020, Kind::Atomic),            // ldaddal w0, w0, [x1]
            (0x88E0_FC41, Kind::CompareSwap),       // casal w0, w1, [x2]
            (0x38BF_C020, Kind::LoadAcquire),       // ldaprb w0, [x1]
            (0x5800_0040, Kind::Literal),           // ldr x0, .+8
            (0x1E26_0020, Kind::FloatGeneral),      // fmov w0, s1
            (0x4E08_1C01, Kind::VectorFromGeneral), // mov v1.d[0], x0
            (0x0E01_3C20, Kind::VectorToGeneral),   // umov w0, v1.b[0]
            (0x2520_1FE0, Kind::Scalable),
            (0x1900_0000 | 0x0400, Kind::MemorySteps),
            (0xDC00_0000, Kind::Invalid),
            (0x0400_0000 | 0x0200_0000 | 1 << 24, Kind::Invalid),
        ];
        for (word, kind) in cases {
            assert_eq!(Insn::of(word, 0).kind, kind, "{word:08x}");
        }
    }

    #[test]
    fn what_is_cut_off_is_no_instruction() {
        let insn = Insn::new(&[0x1F, 0x20, 0x03], 0x1000);
        assert_eq!((insn.kind, insn.len), (Kind::Invalid, 3));
    }

    #[test]
    fn targets_of_both_directions() {
        let target = |word: u32| Insn::of(word, 0x1_2340).target();
        assert_eq!(target(0x17FF_FFFF), Some(0x1_233C)); // b .-4
        assert_eq!(target(0x5400_0040), Some(0x1_2348)); // b.eq .+8
        assert_eq!(target(0x3607_FFE0), Some(0x1_233C)); // tbz w0, #0, .-4
        assert_eq!(target(0x10FF_FFE0), Some(0x1_233C)); // adr x0, .-4
        assert_eq!(target(0xB000_0000), Some(0x1_3000)); // adrp x0, .+4096
        assert_eq!(target(0xF0FF_FFE0), Some(0x1_1000)); // adrp x0, .-4096
        assert_eq!(target(0xD503_201F), None);
    }
}
