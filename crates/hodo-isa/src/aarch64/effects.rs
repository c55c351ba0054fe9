//! What instructions do to general registers, the flags and memory.

use super::decode::{Insn, Kind};
use super::regs::{ALL, ARGUMENTS, FLAGS, LINK, SP, STACK, Set, ZERO, general, or_stack};
use crate::effects;

/// General registers and flags that an instruction uses.
pub type Effects = effects::Effects<Set>;

/// Memory that an instruction accesses through a base register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// The register, which may be the stack pointer.
    pub base: u8,
    /// The offset of the access from the base register; `None` if it is in a register.
    pub distance: Option<i64>,
    /// Bytes accessed from there on; 0 if not known here.
    pub size: u8,
    /// It is read.
    pub reads: bool,
    /// It is written.
    pub writes: bool,
    /// How much is added to the base register, if it is written back.
    pub moves: Option<i64>,
}

/// How the address of an access is formed, by the bits of [`Kind::Single`] and [`Kind::Pair`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Offset,
    Post,
    Pre,
    Register,
}

impl Insn {
    /// The addressing mode of a load or store of one register.
    fn single_mode(&self) -> Mode {
        match (self.bit(24), self.bit(21), self.field(10, 2)) {
            (true, ..) => Mode::Offset,
            (false, true, _) => Mode::Register,
            (false, false, 0b01) => Mode::Post,
            (false, false, 0b11) => Mode::Pre,
            _ => Mode::Offset,
        }
    }

    fn pair_mode(&self) -> Mode {
        match self.field(23, 2) {
            0b01 => Mode::Post,
            0b11 => Mode::Pre,
            _ => Mode::Offset,
        }
    }

    /// Whether a [`Kind::Single`] is a prefetch hint.
    #[must_use]
    pub fn is_prefetch(&self) -> bool {
        match self.kind {
            Kind::Single => self.field(30, 2) == 3 && self.field(22, 2) == 2,
            Kind::Literal => self.field(30, 2) == 3,
            _ => false,
        }
    }

    /// Whether a load or store of one register or a pair is a load.
    #[must_use]
    pub fn is_load(&self) -> bool {
        match self.kind {
            Kind::Single => self.field(22, 2) != 0 && !self.is_prefetch(),
            Kind::SingleVector | Kind::Pair | Kind::PairVector => self.bit(22),
            Kind::LoadExclusive | Kind::LoadAcquire | Kind::LoadAuthenticated => true,
            Kind::Literal => !self.is_prefetch(),
            _ => false,
        }
    }

