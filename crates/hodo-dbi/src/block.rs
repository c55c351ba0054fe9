//! Blocks of the program's code, and what threads record when they execute them.
//!
//! A thread that executes a block writes a record: the block's number, and the registers from which the addresses of
//! its accesses are computed, if they are not known from the records before. Registers that the block changes are
//! recorded before the instructions that use them. A branch that leaves a block before its end adds a record of
//! that.
//!
//! Instructions whose accesses depend on more (repeated strings, masks, gathers) have blocks of their own.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::access::{Access, Kind};
use crate::native::GENERAL;

/// An instruction of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Insn {
    /// Its address.
    pub pc: u64,
    /// Its length in bytes.
    pub len: u8,
    /// How it passes control on.
    pub transfer: Transfer,
}

/// How an instruction passes control on.
///
/// `hodo_isa` has [`Flow`](hodo_isa::effects::Flow) for those who follow code before it is executed. This is not the
/// same: each instruction of each block has it, in memory and in files, so it takes one byte, and is without the
/// target, which the bytes say ([`branch_target`](crate::branch_target)). It distinguishes system calls, after which
/// `Flow` goes on to the next instruction, and it does not distinguish what returns in an unusual way, or faults: what
/// comes next is not known of these in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Transfer {
    /// The next one.
    Next,
    /// The next one, or one that it names.
    Branch,
    /// One that it names.
    Jump,
    /// One whose address it computes.
    IndirectJump,
    /// A function that it names.
    Call,
    /// A function whose address it computes.
    IndirectCall,
    /// The caller.
    Return,
    /// A system call, and then mostly the next one.
    SystemCall,
}

/// Straight-line code: it is executed from its first instruction to its last, unless a branch leaves it or a signal
/// cuts it. An instruction may be in several blocks.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Block {
    /// Its number. No other block of the run has it, in whatever process.
    pub id: u32,
    /// Its instructions, at least one.
    pub insns: Vec<Insn>,
    /// The bytes of the instructions.
    pub code: Vec<u8>,
    /// The file from which its code is, and where its first instruction is in that.
    pub file: Option<(PathBuf, u64)>,
    pub(crate) operands: Vec<Operand>,
    /// The accesses of its only instruction, if they are of a special kind.
    pub(crate) special: Option<Special>,
    /// What a record of it has.
    pub(crate) values: Vec<Recorded>,
    /// Where the block may be left, in ascending order, if blocks that it leads to may use what is known there.
    pub(crate) leaving: Vec<Leave>,
    /// What clients receive about it besides accesses, in the order of its instructions.
    pub(crate) notes: Vec<Note>,
    /// Clients receive its executions and accesses; else, only of what its notes say.
    pub(crate) observed: bool,
    /// Its instructions overwrite the flags, other than the carry flag, before they read them.
    #[serde(skip)]
    pub(crate) flags_are_dead: bool,
    /// Which of the counters of its process counts it.
    #[serde(skip)]
    pub(crate) counter: u32,
}

/// The number of a number from which addresses are computed: first the registers, then [`ZERO`], then what the record
/// has.
pub(crate) type Slot = u8;
/// It is always zero.
pub(crate) const ZERO: Slot = GENERAL;
/// The first value of a record that is not a register at the beginning of the block.
pub(crate) const FIRST_VALUE: Slot = ZERO + 1;
/// The number of slots.
pub(crate) const SLOTS: usize = 256;

/// A record of what a pass has inserted. A number comes after it, and a value of eight bytes.
pub(crate) const RECORDED: u32 = 0xFFFB_0000;
/// Bytes of such a record.
pub(crate) const RECORDED_SIZE: usize = 16;

/// A value of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Recorded {
    pub(crate) value: Value,
    /// The number of the instruction before which it is recorded.
    pub(crate) insn: u16,
    pub(crate) slot: Slot,
}

