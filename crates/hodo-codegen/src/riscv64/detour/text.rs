//! Texts in conditions: compared, and fitted to patterns.

use super::asm::{If, Op};
use super::condition::{Goal, Writer};
use super::{Atom, Fetch, Register, Regs, STRING, Test, Text, cut};
use hodo_isa::riscv64::regs::{SP, ZERO};

impl Writer<'_, '_> {
    /// All registers.
    fn seven(&mut self) -> Regs {
        self.needs.texts = true;
        self.probing.frame.regs
    }

    /// Loads the byte that stands at `v` plus an offset into `x`.
    fn byte(&mut self, index: usize) {
        let regs = self.probing.frame.regs;
        let load = self.probing.asm.load(1, regs.x, regs.v, index as i64);
        self.loads.push(load);
    }

    /// Goes to `to` if `x` is not this byte.
    fn unless(&mut self, byte: u8, to: &mut Goal) {
        let regs = self.probing.frame.regs;
        let other = match byte {
            0 => ZERO,
            byte => {
                self.probing.asm.li(regs.a, byte.into());
                regs.a
            }
        };
        self.jump_if(If::NotEqual, regs.x, other, to);
    }

    /// Brings the address of a text into `v`.
    fn address(&mut self, text: &Text) {
        let regs = self.probing.frame.regs;
        match text {
            Text::Value(value) => {
                debug_assert!(matches!(self.values[*value], Fetch::Text(..)));
                self.word(*value);
            }
            Text::Thread(at) => self.probing.asm.add(regs.v, regs.block, (*at).into()),
            Text::Fixed(_) => {}
        }
    }

    /// Goes to `to` if it is as wanted whether the code before has not come to `differ`.
    fn end(&mut self, differ: Goal, when: bool, to: &mut Goal) {
        if when {
            self.jump_to(to);
            self.bind(differ);
        } else {
            let mut same = self.goal();
            self.jump_to(&mut same);
            self.bind(differ);
            self.jump_to(to);
            self.bind(same);
        }
    }

    /// Goes to `to` if it is as wanted that two texts are the same.
    pub(super) fn same(&mut self, left: &Text, right: &Text, when: bool, to: &mut Goal) {
        self.seven();
        let mut differ = self.goal();
        match (left, right) {
            (Text::Fixed(left), Text::Fixed(right)) => {
                let same = u64::from(cut(left) == cut(right));
                return self.jump(&Test::Number(same), when, to);
            }
            (Text::Fixed(fixed), text) | (text, Text::Fixed(fixed)) => {
                self.address(text);
                if fixed.len() > STRING {
                    self.jump_if(If::Equal, ZERO, ZERO, &mut differ);
                }
                let end = (fixed.len() < STRING).then_some(&0);
                for (index, &byte) in fixed.iter().chain(end).take(STRING).enumerate() {
                    self.byte(index);
                    self.unless(byte, &mut differ);
                }
            }
            (left, right) => self.same_memory(left, right, &mut differ),
        }
        self.end(differ, when, to);
    }

    fn same_memory(&mut self, left: &Text, right: &Text, differ: &mut Goal) {
        let regs = self.seven();
        let spare = self.take();
        let at = self.spare(spare);
        self.address(left);
        self.probing.asm.store(8, regs.v, SP, at, regs.x);
        self.address(right);
        let asm = &mut *self.probing.asm;
        asm.mv(regs.t, regs.v);
        asm.ld(regs.v, SP, at);
        asm.add(regs.b, regs.v, STRING as i64);
        let next = asm.here();
        self.loads.push(asm.load(1, regs.x, regs.v, 0));
        self.loads.push(asm.load(1, regs.a, regs.t, 0));
        let mut same = self.goal();
        self.jump_if(If::NotEqual, regs.x, regs.a, differ);
        self.jump_if(If::Equal, regs.x, ZERO, &mut same);
        let asm = &mut *self.probing.asm;
        asm.add(regs.v, regs.v, 1);
        asm.add(regs.t, regs.t, 1);
        asm.branch(If::NotEqual, regs.v, regs.b, next);
        self.bind(same);
        self.scratch -= 1;
    }