    /// Whether it loads or stores a whole general register, or a pair of them.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        match self.kind {
            Kind::Single => self.field(30, 2) == 3 && self.field(22, 2) < 2,
            Kind::Pair => self.field(30, 2) == 2,
            _ => false,
        }
    }

    /// The memory that it accesses through a base register; `None` if there is none, or if vector registers hold the
    /// address.
    #[must_use]
    #[inline]
    pub fn memory(&self) -> Option<Memory> {
        match self.kind {
            Kind::Single | Kind::SingleVector => Some(self.single()),
            Kind::Pair | Kind::PairVector => Some(self.pair()),
            _ => self.other_memory(),
        }
    }

    fn single(&self) -> Memory {
        let vector = self.kind == Kind::SingleVector;
        let scale = match vector && self.bit(23) {
            true => 4,
            false => self.field(30, 2),
        };
        let nine = self.signed(12, 9);
        let (distance, moves) = match self.single_mode() {
            Mode::Offset if self.bit(24) => (Some(i64::from(self.field(10, 12)) << scale), None),
            Mode::Offset => (Some(nine), None),
            Mode::Post => (Some(0), Some(nine)),
            Mode::Pre => (Some(nine), Some(nine)),
            Mode::Register => (None, None),
        };
        Memory {
            base: self.rn(),
            distance,
            size: 1 << scale,
            reads: self.is_load(),
            writes: !self.is_load() && !self.is_prefetch(),
            moves,
        }
    }

    fn pair(&self) -> Memory {
        let opc = self.field(30, 2);
        let tags = self.kind == Kind::Pair && opc == 1 && !self.is_load();
        let scale = match self.kind {
            Kind::PairVector => 2 + opc,
            _ if tags => 4,
            _ => 2 + (opc >> 1),
        };
        let distance = self.signed(15, 7) << scale;
        let (distance, moves) = match self.pair_mode() {
            Mode::Post => (0, Some(distance)),
            Mode::Pre => (distance, Some(distance)),
            _ => (distance, None),
        };
        Memory {
            base: self.rn(),
            distance: Some(distance),
            size: if tags { 16 } else { 2 << scale },
            reads: self.is_load(),
            writes: !self.is_load(),
            moves,
        }
    }

    fn other_memory(&self) -> Option<Memory> {
        let (size, reads, writes) = match self.kind {
            Kind::LoadExclusive | Kind::StoreExclusive => {
                let one = 1 << self.field(30, 2);
                let size = if self.bit(21) { 2 * one } else { one };
                let loads = self.kind == Kind::LoadExclusive;
                (size, loads, !loads)
            }
            Kind::Ordered => (1 << self.field(30, 2), self.bit(22), !self.bit(22)),
            Kind::CompareSwap | Kind::Atomic => (1 << self.field(30, 2), true, true),
            Kind::CompareSwapPair => (8 << self.field(30, 1), true, true),
            Kind::LoadAcquire => (1 << self.field(30, 2), true, false),
            Kind::Bytes64 => (64, self.field(12, 3) == 5, self.field(12, 3) != 5),
            Kind::OrderedUnscaled => {
                let loads = self.field(22, 2) != 0;
                let memory = Memory {
                    base: self.rn(),
                    distance: Some(self.signed(12, 9)),
                    size: 1 << self.field(30, 2),
                    reads: loads,
                    writes: !loads,
                    moves: None,
                };
                return Some(memory);
            }
            Kind::OrderedVector => {
                let memory = Memory {
                    base: self.rn(),
                    distance: Some(self.signed(12, 9)),
                    size: 0,
                    reads: self.bit(22),
                    writes: !self.bit(22),
                    moves: None,
                };
                return Some(memory);
            }
            Kind::LoadAuthenticated => {
                let distance = i64::from(self.bit(22)).wrapping_neg() << 12
                    | i64::from(self.field(12, 9)) << 3;
                let memory = Memory {
                    base: self.rn(),
                    distance: Some(distance),
                    size: 8,
                    reads: true,
                    writes: false,
                    moves: self.bit(11).then_some(distance),
                };
                return Some(memory);
            }
            Kind::OrderedPair | Kind::VectorStructure => (0, self.bit(22), !self.bit(22)),
            // Tags are not data, but some stores of tags also zero the data.
            Kind::Tags => (0, self.field(22, 2) != 0, true),
            Kind::MemorySteps => (0, true, true),
            _ => return None,
        };
        Some(Memory {
            base: self.rn(),
            distance: Some(0),
            size,
            reads,
            writes,
            moves: None,
        })
    }

    /// The general registers and flags that it uses.
    #[must_use]
    #[inline]
    pub fn effects(&self) -> Effects {
        let (d, n, m) = (self.rd(), self.rn(), self.rm());
        let sets = |on: bool| if on { FLAGS } else { 0 };
        match self.kind {
            Kind::Adr | Kind::Adrp => Effects::of(0, general(d)),
            Kind::AddImmediate => {
                let set = self.bit(29);
                let to = if set { general(d) } else { or_stack(d) };
                Effects::of(or_stack(n), to | sets(set))
            }
            Kind::LogicalImmediate => {
                let set = self.field(29, 2) == 3;
                let to = if set { general(d) } else { or_stack(d) };
                Effects::of(general(n), to | sets(set))
            }
            Kind::MoveWide => {
                let keeps = self.field(29, 2) == 3;
                Effects::of(if keeps { general(d) } else { 0 }, general(d))
            }
            Kind::Bitfield => {
                let keeps = self.field(29, 2) == 1;
                let into = if keeps { general(d) } else { 0 };
                Effects::of(general(n) | into, general(d))
            }
            Kind::LogicalRegister => {
                let set = self.field(29, 2) == 3;
                Effects::of(general(n) | general(m), general(d) | sets(set))
            }
            Kind::AddRegister => {
                Effects::of(general(n) | general(m), general(d) | sets(self.bit(29)))
            }
            Kind::AddExtended => {
                let set = self.bit(29);
                let to = if set { general(d) } else { or_stack(d) };
                Effects::of(or_stack(n) | general(m), to | sets(set))
            }
            Kind::Single | Kind::SingleVector | Kind::Pair | Kind::PairVector => self.accesses(),
            Kind::Branch | Kind::Invalid | Kind::Undefined | Kind::Privileged => Effects::default(),
            Kind::BranchLink => Effects::of(0, general(LINK)),
            Kind::Conditional => Effects::of(FLAGS, 0),
            Kind::CompareZero | Kind::TestBit => Effects::of(general(d), 0),
            _ => self.other_effects(),
        }
    }

    /// Loads and stores of one register or a pair.
    fn accesses(&self) -> Effects {
        let (d, n, m) = (self.rd(), self.rn(), self.rm());
        let (mode, registers) = match self.kind {
            Kind::Single => (self.single_mode(), general(d)),
            Kind::Pair => (self.pair_mode(), general(d) | general(self.ra())),
            Kind::SingleVector => (self.single_mode(), 0),
            _ => (self.pair_mode(), 0),
        };
        let by = if mode == Mode::Register {
            general(m)
        } else {
            0
        };
        let moved = match mode {
            Mode::Pre | Mode::Post => or_stack(n),
            Mode::Offset | Mode::Register => 0,
        };
        let (read, written) = match (self.is_prefetch(), self.is_load()) {
            (true, _) => (0, 0),
            (false, true) => (0, registers),
            (false, false) => (registers, 0),
        };
        Effects::of(or_stack(n) | by | read, written | moved)
    }

    fn other_effects(&self) -> Effects {
        let (d, n, m, a) = (self.rd(), self.rn(), self.rm(), self.ra());
        match self.kind {
            Kind::MinMaxImmediate | Kind::OneSource => Effects::of(general(n), general(d)),
            Kind::AddTags => Effects::of(or_stack(n), or_stack(d)),
            Kind::Extract | Kind::TwoSources => Effects::of(general(n) | general(m), general(d)),
            Kind::AddPointer => Effects::of(or_stack(n) | general(m), or_stack(d)),
            Kind::AddCarry => {
                let set = if self.bit(29) { FLAGS } else { 0 };
                Effects::of(general(n) | general(m) | FLAGS, general(d) | set)
            }
            // Some of the flags are preserved.
            Kind::RotateFlags | Kind::SetFlags => Effects::of(general(n) | FLAGS, FLAGS),
            Kind::ConditionalCompare => {
                let by = if self.bit(11) { 0 } else { general(m) };
                Effects::of(general(n) | by | FLAGS, FLAGS)
            }
            Kind::ConditionalSelect => Effects::of(general(n) | general(m) | FLAGS, general(d)),
            Kind::TwoPointers => self.pointers(),
            Kind::TwoPointersFlags => Effects::of(or_stack(n) | or_stack(m), general(d) | FLAGS),
            Kind::Sign => Effects::of(or_stack(n) | general(d), general(d)),
            Kind::SignZero => Effects::of(general(d), general(d)),
            Kind::ThreeSources => Effects::of(general(n) | general(m) | general(a), general(d)),
            Kind::JumpRegister | Kind::CallRegister | Kind::Return => self.jumps(),
            // The kernel reads the number and the arguments, and returns one value.
            Kind::SystemCall => Effects::of(ARGUMENTS | general(8), general(0)),
            Kind::Hint => self.hints(),
            Kind::Wait | Kind::WriteSystem | Kind::System => {
                let flags = if self.is_flags_register() { FLAGS } else { 0 };
                Effects::of(general(d), flags)
            }
            Kind::ReadSystem => {
                let flags = if self.is_flags_register() { FLAGS } else { 0 };
                // The flags say whether a random number was available.
                let random = self.word & 0xFFFF_FFC0 == 0xD53B_2400;
                Effects::of(flags, general(d) | if random { FLAGS } else { 0 })
            }
            Kind::SystemResult | Kind::TransactionStart => Effects::of(0, general(d)),
            Kind::ChangeFlags => Effects::of(FLAGS, FLAGS),
            Kind::Barrier | Kind::ClearExclusive | Kind::SetState | Kind::TransactionEnd => {
                Effects::default()
            }
            Kind::FloatGeneral => match self.field(16, 3) {
                // To a vector register.
                2 | 3 | 7 => Effects::of(general(n), 0),
                6 if self.field(19, 2) == 3 => Effects::of(0, general(d) | FLAGS),
                _ => Effects::of(0, general(d)),
            },
            Kind::FloatCompare => Effects::of(0, FLAGS),
            Kind::FloatConditionalCompare => Effects::of(FLAGS, FLAGS),
            Kind::FloatSelect => Effects::of(FLAGS, 0),
            Kind::VectorFromGeneral => Effects::of(general(n), 0),
            Kind::VectorToGeneral => Effects::of(0, general(d)),
            Kind::Vector => Effects::default(),
            Kind::Scalable | Kind::Matrix => self.scalable(),
            Kind::Breakpoint | Kind::TransactionOther => Effects {
                reads: ALL,
                writes: 0,
                changes: 0,
            },
            _ => self.other_accesses(),
        }
    }

    /// Arithmetic on tagged addresses, where some registers may be the stack pointer.
    fn pointers(&self) -> Effects {
        let (d, n, m) = (self.rd(), self.rn(), self.rm());
        match self.field(10, 6) {
            // subp
            0 => Effects::of(or_stack(n) | or_stack(m), general(d)),
            // irg
            4 => Effects::of(or_stack(n) | general(m), or_stack(d)),
            // gmi
            5 => Effects::of(or_stack(n) | general(m), general(d)),
            // pacga
            _ => Effects::of(general(n) | or_stack(m), general(d)),
        }
    }

    fn jumps(&self) -> Effects {
        let link = match self.kind {
            Kind::CallRegister => general(LINK),
            _ => 0,
        };
        let by = match (self.kind, self.bit(11), self.bit(24)) {
            // The stack pointer is the modifier of the return address's signature.
            (Kind::Return, true, _) => return Effects::of(general(LINK) | STACK, 0),
            (_, true, true) => or_stack(self.rd()),
            _ => 0,
        };
        Effects::of(general(self.rn()) | by, link)
    }

    /// Hints that sign and authenticate addresses, or that read a register.
    fn hints(&self) -> Effects {
        let (to, by) = match self.field(5, 7) {
            // xpaclri
            7 => (LINK, 0),
            // pacia1716 …
            8 | 10 | 12 | 14 => (17, general(16)),
            // paciaz, autiaz …
            24 | 26 | 28 | 30 => (LINK, 0),
            // paciasp, autiasp …
            25 | 27 | 29 | 31 => (LINK, STACK),
            // chkfeat
            40 => (16, 0),
            _ => return Effects::default(),
        };
        Effects::of(general(to) | by, general(to))
    }

    /// Whether the system register is that of the flags.
    fn is_flags_register(&self) -> bool {
        matches!(self.word & 0xFFFF_FFE0, 0xD53B_4200 | 0xD51B_4200)
    }

    /// Scalable vectors and matrices: all we know is where an instruction can hold general registers.
    fn scalable(&self) -> Effects {
        let fields = general(self.rd()) | general(self.rn()) | general(self.rm()) | STACK | FLAGS;
        Effects {
            // One of these registers selects a row of a matrix.
            reads: match self.kind {
                Kind::Matrix => fields | 0xFF00,
                _ => fields,
            },
            writes: 0,
            changes: general(self.rd()) | FLAGS | if self.rd() == SP { STACK } else { 0 },
        }
    }

    /// Rare loads and stores.
    fn other_accesses(&self) -> Effects {
        let (d, n, m, a) = (self.rd(), self.rn(), self.rm(), self.ra());
        let base = or_stack(n);
        let pair = |first: u8| general(first) | general(first.saturating_add(1).min(ZERO));
        match self.kind {
            Kind::Literal if self.bit(26) || self.is_prefetch() => Effects::default(),
            Kind::Literal => Effects::of(0, general(d)),
            Kind::LoadExclusive if self.bit(21) => Effects::of(base, general(d) | general(a)),
            Kind::LoadExclusive => Effects::of(base, general(d)),
            Kind::StoreExclusive => {
                let second = if self.bit(21) { general(a) } else { 0 };
                Effects::of(base | general(d) | second, general(m))
            }
            Kind::Ordered if self.bit(22) => Effects::of(base, general(d)),
            Kind::Ordered => Effects::of(base | general(d), 0),
            Kind::OrderedUnscaled if self.field(22, 2) != 0 => Effects::of(base, general(d)),
            Kind::OrderedUnscaled => Effects::of(base | general(d), 0),
            Kind::OrderedVector => Effects::of(base, 0),
            Kind::OrderedPair => {
                let both = general(d) | general(m);
                let moved = if self.bit(12) { 0 } else { base };
                match self.bit(22) {
                    true => Effects::of(base, both | moved),
                    false => Effects::of(base | both, moved),
                }
            }
            Kind::CompareSwap => Effects::of(base | general(m) | general(d), general(m)),
            Kind::CompareSwapPair => Effects::of(base | pair(m) | pair(d), pair(m)),
            Kind::LoadAcquire => Effects::of(base, general(d)),
            Kind::Atomic => Effects::of(base | general(m), general(d)),
            Kind::LoadAuthenticated => {
                let moved = if self.bit(11) { base } else { 0 };
                Effects::of(base, general(d) | moved)
            }
            Kind::VectorStructure => {
                let by = if self.bit(23) { general(m) } else { 0 };
                Effects::of(base | by, if self.bit(23) { base } else { 0 })
            }
            Kind::Tags => self.tags(),
            Kind::MemorySteps => Effects {
                reads: base | general(d) | general(m) | FLAGS,
                writes: 0,
                changes: general(d) | general(n) | general(m) | FLAGS,
            },
            // Consecutive registers, and anything unknown.
            _ => Effects {
                reads: ALL,
                writes: 0,
                changes: ALL & !STACK,
            },
        }
    }

    fn tags(&self) -> Effects {
        let (d, n) = (self.rd(), self.rn());
        let base = or_stack(n);
        match (self.field(22, 2), self.field(10, 2)) {
            // ldg preserves most of the register.
            (1, 0) => Effects::of(base | general(d), general(d)),
            // ldgm
            (3, 0) => Effects::of(base, general(d)),
            // stzgm, stgm
            (_, 0) => Effects::of(base | general(d), 0),
            (_, mode) => {
                let moved = if mode == 2 { 0 } else { base };
                Effects::of(base | or_stack(d), moved)
            }
        }
    }
}