/// Something that a client receives when an instruction is executed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Note {
    /// The number of the instruction.
    pub(crate) insn: u16,
    /// The first of the slots with its values.
    pub(crate) slot: Slot,
    pub(crate) what: Noted,
}

/// What is noted of an instruction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Noted {
    /// It is the first one of a function with this name. Values: three arguments, and the stack pointer.
    Entry(String),
    /// It returns from a function. Values: the result. The stack pointer is where it loads from.
    Return,
    /// It calls a function.
    Call,
    /// It makes a system call. Values: the number and six arguments.
    SystemCall,
    /// It comes after one. Values: the result.
    AfterCall,
}

impl Noted {
    /// How many values it has.
    pub(crate) fn values(&self) -> usize {
        match self {
            Self::Entry(_) => 4,
            Self::SystemCall => 7,
            Self::Return | Self::AfterCall => 1,
            Self::Call => 0,
        }
    }
}

/// Where a block may be left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Leave {
    /// How many instructions were executed.
    pub(crate) upto: u16,
    /// Registers whose values are known then, bit by number.
    #[serde(skip)]
    pub(crate) known: u16,
    /// Registers that have another value than at the beginning of the block: each has what is in the slot, plus a
    /// number.
    pub(crate) sets: Vec<(u8, Slot, i64)>,
}

/// What a record has after the number of its block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Value {
    /// A register by its number: 8 bytes.
    Register(u8),
    /// The lower half of a register whose upper half is zero: 4 bytes.
    Half(u8),
    /// The lower half of a register whose upper half has copies of its sign: 4 bytes.
    Signed(u8),
    /// The sum of two registers; the second is multiplied by a power of two: 8 bytes.
    Sum(u8, u8, u8),
    /// What the thread-local segment is based on: 8 bytes.
    ThreadBase,
    /// What was a register before the instruction: 8 bytes.
    Before(u8),
    /// A vector register: 64 bytes.
    Vector(u8),
    /// The first 32 bytes of one of the first sixteen vector registers.
    ShortVector(u8),
    /// The highest bits of the elements of such a register, the first one's lowest: 8 bytes. The second number: the
    /// bytes of an element, 1, 4 or 8.
    Signs(u8, u8),
    /// A mask register: 8 bytes.
    Mask(u8),
}

impl Value {
    /// Whether it depends on a general register.
    pub(crate) fn uses(self, number: u8) -> bool {
        match self {
            Self::Register(used) | Self::Half(used) | Self::Signed(used) => used == number,
            Self::Sum(base, index, _) => base == number || index == number,
            _ => false,
        }
    }

    /// Bytes in a record.
    pub(crate) fn size(self) -> u32 {
        match self {
            Self::Vector(_) => 64,
            Self::ShortVector(_) => 32,
            Self::Half(_) | Self::Signed(_) => 4,
            _ => 8,
        }
    }
}

/// The address of an access: a sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Address {
    /// Where a record has the base.
    pub(crate) base: Option<u16>,
    /// Where a record has the index.
    pub(crate) index: Option<u16>,
    pub(crate) scale: u8,
    /// Where a record has the base of the segment.
    pub(crate) segment: Option<u16>,
    pub(crate) displacement: u64,
    /// The sum without the segment is cut to 32 bits.
    pub(crate) narrow: bool,
}

/// An access whose address is the sum of slots and a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Operand {
    /// The number of the instruction in the block.
    pub(crate) insn: u16,
    pub(crate) kind: Kind,
    pub(crate) size: u32,
    pub(crate) base: Slot,
    pub(crate) index: Slot,
    /// The index is multiplied by two to the power of this.
    pub(crate) power: u8,
    pub(crate) segment: Slot,
    pub(crate) displacement: u64,
    /// The sum without the segment is cut to 32 bits.
    pub(crate) narrow: bool,
}

impl Operand {
    /// One whose address does not matter.
    pub(crate) const NOWHERE: Self = Self {
        insn: 0,
        kind: Kind::Load,
        size: 0,
        base: ZERO,
        index: ZERO,
        power: 0,
        segment: ZERO,
        displacement: 0,
        narrow: false,
    };
}

