//! How the accesses of a block are computed from a record of it: prepared once, because there are many records.

use crate::access::{Access, Kind};
use crate::block::{Block, SLOTS, Slot, Special, Value, ZERO, special_accesses, string_accesses};

/// Everything is done for this many values at once, so that the processor predicts how often.
const STRIDE: usize = 2;
/// A slot that nothing is computed from.
const UNUSED: Slot = Slot::MAX;

/// How a slot is read from a record.
#[derive(Debug, Clone, Copy)]
struct Read {
    /// The bits of the value.
    mask: u64,
    /// Where the value is.
    at: u16,
    slot: Slot,
    /// Its sign bit, if it is shorter than a slot and has one.
    sign: u64,
}

impl Read {
    const NOTHING: Self = Self {
        mask: 0,
        at: 0,
        slot: UNUSED,
        sign: 0,
    };

    #[inline(always)]
    fn value(self, bytes: &[u8]) -> u64 {
        let bits = word(bytes, self.at.into()) & self.mask;
        (bits ^ self.sign).wrapping_sub(self.sign)
    }
}

/// How an access is computed.
#[derive(Debug, Clone, Copy)]
struct Sum {
    /// With the displacement instead of the address.
    access: Access,
    base: Slot,
    index: Slot,
    /// The index is multiplied by this.
    scale: u8,
    segment: Slot,
}

impl Sum {
    const NOTHING: Self = Self {
        access: Access {
            address: 0,
            size: 0,
            insn: 0,
            kind: Kind::Load,
            offset: 0,
        },
        base: ZERO,
        index: ZERO,
        scale: 1,
        segment: ZERO,
    };

    #[inline(always)]
    fn address(&self, slots: &[u64; SLOTS]) -> u64 {
        let slot = |slot: Slot| slots[usize::from(slot)];
        let displaced = self.access.address.wrapping_add(slot(self.base));
        displaced.wrapping_add(slot(self.index).wrapping_mul(self.scale.into()))
    }
}

/// A register that has another value where a block is left.
#[derive(Debug, Clone, Copy)]
struct Set {
    add: i64,
    register: Slot,
    slot: Slot,
}

impl Set {
    const NOTHING: Self = Self {
        add: 0,
        register: UNUSED,
        slot: ZERO,
    };
}

/// Where a block may be left.
#[derive(Debug, Clone)]
pub(crate) struct Leave {
    /// How many instructions were executed.
    upto: u16,
    /// How many accesses they make.
    accesses: u16,
    sets: Vec<Set>,
}

/// How records of a block are read.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// Bytes of a record.
    pub(crate) size: usize,
    reads: Vec<Read>,
    sums: Vec<Sum>,
    /// How many of the sums are accesses.
    operands: usize,
    /// Operands with a segment, or whose sums are cut to 32 bits before that is added, and whether they are.
    unusual: Vec<(u16, bool)>,
    /// The end comes first.
    leaving: Vec<Leave>,
    special: Option<Special>,
    /// Not only accesses are to be told, or not those.
    pub(crate) has_notes: bool,
    /// Only accesses are, and they are not special.
    pub(crate) is_plain: bool,
    /// Records of lanes come after that of the block.
    pub(crate) is_expanded: bool,
}

impl Plan {
    /// For a block. `hears_notes`: the client wants to know what is noted of it.
    pub(crate) fn of(block: &Block, hears_notes: bool) -> Self {
        let has_notes = hears_notes && !block.notes.is_empty() || !block.observed;
        let mut at = 4;
        let reads = block.values.iter().map(|recorded| {
            let (mask, sign) = match recorded.value {
                Value::Half(_) => (u32::MAX.into(), 0),
                Value::Signed(_) => (u32::MAX.into(), 1 << 31),
                _ => (u64::MAX, 0),
            };
            let read = Read {
                mask,
                at,
                slot: recorded.slot,
                sign,
            };
            at += recorded.value.size() as u16;
            read
        });
        let reads = padded(reads.collect(), Read::NOTHING);
        let sums = block.operands.iter().map(|operand| Sum {
            access: Access {
                address: operand.displacement,
                size: operand.size,
                insn: operand.insn,
                kind: operand.kind,
                offset: 0,
            },
            base: operand.base,
            index: operand.index,
            scale: 1 << (operand.power & 3),
            segment: operand.segment,
        });
        let unusual = block.operands.iter().zip(0..);
        let unusual = unusual.filter(|(operand, _)| operand.narrow || operand.segment != ZERO);
        let accesses = |upto: u16| {
            let operands = block.operands.iter();
            operands.take_while(|operand| operand.insn < upto).count() as u16
        };
        let leaving = block.leaving.iter().rev().map(|leave| Leave {
            upto: leave.upto,
            accesses: accesses(leave.upto),
            sets: leave.sets(),
        });
        let mut leaving: Vec<Leave> = leaving.collect();
        if leaving.is_empty() {
            leaving.push(Leave {
                upto: block.insns.len() as u16,
                accesses: block.operands.len() as u16,
                sets: Vec::new(),
            });
        }
        Self {
            size: block.record_size(),
            reads,
            sums: padded(sums.collect(), Sum::NOTHING),
            operands: block.operands.len(),
            unusual: unusual
                .map(|(operand, number)| (number, operand.narrow))
                .collect(),
            leaving,
            special: block.special.clone(),
            has_notes,
            is_plain: !has_notes && block.special.is_none(),
            is_expanded: block.is_expanded(),
        }
    }

