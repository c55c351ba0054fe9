//! Histograms: the slot's number is in `v`, the table in `t`, the slot in `a`, the tag in `b`; `x` and `p` are for
//! temporary values.

use alloc::vec::Vec;
use core::ops::Range;

use super::{Arithmetic, HEAD, Part, Probing};
use crate::linked::asm::Assembler;
use crate::lower::Tables;
use hodo_isa::buffer::Label;
use hodo_isa::linked::If;

impl<A: Assembler> Probing<'_, A> {
    /// The place of a word of keys or sums, relative to the stack pointer.
    fn key(&self, word: usize) -> i64 {
        self.frame.word(self.keys + word)
    }

    /// Adds 1 to the word at an address plus an offset.
    fn count_at(&mut self, base: u8, at: u32) {
        let regs = self.frame.regs;
        self.asm.add(regs.x, base, at.into());
        self.asm
            .add_at(self.layout, 1, (regs.p, regs.block), regs.x);
        self.asm.block_again(regs.block, self.layout);
    }
}

impl<A: Assembler> Tables for Probing<'_, A> {
    fn store_key(&mut self, word: usize) {
        let regs = self.frame.regs;
        self.asm.store(8, regs.v, A::STACK, self.key(word), regs.x);
    }

    fn clear_keys(&mut self, words: Range<usize>) {
        for word in words {
            let key = self.key(word);
            self.asm.store(8, A::ZERO, A::STACK, key, self.frame.regs.x);
        }
    }

    fn copy_key(&mut self, word: usize, loads: &mut Vec<Label>) {
        let key = self.key(word);
        self.asm.add(self.frame.regs.a, A::STACK, key);
        let done = self.asm.label();
        self.copy_text(done, loads);
    }

    fn part(&mut self, part: Part) {
        let regs = self.frame.regs;
        let asm = &mut *self.asm;
        match part {
            Part::Each => {}
            Part::Log2 => asm.count_bits(regs.v, (regs.a, regs.t)),
            Part::Linear(width, signed) => {
                let signed = signed && width <= i64::MAX as u64;
                asm.li(regs.t, width);
                let how = (Arithmetic::Remainder, signed);
                asm.combine(how, regs.a, (regs.v, regs.t), regs.x);
                asm.op(Arithmetic::Subtract, regs.v, regs.v, regs.a);
                if signed {
                    let above = asm.label();
                    asm.branch(If::NotLess, regs.a, A::ZERO, above);
                    asm.op(Arithmetic::Subtract, regs.v, regs.v, regs.t);
                    asm.bind(above);
                }
            }
        }
    }

    fn table(&mut self, base: u32, table: i64) {
        let regs = self.frame.regs;
        self.asm.load(8, regs.t, regs.block, base.into());
        self.asm.li(regs.x, table.cast_unsigned());
        self.asm.op(Arithmetic::Add, regs.t, regs.t, regs.x);
    }

    fn hash(&mut self, keys: usize) {
        let regs = self.frame.regs;
        // An odd number whose bits look random: the golden ratio's.
        self.asm.li(regs.t, 0x9E37_79B9_7F4A_7C15);
        self.asm.load(8, regs.v, A::STACK, self.key(0));
        self.asm.op(Arithmetic::Multiply, regs.v, regs.v, regs.t);
        for key in 1..keys {
            self.asm
                .op_number((Arithmetic::ShiftRight, false), regs.x, regs.v, 32);
            self.asm.op(Arithmetic::Xor, regs.v, regs.v, regs.x);
            self.asm.load(8, regs.x, A::STACK, self.key(key));
            self.asm.op(Arithmetic::Xor, regs.v, regs.v, regs.x);
            self.asm.op(Arithmetic::Multiply, regs.v, regs.v, regs.t);
        }
    }

    fn tag(&mut self, from: u32) {
        let regs = self.frame.regs;
        self.asm
            .op_number((Arithmetic::And, false), regs.v, regs.v, -4);
        self.asm.add(regs.b, regs.v, 2);
        self.asm
            .op_number((Arithmetic::ShiftRight, false), regs.v, regs.v, from.into());
    }

    fn slot(&mut self, bytes: u64) {
        let regs = self.frame.regs;
        self.asm.li(regs.x, bytes);
        self.asm.op(Arithmetic::Multiply, regs.a, regs.v, regs.x);
        self.asm.op(Arithmetic::Add, regs.a, regs.a, regs.t);
        self.asm.add(regs.a, regs.a, HEAD as i64);
    }

    fn unless_tag(&mut self, to: Label) {
        let regs = self.frame.regs;
        self.asm.load(8, regs.x, regs.a, 0);
        self.asm.branch(If::NotEqual, regs.x, regs.b, to);
        self.asm.fence_loads();
    }

    fn unless_key(&mut self, at: u32, word: usize, to: Label) {
        let regs = self.frame.regs;
        self.asm.load(8, regs.x, A::STACK, self.key(word));
        self.asm.load(8, regs.p, regs.a, at.into());
        self.asm.branch(If::NotEqual, regs.x, regs.p, to);
    }

    fn if_taken(&mut self, to: Label) {
        self.asm
            .branch(If::NotEqual, self.frame.regs.x, A::ZERO, to);
    }

    fn count_in_slot(&mut self, at: u32) {
        self.count_at(self.frame.regs.a, at);
    }

    fn add_in_slot(&mut self, at: u32, word: usize) {
        let regs = self.frame.regs;
        let word = self.key(word);
        self.asm.add(regs.x, regs.a, at.into());
        let scratch = (regs.p, regs.block);
        self.asm.add_word_at(self.layout, word, scratch, regs.x);
        self.asm.block_again(regs.block, self.layout);
    }

    fn count_in_table(&mut self, at: u32) {
        self.count_at(self.frame.regs.t, at);
    }

    fn take_entry(&mut self, most: u32, full: Label, over: Label) {
        let regs = self.frame.regs;
        self.asm.load(8, regs.x, regs.t, 0);
        self.asm.li(regs.p, most.into());
        self.asm.branch(If::Below, regs.p, regs.x, full);
        let old = (regs.x, regs.block);
        self.asm.fetch_add(self.layout, 1, old, regs.t);
        self.asm.block_again(regs.block, self.layout);
        self.asm.branch(If::Below, regs.p, regs.x, over);
    }

    fn give_entry_back(&mut self) {
        let regs = self.frame.regs;
        let scratch = (regs.x, regs.block);
        self.asm.add_at(self.layout, -1, scratch, regs.t);
        self.asm.block_again(regs.block, self.layout);
    }

    fn claim(&mut self, _: usize, to: Label) {
        let regs = self.frame.regs;
        self.asm.add(regs.x, regs.b, -1);
        self.asm.claim(regs.a, regs.x, regs.p, to);
    }

    fn number_again(&mut self, _: usize) {}

    fn put_key(&mut self, at: u32, word: usize) {
        let regs = self.frame.regs;
        self.asm.load(8, regs.x, A::STACK, self.key(word));
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
        self.asm.op(Arithmetic::And, regs.v, regs.v, regs.x);
    }
}