/// Accesses that a record says in other ways.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Special {
    /// A repeated string instruction. The record has two pointers as they were before, and the second or the first as
    /// it is afterward: how far it went, and in which direction.
    Strings {
        /// Accesses through the first and the second pointer, in this order.
        first: Option<Kind>,
        second: Option<Kind>,
        size: u32,
    },
    /// Elements, some of them selected by a mask.
    Lanes(Lanes),
    /// An element that a signed number of bits selects, from an operand's address on.
    Bit {
        kinds: Vec<Kind>,
        address: Address,
        /// Where the number is.
        number: u16,
        size: u32,
    },
    /// Records do not say them.
    Unknown,
    /// An element that a byte selects.
    Byte { address: Address, number: u16 },
    /// An area for the processor's state.
    State {
        kind: Kind,
        address: Address,
        /// Where the numbers are that select components: the low half and the high half.
        selected: (u16, u16),
        area: Area,
    },
    /// Elements, some of them selected by a mask. Each has a record of its own, after that of the block.
    Expanded(Form),
    /// Elements that an instruction copies to more lanes than there are elements. The bits of the mask select lanes, of
    /// this number.
    Spread(Lanes, u32),
    /// Memory of this size, a power of two, at the multiple of it that is not above an address.
    Aligned {
        kind: Kind,
        address: Address,
        size: u32,
    },
}

impl Special {
    /// Whether some of its accesses may be complete when the instruction is not: the record has these then.
    pub(crate) fn has_progress(&self) -> bool {
        match self {
            Self::Lanes(lanes) => lanes.indices.is_some(),
            Self::Expanded(form) => !form.joined,
            _ => false,
        }
    }
}

/// Elements, some of them selected by a mask.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lanes {
    pub(crate) kind: Kind,
    /// Bytes of an element.
    pub(crate) size: u32,
    pub(crate) count: u32,
    pub(crate) address: Address,
    /// Where the vector of indices is, and bytes of one. `None`: the elements are neighbors.
    pub(crate) indices: Option<(u16, u32)>,
    /// Where the number is whose bits select the elements, the first one's lowest.
    pub(crate) mask: u16,
    /// In memory, there are only the active elements.
    pub(crate) packed: bool,
}

impl Lanes {
    /// What their accesses have in common.
    pub(crate) fn form(&self) -> Form {
        Form {
            kind: self.kind,
            size: self.size,
            joined: self.indices.is_none(),
        }
    }
}

/// How a processor's state is laid out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Area {
    /// Bytes that are always there.
    pub(crate) least: u32,
    /// By component: offset (0: after the ones before it) and size.
    pub(crate) components: Vec<(u32, u32)>,
}

impl Lanes {
    /// Takes what is still active out of the mask of a record: what is left is complete.
    pub(crate) fn keep_complete(&self, record: &mut [u8], active: u64) {
        let bytes = record.get_mut(usize::from(self.mask)..).unwrap_or_default();
        for (byte, active) in bytes.iter_mut().zip(active.to_le_bytes()) {
            *byte &= !active;
        }
    }

    /// The lanes that are active by a record, bit by number.
    fn active(&self, record: &[u8]) -> u64 {
        let all = match self.count {
            0 => 0,
            count => u64::MAX >> 64u32.saturating_sub(count),
        };
        word(record, self.mask) & all
    }
}

impl Area {
    fn size(&self, selected: u64) -> u32 {
        let mut end = self.least;
        for (number, &(offset, size)) in self.components.iter().enumerate() {
            if selected >> number & 1 == 1 {
                end = match offset {
                    0 => end.saturating_add(size),
                    _ => end.max(offset.saturating_add(size)),
                };
            }
        }
        end
    }
}

#[inline(always)]
fn word(record: &[u8], at: u16) -> u64 {
    let at = usize::from(at);
    let bytes = record.get(at..at + 8);
    bytes.map_or(0, |bytes| {
        u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
    })
}