    /// Goes to `to` if it is as wanted that a text fits a pattern. What is between two `*` is looked for from the left: where
    /// it is found first leaves most for the rest.
    pub(super) fn fits(&mut self, text: &Text, pattern: &[Atom], when: bool, to: &mut Goal) {
        if let Text::Fixed(fixed) = text {
            let fits = u64::from(Atom::fit(pattern, cut(fixed)));
            return self.jump(&Test::Number(fits), when, to);
        }
        let regs = self.seven();
        self.address(text);
        let mut differ = self.goal();
        // t: the end of the text.
        let asm = &mut *self.probing.asm;
        asm.mv(regs.t, regs.v);
        asm.add(regs.b, regs.v, STRING as i64);
        let next = asm.here();
        self.loads.push(asm.load(1, regs.x, regs.t, 0));
        let mut end = self.goal();
        self.jump_if(If::Equal, regs.x, ZERO, &mut end);
        self.probing.asm.add(regs.t, regs.t, 1);
        self.probing.asm.branch(If::NotEqual, regs.t, regs.b, next);
        self.bind(end);
        let mut parts = pattern.split(|atom| *atom == Atom::Many).peekable();
        let first = parts.next().unwrap_or_default();
        let alone = parts.peek().is_none();
        if first.len() > STRING {
            self.jump_if(If::Equal, ZERO, ZERO, &mut differ);
        } else {
            self.behind(first);
            if alone {
                self.jump_if(If::NotEqual, regs.x, regs.t, &mut differ);
            } else {
                self.jump_if(If::Below, regs.t, regs.x, &mut differ);
            }
            self.part(first, &mut differ);
            self.skip(first);
        }
        while let Some(part) = parts.next() {
            if part.is_empty() {
                continue;
            }
            if part.len() > STRING {
                self.jump_if(If::Equal, ZERO, ZERO, &mut differ);
                break;
            }
            if parts.peek().is_none() {
                let length = part.len() as i64;
                self.probing.asm.add(regs.x, regs.t, -length);
                self.jump_if(If::Below, regs.x, regs.v, &mut differ);
                self.probing.asm.mv(regs.v, regs.x);
                self.part(part, &mut differ);
                break;
            }
            let again = self.probing.asm.here();
            let (mut other, mut found) = (self.goal(), self.goal());
            self.behind(part);
            self.jump_if(If::Below, regs.t, regs.x, &mut differ);
            self.part(part, &mut other);
            self.jump_to(&mut found);
            self.bind(other);
            self.probing.asm.add(regs.v, regs.v, 1);
            self.probing.asm.jump(again);
            self.bind(found);
            self.skip(part);
        }
        self.end(differ, when, to);
    }

    /// Brings the place behind a part into `x`.
    fn behind(&mut self, part: &[Atom]) {
        let regs = self.probing.frame.regs;
        self.probing.asm.mv(regs.x, regs.v);
        self.probing.asm.add(regs.x, regs.x, part.len() as i64);
    }

    fn skip(&mut self, part: &[Atom]) {
        let v: Register = self.probing.frame.regs.v;
        self.probing.asm.add(v, v, part.len() as i64);
    }

    /// Compares a part with the text at `v`.
    fn part(&mut self, part: &[Atom], differ: &mut Goal) {
        let regs = self.probing.frame.regs;
        for (index, atom) in part.iter().enumerate() {
            match atom {
                Atom::Many | Atom::One => {}
                Atom::Byte(byte) => {
                    self.byte(index);
                    self.unless(*byte, differ);
                }
                Atom::Class(none, ranges) => {
                    let mut inside = self.goal();
                    for &(low, high) in ranges.iter().filter(|(low, high)| low <= high) {
                        self.byte(index);
                        let asm = &mut *self.probing.asm;
                        // What is lower becomes a large number.
                        asm.op_imm(Op::ADD, regs.x, regs.x, -i64::from(low));
                        asm.li(regs.a, (high - low).into());
                        self.jump_if(If::NotBelow, regs.a, regs.x, &mut inside);
                    }
                    if *none {
                        let mut outside = self.goal();
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
