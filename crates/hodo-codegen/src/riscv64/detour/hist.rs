//! Histograms as machine code.

use alloc::vec::Vec;

use super::asm::{If, Label, Op};
use super::block::Given;
use super::{DetourError, HEAD, Histogram, Key, Part, Probing, STRING, Text};
use hodo_isa::riscv64::regs::{SP, ZERO};

impl Probing<'_> {
    pub(super) fn histogram(
        &mut self,
        histogram: &Histogram,
        given: Given<'_>,
    ) -> Result<(), DetourError> {
        let words = histogram.words();
        // Keys and sums, above the words of the condition.
        let first = given.needs.words();
        let mut loads = Vec::new();
        let mut at = first;
        let unread = self.asm.label();
        for key in &histogram.keys {
            self.key(key, (at, unread), given, &mut loads)?;
            at += key.words();
        }
        let regs = self.frame.regs;
        for sum in &histogram.sums {
            let mut lowering = given.lowering(self, unread);
            lowering.number(sum);
            loads.append(&mut lowering.finish()?);
            let slot = self.frame.word(at);
            self.asm.store(8, regs.v, SP, slot, regs.x);
            at += 1;
        }
        Table {
            probing: self,
            histogram,
            base: given.block.base,
            first,
        }
        .emit(unread);
        debug_assert_eq!(at, first + words.keys + words.sums);
        let ways = loads.into_iter().map(|load| (load, unread));
        self.cold.leave.extend(ways);
        Ok(())
    }

    /// Brings a key into the frame, from word `at` on. Goes to `unread` if it cannot be computed.
    fn key(
        &mut self,
        key: &Key,
        (at, unread): (usize, Label),
        given: Given<'_>,
        loads: &mut Vec<Label>,
    ) -> Result<(), DetourError> {
        let regs = self.frame.regs;
        match key {
            Key::Number(test, part) => {
                let mut lowering = given.lowering(self, unread);
                lowering.number(test);
                loads.append(&mut lowering.finish()?);
                self.part(*part);
                let slot = self.frame.word(at);
                self.asm.store(8, regs.v, SP, slot, regs.x);
            }
            Key::Text(Text::Thread(from)) => {
                for number in 0..2 {
                    let slot = self.frame.word(at + number);
                    self.asm
                        .ld(regs.v, regs.block, i64::from(*from) + 8 * number as i64);
                    self.asm.store(8, regs.v, SP, slot, regs.x);
                }
            }
            Key::Text(Text::Value(value)) => {
                for number in 0..STRING / 8 {
                    let slot = self.frame.word(at + number);
                    self.asm.store(8, ZERO, SP, slot, regs.x);
                }
                let mut lowering = given.lowering(self, unread);
                lowering.word(*value);
                loads.append(&mut lowering.finish()?);
                let slot = self.frame.word(at);
                self.asm.add(regs.a, SP, slot);
                self.text(loads);
            }
            Key::Text(Text::Fixed(text)) => {
                let mut bytes = text.clone();
                bytes.resize(STRING, 0);
                for (number, eight) in bytes.chunks_exact(8).enumerate() {
                    let eight = u64::from_le_bytes(eight.try_into().unwrap_or_default());
                    let slot = self.frame.word(at + number);
                    self.asm.li(regs.v, eight);
                    self.asm.store(8, regs.v, SP, slot, regs.x);
                }
            }
        }
        Ok(())
    }

    /// What `v` is counted as.
    fn part(&mut self, part: Part) {
        let regs = self.frame.regs;
        let asm = &mut *self.asm;
        match part {
            Part::Each => {}
            Part::Log2 => {
                // The number of bits: by halves. At last `v` is 0 or 1.
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
}

/// The code that finds the slot. `t`: the table; `v`: the slot's number; `a`: the slot; `b`: the tag; `x` and `p`: others.
struct Table<'t, 'a> {
    probing: &'t mut Probing<'a>,
    histogram: &'t Histogram,
    base: u32,
    /// The first word of the frame with keys; sums are behind.
    first: usize,
}

impl Table<'_, '_> {
    fn word(&self, number: usize) -> i64 {
        self.probing.frame.word(self.first + number)
    }

    /// The keys are in the frame, the sums behind them. `unread` is where to go if one cannot be read.
    fn emit(&mut self, unread: Label) {
        let words = self.histogram.words();
        let slots = Histogram::slots(self.histogram.size);
        let regs = self.probing.frame.regs;
        let (v, t, x, p, a, b) = (regs.v, regs.t, regs.x, regs.p, regs.a, regs.b);
        let sums_at = 16;
        let keys_at = 16 + 8 * words.sums as i64;
        self.hash(words.keys);
        let in_frame: Vec<_> = (0..words.keys + words.sums)
            .map(|number| self.word(number))
            .collect();
        let (keys, sums) = in_frame.split_at(words.keys);
        let asm = &mut *self.probing.asm;
        asm.op_imm(Op::AND, v, v, -4);
        asm.add(b, v, 2);
        asm.op_imm(Op::SRL, v, v, 64 - i64::from(slots.trailing_zeros()));
        self.table();
        let asm = &mut *self.probing.asm;
        let again = asm.here();
        asm.li(x, words.slot());
        asm.op(Op::MUL, a, v, x);
        asm.op(Op::ADD, a, a, t);
        asm.add(a, a, HEAD as i64);
        let look = asm.here();
        let (other, next, raced) = (asm.label(), asm.label(), asm.label());
        let (over, full, end) = (asm.label(), asm.label(), asm.label());
        asm.ld(x, a, 0);
        asm.branch(If::NotEqual, x, b, other);
        asm.fence_loads();
        for (key, &slot) in keys.iter().enumerate() {
            asm.ld(x, SP, slot);
            asm.ld(p, a, keys_at + 8 * key as i64);
            asm.branch(If::NotEqual, x, p, next);
        }
        let found = asm.here();
        asm.li(p, 1);
        asm.add(x, a, 8);
        asm.amo_add(ZERO, p, x);
        for (sum, &slot) in sums.iter().enumerate() {
            asm.ld(p, SP, slot);
            asm.add(x, a, sums_at + 8 * sum as i64);
            asm.amo_add(ZERO, p, x);
        }
        asm.jump(end);
        asm.bind(other);
        asm.branch(If::NotEqual, x, ZERO, next);
        // A free one. First an entry is taken, then the slot.
        asm.ld(x, t, 0);
        asm.li(p, u64::from(self.histogram.size - 1));
        asm.branch(If::Below, p, x, full);
        asm.li(x, 1);
        asm.amo_add(x, x, t);
        asm.branch(If::Below, p, x, over);
        asm.add(x, b, -1);
        let claim = asm.here();
        asm.lr(p, a);
        asm.branch(If::NotEqual, p, ZERO, raced);
        asm.sc(p, x, a);
        asm.branch(If::NotEqual, p, ZERO, claim);
        for (key, &slot) in keys.iter().enumerate() {
            asm.ld(x, SP, slot);
            asm.store(8, x, a, keys_at + 8 * key as i64, p);
        }
        asm.fence_stores();
        asm.store(8, b, a, 0, p);
        asm.jump(found);
        asm.bind(raced);
        asm.li(x, u64::MAX);
        asm.amo_add(ZERO, x, t);
        asm.jump(look);
        asm.bind(over);
        asm.li(x, u64::MAX);
        asm.amo_add(ZERO, x, t);
        asm.bind(full);
        asm.li(p, 1);
        asm.add(x, t, 8);
        asm.amo_add(ZERO, p, x);
        asm.jump(end);
        asm.bind(next);
        asm.add(v, v, 1);
        asm.li(x, slots - 1);
        asm.op(Op::AND, v, v, x);
        asm.jump(again);
        asm.bind(unread);
        self.table();
        let asm = &mut *self.probing.asm;
        asm.li(p, 1);
        asm.add(x, t, 16);
        asm.amo_add(ZERO, p, x);
        asm.bind(end);
    }

    /// The table's address into `t`. Clobbers `x`.
    fn table(&mut self) {
        let regs = self.probing.frame.regs;
        let asm = &mut *self.probing.asm;
        asm.ld(regs.t, regs.block, self.base.into());
        asm.li(regs.x, self.histogram.table.cast_unsigned());
        asm.op(Op::ADD, regs.t, regs.t, regs.x);
    }

    /// Brings the hash of the keys into `v`.
    fn hash(&mut self, keys: usize) {
        let regs = self.probing.frame.regs;
        // An odd number whose bits look random: the golden ratio's.
        self.probing.asm.li(regs.t, 0x9E37_79B9_7F4A_7C15);
        let first = self.word(0);
        self.probing.asm.ld(regs.v, SP, first);
        self.probing.asm.op(Op::MUL, regs.v, regs.v, regs.t);
        for key in 1..keys {
            let word = self.word(key);
            let asm = &mut *self.probing.asm;
            asm.op_imm(Op::SRL, regs.x, regs.v, 32);
            asm.op(Op::XOR, regs.v, regs.v, regs.x);
            asm.ld(regs.x, SP, word);
            asm.op(Op::XOR, regs.v, regs.v, regs.x);
            asm.op(Op::MUL, regs.v, regs.v, regs.t);
        }
    }
}
