//! Decodes an instruction: which one it is, its length, its operands, and how it uses registers and memory.

use super::regs::{Registers, state};

mod base;
mod compressed;
mod float;
pub(crate) mod kept;
pub mod operand;
mod rows;
mod vector;
mod vector_memory;

pub use rows::Kind;
pub use vector_memory::Pattern;

use compressed::expand;
use operand::Operand::{self, *};
use operand::{field, funct3, imm_i, imm_s, rd, rs1, rs2, rs3};
use rows::Row;
use vector_memory::{Access, access, access_operands};

/// An instruction.
#[derive(Debug, Clone, Copy)]
pub struct Insn {
    /// Its address.
    pub addr: u64,
    /// Its length: 2 or 4 bytes. Bytes that are not an instruction have the length that their low bits indicate, or
    /// fewer at the end of the code.
    pub len: u8,
    /// The instruction, expanded to 32 bits if it is a 16-bit one.
    pub word: u32,
    /// What kind it is.
    pub kind: Kind,
    /// The operands of the 32-bit instruction.
    pub(super) operands: &'static [Operand],
}

/// How an instruction is written as text.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Written {
    pub name: &'static str,
    pub suffix: &'static str,
    pub operands: &'static [Operand],
}

/// Memory that an instruction uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// The general register that holds an address.
    pub base: u8,
    /// What is added to it.
    pub distance: i64,
    /// Bytes of each access.
    pub size: u8,
    /// It is read.
    pub reads: bool,
    /// It is written; by `sc` perhaps not.
    pub writes: bool,
    /// The layout of a vector's elements.
    pub vector: Option<Elements>,
}

/// The layout in memory of the elements that a vector instruction loads or stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Elements {
    /// The order.
    pub pattern: Pattern,
    /// The register that holds the stride (general) or the indexes (vector).
    pub by: u8,
    /// How many are consecutive at each place: fields of a segment, or whole registers.
    pub fields: u8,
    /// Only the elements that the mask selects.
    pub masked: bool,
}

/// The length of an instruction, by its first half.
fn length(half: u16) -> u8 {
    match half {
        _ if half & 0b11 != 0b11 => 2,
        _ if half & 0b1_1100 != 0b1_1100 => 4,
        _ if half & 0b11_1111 == 0b01_1111 => 6,
        _ if half & 0b111_1111 == 0b011_1111 => 8,
        _ if half & 0x7000 != 0x7000 => 10 + 2 * (half >> 12 & 7) as u8,
        // Reserved for longer instructions.
        _ => 2,
    }
}

fn rows(word: u32) -> &'static [Row] {
    match word & 0x7F {
        0x03 => &base::LOAD,
        0x07 => &float::LOAD_FP,
        0x0F => &base::MISC_MEM,
        0x13 => &base::OP_IMM,
        0x17 => &base::AUIPC,
        0x1B => &base::OP_IMM_32,
        0x23 => &base::STORE,
        0x27 => &float::STORE_FP,
        0x2F => &base::AMO,
        0x33 => &base::OP,
        0x37 => &base::LUI,
        0x3B => &base::OP_32,
        0x43 => &float::MADD,
        0x47 => &float::MSUB,
        0x4B => &float::NMSUB,
        0x4F => &float::NMADD,
        0x53 => &float::OP_FP,
        0x63 => &base::BRANCHES,
        0x67 => &base::JALR,
        0x6F => &base::JAL,
        0x73 => &base::SYSTEM,
        _ => &[],
    }
}

/// Whether the rounding mode is a valid one.
fn rounds(word: u32) -> bool {
    !matches!(funct3(word), 5 | 6)
}

impl Insn {
    /// The instruction at the start of `code`, whose address is `addr`.
    #[must_use]
    #[inline]
    pub fn new(code: &[u8], addr: u64) -> Self {
        Self::read(code, addr).0
    }

