//! Histograms as machine code.

use alloc::vec::Vec;

use super::block::Given;
use super::condition::Computing;
use super::frame::Saved;
use super::{Cold, DetourError, HEAD, Histogram, Key, Part, STRING, Text};
use crate::lower::Lowering;
use crate::x86_64::masm::*;

pub(super) fn emit_histogram(
    code: &mut Masm<'_>,
    saved: &mut Saved,
    histogram: &Histogram,
    given: &Given<'_>,
    cold: &mut Cold,
) -> Result<(), DetourError> {
    let words = histogram.words();
    let mark = saved.len();
    for register in [RCX, RDX, R8, R9] {
        saved.need(code, register);
    }
    // Keys, sums, and a place for the slot's number.
    let frame = saved.frame(code, words.keys + words.sums + 1);
    let mut table = Table {
        lost: code.label(),
        loads: Vec::new(),
        code,
        saved,
        given,
        histogram,
        frame,
    };
    let mut at = 0;
    for key in &histogram.keys {
        table.key(key, at)?;
        at += key.words();
    }
    for sum in &histogram.sums {
        table.compute(|lowering| lowering.number(sum))?;
        let word = table.word(at);
        table.code.mov_mr(word, RAX);
        at += 1;
    }
    let unread = table.find();
    let loads = table.loads;
    cold.leave
        .extend(loads.into_iter().map(|load| (load, unread)));
    saved.back(code, mark);
    Ok(())
}

/// The code that finds the slot.
struct Table<'a, 'c> {
    code: &'a mut Masm<'c>,
    saved: &'a Saved,
    given: &'a Given<'a>,
    histogram: &'a Histogram,
    frame: usize,
    /// Where a hit is lost, for something cannot be computed.
    lost: Label,
    /// Loads that may fault: the hit is lost, too.
    loads: Vec<u64>,
}

