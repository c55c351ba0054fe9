//! A place in inserted code where all registers have the program's values.

use hodo_isa::x86_64::asm::{AL, RAX};

use super::RAX_NUMBER;
use super::banks::{General, Masks, Vectors};
use super::lower::{Flags, Lowering, at};
use crate::translate::Saved;

impl Lowering<'_, '_, '_> {
    /// Exchanges what scratch registers have for what the program has there, and back. Afterwards, everything is where
    /// it was before, so this may be skipped like other code.
    pub(super) fn show_program(&mut self) {
        let flags = self.flags;
        let parked: Vec<_> = (0..16)
            .filter_map(|number| General::park(self, number))
            .collect();
        if let Flags::Slot(slot) = flags {
            self.show_flags(slot);
        }
        (0..16).for_each(|number| General::show(self, number));
        let (vectors, masks) = (Vectors::exchange(self), Masks::exchange(self));
        self.set_shown(true);
        if flags != Flags::Dead {
            self.flags = Flags::There;
        }
        self.point(Saved::default());
        self.translator.code.nop2();
        self.set_shown(false);
        self.flags = flags;
        self.point(Saved::default());
        vectors
            .into_iter()
            .for_each(|one| Vectors::unpark(self, one));
        masks.into_iter().for_each(|one| Masks::unpark(self, one));
        parked
            .into_iter()
            .for_each(|one| General::unpark(self, one));
    }

    fn set_shown(&mut self, are_shown: bool) {
        self.general.set_shown(are_shown);
        self.vectors.set_shown(are_shown);
        self.masks.set_shown(are_shown);
    }

    /// Sets the flags to what is in a slot.
    fn show_flags(&mut self, slot: u8) {
        let is_there = self.general.slot_of(RAX_NUMBER).is_none();
        let other = self.general.slot();
        if is_there {
            self.translator.code.mov_mr(at(other), RAX);
            self.general.set_slot_of(RAX_NUMBER, Some(other));
            self.point(Saved::default());
        }
        self.translator.code.mov_rm(RAX, at(slot));
        // 1 becomes an overflow.
        self.translator.code.add_ri(AL, 127);
        self.translator.code.sahf();
        if is_there {
            self.translator.code.mov_rm(RAX, at(other));
            self.general.set_slot_of(RAX_NUMBER, None);
            self.point(Saved::default());
        }
        self.general.free(other);
    }
}