    /// The same, and how it is written as text.
    #[inline(always)]
    pub(super) fn read(code: &[u8], addr: u64) -> (Self, Written) {
        let mut insn = Self {
            addr,
            len: code.len().min(2) as u8,
            word: 0,
            kind: Kind::Invalid,
            operands: &[],
        };
        let mut written = Written::default();
        let Some(&[low, high]) = code.first_chunk() else {
            insn.word = code.first().copied().unwrap_or_default().into();
            return (insn, written);
        };
        let half = u16::from_le_bytes([low, high]);
        insn.word = half.into();
        let len = length(half);
        insn.len = code.len().min(len.into()) as u8;
        match len {
            2 if half & 0b11 != 0b11 => {
                if half == 0 {
                    written.name = "c.unimp";
                    insn.kind = Kind::Unimp;
                } else if let Some(compressed) = expand(half) {
                    insn.find(compressed.word);
                    written.name = compressed.name;
                    written.operands = compressed.shown;
                }
            }
            4 => {
                if let Some(&bytes) = code.first_chunk() {
                    written = insn.find(u32::from_le_bytes(bytes));
                }
            }
            _ => {}
        }
        (insn, written)
    }

    /// Looks up a 32-bit instruction. Returns how it is written as text.
    fn find(&mut self, word: u32) -> Written {
        self.word = word;
        let mut written = Written::default();
        if let Some(row) = rows(word).iter().find(|row| row.matches(word)) {
            if row.kind == Kind::Float && row.operands.contains(&Rm) && !rounds(word) {
                return written;
            }
            written.name = row.name;
            self.operands = row.operands;
            self.kind = row.kind;
        } else {
            match word & 0x7F {
                0x57 => {
                    if let Some(found) = vector::find(word) {
                        written.name = found.name;
                        written.suffix = found.suffix;
                        self.operands = found.operands;
                        self.kind = found.kind;
                    }
                }
                opcode @ (0x07 | 0x27) => {
                    let store = opcode == 0x27;
                    if let Some(access) = access(word, store) {
                        self.operands = access_operands(store, access.pattern);
                        self.kind = Kind::VectorMemory;
                    }
                }
                _ => {}
            }
        }
        written.operands = self.operands;
        written
    }

