//! Which registers our code works with: free ones first, and others that it saves.
//!
//! Each instruction set says in which order it prefers registers. Where a saved register goes is up to the caller.

use crate::detour::Register;

/// The most registers that are chosen at once.
const MOST: usize = 8;

/// In which order registers are chosen.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Preference {
    /// Of those that are free.
    pub free: &'static [Register],
    /// Of the others, which are saved.
    pub saved: &'static [Register],
}

/// The first registers in an order that code does not use. Who takes them saves them.
pub fn unused<const COUNT: usize>(
    order: &[Register],
    is_used: impl Fn(Register) -> bool,
) -> Option<[Register; COUNT]> {
    let mut unused = order.iter().copied().filter(|&register| !is_used(register));
    let mut chosen = [Register::default(); COUNT];
    for register in &mut chosen {
        *register = unused.next()?;
    }
    Some(chosen)
}

/// A list of registers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct List {
    registers: [Register; MOST],
    len: usize,
}

impl List {
    fn push(&mut self, register: Register) {
        self.registers[self.len] = register;
        self.len += 1;
    }

    fn all(&self) -> &[Register] {
        &self.registers[..self.len]
    }
}

/// The registers that were chosen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Scratch {
    chosen: List,
    saved: List,
}

impl Scratch {
    /// Chooses `need` registers, at most eight. `free` has a bit for each register whose value nobody needs. If some
    /// must be saved, `stored` comes first: it has been saved already.
    pub(crate) fn choose(
        free: u32,
        need: usize,
        stored: Option<Register>,
        preference: Preference,
    ) -> Self {
        let mut scratch = Self::default();
        let is_free = |&register: &Register| is_in(free, register) && Some(register) != stored;
        let first = preference.free.iter().copied().filter(is_free);
        first
            .take(need)
            .for_each(|register| scratch.chosen.push(register));
        for register in stored.into_iter().chain(preference.saved.iter().copied()) {
            if scratch.chosen.len < need && !scratch.all().contains(&register) {
                scratch.chosen.push(register);
                scratch.saved.push(register);
            }
        }
        scratch
    }

    /// All of them.
    pub(crate) fn all(&self) -> &[Register] {
        self.chosen.all()
    }

    /// Those that must be saved, in the order in which they were chosen.
    pub(crate) fn saved(&self) -> &[Register] {
        self.saved.all()
    }

    /// The register with this index.
    pub(crate) fn get(&self, index: usize) -> Option<Register> {
        self.all().get(index).copied()
    }

    /// The index of a register among those that are saved.
    pub(crate) fn slot(&self, register: Register) -> Option<usize> {
        self.saved().iter().position(|&saved| saved == register)
    }
}

impl Preference {
    /// How many free registers can be chosen.
    pub(crate) fn available(self, free: u32) -> usize {
        self.free
            .iter()
            .filter(|&&register| is_in(free, register))
            .count()
    }
}

fn is_in(set: u32, register: Register) -> bool {
    set >> register & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREFERENCE: Preference = Preference {
        free: &[5, 6, 7],
        saved: &[7, 6, 5],
    };

    fn choose(free: u32, need: usize, stored: Option<Register>) -> Scratch {
        Scratch::choose(free, need, stored, PREFERENCE)
    }

    #[test]
    fn free_registers_are_taken_first() {
        let scratch = choose(1 << 6 | 1 << 1, 2, None);
        assert_eq!((scratch.all(), scratch.saved()), (&[6, 7][..], &[7][..]));
        assert_eq!((scratch.slot(7), scratch.slot(6)), (Some(0), None));
        assert_eq!((scratch.get(1), scratch.get(2)), (Some(7), None));
        assert_eq!(PREFERENCE.available(1 << 6 | 1 << 1), 1);
    }

    #[test]
    fn registers_that_are_not_used_are_taken_in_order() {
        let is_used = |register| register == 7;
        assert_eq!(unused(&[7, 3, 9], is_used), Some([3, 9]));
        assert_eq!(unused::<3>(&[7, 3, 9], is_used), None);
    }

    #[test]
    fn a_stored_register_is_the_first_of_the_saved_ones() {
        assert_eq!(choose(0, 2, Some(5)).saved(), [5, 7]);
        // It is not needed if enough others are free, and it is never one of the free ones.
        assert_eq!(choose(1 << 6 | 1 << 7, 2, Some(5)).saved(), []);
        assert_eq!(choose(1 << 5, 1, Some(5)).saved(), [5]);
    }
}