/// A number of a vector of signed numbers of so few bytes, 4 or else 8. What is not there is zero.
#[inline(always)]
fn element(vector: &[u8], number: u32, size: u32) -> i64 {
    let bytes = vector.get((number * size) as usize..).unwrap_or_default();
    let value = match size {
        4 => bytes
            .first_chunk()
            .map(|&four| i32::from_le_bytes(four).into()),
        _ => bytes.first_chunk().map(|&eight| i64::from_le_bytes(eight)),
    };
    value.unwrap_or(0)
}

impl Address {
    #[inline(always)]
    fn of(&self, record: &[u8]) -> u64 {
        let mut sum = self.start(record);
        if let Some(index) = self.index {
            sum = sum.wrapping_add(word(record, index).wrapping_mul(self.scale.into()));
        }
        self.whole(record, sum)
    }

    /// The sum without the index and the segment.
    fn start(&self, record: &[u8]) -> u64 {
        let base = self.base.map_or(0, |base| word(record, base));
        self.displacement.wrapping_add(base)
    }

    #[inline(always)]
    fn whole(&self, record: &[u8], sum: u64) -> u64 {
        let sum = if self.narrow {
            sum & u64::from(u32::MAX)
        } else {
            sum
        };
        match self.segment {
            Some(segment) => sum.wrapping_add(word(record, segment)),
            None => sum,
        }
    }
}

