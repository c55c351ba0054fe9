//! What our instructions stand for.
//!
//! A thread may be stopped at any instruction, by a signal, by a fault, or because hodo attaches or detaches. A table
//! of points ([`Points`]) says where the thread is then in the program, and how its state differs from that of the
//! program. Moved code ([`StateMap`]) and the engine's cache have the same table; what a state is differs.
//!
//! Where values of the program are in slots, a state has the number of a list of these ([`InSlots`], [`Interned`]).

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// To find a point, about this number of points is decoded.
const GROUP: usize = 64;

/// From an address in our code on, what a thread is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Point<State> {
    /// The address in our code.
    pub at: u64,
    /// The address of the program's instruction.
    pub original: u64,
    /// The state of the thread.
    pub state: State,
}

/// Values of the program that are not in their places, and the slots where they are instead. `Place` is a register, or
/// what else may be in a slot.
pub type InSlots<Place> = Vec<(Place, u8)>;

/// Distinct values with numbers. The default value has the number 0, and is not stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interned<T> {
    /// By number, from 1 on.
    values: Vec<T>,
    numbers: BTreeMap<T, u32>,
}

impl<T> Default for Interned<T> {
    fn default() -> Self {
        Self {
            values: Vec::new(),
            numbers: BTreeMap::new(),
        }
    }
}

impl<T: Clone + Ord + Default> Interned<T> {
    /// The number of a value, which is a new one for a new value.
    pub fn number(&mut self, value: T) -> u32 {
        if value == T::default() {
            return 0;
        }
        if let Some(&number) = self.numbers.get(&value) {
            return number;
        }
        self.values.push(value.clone());
        let number = self.values.len() as u32;
        self.numbers.insert(value, number);
        number
    }

    /// The value with a number. `None`: it is the default value, or no value has this number.
    #[must_use]
    pub fn get(&self, number: u32) -> Option<&T> {
        self.values.get((number as usize).checked_sub(1)?)
    }
}

/// Where the bytes of a group begin, and the addresses from which its first point is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group {
    /// The address in our code.
    pub at: u64,
    /// The address in the program.
    pub original: u64,
    /// How many bytes come before it.
    pub bytes: usize,
}

/// Points in ascending order. Each is stored as its distance from the one before, in our code and in the program, and
/// the number of its state: a few bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Points<State> {
    groups: Vec<Group>,
    bytes: Vec<u8>,
    /// How many points there are.
    count: usize,
    /// The last one's addresses.
    at: u64,
    original: u64,
    states: Interned<State>,
}

impl<State> Default for Points<State> {
    fn default() -> Self {
        Self {
            groups: Vec::new(),
            bytes: Vec::new(),
            count: 0,
            at: 0,
            original: 0,
            states: Interned::default(),
        }
    }
}

impl<State: Copy + Ord + Default> Extend<Point<State>> for Points<State> {
    /// Appends points that come after those that are there.
    fn extend<Iter: IntoIterator<Item = Point<State>>>(&mut self, points: Iter) {
        let (mut last, mut number) = (State::default(), 0);
        for point in points {
            if self.count.is_multiple_of(GROUP) {
                (self.at, self.original) = (point.at, point.original);
                self.groups.push(Group {
                    at: self.at,
                    original: self.original,
                    bytes: self.bytes.len(),
                });
            }
            if point.state != last {
                (last, number) = (point.state, self.states.number(point.state));
            }
            debug_assert!(self.at <= point.at, "points are in ascending order");
            let distance = point.original.wrapping_sub(self.original).cast_signed();
            self.put((point.at - self.at) << 1 | u64::from(number != 0));
            self.put(((distance << 1) ^ (distance >> 63)).cast_unsigned());
            if number != 0 {
                self.put(number.into());
            }
            (self.at, self.original) = (point.at, point.original);
            self.count += 1;
        }
    }
}

impl<State: Copy + Ord + Default> FromIterator<Point<State>> for Points<State> {
    fn from_iter<Iter: IntoIterator<Item = Point<State>>>(points: Iter) -> Self {
        let mut all = Self::default();
        all.extend(points);
        all
    }
}

impl<State> Points<State> {
    /// Seven bits a byte, the lowest first; the highest bit says that more follow.
    fn put(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }

