//! The state of a thread at each address of a part of the cache, in a few bytes for each instruction.

use rustc_hash::FxHashMap;

use crate::translate::{Point, Saved, Stage};

/// To find a point, at most this number of points is decoded.
const GROUP: usize = 64;

/// What points have in common.
pub(crate) type State = (Option<Saved>, Stage);

/// The most frequent state: before an instruction, with the program's state.
const PLAIN: State = (None, Stage::Body);

/// Where the bytes of a group begin, and the addresses from which its first point is counted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Group {
    pub(crate) at: u64,
    pub(crate) original: u64,
    pub(crate) bytes: usize,
}

/// Points in ascending order. Each is stored as its distance from the one before, in the cache and in the program, and
/// the number of its state.
#[derive(Debug, Clone)]
pub(crate) struct Points {
    groups: Vec<Group>,
    bytes: Vec<u8>,
    /// How many points there are.
    count: usize,
    /// The last one's addresses.
    at: u64,
    original: u64,
    states: Vec<State>,
    numbers: FxHashMap<State, u32>,
}

impl Default for Points {
    fn default() -> Self {
        Self {
            groups: Vec::new(),
            bytes: Vec::new(),
            count: 0,
            at: 0,
            original: 0,
            states: vec![PLAIN],
            numbers: std::iter::once((PLAIN, 0)).collect(),
        }
    }
}

impl Points {
    /// Appends points that come after those that are there.
    pub(crate) fn extend(&mut self, points: &[Point]) {
        let (mut last, mut number) = (PLAIN, 0);
        for point in points {
            if self.count.is_multiple_of(GROUP) {
                (self.at, self.original) = (point.at, point.original);
                self.groups.push(Group {
                    at: self.at,
                    original: self.original,
                    bytes: self.bytes.len(),
                });
            }
            let state = (point.inside, point.stage);
            if state != last {
                (last, number) = (state, self.number(state));
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

    fn number(&mut self, state: State) -> u32 {
        let next = self.states.len() as u32;
        let number = *self.numbers.entry(state).or_insert(next);
        if number == next {
            self.states.push(state);
        }
        number
    }

    /// Seven bits a byte, the lowest first; the highest bit says that more follow.
    fn put(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }

    /// The last point that is not after an address.
    pub(crate) fn get(&self, at: u64) -> Option<Point> {
        let group = |number: usize| self.groups[number];
        find(self.groups.len(), group, &self.bytes, &self.states, at)
    }

    /// The groups, the bytes, and the states.
    pub(crate) fn parts(&self) -> (impl Iterator<Item = Group>, &[u8], &[State]) {
        (self.groups.iter().copied(), &self.bytes, &self.states)
    }
}

/// The last point that is not after an address, of points in this number of groups.
pub(crate) fn find(
    count: usize,
    group: impl Fn(usize) -> Group,
    bytes: &[u8],
    states: &[State],
    at: u64,
) -> Option<Point> {
    let (mut before, mut after) = (0, count);
    while before < after {
        let middle = usize::midpoint(before, after);
        match group(middle).at <= at {
            true => before = middle + 1,
            false => after = middle,
        }
    }
    let next = before;
    let end = match next < count {
        true => group(next).bytes,
        false => bytes.len(),
    };
    let group = group(next.checked_sub(1)?);
    let mut bytes = bytes.get(group.bytes..end)?.iter();
    let mut word = || -> Option<u64> {
        let (mut value, mut shift) = (0, 0);
        loop {
            let byte = *bytes.next()?;
            value |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte < 0x80 {
                return Some(value);
            }
        }
    };
    let (mut here, mut original, mut found) = (group.at, group.original, None);
    while let Some(first) = word() {
        let distance = word()?;
        let number = if first & 1 == 0 { 0 } else { word()? };
        here += first >> 1;
        let distance = (distance >> 1).cast_signed() ^ -(distance & 1).cast_signed();
        original = original.wrapping_add_signed(distance);
        if here > at {
            break;
        }
        found = Some((here, original, number));
    }
    let (at, original, number) = found?;
    let &(inside, stage) = states.get(number as usize)?;
    Some(Point {
        at,
        original,
        inside,
        stage,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Random points in several pieces: each address has the point that a plain list has.
    #[test]
    fn each_address_has_its_point() {
        let mut random = 0x1234_5678_9abc_def1_u64;
        let mut below = |end: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % end
        };
        let (mut all, mut points) = (Vec::new(), Points::default());
        assert_eq!(points.get(u64::MAX), None);
        let mut at = 0x2000_0000_0000;
        for _ in 0..40 {
            let mut piece = Vec::new();
            for _ in 0..below(200) {
                at += [1, 5, 17, 300][below(4) as usize];
                piece.push(Point {
                    at,
                    original: [0x40_0000, u64::MAX - 0x1000][below(2) as usize] + below(0x1000),
                    inside: (below(2) == 0).then(|| Saved {
                        kept: below(2) as u8,
                        map: below(3) as u32,
                        ..Saved::default()
                    }),
                    stage: [Stage::Body, Stage::Head, Stage::Left(7)][below(3) as usize],
                });
            }
            points.extend(&piece);
            all.extend(piece);
        }
        for at in all[0].at - 1..=at + 2 {
            let expected = all.iter().rfind(|point| point.at <= at).copied();
            assert_eq!(points.get(at), expected, "{at:#x}");
        }
    }
}
