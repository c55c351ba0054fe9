//! A place in inserted code where all registers have the program's values.

use hodo_isa::x86_64::asm::{AL, RAX, Reg};

use super::lower::{Flags, Lowering, RAX_NUMBER, at};

impl Lowering<'_, '_, '_> {
    /// Exchanges what scratch registers have for what the program has there, and back. Afterwards, everything is where
    /// it was before, so this may be skipped like other code.
    pub(super) fn show_program(&mut self) {
        let (program, flags) = (self.program, self.flags);
        let mut kept = Vec::new();
        for (number, slot) in (0..).zip(program) {
            if slot.is_some() && self.is_held(number) {
                let other = self.slot();
                self.translator.code.mov_mr(at(other), Reg::whole(number));
                kept.push((number, other));
            }
        }
        if let Flags::Slot(slot) = flags {
            self.show_flags(slot);
        }
        for (number, slot) in (0..).zip(program) {
            if let Some(slot) = slot {
                self.translator.code.mov_rm(Reg::whole(number), at(slot));
            }
        }
        let wide = self.wide_show();
        self.program = [None; 16];
        if flags != Flags::Dead {
            self.flags = Flags::There;
        }
        self.banks.are_shown = true;
        self.here();
        self.translator.code.nop2();
        self.banks.are_shown = false;
        (self.program, self.flags) = (program, flags);
        self.here();
        self.wide_hide(wide);
        for (number, other) in kept {
            self.translator.code.mov_rm(Reg::whole(number), at(other));
            self.free(other);
        }
    }

    /// Sets the flags to what is in a slot.
    fn show_flags(&mut self, slot: u8) {
        let is_there = self.program[RAX_NUMBER].is_none();
        let other = self.slot();
        if is_there {
            self.translator.code.mov_mr(at(other), RAX);
            self.program[RAX_NUMBER] = Some(other);
            self.here();
        }
        self.translator.code.mov_rm(RAX, at(slot));
        // 1 becomes an overflow.
        self.translator.code.add_ri(AL, 127);
        self.translator.code.sahf();
        if is_there {
            self.translator.code.mov_rm(RAX, at(other));
            self.program[RAX_NUMBER] = None;
            self.here();
        }
        self.free(other);
    }
}