    /// What the table consists of, to keep it elsewhere.
    pub fn parts(&self) -> Parts<'_, impl Fn(usize) -> Group + Copy, State> {
        let groups = &self.groups[..];
        Parts {
            count: groups.len(),
            group: move |number: usize| groups[number],
            bytes: &self.bytes,
            states: &self.states.values,
        }
    }
}

impl<State: Copy + Default> Points<State> {
    /// The first point at an address.
    #[must_use]
    pub fn at(&self, at: u64) -> Option<Point<State>> {
        self.parts().at(at)
    }

    /// The last point that is not after an address.
    #[must_use]
    pub fn at_or_before(&self, at: u64) -> Option<Point<State>> {
        self.parts().at_or_before(at)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = Point<State>> {
        self.parts().decode(0)
    }
}

/// A table of points by its parts, wherever these are.
#[derive(Debug, Clone, Copy)]
pub struct Parts<'p, Groups, State> {
    /// How many groups there are.
    pub count: usize,
    /// A group by number.
    pub group: Groups,
    /// The bytes of all groups.
    pub bytes: &'p [u8],
    /// The states by number, from 1 on. 0 is the default.
    pub states: &'p [State],
}

impl<'p, Groups: Fn(usize) -> Group + Copy, State: Copy + Default> Parts<'p, Groups, State> {
    /// The first point at an address.
    pub fn at(self, at: u64) -> Option<Point<State>> {
        let group = self.groups_before(|group| group.at < at);
        let mut points = self.decode(group.saturating_sub(1));
        let first = points.find(|point| point.at >= at);
        first.filter(|point| point.at == at)
    }

    /// The last point that is not after an address.
    pub fn at_or_before(self, at: u64) -> Option<Point<State>> {
        let group = self.groups_before(|group| group.at <= at);
        let points = self.decode(group.checked_sub(1)?);
        points.take_while(|point| point.at <= at).last()
    }

    /// How many groups come before the others.
    fn groups_before(&self, is_before: impl Fn(Group) -> bool) -> usize {
        let (mut before, mut after) = (0, self.count);
        while before < after {
            let middle = usize::midpoint(before, after);
            match is_before((self.group)(middle)) {
                true => before = middle + 1,
                false => after = middle,
            }
        }
        before
    }

    /// The points from a group on, decoded one by one.
    fn decode(self, group: usize) -> Decoded<'p, Groups, State> {
        Decoded {
            parts: self,
            next: group,
            rest: &[],
            at: 0,
            original: 0,
        }
    }
}

/// Points that are decoded.
struct Decoded<'p, Groups, State> {
    parts: Parts<'p, Groups, State>,
    /// The group that comes next.
    next: usize,
    /// The bytes that come before it.
    rest: &'p [u8],
    /// The last point's addresses.
    at: u64,
    original: u64,
}

impl<Groups: Fn(usize) -> Group, State> Decoded<'_, Groups, State> {
    fn begin_group(&mut self) -> Option<()> {
        let parts = &self.parts;
        let number = self.next;
        let group = |number| (number < parts.count).then(|| (parts.group)(number));
        let this = group(number)?;
        let end = group(number + 1).map_or(parts.bytes.len(), |next| next.bytes);
        self.rest = parts.bytes.get(this.bytes..end)?;
        (self.at, self.original) = (this.at, this.original);
        self.next = number + 1;
        Some(())
    }

    fn word(&mut self) -> Option<u64> {
        let (mut value, mut shift) = (0, 0);
        loop {
            let (&byte, rest) = self.rest.split_first()?;
            self.rest = rest;
            value |= u64::from(byte & 0x7F).checked_shl(shift)?;
            shift += 7;
            if byte < 0x80 {
                return Some(value);
            }
        }
    }
}

impl<Groups: Fn(usize) -> Group, State: Copy + Default> Iterator for Decoded<'_, Groups, State> {
    type Item = Point<State>;

    fn next(&mut self) -> Option<Point<State>> {
        if self.rest.is_empty() {
            self.begin_group()?;
        }
        let first = self.word()?;
        let distance = self.word()?;
        let number = if first & 1 == 0 { 0 } else { self.word()? };
        let state = match (number as usize).checked_sub(1) {
            None => State::default(),
            Some(index) => *self.parts.states.get(index)?,
        };
        let distance = (distance >> 1).cast_signed() ^ -(distance & 1).cast_signed();
        self.at = self.at.wrapping_add(first >> 1);
        self.original = self.original.wrapping_add_signed(distance);
        Some(Point {
            at: self.at,
            original: self.original,
            state,
        })
    }
}

