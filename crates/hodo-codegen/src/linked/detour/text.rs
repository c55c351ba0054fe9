//! Compares texts: one is at `v`, another one or the end at `t`; `x`, `a` and `b` are for temporary values.

use alloc::vec::Vec;

use super::{Arithmetic, Probing, STRING};
use crate::linked::asm::Assembler;
use crate::lower::Texts;
use hodo_isa::buffer::Label;
use hodo_isa::linked::If;

impl<A: Assembler> Probing<'_, A> {
    /// Loads the byte at `v` plus an offset into `x`.
    fn byte(&mut self, index: usize, loads: &mut Vec<Label>) {
        let regs = self.frame.regs;
        loads.push(self.asm.load(1, regs.x, regs.v, index as i64));
    }
}

impl<A: Assembler> Texts for Probing<'_, A> {
    type Place = ();

    fn program_text(&self) {}

    fn thread_text(&mut self, at: u32) {
        let regs = self.frame.regs;
        self.asm.add(regs.v, regs.block, at.into());
    }

    fn unless_byte(
        &mut self,
        ((), index): ((), usize),
        byte: u8,
        to: Label,
        loads: &mut Vec<Label>,
    ) {
        let regs = self.frame.regs;
        self.byte(index, loads);
        let other = match byte {
            0 => A::ZERO,
            byte => {
                self.asm.li(regs.a, byte.into());
                regs.a
            }
        };
        self.asm.branch(If::NotEqual, regs.x, other, to);
    }

    fn if_within(
        &mut self,
        ((), index): ((), usize),
        (low, high): (u8, u8),
        to: Label,
        loads: &mut Vec<Label>,
    ) {
        let regs = self.frame.regs;
        self.byte(index, loads);
        // Lower ones become large numbers.
        self.asm
            .op_number((Arithmetic::Add, false), regs.x, regs.x, -i64::from(low));
        self.asm.li(regs.a, (high - low).into());
        self.asm.branch(If::NotBelow, regs.a, regs.x, to);
    }

    fn unless_same(&mut self, ((), word): ((), usize), (): (), to: Label, loads: &mut Vec<Label>) {
        let regs = self.frame.regs;
        let asm = &mut *self.asm;
        asm.mv(regs.t, regs.v);
        asm.load(8, regs.v, A::STACK, 8 * word as i64);
        asm.add(regs.b, regs.v, STRING as i64);
        let (next, same) = (asm.here(), asm.label());
        loads.push(asm.load(1, regs.x, regs.v, 0));
        loads.push(asm.load(1, regs.a, regs.t, 0));
        asm.branch(If::NotEqual, regs.x, regs.a, to);
        asm.branch(If::Equal, regs.x, A::ZERO, same);
        asm.add(regs.v, regs.v, 1);
        asm.add(regs.t, regs.t, 1);
        asm.branch(If::NotEqual, regs.v, regs.b, next);
        asm.bind(same);
    }

    fn find_end(&mut self, (): (), loads: &mut Vec<Label>) {
        let regs = self.frame.regs;
        let asm = &mut *self.asm;
        asm.mv(regs.t, regs.v);
        asm.add(regs.b, regs.v, STRING as i64);
        let (next, end) = (asm.here(), asm.label());
        loads.push(asm.load(1, regs.x, regs.t, 0));
        asm.branch(If::Equal, regs.x, A::ZERO, end);
        asm.add(regs.t, regs.t, 1);
        asm.branch(If::NotEqual, regs.t, regs.b, next);
        asm.bind(end);
    }

    fn unless_room(&mut self, bytes: usize, exactly: bool, to: Label) {
        let regs = self.frame.regs;
        self.asm.mv(regs.x, regs.v);
        self.asm.add(regs.x, regs.x, bytes as i64);
        match exactly {
            true => self.asm.branch(If::NotEqual, regs.x, regs.t, to),
            false => self.asm.branch(If::Below, regs.t, regs.x, to),
        }
    }

    fn go_to_last(&mut self, bytes: usize, to: Label) {
        let regs = self.frame.regs;
        self.asm.add(regs.x, regs.t, -(bytes as i64));
        self.asm.branch(If::Below, regs.x, regs.v, to);
        self.asm.mv(regs.v, regs.x);
    }

    fn step(&mut self) {
        self.skip(1);
    }

    fn skip(&mut self, bytes: usize) {
        let v = self.frame.regs.v;
        self.asm.add(v, v, bytes as i64);
    }
}