    /// The accesses of the first `upto` instructions that a record says, in the order of the program. A repeated
    /// instruction may have made some of its accesses before it was cut. If there are many, `flush` takes some away.
    /// `slots` has what is known before, and then what is known afterward. There may be more bytes after the record.
    /// `room` is used for the accesses.
    #[inline(always)]
    pub(crate) fn accesses<'r>(
        &self,
        record: &[u8],
        upto: usize,
        slots: &mut [u64; SLOTS],
        room: &'r mut Vec<Access>,
        flush: impl FnMut(&mut Vec<Access>),
    ) -> &'r [Access] {
        if let Some(special) = &self.special {
            room.clear();
            specially(special, record, upto, room, flush);
            return room;
        }
        let leave = self.begin(record, upto, slots);
        let count = self.before(leave, upto, slots, room).all().len();
        self.end(leave, slots);
        &room[..count]
    }

    /// Begins with a record, of which the first `upto` instructions were executed. Returns where the block was left: if
    /// a signal has cut it, that is not known, and what is known after it does not matter.
    #[inline(always)]
    pub(crate) fn begin(
        &self,
        record: &[u8],
        upto: usize,
        slots: &mut [u64; SLOTS],
    ) -> Option<&Leave> {
        for reads in self.reads.as_chunks::<STRIDE>().0 {
            for read in reads {
                slots[usize::from(read.slot)] = read.value(record);
            }
        }
        match self.leaving.first() {
            Some(last) if usize::from(last.upto) == upto => Some(last),
            _ => self
                .leaving
                .iter()
                .find(|leave| usize::from(leave.upto) == upto),
        }
    }

    /// The accesses before the block was left.
    #[inline(always)]
    pub(crate) fn before<'r>(
        &'r self,
        leave: Option<&Leave>,
        upto: usize,
        slots: &'r [u64; SLOTS],
        room: &'r mut Vec<Access>,
    ) -> Accesses<'r> {
        let count = match leave {
            Some(leave) => leave.accesses.into(),
            None => {
                let sums = self.sums[..self.operands].iter();
                sums.take_while(|sum| usize::from(sum.access.insn) < upto)
                    .count()
            }
        };
        Accesses {
            plan: self,
            slots,
            count,
            room,
        }
    }

    /// Afterward, slots have what is known where the block was left.
    #[inline(always)]
    pub(crate) fn end(&self, leave: Option<&Leave>, slots: &mut [u64; SLOTS]) {
        let sets = leave.map_or(&[][..], |leave| &leave.sets);
        for sets in sets.as_chunks::<STRIDE>().0 {
            for set in sets {
                let new = slots[usize::from(set.slot)].wrapping_add_signed(set.add);
                slots[usize::from(set.register)] = new;
            }
        }
    }

    /// Completes a sum, if it is unusual.
    #[cold]
    fn complete(&self, number: usize, sum: u64, slots: &[u64; SLOTS]) -> u64 {
        let unusual = self.unusual.iter();
        let Some((_, is_narrow)) = unusual
            .copied()
            .find(|&(one, _)| usize::from(one) == number)
        else {
            return sum;
        };
        let sum = match is_narrow {
            true => sum & u64::from(u32::MAX),
            false => sum,
        };
        let segment = slots[usize::from(self.sums[number].segment)];
        sum.wrapping_add(segment)
    }
}