/// An instruction of the program for which an emitted one stands: before that, all registers and all memory are as the
/// program has left them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct AppPoint {
    /// The address of the program's instruction.
    pub original: u64,
    /// Whether its probes have run.
    pub probed: bool,
}

impl AppPoint {
    /// An instruction whose probes have not run.
    #[must_use]
    pub const fn unprobed(original: u64) -> Self {
        Self {
            original,
            probed: false,
        }
    }

    /// An instruction whose probes have run.
    #[must_use]
    pub const fn probed(original: u64) -> Self {
        Self {
            original,
            probed: true,
        }
    }
}

/// What moved code stands for. At all instructions that are not in the map, the thread is in between, and has to go on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StateMap {
    /// Our instructions, and whether the probes of the program's have run.
    ours: Points<bool>,
    /// The other way round: the program's instructions that are executed elsewhere, and where.
    copies: Points<()>,
}

impl StateMap {
    /// `ours`: our instructions, and what they stand for. `copies`: the program's instructions that must be executed
    /// elsewhere, and where; see [`Self::copy_of`].
    #[must_use]
    pub fn new(mut ours: Vec<(u64, AppPoint)>, mut copies: Vec<(u64, u64)>) -> Self {
        ours.sort_unstable();
        copies.sort_unstable();
        let ours = ours.into_iter().map(|(at, stands_for)| Point {
            at,
            original: stands_for.original,
            state: stands_for.probed,
        });
        let copies = copies.into_iter().map(|(original, copy)| Point {
            at: original,
            original: copy,
            state: (),
        });
        Self {
            ours: ours.collect(),
            copies: copies.collect(),
        }
    }

    /// For moved instructions, as pairs of their original addresses and the addresses of their copies, in the order of
    /// both. Their probes have run.
    #[must_use]
    pub fn of_copies(pairs: impl IntoIterator<Item = (u64, u64)>) -> Self {
        let copies: Vec<_> = pairs.into_iter().collect();
        let ours = copies
            .iter()
            .map(|&(old, new)| (new, AppPoint::probed(old)));
        Self::new(ours.collect(), copies.clone())
    }

    /// What our instruction at an address stands for; if it stands for several, the first of them. `None`: a thread
    /// there is in between.
    #[must_use]
    pub fn at(&self, ours: u64) -> Option<AppPoint> {
        self.ours.at(ours).map(stands_for)
    }

    /// Our last instruction in the map that begins at or before an address, and what it stands for; if it stands for
    /// several, the last of them, whose code it is.
    #[must_use]
    pub fn at_or_before(&self, ours: u64) -> Option<(u64, AppPoint)> {
        let point = self.ours.at_or_before(ours)?;
        Some((point.at, stands_for(point)))
    }

    /// Where an instruction of the program is executed, if not in place.
    #[must_use]
    pub fn copy_of(&self, original: u64) -> Option<u64> {
        self.copies.at(original).map(|point| point.original)
    }

    /// The program's instructions that are executed elsewhere, and where, in ascending order.
    pub fn copies(&self) -> impl Iterator<Item = (u64, u64)> {
        self.copies.iter().map(|point| (point.at, point.original))
    }
}

