//! The registers that a stub works with, and where it saves some of them on the stack.

use crate::detour::Register;
use crate::reserve::scratch::{Preference, Scratch};

/// Those that no function finds anything in come first. `x16` and `x17` are needed to call the agent.
pub(super) const CANDIDATES: &[Register] = &[9, 10, 11, 12, 13, 14, 15, 8, 7, 6, 5, 4, 3, 2, 1, 0];
/// What stubs use, besides the link register.
pub(super) const PREFERENCE: Preference = Preference {
    free: CANDIDATES,
    saved: CANDIDATES,
};

/// Bytes of stack that are used.
pub(super) fn bytes(scratch: &Scratch) -> u16 {
    (scratch.saved().len() * 8).next_multiple_of(16) as u16
}

/// The registers on the stack: pairs, of which the last may be a single one, and how far above the lowered stack
/// pointer they are.
pub(super) fn places(scratch: Scratch) -> impl Iterator<Item = (Register, Option<Register>, i64)> {
    (0..).step_by(2).map_while(move |index| {
        let saved = scratch.saved();
        let first = *saved.get(index)?;
        Some((first, saved.get(index + 1).copied(), index as i64 * 8))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn choose(free: u32, need: usize) -> Scratch {
        Scratch::choose(free, need, None, PREFERENCE)
    }

    #[test]
    fn free_registers_are_taken_first() {
        // x15, x3, and some that stubs do not use
        let scratch = choose(1 << 15 | 1 << 3 | 1 << 16 | 1 << 17 | 1 << 18 | 1 << 30, 3);
        assert_eq!(scratch.all(), [15, 3, 9]);
        assert_eq!(scratch.saved(), [9]);
        assert_eq!(bytes(&scratch), 16);
    }

    #[test]
    fn registers_are_saved_in_pairs() {
        let saved: Vec<_> = places(choose(0, 3)).collect();
        assert_eq!(saved, [(9, Some(10), 0), (11, None, 16)]);
        assert_eq!(bytes(&choose(0, 3)), 32);
        assert_eq!(bytes(&choose(0xFE00, 5)), 0);
    }
}
