//! The registers that a stub works with, and where it saves some of them on the stack.

use crate::detour::Register;
use crate::reserve::scratch::{Preference, Scratch};

/// Instructions have short forms for the first ones.
const CANDIDATES: &[Register] = &[15, 14, 13, 12, 11, 10, 28, 29, 30, 31, 6, 7, 16, 17, 5];
/// What stubs use, besides the link register.
pub(super) const PREFERENCE: Preference = Preference {
    free: CANDIDATES,
    saved: CANDIDATES,
};

/// Bytes of stack that are used.
pub(super) fn bytes(scratch: &Scratch) -> u16 {
    (scratch.saved().len() * 8).next_multiple_of(16) as u16
}

/// The registers on the stack, and how far above the lowered stack pointer they are. The first is where the jump to a
/// stub saves one.
pub(super) fn places(scratch: Scratch) -> impl Iterator<Item = (Register, i64)> {
    let bytes = i64::from(bytes(&scratch));
    (0..).map_while(move |index| {
        let register = *scratch.saved().get(index)?;
        let (pair, half) = (index as i64 / 2, index as i64 % 2);
        Some((register, bytes - 16 * (pair + 1) + 8 * half))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn choose(free: u32, stored: Option<Register>, need: usize) -> Scratch {
        Scratch::choose(free, need, stored, PREFERENCE)
    }

    #[test]
    fn free_registers_are_taken_first() {
        let scratch = choose(1 << 15 | 1 << 29 | 1 << 2 | 1 << 1, None, 3);
        assert_eq!(scratch.all(), [15, 29, 14]);
        assert_eq!(bytes(&scratch), 16);
        assert_eq!(scratch.saved(), [14]);
    }

    #[test]
    fn what_is_on_the_stack_already_has_the_first_place() {
        let scratch = choose(0, Some(5), 4);
        assert_eq!(bytes(&scratch), 32);
        let places: Vec<_> = places(scratch).collect();
        // 16 below where the stack was.
        assert_eq!(places, [(5, 16), (15, 24), (14, 0), (13, 8)]);
        // If enough others are free, it is not needed.
        assert_eq!(bytes(&choose(0xF000, Some(5), 4)), 0);
    }
}