/// The accesses of some instructions of a block, in the order of the program, each of which is computed when it is
/// asked for.
#[derive(Debug)]
pub struct Accesses<'r> {
    plan: &'r Plan,
    slots: &'r [u64; SLOTS],
    count: usize,
    /// Used for them.
    room: &'r mut Vec<Access>,
}

impl<'r> Accesses<'r> {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// All of them.
    #[inline(always)]
    #[must_use]
    pub fn all(self) -> &'r [Access] {
        let Self {
            plan, slots, room, ..
        } = self;
        if room.len() < plan.sums.len() {
            room.resize(plan.sums.len(), Sum::NOTHING.access);
        }
        let (sums, _) = plan.sums.as_chunks::<STRIDE>();
        for (sums, room) in sums.iter().zip(room.as_chunks_mut::<STRIDE>().0) {
            for (sum, room) in sums.iter().zip(room) {
                *room = sum.access;
                room.address = sum.address(slots);
            }
        }
        for &(number, _) in &plan.unusual {
            let number = usize::from(number);
            room[number].address = plan.complete(number, room[number].address, slots);
        }
        &room[..self.count]
    }

    /// The first one from number `at` on of which this holds, by its address and its bytes. `at` is the number of the
    /// next one afterward.
    #[inline(always)]
    pub fn find(&self, at: &mut usize, is_wanted: impl Fn(u64, u32) -> bool) -> Option<Access> {
        let (plan, slots) = (self.plan, self.slots);
        let is_usual = plan.unusual.is_empty();
        for (number, sum) in plan.sums[..self.count].iter().enumerate().skip(*at) {
            let address = match is_usual {
                true => sum.address(slots),
                false => plan.complete(number, sum.address(slots), slots),
            };
            if is_wanted(address, sum.access.size) {
                *at = number + 1;
                return Some(Access {
                    address,
                    ..sum.access
                });
            }
        }
        None
    }
}

impl crate::block::Leave {
    /// What is to be done one after the other.
    fn sets(&self) -> Vec<Set> {
        /// Slots for values that are overwritten before they are used.
        const KEPT: Slot = 128;
        let is_overwritten = |&(register, slot, _): &(u8, Slot, i64)| {
            register != slot && self.sets.iter().any(|&(other, ..)| other == slot)
        };
        let (kept, direct): (Vec<_>, Vec<_>) = self.sets.iter().copied().partition(is_overwritten);
        let before = kept
            .iter()
            .zip(KEPT..)
            .map(|(&(_, slot, add), to)| (to, slot, add));
        let after = kept
            .iter()
            .zip(KEPT..)
            .map(|(&(register, ..), from)| (register, from, 0));
        let all = before.chain(direct).chain(after);
        let sets = all.map(|(register, slot, add)| Set {
            add,
            register,
            slot,
        });
        padded(sets.collect(), Set::NOTHING)
    }
}

/// Adds values up to a whole number of strides.
fn padded<T: Clone>(mut values: Vec<T>, nothing: T) -> Vec<T> {
    values.resize(values.len().next_multiple_of(STRIDE), nothing);
    values
}

#[cold]
fn specially(
    special: &Special,
    record: &[u8],
    upto: usize,
    out: &mut Vec<Access>,
    flush: impl FnMut(&mut Vec<Access>),
) {
    if let &Special::Strings {
        first,
        second,
        size,
    } = special
    {
        string_accesses((first, second), size, record, out, flush);
    } else if upto > 0 || special.has_progress() {
        let before = out.len();
        special_accesses(special, record, out);
        // A lane is recorded before its access: the last one has faulted.
        if upto == 0 && matches!(special, Special::Expanded(_)) && out.len() > before {
            out.pop();
        }
    }
}

/// Eight bytes; the last ones are zero if there are fewer.
#[inline(always)]
fn word(bytes: &[u8], at: usize) -> u64 {
    let all = bytes.get(at..at + 8);
    match all.and_then(|all| all.first_chunk()) {
        Some(all) => u64::from_le_bytes(*all),
        None => short_word(bytes.get(at..).unwrap_or_default()),
    }
}

#[cold]
fn short_word(bytes: &[u8]) -> u64 {
    let mut all = [0; 8];
    for (to, from) in all.iter_mut().zip(bytes) {
        *to = *from;
    }
    u64::from_le_bytes(all)
}
