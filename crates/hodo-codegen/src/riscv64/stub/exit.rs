//! The exit half of a stub.

use super::scratch::{PREFERENCE, bytes};
use super::slow::Then;
use super::{Hot, Info, Stub, return_point};
use crate::reserve::scratch::Scratch;
use hodo_isa::riscv64::asm::ops::Insns as _;
use hodo_isa::riscv64::asm::{If, Label};
use hodo_isa::riscv64::encode::{LOAD, i};
use hodo_isa::riscv64::regs::{RA, SP, ZERO};

/// The upper one of the two bits for the kind, in the upper half of a record. It is set for jumps.
const KIND_JUMP_BIT: u8 = 21;

impl Stub<'_, '_> {
    /// Emits the exit half, with a record of this kind.
    pub(super) fn exit(&mut self, exit: u32) {
        let free = self.records.registers.free_after;
        let timed = self.records.timed;
        let shortest = self.records.shortest.filter(|_| timed);
        let available = PREFERENCE.available(free);
        let start = self.code.here();
        self.row();
        if !self.records.is_filtered() && available < 3 {
            return self.exit_by_two(exit);
        }
        // The link register can hold the time, unless it is needed for something else.
        let four = timed && (shortest.is_some() || available >= 4);
        self.scratch = Scratch::choose(free, if four { 4 } else { 3 }, None, PREFERENCE);
        let [block, a, b] = [0, 1, 2].map(|index| self.scratch.get(index).unwrap_or(ZERO));
        let hot = Hot {
            block,
            a,
            b,
            time: self.scratch.get(3).unwrap_or(RA),
            spare: RA,
        };
        if bytes(&self.scratch) != 0 {
            self.code.word(return_point(self.layout, ZERO));
            self.keep(0);
        }
        self.fetch_block(block);
        if timed {
            self.take_time(hot);
        }
        let dropped = shortest.map(|shortest| self.take_back(hot, shortest));
        let word = !timed || four && shortest.is_none();
        let info = if word { Info::Word } else { Info::Number(exit) };
        let load = self.record(hot, info);
        if let Some((dropped, slow)) = dropped {
            self.code.bind(dropped);
            self.slow[slow].then = Then::To(dropped);
        }
        self.leave_frames(hot);
        self.fetch_return(hot);
        self.give_back();
        self.code.jr(RA);
        if let Some(load) = load {
            let distance = self.code.here() - start;
            self.code.replace(load, i(LOAD, 2, RA, RA, distance as i64));
            self.code.word(exit);
        }
    }

    /// An exit with only the link register and two others.
    fn exit_by_two(&mut self, exit: u32) {
        self.scratch = Scratch::choose(self.records.registers.free_after, 2, None, PREFERENCE);
        let [a, time] = [0, 1].map(|index| self.scratch.get(index).unwrap_or(ZERO));
        let mut hot = Hot {
            block: RA,
            a,
            b: a,
            time,
            spare: time,
        };
        self.fetch_block(RA);
        self.keep(0);
        if self.records.timed {
            self.take_time(hot);
        }
        self.record(hot, Info::Number(exit));
        self.fetch_block(RA);
        hot.b = RA;
        self.fetch_return(hot);
        self.give_back();
        self.code.jr(RA);
    }

    /// `ra` = the return address in the shadow.
    fn fetch_return(&mut self, hot: Hot) {
        let Hot { block, a, b, .. } = hot;
        self.code.ld(b, self.layout.to_shadow.into(), block);
        self.code.add(b, SP, b);
        if let Some(id) = self.records.check {
            self.code.ld(a, self.lowered.into(), b);
            let bad = self.code.label();
            self.code.branch(If::NotLess, a, ZERO, bad);
            self.slow(bad, self.runtime.frame, hot, vec![id], Then::Back);
            self.code.slli(a, a, 1);
            self.code.srli(RA, a, 1);
        } else {
            self.code.ld(RA, self.lowered.into(), b);
        }
        self.shadow = false;
        self.row();
        if self.records.check.is_some() {
            // Not earlier: unwinders must find the return address somewhere.
            self.code.sd(ZERO, self.lowered.into(), b);
        }
    }

    /// If a call was short and its entry is the last record, takes that record back, and records no exit. Returns a
    /// label for the jumps in that case, and the index of the slow path that also leads there. The record becomes a
    /// hole first. A signal handler that comes before the cursor has moved appends its records; then the hole remains.
    fn take_back(&mut self, hot: Hot, shortest: u32) -> (Label, usize) {
        let Hot {
            block,
            a,
            b,
            time,
            spare,
        } = hot;
        let shortest = shortest.min(i32::MAX as u32);
        let size = i64::from(self.layout.record_size);
        let entry = self.records.entry;
        self.code.li(spare, entry.cast_signed());
        let stack = self.stack(b);
        self.code.slli(b, stack, self.layout.sp_shift);
        self.code.or(spare, spare, b);
        // Sign-extended 32 bits, like what is loaded.
        self.code.sext_w(spare, spare);
        self.code.ld(a, self.layout.cursor.into(), block);
        self.code.lw(b, 4 - size, a);
        let (other, tails, done) = (self.code.label(), self.code.label(), self.code.label());
        self.code.branch(If::NotEqual, b, spare, other);
        self.code.lw(b, -size, a);
        self.code.subw(b, time, b);
        self.code.li(spare, shortest.cast_signed());
        let long = self.code.label();
        self.code.branch(If::NotBelow, b, spare, long);
        self.code.sd(ZERO, -size, a);
        self.code.addi(b, a, -size);
        let again = self.code.label_here();
        self.code.lr_d(spare, block);
        self.code.branch(If::NotEqual, spare, a, done);
        self.code.sc_d(spare, b, block);
        self.code.branch(If::NotEqual, spare, ZERO, again);
        self.code.branch(If::Equal, ZERO, ZERO, done);
        self.code.bind(other);
        // The entry may be followed by records of jumps to other functions.
        self.code.slli(b, b, 63 - KIND_JUMP_BIT);
        self.code.branch(If::NotLess, b, ZERO, long);
        self.code.branch(If::Equal, ZERO, ZERO, tails);
        self.code.bind(long);
        let words = vec![shortest, entry];
        // The target if it was taken back is not known yet.
        self.slow(tails, self.runtime.tails, hot, words, Then::Back);
        (done, self.slow.len() - 1)
    }
}