impl Block {
    /// Whether clients receive the same of both.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let parts = |block: &Self| (block.id, block.observed);
        parts(self) == parts(other)
            && self.code == other.code
            && self.insns == other.insns
            && self.file == other.file
            && self.operands == other.operands
            && self.special == other.special
            && self.values == other.values
            && self.leaving == other.leaving
            && self.notes == other.notes
    }

    /// Bytes of a record.
    pub(crate) fn record_size(&self) -> usize {
        let values = self.values.iter();
        let values: u32 = values.map(|recorded| recorded.value.size()).sum();
        4 + values as usize
    }

    /// The lanes of a gather or scatter, and which register is their mask: the processor clears it lane by lane.
    pub(crate) fn progress(&self) -> Option<(Lanes, Value)> {
        let Some(special @ Special::Lanes(lanes)) = &self.special else {
            return None;
        };
        let mut at = 4;
        let value = self.values.iter().find_map(|recorded| {
            let here = at;
            at += recorded.value.size();
            (here == u32::from(lanes.mask)).then_some(recorded.value)
        });
        value
            .filter(|_| special.has_progress())
            .map(|value| (*lanes, value))
    }

    /// Bytes of each value of a record of it, after its number: 4, 8 or 64.
    pub fn value_sizes(&self) -> impl Iterator<Item = u32> {
        self.values.iter().map(|recorded| recorded.value.size())
    }

    /// Whether it can be what the engine has made: if it comes from a file, anything may be in it.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let code: usize = self.insns.iter().map(|insn| usize::from(insn.len)).sum();
        let operands = self.operands.iter();
        let lanes = match &self.special {
            Some(Special::Spread(lanes, among)) => {
                lanes.indices.is_none()
                    && matches!(lanes.count, 1..=64)
                    && matches!(lanes.size, 1..=8)
                    && *among <= 64
            }
            Some(Special::Aligned { size, .. }) => size.is_power_of_two(),
            Some(Special::Lanes(lanes)) => {
                let index = lanes.indices.map_or(8, |(_, size)| size);
                lanes.count <= 64 && matches!(lanes.size, 1..=8) && matches!(index, 4 | 8)
            }
            Some(Special::Strings { size, .. } | Special::Bit { size, .. }) => {
                matches!(size, 1..=8)
            }
            Some(Special::State { area, .. }) => area.components.len() <= 64,
            Some(Special::Expanded(form)) => matches!(form.size, 1..=8),
            _ => true,
        };
        lanes
            && code == self.code.len()
            && !self.insns.is_empty()
            && self.insns.len() <= usize::from(u16::MAX)
            && self.values.len() <= 64
            && operands
                .map(|operand| usize::from(operand.insn))
                .is_sorted()
            && (self.operands.iter()).all(|operand| usize::from(operand.insn) < self.insns.len())
            && (self.notes.iter()).all(|note| {
                usize::from(note.insn) < self.insns.len()
                    && usize::from(note.slot) + note.what.values() <= SLOTS
            })
            && (self.leaving.iter()).all(|leave| {
                leave.sets.len() <= usize::from(GENERAL)
                    && leave.sets.iter().all(|&(register, ..)| register < GENERAL)
            })
    }

    /// A block of one instruction, of a trace that says its accesses in other ways.
    #[must_use]
    pub fn of_instruction(id: u32, insn: Insn, bytes: &[u8]) -> Self {
        Self {
            id,
            insns: vec![insn],
            code: bytes.to_vec(),
            file: None,
            operands: Vec::new(),
            // Its accesses are not always the same ones.
            special: Some(Special::Unknown),
            values: Vec::new(),
            leaving: Vec::new(),
            notes: Vec::new(),
            observed: true,
            flags_are_dead: false,
            counter: 0,
        }
    }

    /// Whether clients receive its executions: if not, it is there for the events in it.
    #[must_use]
    pub fn is_observed(&self) -> bool {
        self.observed
    }

    /// Whether it is a repeated string instruction.
    #[must_use]
    pub fn is_repeated(&self) -> bool {
        matches!(self.special, Some(Special::Strings { .. }))
    }

    /// The accesses of each repetition of a repeated string instruction.
    #[must_use]
    pub fn accesses_each(&self) -> usize {
        match self.special {
            Some(Special::Strings { first, second, .. }) => {
                usize::from(first.is_some()) + usize::from(second.is_some())
            }
            _ => 0,
        }
    }

    /// Whether records are needed to know how often it accesses memory.
    #[must_use]
    pub fn is_special(&self) -> bool {
        self.special.is_some()
    }

    /// Whether each lane of its only instruction was made an access of its own, and recorded as such.
    #[must_use]
    pub fn is_expanded(&self) -> bool {
        matches!(self.special, Some(Special::Expanded(_)))
    }

    /// Has it be recorded lane by lane. Returns whether it can be: a mask selects what its only instruction accesses.
    pub(crate) fn expand(&mut self) -> bool {
        let Some(Special::Lanes(lanes)) = &self.special else {
            return false;
        };
        self.special = Some(Special::Expanded(lanes.form()));
        self.values.clear();
        true
    }

    /// The accesses of the first `upto` instructions whose number and sizes do not depend on records: kinds and sizes
    /// in bytes.
    pub fn plain_accesses(&self, upto: usize) -> impl Iterator<Item = (Kind, u32)> {
        let operands = self.operands.iter();
        let operands = operands.take_while(move |operand| usize::from(operand.insn) < upto);
        operands.map(|operand| (operand.kind, operand.size))
    }

    /// The same accesses of all instructions: the number of the instruction, and the kind.
    pub fn plain_kinds(&self) -> impl Iterator<Item = (usize, Kind)> {
        let operands = self.operands.iter();
        operands.map(|operand| (usize::from(operand.insn), operand.kind))
    }

    /// The bytes of an instruction.
    #[must_use]
    pub fn bytes(&self, insn: usize) -> &[u8] {
        let skipped: usize = self.insns[..insn]
            .iter()
            .map(|insn| usize::from(insn.len))
            .sum();
        &self.code[skipped..skipped + usize::from(self.insns[insn].len)]
    }

    /// Whether records have the value of a register at the beginning.
    fn records_before(&self, register: u8) -> bool {
        self.values.iter().any(|recorded| recorded.slot == register)
    }

    /// Registers whose values at the beginning its accesses depend on, but are not recorded, bit by number.
    pub(crate) fn used_before(&self) -> u16 {
        let slots = self.operands.iter();
        let slots = slots.flat_map(|operand| [operand.base, operand.index]);
        self.unrecorded(slots)
    }

    /// The same for what these registers have where the block is left.
    pub(crate) fn needed_before(&self, leave: &Leave, registers: u16) -> u16 {
        let wanted = (0..GENERAL).filter(|register| registers >> register & 1 == 1);
        self.unrecorded(wanted.map(|register| {
            let mut sets = leave.sets.iter();
            let set = sets.find(|(set, ..)| *set == register);
            set.map_or(register, |&(_, slot, _)| slot)
        }))
    }

    fn unrecorded(&self, slots: impl Iterator<Item = Slot>) -> u16 {
        let registers = slots.filter(|&slot| slot < ZERO && !self.records_before(slot));
        registers.fold(0, |all, register| all | 1 << register)
    }

    /// Registers whose values are known where the block is left after this many instructions, bit by number.
    pub(crate) fn known_after(&self, upto: usize) -> u16 {
        let mut leaving = self.leaving.iter();
        let leave = leaving.find(|leave| usize::from(leave.upto) == upto);
        leave.map_or(0, |leave| leave.known)
    }
}

