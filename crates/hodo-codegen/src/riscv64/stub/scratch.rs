//! The registers that a stub works with: free ones, and others that it saves on the stack.

/// The registers that stubs use, in order of preference: instructions have short forms for the first ones.
const CANDIDATES: [u8; 15] = [15, 14, 13, 12, 11, 10, 28, 29, 30, 31, 6, 7, 16, 17, 5];
/// The most registers that a stub needs at once, besides the link register.
pub(super) const MOST: usize = 4;

/// Registers to work with.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Scratch {
    regs: [u8; MOST],
    count: usize,
    /// Those that are saved on the stack, in the order of their places, and how many.
    kept: [u8; MOST],
    kept_count: usize,
}

impl Scratch {
    /// Chooses this many registers, free ones first. If some must be saved, the one that is already on the stack comes
    /// first.
    pub(super) fn choose(free: u32, on_stack: Option<u8>, need: usize) -> Self {
        let mut scratch = Self::default();
        let is_free = |register: &u8| free & 1 << register != 0 && Some(*register) != on_stack;
        for register in CANDIDATES.into_iter().filter(is_free).take(need) {
            scratch.add(register);
        }
        if scratch.count < need
            && let Some(register) = on_stack
        {
            scratch.keep(register);
        }
        for register in CANDIDATES {
            if scratch.count < need && !scratch.regs[..scratch.count].contains(&register) {
                scratch.keep(register);
            }
        }
        scratch
    }

    fn add(&mut self, register: u8) {
        self.regs[self.count] = register;
        self.count += 1;
    }

    fn keep(&mut self, register: u8) {
        self.add(register);
        self.kept[self.kept_count] = register;
        self.kept_count += 1;
    }

    /// How many free registers can be chosen.
    pub(super) fn available(free: u32) -> usize {
        let is_free = |register: &&u8| free & 1 << **register != 0;
        CANDIDATES.iter().filter(is_free).count()
    }

    /// The register with this index.
    pub(super) fn get(&self, index: usize) -> Option<u8> {
        self.regs[..self.count].get(index).copied()
    }

    /// Bytes of stack that are used.
    pub(super) fn bytes(&self) -> u16 {
        (self.kept_count * 8).next_multiple_of(16) as u16
    }

    /// Whether a register is saved on the stack.
    pub(super) fn keeps(&self, register: u8) -> bool {
        self.kept[..self.kept_count].contains(&register)
    }

    /// The registers on the stack, and how far above the lowered stack pointer they are. The first is where the jump to
    /// a stub saves one.
    pub(super) fn places(&self) -> impl Iterator<Item = (u8, i64)> {
        let bytes = i64::from(self.bytes());
        let place = move |(index, register): (usize, u8)| {
            let pair = index as i64 / 2;
            (register, bytes - 16 * (pair + 1) + 8 * (index as i64 % 2))
        };
        let Self {
            kept, kept_count, ..
        } = *self;
        kept.into_iter().take(kept_count).enumerate().map(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn free_registers_are_taken_first() {
        let scratch = Scratch::choose(1 << 15 | 1 << 29 | 1 << 2 | 1 << 1, None, 3);
        assert_eq!(
            [0, 1, 2, 3].map(|index| scratch.get(index)),
            [Some(15), Some(29), Some(14), None]
        );
        assert_eq!(scratch.bytes(), 16);
        assert!(scratch.keeps(14) && !scratch.keeps(29));
    }

    #[test]
    fn what_is_on_the_stack_already_has_the_first_place() {
        let scratch = Scratch::choose(0, Some(5), 4);
        assert_eq!(scratch.bytes(), 32);
        let places: Vec<_> = scratch.places().collect();
        // 16 below where the stack was.
        assert_eq!(places, [(5, 16), (15, 24), (14, 0), (13, 8)]);
        // If enough others are free, it is not needed.
        let scratch = Scratch::choose(0xF000, Some(5), 4);
        assert!(!scratch.keeps(5) && scratch.bytes() == 0);
    }
}