fn stands_for(point: Point<bool>) -> AppPoint {
    AppPoint {
        original: point.original,
        probed: point.state,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Random points in several pieces, some of them at the same addresses: each address has the points that a plain
    /// list has.
    #[test]
    fn each_address_has_its_points() {
        let mut random = 0x1234_5678_9ABC_DEF1_u64;
        let mut below = |end: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % end
        };
        let (mut all, mut points) = (Vec::new(), Points::<u16>::default());
        assert_eq!(points.at_or_before(u64::MAX), None);
        assert_eq!(points.at(0), None);
        let mut at = 0x2000_0000_0000;
        for _ in 0..40 {
            let mut piece = Vec::new();
            for _ in 0..below(200) {
                at += [0, 1, 5, 17, 300][below(5) as usize];
                piece.push(Point {
                    at,
                    original: [0x40_0000, u64::MAX - 0x1000][below(2) as usize] + below(0x1000),
                    state: [0, 1, 2, 700][below(4) as usize],
                });
            }
            points.extend(piece.iter().copied());
            all.extend(piece);
        }
        for at in all[0].at - 1..=at + 2 {
            let last = all.iter().rfind(|point| point.at <= at).copied();
            assert_eq!(points.at_or_before(at), last, "{at:#x}");
            let first = all.iter().find(|point| point.at == at).copied();
            assert_eq!(points.at(at), first, "{at:#x}");
        }
        assert_eq!(points.iter().collect::<Vec<_>>(), all);
    }

    /// Many points at one address are in more than one group.
    #[test]
    fn the_first_point_at_an_address_may_be_groups_before_the_last() {
        let point = |original| Point {
            at: 7,
            original,
            state: (),
        };
        let points: Points<()> = (0..3 * GROUP as u64).map(point).collect();
        assert_eq!(points.at(7), Some(point(0)));
        let last = point(3 * GROUP as u64 - 1);
        assert_eq!(points.at_or_before(7), Some(last));
        assert_eq!(points.at(8), None);
    }

    #[test]
    fn what_is_damaged_is_not_decoded() {
        let points: Points<u8> = [(1, 3), (2, 0)]
            .map(|(at, state)| Point {
                at,
                original: at,
                state,
            })
            .into_iter()
            .collect();
        let whole = points.parts();
        assert_eq!(whole.at(1).map(|point| point.state), Some(3));
        let unknown = Parts {
            states: &[],
            ..whole
        };
        assert_eq!(unknown.at(1), None);
        let endless = Parts {
            bytes: &[0xFF; 32],
            ..whole
        };
        assert_eq!(endless.at(1), None);
        let short = Parts {
            bytes: &whole.bytes[..1],
            ..whole
        };
        assert_eq!(short.at_or_before(9), None);
    }

    #[test]
    fn equal_values_have_one_number() {
        let mut lists = Interned::<InSlots<u8>>::default();
        assert_eq!(lists.number(vec![(3, 1)]), 1);
        assert_eq!(lists.number(Vec::new()), 0);
        assert_eq!(lists.number(vec![(3, 2)]), 2);
        assert_eq!(lists.number(vec![(3, 1)]), 1);
        assert_eq!(lists.get(2), Some(&vec![(3, 2)]));
        assert_eq!((lists.get(0), lists.get(3)), (None, None));
    }

    #[test]
    fn only_instructions_of_the_map_stand_for_others() {
        let ours = vec![
            (0x30, AppPoint::probed(0x1003)),
            (0x10, AppPoint::unprobed(0x1000)),
            (0x20, AppPoint::probed(0x1000)),
        ];
        let map = StateMap::new(ours, vec![(0x1003, 0x30), (0x1000, 0x10)]);
        assert_eq!(map.at(0x10), Some(AppPoint::unprobed(0x1000)));
        assert_eq!(map.at(0x20), Some(AppPoint::probed(0x1000)));
        assert_eq!(map.at(0x21), None);
        assert_eq!(map.at(0xF), None);
        assert_eq!(
            map.at_or_before(0x2F),
            Some((0x20, AppPoint::probed(0x1000)))
        );
        assert_eq!(map.at_or_before(0xF), None);
        assert_eq!(map.copy_of(0x1000), Some(0x10));
        assert_eq!(map.copy_of(0x1001), None);
        assert_eq!(
            map.copies().collect::<Vec<_>>(),
            [(0x1000, 0x10), (0x1003, 0x30)]
        );
    }

    #[test]
    fn an_instruction_may_stand_for_several() {
        let ours = vec![(8, AppPoint::probed(2)), (8, AppPoint::unprobed(2))];
        let map = StateMap::new(ours, Vec::new());
        assert_eq!(map.at(8), Some(AppPoint::unprobed(2)));
        assert_eq!(map.at_or_before(9), Some((8, AppPoint::probed(2))));
    }

    #[test]
    fn copies_stand_for_their_originals() {
        let map = StateMap::of_copies([(0x1000, 0x20), (0x1004, 0x28)]);
        assert_eq!(map.at(0x28), Some(AppPoint::probed(0x1004)));
        assert_eq!(map.copy_of(0x1004), Some(0x28));
    }
}