    /// The address after it.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.addr.wrapping_add(u64::from(self.len))
    }

    /// The register that receives its result, or the return address: the field, whether or not it is used.
    #[must_use]
    pub fn rd(&self) -> u8 {
        rd(self.word)
    }

    /// Its first source register: the field, whether or not it is used.
    #[must_use]
    pub fn rs1(&self) -> u8 {
        rs1(self.word)
    }

    /// Its second source register: the field, whether or not it is used.
    #[must_use]
    pub fn rs2(&self) -> u8 {
        rs2(self.word)
    }

    /// What a vector load or store does.
    pub(super) fn access(&self) -> Option<Access> {
        (self.kind == Kind::VectorMemory)
            .then(|| access(self.word, self.stores()))
            .flatten()
    }

    fn stores(&self) -> bool {
        self.word & 0x7F == 0x27
    }

    /// The place in memory that it accesses, if that is a scalar: the general register that holds an address, and the
    /// offset.
    #[inline]
    pub(super) fn place(&self) -> Option<(u8, i64)> {
        let distance = match self.kind {
            Kind::Load(_) => imm_i(self.word),
            Kind::Store(_) => imm_s(self.word),
            Kind::LoadReserved(_) | Kind::StoreConditional(_) | Kind::Atomic(_) => 0,
            _ => return None,
        };
        Some((self.rs1(), distance))
    }

    /// The memory that it accesses; `None` if it accesses none, or a cache block.
    #[must_use]
    pub fn memory(&self) -> Option<Memory> {
        let plain = |size, distance, reads, writes| {
            Some(Memory {
                base: self.rs1(),
                distance,
                size,
                reads,
                writes,
                vector: None,
            })
        };
        match self.kind {
            Kind::Load(size) => plain(size, imm_i(self.word), true, false),
            Kind::Store(size) => plain(size, imm_s(self.word), false, true),
            Kind::LoadReserved(size) => plain(size, 0, true, false),
            Kind::StoreConditional(size) => plain(size, 0, false, true),
            Kind::Atomic(size) => plain(size, 0, true, true),
            Kind::VectorMemory => {
                let access = self.access()?;
                Some(Memory {
                    base: self.rs1(),
                    distance: 0,
                    // For indexed accesses, the vector type gives the size of elements.
                    size: match access.pattern {
                        Pattern::Indexed => 0,
                        _ => access.size,
                    },
                    reads: !self.stores(),
                    writes: self.stores(),
                    vector: Some(Elements {
                        pattern: access.pattern,
                        by: self.rs2(),
                        fields: access.fields,
                        masked: field(self.word, 25, 1) == 0,
                    }),
                })
            }
            _ => None,
        }
    }

    /// The number of the control and status register that it accesses.
    #[must_use]
    pub fn csr(&self) -> Option<u16> {
        (self.kind == Kind::Csr).then(|| field(self.word, 20, 12) as u16)
    }

    /// The general registers that it reads and those that it writes, as in [`Self::reads`] and [`Self::writes`].
    #[must_use]
    pub fn general(&self) -> (u32, u32) {
        let word = self.word;
        let roles = self.operands.iter();
        let roles = roles.fold(0, |roles, &operand| roles | role(operand));
        let of = |bit: u8, register: u8| u32::from(roles & bit != 0) << register;
        let mut reads = of(role::READS_1, rs1(word)) | of(role::READS_2, rs2(word));
        let mut writes = of(role::WRITES, rd(word));
        if roles & (role::CHANGES | role::PAIR) != 0 {
            let changed = match roles & role::PAIR {
                0 => 1 << rd(word),
                _ => pair(rd(word)),
            };
            reads |= changed;
            writes |= changed;
        }
        if roles & role::PAIR_2 != 0 {
            reads |= pair(rs2(word));
        }
        (reads & !1, writes & !1)
    }

    /// What it reads.
    #[must_use]
    pub fn reads(&self) -> Registers {
        let word = self.word;
        let mut set = Registers {
            x: self.general().0,
            ..Registers::default()
        };
        for operand in self.operands {
            match operand {
                Fs1 => set.add_f(rs1(word)),
                Fs2 => set.add_f(rs2(word)),
                Fs3 => set.add_f(rs3(word)),
                Vs1 => set.add_group(rs1(word), 1),
                Vs2 => set.add_group(rs2(word), 1),
                VdRead => set.add_group(rd(word), 1),
                Vs3 => self.add_accessed(&mut set),
                Mask if field(word, 25, 1) == 0 => set.add_v(0, 1),
                V0 => set.add_v(0, 1),
                Rm if funct3(word) == 7 => set.state |= state::FRM,
                _ => {}
            }
        }
        set.state |= match self.kind {
            Kind::Load(_) | Kind::Atomic(_) => state::MEMORY,
            Kind::LoadReserved(_) => state::MEMORY,
            Kind::StoreConditional(_) => state::RESERVATION,
            Kind::Csr => match self.reads_csr() {
                true => self.csr_state(),
                false => 0,
            },
            _ => 0,
        };
        if self.is_vector() {
            set.state |= state::VSTART;
            if self.kind != Kind::VectorWhole {
                set.state |= state::VL | state::VTYPE;
            }
        }
        match self.kind {
            Kind::VectorFixed => set.state |= state::VXRM,
            Kind::VectorFloat => set.state |= state::FRM,
            Kind::VectorMemory if !self.stores() => set.state |= state::MEMORY,
            // One form preserves the number of elements.
            Kind::VectorSet => set.state |= state::VL,
            _ => {}
        }
        set
    }

    /// What it writes. General and floating-point registers are overwritten whole, in any case; of vector registers and
    /// state perhaps only some bits.
    #[must_use]
    pub fn writes(&self) -> Registers {
        let word = self.word;
        let mut set = Registers {
            x: self.general().1,
            ..Registers::default()
        };
        for operand in self.operands {
            match operand {
                Fd => set.add_f(rd(word)),
                Vd if self.kind == Kind::VectorMemory => self.add_accessed(&mut set),
                Vd | VdRead => set.add_group(rd(word), 1),
                _ => {}
            }
        }
        set.state |= match self.kind {
            Kind::Float | Kind::VectorFloat => state::FFLAGS,
            Kind::Store(_) | Kind::Atomic(_) => state::MEMORY,
            Kind::StoreConditional(_) => state::MEMORY | state::RESERVATION,
            Kind::LoadReserved(_) => state::RESERVATION,
            Kind::CacheBlock => state::MEMORY,
            Kind::VectorFixed => state::VXSAT,
            Kind::VectorSet => state::VL | state::VTYPE,
            Kind::VectorMemory if self.stores() => state::MEMORY,
            // It sets the number of elements that could be loaded.
            Kind::VectorMemory if self.is_fault_first() => state::VL,
            Kind::Csr if self.writes_csr() => self.csr_state(),
            _ => 0,
        };
        if self.is_vector() {
            set.state |= state::VSTART;
        }
        set
    }

    fn is_fault_first(&self) -> bool {
        self.access()
            .is_some_and(|access| access.pattern == Pattern::FaultFirst)
    }

    /// The vector registers that a load writes or a store reads.
    fn add_accessed(&self, set: &mut Registers) {
        let Some(access) = self.access() else {
            return;
        };
        match access.pattern {
            Pattern::Whole => set.add_v(self.rd(), access.fields),
            Pattern::Mask => set.add_v(self.rd(), 1),
            _ => set.add_group(self.rd(), access.fields),
        }
    }

    /// Whether it works on vector registers, or sets the state by which such instructions work.
    #[must_use]
    pub fn is_vector(&self) -> bool {
        matches!(
            self.kind,
            Kind::Vector
                | Kind::VectorFixed
                | Kind::VectorFloat
                | Kind::VectorWhole
                | Kind::VectorSet
                | Kind::VectorMemory
        )
    }

    /// Whether an access to a control register reads it: a swap into the zero register does not.
    pub(super) fn reads_csr(&self) -> bool {
        !(matches!(funct3(self.word), 1 | 5) && self.rd() == 0)
    }

    /// Whether an access to a control register writes it: setting or clearing no bits does not.
    pub(super) fn writes_csr(&self) -> bool {
        matches!(funct3(self.word), 1 | 5) || self.rs1() != 0
    }

    fn csr_state(&self) -> u16 {
        match self.csr() {
            Some(0x001) => state::FFLAGS,
            Some(0x002) => state::FRM,
            Some(0x003) => state::FFLAGS | state::FRM,
            Some(0x008) => state::VSTART,
            Some(0x009) => state::VXSAT,
            Some(0x00A) => state::VXRM,
            Some(0x00F) => state::VXSAT | state::VXRM,
            Some(0xC20) => state::VL,
            Some(0xC21) => state::VTYPE,
            _ => state::OTHER,
        }
    }
}

