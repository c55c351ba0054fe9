//! Texts in conditions: compared, and fitted to patterns. Of each the first [`STRING`] bytes count, as in events.

use super::condition::{Goal, Writer};
use super::{Atom, Fetch, STRING, Text, cut};
use crate::x86_64::masm::*;

/// A text in memory whose address is in a register.
#[derive(Clone, Copy)]
struct Place {
    /// In the segment of the control block.
    thread: bool,
    /// Bytes to add.
    at: u32,
}

impl Writer<'_, '_> {
    /// Bytes behind a register that has the address of a text, as the place says. What comes next may fault.
    fn at(&mut self, place: Place, base: Reg, more: u32) -> Mem {
        self.loads.push(self.code.here());
        let mem = mem32(base, place.at.wrapping_add(more));
        if place.thread { mem.in_gs() } else { mem }
    }

    /// Brings the address of a text into `rax`.
    fn address(&mut self, text: &Text) -> Place {
        match text {
            Text::Value(value) => {
                debug_assert!(matches!(self.values[*value], Fetch::Text(..)));
                self.word(*value);
                Place {
                    thread: false,
                    at: 0,
                }
            }
            Text::Thread(at) => {
                self.code.xor_rr(EAX, EAX);
                Place {
                    thread: true,
                    at: *at,
                }
            }
            Text::Fixed(_) => Place {
                thread: false,
                at: 0,
            },
        }
    }

    /// Goes to `to` if it is as wanted that two texts are the same.
    pub(super) fn same(&mut self, left: &Text, right: &Text, when: bool, to: &mut Goal) {
        let mut differ = Goal::new();
        match (left, right) {
            (Text::Fixed(left), Text::Fixed(right)) => {
                let same = cut(left) == cut(right);
                if same == when {
                    self.code.xor_rr(EAX, EAX);
                    self.jump_if(Cond::E, to);
                }
                return;
            }
            (Text::Fixed(fixed), text) | (text, Text::Fixed(fixed)) => {
                let place = self.address(text);
                if fixed.len() > STRING {
                    self.code.xor_rr(EAX, EAX);
                    self.jump_if(Cond::E, &mut differ);
                }
                let end = (fixed.len() < STRING).then_some(&0);
                for (index, &byte) in fixed.iter().chain(end).take(STRING).enumerate() {
                    let mem = self.at(place, RAX, index as u32);
                    self.code.cmp_mi(BYTE, mem, byte.into());
                    self.jump_if(Cond::NE, &mut differ);
                }
            }
            (left, right) => self.same_memory(left, right, &mut differ),
        }
        if when {
            self.jump_to(to);
            self.bind(differ);
        } else {
            let mut same = Goal::new();
            self.jump_to(&mut same);
            self.bind(differ);
            self.jump_to(to);
            self.bind(same);
        }
    }

    fn same_memory(&mut self, left: &Text, right: &Text, differ: &mut Goal) {
        self.needs.registers = true;
        let spare = self.take();
        let left = self.address(left);
        let slot = self.spare(spare);
        self.code.mov_mr(slot, RAX);
        let right = self.address(right);
        self.code.mov_rr(RDX, RAX);
        self.code.mov_rm(RAX, slot);
        self.code.add_mi(QWORD, slot, STRING as u32);
        let next = self.code.label_here();
        let mut same = Goal::new();
        let mem = self.at(left, RAX, 0);
        self.code.mov_rm(CL, mem);
        let mem = self.at(right, RDX, 0);
        self.code.cmp_rm(CL, mem);
        self.jump_if(Cond::NE, differ);
        self.code.test_rr(CL, CL);
        self.jump_if(Cond::E, &mut same);
        self.code.inc_r(RAX);
        self.code.inc_r(RDX);
        self.code.cmp_rm(RAX, slot);
        self.code.jcc(Cond::NE, next);
        self.bind(same);
        self.scratch -= 1;
    }