/// The accesses of a repeated string instruction.
pub(crate) fn string_accesses(
    (first, second): (Option<Kind>, Option<Kind>),
    size: u32,
    record: &[u8],
    out: &mut Vec<Access>,
    mut flush: impl FnMut(&mut Vec<Access>),
) {
    /// A client receives this many accesses at once.
    const MANY: usize = 4096;
    let (one, two) = (word(record, 4), word(record, 12));
    let before = if second.is_some() { two } else { one };
    let way = word(record, 20).wrapping_sub(before).cast_signed();
    let step = i64::from(size) * way.signum();
    for number in 0..way.unsigned_abs() / u64::from(size) {
        let offset = step.wrapping_mul(number.cast_signed());
        for (kind, start) in [(first, one), (second, two)] {
            out.extend(kind.map(|kind| Access {
                address: start.wrapping_add_signed(offset),
                size,
                insn: 0,
                kind,
                offset: 0,
            }));
        }
        if out.len() >= MANY {
            flush(out);
        }
    }
}

/// The accesses of another special instruction.
pub(crate) fn special_accesses(special: &Special, record: &[u8], out: &mut Vec<Access>) {
    let mut add = |kind, address, size| {
        out.push(Access {
            address,
            size,
            insn: 0,
            kind,
            offset: 0,
        });
    };
    match special {
        // The first are many.
        Special::Strings { .. } | Special::Unknown => {}
        Special::Lanes(lanes) => lane_accesses(lanes, lanes.active(record), record, out),
        Special::Spread(lanes, among) => {
            let lanes_of = Lanes {
                count: *among,
                ..*lanes
            };
            let (mut active, mut elements) = (lanes_of.active(record), 0);
            while active != 0 {
                elements |= active;
                active = active.checked_shr(lanes.count).unwrap_or(0);
            }
            let all = u64::MAX >> 64u32.saturating_sub(lanes.count);
            lane_accesses(lanes, elements & all, record, out);
        }
        Special::Aligned {
            kind,
            address,
            size,
        } => add(
            *kind,
            address.of(record) & u64::from(*size).wrapping_neg(),
            *size,
        ),
        Special::Expanded(form) => {
            for (lane, address) in lane_records(record.get(4..).unwrap_or_default()) {
                form.add(lane, address, out);
            }
        }
        Special::Bit {
            kinds,
            address,
            number,
            size,
        } => {
            let unused = 64 - 8 * size;
            let number = word(record, *number).cast_signed() << unused >> unused;
            let bits = i64::from(*size) * 8;
            let offset = number.div_euclid(bits) * i64::from(*size);
            for &kind in kinds {
                add(kind, address.of(record).wrapping_add_signed(offset), *size);
            }
        }
        Special::Byte { address, number } => {
            let offset = word(record, *number) & 0xFF;
            add(Kind::Load, address.of(record).wrapping_add(offset), 1);
        }
        Special::State {
            kind,
            address,
            selected: (low, high),
            area,
        } => {
            let low = word(record, *low) & u64::from(u32::MAX);
            let selected = word(record, *high) << 32 | low;
            add(*kind, address.of(record), area.size(selected));
        }
    }
}

