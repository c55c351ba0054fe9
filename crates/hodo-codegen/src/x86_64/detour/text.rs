//! Compares texts: one is at `rax`, another one or the end at `rdx`; `rcx` is for temporary values.

use alloc::vec::Vec;

use super::{Probing, STRING};
use crate::lower::{Target, Texts};
use crate::x86_64::masm::*;

/// What else is known about the address of a text.
#[derive(Clone, Copy)]
pub(super) struct Place {
    /// It is in the segment of the control block.
    thread: bool,
    /// Bytes to add.
    at: u32,
}

impl Probing<'_, '_> {
    /// The bytes at an offset from a register that holds the address of a text. The next instruction may fault.
    fn at(&mut self, place: Place, base: Reg, more: usize, loads: &mut Vec<u64>) -> Mem {
        loads.push(self.code.here());
        let mem = mem32(base, place.at.wrapping_add(more as u32));
        if place.thread { mem.in_gs() } else { mem }
    }
}

impl Texts for Probing<'_, '_> {
    type Place = Place;

    fn program_text(&self) -> Place {
        Place {
            thread: false,
            at: 0,
        }
    }

    fn thread_text(&mut self, at: u32) -> Place {
        self.number(0);
        Place { thread: true, at }
    }

    fn unless_byte(
        &mut self,
        (place, index): (Place, usize),
        byte: u8,
        to: Label,
        loads: &mut Vec<u64>,
    ) {
        let mem = self.at(place, RAX, index, loads);
        self.code.cmp_mi(BYTE, mem, byte.into());
        self.code.jcc(Cond::NE, to);
    }

    fn if_within(
        &mut self,
        (place, index): (Place, usize),
        (low, high): (u8, u8),
        to: Label,
        loads: &mut Vec<u64>,
    ) {
        let mem = self.at(place, RAX, index, loads);
        self.code.movzx_rm(ECX, BYTE, mem);
        self.code.sub_ri(CL, low.into());
        self.code.cmp_ri(CL, (high - low).into());
        self.code.jcc(Cond::BE, to);
    }

    fn unless_same(
        &mut self,
        (left, word): (Place, usize),
        right: Place,
        to: Label,
        loads: &mut Vec<u64>,
    ) {
        self.code.mov_rr(RDX, RAX);
        self.load(word);
        let end = self.word(word);
        self.code.add_mi(QWORD, end, STRING as u32);
        let (next, same) = (self.code.label_here(), self.code.label());
        let mem = self.at(left, RAX, 0, loads);
        self.code.mov_rm(CL, mem);
        let mem = self.at(right, RDX, 0, loads);
        self.code.cmp_rm(CL, mem);
        self.code.jcc(Cond::NE, to);
        self.code.test_rr(CL, CL);
        self.code.jcc(Cond::E, same);
        self.code.inc_r(RAX);
        self.code.inc_r(RDX);
        self.code.cmp_rm(RAX, end);
        self.code.jcc(Cond::NE, next);
        self.code.bind(same);
    }

    fn find_end(&mut self, place: Place, loads: &mut Vec<u64>) {
        self.code.mov_rr(RDX, RAX);
        self.code.lea(RCX, mem32(RAX, STRING as u32));
        let (next, end) = (self.code.label_here(), self.code.label());
        let mem = self.at(place, RDX, 0, loads);
        self.code.cmp_mi(BYTE, mem, 0);
        self.code.jcc(Cond::E, end);
        self.code.inc_r(RDX);
        self.code.cmp_rr(RDX, RCX);
        self.code.jcc(Cond::NE, next);
        self.code.bind(end);
    }

    fn unless_room(&mut self, bytes: usize, exactly: bool, to: Label) {
        self.code.lea(RCX, mem32(RAX, bytes as u32));
        self.code.cmp_rr(RCX, RDX);
        self.code.jcc(if exactly { Cond::NE } else { Cond::A }, to);
    }

    fn go_to_last(&mut self, bytes: usize, to: Label) {
        self.code
            .lea(RCX, mem32(RDX, (bytes as u32).wrapping_neg()));
        self.code.cmp_rr(RCX, RAX);
        self.code.jcc(Cond::B, to);
        self.code.mov_rr(RAX, RCX);
    }

    fn step(&mut self) {
        self.code.inc_r(RAX);
    }

    fn skip(&mut self, bytes: usize) {
        self.code.add_ri(RAX, bytes as u32);
    }
}