    /// Goes to `to` if it is as wanted that a text fits a pattern. What is between two `*` is looked for from the left: where
    /// it is found first leaves most for the rest.
    pub(super) fn fits(&mut self, text: &Text, pattern: &[Atom], when: bool, to: &mut Goal) {
        if let Text::Fixed(fixed) = text {
            let fits = u64::from(Atom::fit(pattern, cut(fixed)));
            self.jump(&super::Test::Number(fits), when, to);
            return;
        }
        self.needs.registers = true;
        let place = self.address(text);
        let mut differ = Goal::new();
        // rdx: the end of the text.
        self.code.mov_rr(RDX, RAX);
        self.code.lea(RCX, mem32(RAX, STRING as u32));
        let next = self.code.label_here();
        let mut end = Goal::new();
        let mem = self.at(place, RDX, 0);
        self.code.cmp_mi(BYTE, mem, 0);
        self.jump_if(Cond::E, &mut end);
        self.code.inc_r(RDX);
        self.code.cmp_rr(RDX, RCX);
        self.code.jcc(Cond::NE, next);
        self.bind(end);
        let mut parts = pattern.split(|atom| *atom == Atom::Many).peekable();
        let first = parts.next().unwrap_or_default();
        let alone = parts.peek().is_none();
        self.room(first, &mut differ, if alone { Cond::NE } else { Cond::A });
        self.part(place, first, &mut differ);
        self.skip(first);
        while let Some(part) = parts.next() {
            if part.is_empty() {
                continue;
            }
            if parts.peek().is_none() {
                let length = (part.len() as u32).wrapping_neg();
                self.code.lea(RCX, mem32(RDX, length));
                self.code.cmp_rr(RCX, RAX);
                self.jump_if(Cond::B, &mut differ);
                self.code.mov_rr(RAX, RCX);
                self.part(place, part, &mut differ);
                break;
            }
            let again = self.code.label_here();
            let (mut other, mut found) = (Goal::new(), Goal::new());
            self.room(part, &mut differ, Cond::A);
            self.part(place, part, &mut other);
            self.jump_to(&mut found);
            self.bind(other);
            self.code.inc_r(RAX);
            self.code.jmp(again);
            self.bind(found);
            self.skip(part);
        }
        if when {
            self.jump_to(to);
            self.bind(differ);
        } else {
            let mut fits = Goal::new();
            self.jump_to(&mut fits);
            self.bind(differ);
            self.jump_to(to);
            self.bind(fits);
        }
    }

    /// Compares where the text would be behind a part with its end.
    fn room(&mut self, part: &[Atom], differ: &mut Goal, unless: Cond) {
        self.code.lea(RCX, mem32(RAX, part.len() as u32));
        self.code.cmp_rr(RCX, RDX);
        self.jump_if(unless, differ);
    }

    fn skip(&mut self, part: &[Atom]) {
        self.code.add_ri(RAX, part.len() as u32);
    }

    /// Compares a part with the text at `rax`.
    fn part(&mut self, place: Place, part: &[Atom], differ: &mut Goal) {
        for (index, atom) in part.iter().enumerate() {
            match atom {
                Atom::Many | Atom::One => {}
                Atom::Byte(byte) => {
                    let mem = self.at(place, RAX, index as u32);
                    self.code.cmp_mi(BYTE, mem, (*byte).into());
                    self.jump_if(Cond::NE, differ);
                }
                Atom::Class(none, ranges) => {
                    let mut inside = Goal::new();
                    for &(low, high) in ranges.iter().filter(|(low, high)| low <= high) {
                        let mem = self.at(place, RAX, index as u32);
                        self.code.movzx_rm(ECX, BYTE, mem);
                        self.code.sub_ri(CL, u32::from(low));
                        self.code.cmp_ri(CL, u32::from(high - low));
                        self.jump_if(Cond::BE, &mut inside);
                    }
                    if *none {
                        let mut outside = Goal::new();
                        self.jump_to(&mut outside);
                        self.bind(inside);
                        self.jump_to(differ);
                        self.bind(outside);
                    } else {
                        self.jump_to(differ);
                        self.bind(inside);
                    }
                }
            }
        }
    }
}
