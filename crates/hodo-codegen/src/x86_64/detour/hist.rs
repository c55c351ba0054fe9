//! Histograms: the slot's number is in `rax`, the table in `rcx`, the slot in `r8`, the tag in `r9`; `rdx` is for
//! temporary values.

use alloc::vec::Vec;
use core::ops::Range;

use super::{HEAD, Part, Probing};
use crate::lower::Tables;
use crate::x86_64::masm::*;

impl Probing<'_, '_> {
    /// The place of a word of keys or sums.
    fn key(&self, word: usize) -> Mem {
        self.saved.word(self.keys, word)
    }
}

impl Tables for Probing<'_, '_> {
    fn store_key(&mut self, word: usize) {
        self.code.mov_mr(self.key(word), RAX);
    }

    fn clear_keys(&mut self, words: Range<usize>) {
        self.code.xor_rr(EAX, EAX);
        for word in words {
            self.store_key(word);
        }
    }

    fn copy_key(&mut self, word: usize, loads: &mut Vec<u64>) {
        let done = self.code.label();
        self.copy_text(self.key(word), done, loads);
    }

    fn part(&mut self, part: Part) {
        let code = &mut *self.code;
        match part {
            Part::Each => {}
            Part::Log2 => {
                // For 0, bsr leaves its result unchanged.
                code.bsr_rr(RCX, RAX);
                code.lea(ECX, mem(RCX, 1));
                code.test_rr(RAX, RAX);
                code.cmovcc(Cond::NE, EAX, ECX);
            }
            Part::Linear(width, signed) => {
                code.mov_rr(R8, RAX);
                code.movabs_ri(RCX, width);
                if signed && width <= i64::MAX as u64 {
                    code.cqo();
                    code.idiv_r(RCX);
                    code.sub_rr(R8, RDX);
                    let above = code.label();
                    code.test_rr(RDX, RDX);
                    code.jcc(Cond::NS, above);
                    code.sub_rr(R8, RCX);
                    code.bind(above);
                } else {
                    code.xor_rr(EDX, EDX);
                    code.div_r(RCX);
                    code.sub_rr(R8, RDX);
                }
                code.mov_rr(RAX, R8);
            }
        }
    }

    fn table(&mut self, base: u32, table: i64) {
        self.code.mov_rm(RCX, gs(base));
        self.code.movabs_ri(RDX, table.cast_unsigned());
        self.code.add_rr(RCX, RDX);
    }

    fn hash(&mut self, keys: usize) {
        // An odd number whose bits look random: the golden ratio's.
        self.code.movabs_ri(RCX, 0x9E37_79B9_7F4A_7C15);
        self.code.mov_rm(RAX, self.key(0));
        self.code.imul_rr(RAX, RCX);
        for key in 1..keys {
            self.code.mov_rr(RDX, RAX);
            self.code.shr_ri(RDX, 32);
            self.code.xor_rr(RAX, RDX);
            self.code.xor_rm(RAX, self.key(key));
            self.code.imul_rr(RAX, RCX);
        }
    }

    fn tag(&mut self, from: u32) {
        self.code.and_ri8(RAX, -4);
        self.code.lea(R9, mem(RAX, 2));
        self.code.shr_ri(RAX, from as u8);
    }

    fn slot(&mut self, bytes: u64) {
        self.code.imul_rri(R8, RAX, bytes as u32);
        self.code.lea(R8, mem8(RCX, HEAD as i8).plus(R8));
    }

    fn unless_tag(&mut self, to: Label) {
        self.code.mov_rm(RDX, mem(R8, 0));
        self.code.cmp_rr(RDX, R9);
        self.code.jcc(Cond::NE, to);
    }

    fn unless_key(&mut self, at: u32, word: usize, to: Label) {
        self.code.mov_rm(RDX, self.key(word));
        self.code.cmp_rm(RDX, mem32(R8, at));
        self.code.jcc(Cond::NE, to);
    }

    fn if_taken(&mut self, to: Label) {
        self.code.test_rr(RDX, RDX);
        self.code.jcc(Cond::NE, to);
    }

    fn count_in_slot(&mut self, at: u32) {
        self.code.lock().inc_m(QWORD, mem(R8, at.cast_signed()));
    }

    fn add_in_slot(&mut self, at: u32, word: usize) {
        self.code.mov_rm(RDX, self.key(word));
        self.code.lock().add_mr(mem32(R8, at), RDX);
    }

    fn count_in_table(&mut self, at: u32) {
        self.code.lock().inc_m(QWORD, mem(RCX, at.cast_signed()));
    }

    fn take_entry(&mut self, most: u32, full: Label, over: Label) {
        self.code.mov_rm(RDX, mem(RCX, 0));
        self.code.cmp_ri(RDX, most);
        self.code.jcc(Cond::A, full);
        self.code.mov_ri(EDX, 1);
        self.code.lock().xadd_mr(mem(RCX, 0), RDX);
        self.code.cmp_ri(RDX, most);
        self.code.jcc(Cond::A, over);
    }

    fn give_entry_back(&mut self) {
        self.code.lock().dec_m(QWORD, mem(RCX, 0));
    }

    fn claim(&mut self, spare: usize, to: Label) {
        self.store_key(spare);
        self.code.xor_rr(EAX, EAX);
        self.code.lea(RDX, mem(R9, -1));
        self.code.lock().cmpxchg_mr(mem(R8, 0), RDX);
        self.code.jcc(Cond::NE, to);
    }

    fn number_again(&mut self, spare: usize) {
        self.code.mov_rm(RAX, self.key(spare));
    }

    fn put_key(&mut self, at: u32, word: usize) {
        self.code.mov_rm(RDX, self.key(word));
        self.code.mov_mr(mem32(R8, at), RDX);
    }

    fn publish(&mut self) {
        self.code.mov_mr(mem(R8, 0), R9);
    }

    fn next_slot(&mut self, mask: u64) {
        self.code.inc_r(EAX);
        self.code.and_ri(EAX, mask as u32);
    }
}