/// Accesses of elements: one for each that is active, but only one for neighbors.
fn lane_accesses(lanes: &Lanes, mut active: u64, record: &[u8], out: &mut Vec<Access>) {
    let vector = |at| record.get(usize::from(at)..).unwrap_or_default();
    match lanes.indices {
        // Each size has its own code: with one for both, most time of gathers is spent here.
        Some((at, 4)) => indexed_accesses::<4>(lanes, active, vector(at), record, out),
        Some((at, _)) => indexed_accesses::<8>(lanes, active, vector(at), record, out),
        None => {
            let start = lanes.address.of(record);
            let mut before = 0;
            while active != 0 {
                let lane = active.trailing_zeros();
                let count = (active >> lane).trailing_ones();
                let place = if lanes.packed { before } else { lane };
                out.push(Access {
                    address: start.wrapping_add(u64::from(place * lanes.size)),
                    size: count * lanes.size,
                    insn: 0,
                    kind: lanes.kind,
                    offset: (lane * lanes.size) as u8,
                });
                before += count;
                active &= u64::MAX.checked_shl(lane + count).unwrap_or(0);
            }
        }
    }
}

/// Those of the active lanes of a gather or scatter, whose indices have so few bytes.
#[inline(always)]
fn indexed_accesses<const SIZE: u32>(
    lanes: &Lanes,
    mut active: u64,
    indices: &[u8],
    record: &[u8],
    out: &mut Vec<Access>,
) {
    let address = &lanes.address;
    let start = address.start(record);
    let access = |lane| {
        let scaled = element(indices, lane, SIZE).wrapping_mul(address.scale.into());
        Access {
            address: address.whole(record, start.wrapping_add_signed(scaled)),
            size: lanes.size,
            insn: 0,
            kind: lanes.kind,
            offset: (lane * lanes.size) as u8,
        }
    };
    // Usually, all are active.
    if active.trailing_ones() == lanes.count {
        out.extend((0..lanes.count).map(access));
        return;
    }
    while active != 0 {
        out.push(access(active.trailing_zeros()));
        active &= active - 1;
    }
}

/// Lanes that have a record of their own at the beginning of these: numbers and addresses.
fn lane_records(records: &[u8]) -> impl Iterator<Item = (u32, u64)> {
    let (records, _) = records.as_chunks::<RECORDED_SIZE>();
    let number = |record: &[u8; RECORDED_SIZE], at| word(record, at) as u32;
    let lanes = records
        .iter()
        .take_while(move |&record| number(record, 0) == RECORDED);
    lanes.map(move |record| (number(record, 4), word(record, 8)))
}

/// Bytes of such records at the beginning of these.
#[cold]
pub(crate) fn lanes_size(records: &[u8]) -> usize {
    lane_records(records).count() * RECORDED_SIZE
}

/// What the accesses of lanes have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Form {
    pub(crate) kind: Kind,
    /// Bytes of a lane.
    pub(crate) size: u32,
    /// Those of neighbors are one access.
    pub(crate) joined: bool,
}

impl Form {
    /// Adds the access of a lane to those of the lanes before it.
    pub(crate) fn add(self, lane: u32, address: u64, out: &mut Vec<Access>) {
        let offset = lane.wrapping_mul(self.size);
        if self.joined
            && let Some(last) = out.last_mut()
            && u32::from(last.offset) + last.size == offset
        {
            last.size += self.size;
            return;
        }
        out.push(Access {
            address,
            size: self.size,
            insn: 0,
            kind: self.kind,
            offset: offset as u8,
        });
    }
}