impl<'c> Table<'_, 'c> {
    fn word(&self, number: usize) -> Mem {
        self.saved.word(self.frame, number)
    }

    /// Has something computed.
    fn compute(
        &mut self,
        compute: impl FnOnce(&mut Lowering<'_, Computing<'_, 'c>>),
    ) -> Result<(), DetourError> {
        let mut computing = self.given.computing(self.code, self.saved);
        let mut lowering = self.given.lowering(&mut computing, self.lost);
        compute(&mut lowering);
        self.loads.append(&mut lowering.finish()?);
        Ok(())
    }

    /// Brings a key into the frame, from word `at` on.
    fn key(&mut self, key: &Key, at: usize) -> Result<(), DetourError> {
        match key {
            Key::Number(test, part) => {
                self.compute(|lowering| lowering.number(test))?;
                self.part(*part);
                self.code.mov_mr(self.word(at), RAX);
            }
            Key::Text(Text::Thread(from)) => {
                for number in 0..2 {
                    self.code.mov_rm(RAX, gs(from + 8 * number));
                    let word = self.word(at + number as usize);
                    self.code.mov_mr(word, RAX);
                }
            }
            Key::Text(Text::Value(value)) => {
                self.code.xor_rr(EAX, EAX);
                for number in 0..STRING / 8 {
                    self.code.mov_mr(self.word(at + number), RAX);
                }
                self.compute(|lowering| lowering.word(*value))?;
                self.text(at);
            }
            Key::Text(Text::Fixed(text)) => {
                let mut bytes = text.clone();
                bytes.resize(STRING, 0);
                for (number, eight) in bytes.chunks_exact(8).enumerate() {
                    let eight = u64::from_le_bytes(eight.try_into().unwrap_or_default());
                    self.code.movabs_ri(RAX, eight);
                    self.code.mov_mr(self.word(at + number), RAX);
                }
            }
        }
        Ok(())
    }

    /// Copies the text at `rax` into the frame.
    fn text(&mut self, at: usize) {
        let word = self.word(at);
        let code = &mut *self.code;
        code.xor_rr(R8D, R8D);
        let (next, done) = (code.label_here(), code.label());
        self.loads.push(code.here());
        code.mov_rm(R9B, mem(RAX, 0).plus(R8));
        code.mov_mr(word.plus(R8), R9B);
        code.test_rr(R9B, R9B);
        code.jcc_short(Cond::E, done);
        code.inc_r(R8D);
        code.cmp_ri(R8D, STRING as u32);
        code.jcc_short(Cond::B, next);
        code.bind(done);
    }

    /// What `rax` is counted as.
    fn part(&mut self, part: Part) {
        let code = &mut *self.code;
        match part {
            Part::Each => {}
            Part::Log2 => {
                // bsr leaves its result as it is for 0.
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

    /// The keys are in the frame, the sums behind them. Returns where to go on if one cannot be read.
    fn find(&mut self) -> u64 {
        let words = self.histogram.words();
        let slots = Histogram::slots(self.histogram.size);
        let sums_at = 16;
        let keys_at = 16 + 8 * words.sums as u32;
        let index = self.word(words.keys + words.sums);
        self.hash(words.keys);
        self.code.and_ri8(RAX, -4);
        self.code.lea(R9, mem(RAX, 2));
        let shift = 64 - slots.trailing_zeros();
        self.code.shr_ri(RAX, shift as u8);
        self.table();
        let again = self.code.label_here();
        let slot = words.slot() as u32;
        self.code.imul_rri(R8, RAX, slot);
        self.code.lea(R8, mem8(RCX, HEAD as i8).plus(R8));
        let look = self.code.label_here();
        let (other, next, raced) = (self.code.label(), self.code.label(), self.code.label());
        let (full, over, end) = (self.code.label(), self.code.label(), self.code.label());
        self.code.mov_rm(RDX, mem(R8, 0));
        self.code.cmp_rr(RDX, R9);
        self.code.jcc(Cond::NE, other);
        for key in 0..words.keys {
            let word = self.word(key);
            self.code.mov_rm(RDX, word);
            self.code.cmp_rm(RDX, mem32(R8, keys_at + 8 * key as u32));
            self.code.jcc(Cond::NE, next);
        }
        let found = self.code.label_here();
        self.code.lock().inc_m(QWORD, mem(R8, 8));
        for sum in 0..words.sums {
            let word = self.word(words.keys + sum);
            self.code.mov_rm(RDX, word);
            self.code
                .lock()
                .add_mr(mem32(R8, sums_at + 8 * sum as u32), RDX);
        }
        self.code.jmp(end);
        self.code.bind(other);
        self.code.test_rr(RDX, RDX);
        self.code.jcc(Cond::NE, next);
        // A free one. First an entry is taken, then the slot.
        let size = self.histogram.size - 1;
        self.code.mov_rm(RDX, mem(RCX, 0));
        self.code.cmp_ri(RDX, size);
        self.code.jcc(Cond::A, full);
        self.code.mov_ri(EDX, 1);
        self.code.lock().xadd_mr(mem(RCX, 0), RDX);
        self.code.cmp_ri(RDX, size);
        self.code.jcc(Cond::A, over);
        self.code.mov_mr(index, RAX);
        self.code.xor_rr(EAX, EAX);
        self.code.lea(RDX, mem(R9, -1));
        self.code.lock().cmpxchg_mr(mem(R8, 0), RDX);
        self.code.jcc(Cond::NE, raced);
        for key in 0..words.keys {
            let word = self.word(key);
            self.code.mov_rm(RDX, word);
            self.code.mov_mr(mem32(R8, keys_at + 8 * key as u32), RDX);
        }
        self.code.mov_mr(mem(R8, 0), R9);
        self.code.jmp(found);
        self.code.bind(raced);
        self.code.lock().dec_m(QWORD, mem(RCX, 0));
        self.code.mov_rm(RAX, index);
        self.code.jmp(look);
        self.code.bind(over);
        self.code.lock().dec_m(QWORD, mem(RCX, 0));
        self.code.bind(full);
        self.code.lock().inc_m(QWORD, mem(RCX, 8));
        self.code.jmp(end);
        self.code.bind(next);
        self.code.inc_r(EAX);
        self.code.and_ri(EAX, (slots - 1) as u32);
        self.code.jmp(again);
        let unread = self.code.here();
        self.code.bind(self.lost);
        self.table();
        self.code.lock().inc_m(QWORD, mem(RCX, 16));
        self.code.bind(end);
        unread
    }

    /// The table's address into `rcx`. Clobbers `rdx`.
    fn table(&mut self) {
        let base = self.given.block.base;
        self.code.mov_rm(RCX, gs(base));
        let table = self.histogram.table.cast_unsigned();
        self.code.movabs_ri(RDX, table);
        self.code.add_rr(RCX, RDX);
    }

    /// Brings the hash of the keys into `rax`.
    fn hash(&mut self, keys: usize) {
        // An odd number whose bits look random: the golden ratio's.
        self.code.movabs_ri(RCX, 0x9E37_79B9_7F4A_7C15);
        let first = self.word(0);
        self.code.mov_rm(RAX, first);
        self.code.imul_rr(RAX, RCX);
        for key in 1..keys {
            let word = self.word(key);
            self.code.mov_rr(RDX, RAX);
            self.code.shr_ri(RDX, 32);
            self.code.xor_rr(RAX, RDX);
            self.code.xor_rm(RAX, word);
            self.code.imul_rr(RAX, RCX);
        }
    }
}
