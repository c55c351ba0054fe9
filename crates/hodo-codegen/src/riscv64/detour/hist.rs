//! Histograms: the slot's number is in `v`, the table in `t`, the slot in `a`, the tag in `b`; `x` and `p` are for
//! temporary values.

use alloc::vec::Vec;
use core::ops::Range;

use super::{HEAD, Part, Probing};
use crate::lower::Tables;
use crate::riscv64::masm::{If, Insns as _, Label, Op};
use hodo_isa::riscv64::regs::{SP, ZERO};

impl Probing<'_> {
    /// The place of a word of keys or sums, relative to the stack pointer.
    fn key(&self, word: usize) -> i64 {
        self.frame.word(self.keys + word)
    }

    /// Adds a small number to the word at an address plus an offset.
    fn add_at(&mut self, base: u8, at: u32, number: u64) {
        let regs = self.frame.regs;
        self.asm.li(regs.p, number);
        self.asm.add(regs.x, base, at.into());
        self.asm.amoadd_d(ZERO, regs.p, regs.x);
    }
}

impl Tables for Probing<'_> {
    fn store_key(&mut self, word: usize) {
        let regs = self.frame.regs;
        self.asm.store(8, regs.v, SP, self.key(word), regs.x);
    }

    fn clear_keys(&mut self, words: Range<usize>) {
        for word in words {
            let key = self.key(word);
            self.asm.store(8, ZERO, SP, key, self.frame.regs.x);
        }
    }

    fn copy_key(&mut self, word: usize, loads: &mut Vec<Label>) {
        let key = self.key(word);
        self.asm.add(self.frame.regs.a, SP, key);
        let done = self.asm.label();
        self.copy_text(done, loads);
    }

    fn part(&mut self, part: Part) {
        let regs = self.frame.regs;
        let asm = &mut *self.asm;
        match part {
            Part::Each => {}
            Part::Log2 => {
                // The number of bits, by bisection. At the end, `v` is 0 or 1.
                asm.li(regs.a, 0);
                for half in [32, 16, 8, 4, 2, 1] {
                    let none = asm.label();
                    asm.op_imm(Op::SRL, regs.t, regs.v, half);
                    asm.branch(If::Equal, regs.t, ZERO, none);
                    asm.mv(regs.v, regs.t);
                    asm.add(regs.a, regs.a, half);
                    asm.bind(none);
                }
                asm.op(Op::ADD, regs.v, regs.v, regs.a);
            }
            Part::Linear(width, signed) => {
                let signed = signed && width <= i64::MAX as u64;
                asm.li(regs.t, width);
                let op = if signed { Op::REM } else { Op::REMU };
                asm.op(op, regs.a, regs.v, regs.t);
                asm.op(Op::SUB, regs.v, regs.v, regs.a);
                if signed {
                    let above = asm.label();
                    asm.branch(If::NotLess, regs.a, ZERO, above);
                    asm.op(Op::SUB, regs.v, regs.v, regs.t);
                    asm.bind(above);
                }
            }
        }
    }

    fn table(&mut self, base: u32, table: i64) {
        let regs = self.frame.regs;
        self.asm.ld(regs.t, base.into(), regs.block);
        self.asm.li(regs.x, table.cast_unsigned());
        self.asm.op(Op::ADD, regs.t, regs.t, regs.x);
    }

    fn hash(&mut self, keys: usize) {
        let regs = self.frame.regs;
        // An odd number whose bits look random: the golden ratio's.
        self.asm.li(regs.t, 0x9E37_79B9_7F4A_7C15);
        self.asm.ld(regs.v, self.key(0), SP);
        self.asm.op(Op::MUL, regs.v, regs.v, regs.t);
        for key in 1..keys {
            self.asm.op_imm(Op::SRL, regs.x, regs.v, 32);
            self.asm.op(Op::XOR, regs.v, regs.v, regs.x);
            self.asm.ld(regs.x, self.key(key), SP);
            self.asm.op(Op::XOR, regs.v, regs.v, regs.x);
            self.asm.op(Op::MUL, regs.v, regs.v, regs.t);
        }
    }

    fn tag(&mut self, from: u32) {
        let regs = self.frame.regs;
        self.asm.op_imm(Op::AND, regs.v, regs.v, -4);
        self.asm.add(regs.b, regs.v, 2);
        self.asm.op_imm(Op::SRL, regs.v, regs.v, from.into());
    }

    fn slot(&mut self, bytes: u64) {
        let regs = self.frame.regs;
        self.asm.li(regs.x, bytes);
        self.asm.op(Op::MUL, regs.a, regs.v, regs.x);
        self.asm.op(Op::ADD, regs.a, regs.a, regs.t);
        self.asm.add(regs.a, regs.a, HEAD as i64);
    }

    fn unless_tag(&mut self, to: Label) {
        let regs = self.frame.regs;
        self.asm.ld(regs.x, 0, regs.a);
        self.asm.branch(If::NotEqual, regs.x, regs.b, to);
        self.asm.fence_loads();
    }

    fn unless_key(&mut self, at: u32, word: usize, to: Label) {
        let regs = self.frame.regs;
        self.asm.ld(regs.x, self.key(word), SP);
        self.asm.ld(regs.p, at.into(), regs.a);
        self.asm.branch(If::NotEqual, regs.x, regs.p, to);
    }

    fn if_taken(&mut self, to: Label) {
        self.asm.branch(If::NotEqual, self.frame.regs.x, ZERO, to);
    }

    fn count_in_slot(&mut self, at: u32) {
        self.add_at(self.frame.regs.a, at, 1);
    }

    fn add_in_slot(&mut self, at: u32, word: usize) {
        let regs = self.frame.regs;
        self.asm.ld(regs.p, self.key(word), SP);
        self.asm.add(regs.x, regs.a, at.into());
        self.asm.amoadd_d(ZERO, regs.p, regs.x);
    }

    fn count_in_table(&mut self, at: u32) {
        self.add_at(self.frame.regs.t, at, 1);
    }

    fn take_entry(&mut self, most: u32, full: Label, over: Label) {
        let regs = self.frame.regs;
        self.asm.ld(regs.x, 0, regs.t);
        self.asm.li(regs.p, most.into());
        self.asm.branch(If::Below, regs.p, regs.x, full);
        self.asm.li(regs.x, 1);
        self.asm.amoadd_d(regs.x, regs.x, regs.t);
        self.asm.branch(If::Below, regs.p, regs.x, over);
    }

    fn give_entry_back(&mut self) {
        let regs = self.frame.regs;
        self.asm.li(regs.x, u64::MAX);
        self.asm.amoadd_d(ZERO, regs.x, regs.t);
    }

    fn claim(&mut self, _: usize, to: Label) {
        let regs = self.frame.regs;
        self.asm.add(regs.x, regs.b, -1);
        let claim = self.asm.here();
        self.asm.lr_d_aq(regs.p, regs.a);
        self.asm.branch(If::NotEqual, regs.p, ZERO, to);
        self.asm.sc_d(regs.p, regs.x, regs.a);
        self.asm.branch(If::NotEqual, regs.p, ZERO, claim);
    }

    fn number_again(&mut self, _: usize) {}

    fn put_key(&mut self, at: u32, word: usize) {
        let regs = self.frame.regs;
        self.asm.ld(regs.x, self.key(word), SP);
        self.asm.store(8, regs.x, regs.a, at.into(), regs.p);
    }

    fn publish(&mut self) {
        let regs = self.frame.regs;
        self.asm.fence_stores();
        self.asm.store(8, regs.b, regs.a, 0, regs.p);
    }

    fn next_slot(&mut self, mask: u64) {
        let regs = self.frame.regs;
        self.asm.add(regs.v, regs.v, 1);
        self.asm.li(regs.x, mask);
        self.asm.op(Op::AND, regs.v, regs.v, regs.x);
    }
}