/// How an operand uses general registers; the values are bits.
mod role {
    pub const WRITES: u8 = 1;
    pub const READS_1: u8 = 1 << 1;
    pub const READS_2: u8 = 1 << 2;
    pub const CHANGES: u8 = 1 << 3;
    pub const PAIR: u8 = 1 << 4;
    pub const PAIR_2: u8 = 1 << 5;
}

fn role(operand: Operand) -> u8 {
    match operand {
        Rd => role::WRITES,
        Rs1 | MemI | MemS | MemPrefetch | Mem => role::READS_1,
        Rs2 => role::READS_2,
        RdRead => role::CHANGES,
        PairRd => role::PAIR,
        PairRs2 => role::PAIR_2,
        _ => 0,
    }
}

/// A pair of registers. The pair of the zero register is zero, too.
fn pair(register: u8) -> u32 {
    match register {
        0 => 0,
        even => 0b11 << even,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insn(word: u32) -> Insn {
        Insn::new(&word.to_le_bytes(), 0x1000)
    }

    #[test]
    fn pairs_of_registers() {
        // amocas.q a2, a4, (a0); the same with the zero register
        let cas = insn(0x28E5_462F);
        assert_eq!(cas.general(), (0xF400, 0x3000));
        assert_eq!(insn(0x2805_402F).general(), (0x400, 0));
    }

    #[test]
    fn memory_of_scalars() {
        // ld a0, -8(sp); fsd fs0, 16(a1); amoadd.w; cbo.zero
        let memory = insn(0xFF81_3503).memory().expect("a load");
        assert_eq!((memory.base, memory.distance, memory.size), (2, -8, 8));
        assert!(memory.reads && !memory.writes);
        let memory = insn(0x0085_B827).memory().expect("a store");
        assert_eq!((memory.base, memory.distance, memory.size), (11, 16, 8));
        assert!(!memory.reads && memory.writes);
        let memory = insn(0x00B6_252F).memory().expect("atomic");
        assert_eq!((memory.base, memory.size), (12, 4));
        assert!(memory.reads && memory.writes);
        assert_eq!(insn(0x0045_200F).memory(), None);
    }

    #[test]
    fn memory_of_vectors() {
        let elements = |word: u32| {
            let memory = insn(word).memory().expect("a load or store");
            let vector = memory.vector.expect("of vectors");
            (
                memory.size,
                vector.pattern,
                vector.by,
                vector.fields,
                vector.masked,
            )
        };
        // vle32.v v8, (a0); vlsseg3e16.v v8, (a0), a1, v0.t; vsuxei8.v v8, (a0), v16; vs2r.v; vlm.v; vle8ff.v
        assert_eq!(elements(0x0205_6407), (4, Pattern::Unit, 0, 1, false));
        assert_eq!(elements(0x48B5_5407), (2, Pattern::Strided, 11, 3, true));
        assert_eq!(elements(0x0705_0427), (0, Pattern::Indexed, 16, 1, false));
        assert_eq!(elements(0x2285_0427), (1, Pattern::Whole, 8, 2, false));
        assert_eq!(elements(0x02B5_0407), (1, Pattern::Mask, 11, 1, false));
        assert_eq!(
            elements(0x0305_0407),
            (1, Pattern::FaultFirst, 16, 1, false)
        );
    }

    #[test]
    fn state_beside_registers() {
        let of = |word: u32| (insn(word).reads().state, insn(word).writes().state);
        // fadd.d with the dynamic mode, and with its own; fsgnj.d
        assert_eq!(of(0x02C5_F553), (state::FRM, state::FFLAGS));
        assert_eq!(of(0x02C5_9553), (0, state::FFLAGS));
        assert_eq!(of(0x22C5_8553), (0, 0));
        // frflags; fsflags without a result; rdtime; lr.w; sc.w
        assert_eq!(of(0x0010_2573), (state::FFLAGS, 0));
        assert_eq!(of(0x0015_1073), (0, state::FFLAGS));
        assert_eq!(of(0xC010_2573), (state::OTHER, 0));
        assert_eq!(of(0x1005_252F), (state::MEMORY, state::RESERVATION));
        let conditional = (state::RESERVATION, state::MEMORY | state::RESERVATION);
        assert_eq!(of(0x18B5_262F), conditional);
        // vsetvli; vadd.vv; vmv1r.v
        let typed = state::VL | state::VTYPE;
        assert_eq!(of(0x0D85_F557).1, typed | state::VSTART);
        assert_eq!(of(0x0288_0457).0, typed | state::VSTART);
        assert_eq!(of(0x9E80_3457).0, state::VSTART);
    }
}
