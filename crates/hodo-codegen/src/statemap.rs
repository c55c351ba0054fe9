//! Which of our instructions stand for which instructions of the program.
//!
//! A thread may be stopped at any instruction, by a signal, by a fault, or because hodo attaches or detaches. The map
//! says whether the thread's state is then that of the program at one of its own instructions. At all other
//! instructions in our memory the thread is in between, and has to go on.

use alloc::vec::Vec;

/// An instruction of the program for which one of ours stands: in front of it, all registers and all memory are as the
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

/// The map; see above.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StateMap {
    /// Our instructions, in ascending order.
    ours: Vec<(u64, AppPoint)>,
    /// The program's instructions that are executed elsewhere, and where; in ascending order.
    copies: Vec<(u64, u64)>,
}

impl StateMap {
    /// `ours`: our instructions, and what they stand for. `copies`: the program's instructions that must be executed
    /// elsewhere, and where; see [`Self::copy_of`].
    #[must_use]
    pub fn new(mut ours: Vec<(u64, AppPoint)>, mut copies: Vec<(u64, u64)>) -> Self {
        ours.sort_unstable();
        copies.sort_unstable();
        Self { ours, copies }
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
        let index = self.ours.partition_point(|&(at, _)| at < ours);
        let found = self.ours.get(index).filter(|&&(at, _)| at == ours);
        found.map(|&(_, point)| point)
    }

    /// Our last instruction in the map that begins at or before an address, and what it stands for; if it stands for
    /// several, the last of them, whose code it is.
    #[must_use]
    pub fn at_or_before(&self, ours: u64) -> Option<(u64, AppPoint)> {
        let next = self.ours.partition_point(|&(at, _)| at <= ours);
        self.ours.get(next.checked_sub(1)?).copied()
    }

    /// Where an instruction of the program is executed, if not in place.
    #[must_use]
    pub fn copy_of(&self, original: u64) -> Option<u64> {
        let index = self.copies.partition_point(|&(at, _)| at < original);
        let found = self.copies.get(index).filter(|&&(at, _)| at == original);
        found.map(|&(_, copy)| copy)
    }

    /// The program's instructions that are executed elsewhere, and where, in ascending order.
    pub fn copies(&self) -> impl Iterator<Item = (u64, u64)> {
        self.copies.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
