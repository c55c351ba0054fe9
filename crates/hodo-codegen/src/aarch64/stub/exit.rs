//! The exit half of a stub.

use super::scratch::PREFERENCE;
use super::slow::Then;
use super::{Hot, LESS, OPEN, RETURN_POINT, Stub};
use crate::reserve::scratch::Scratch;
use hodo_isa::aarch64::asm::Label;
use hodo_isa::aarch64::asm::operand::{DOUBLE, Extend, mem};
use hodo_isa::aarch64::asm::ops::Insns as _;
use hodo_isa::aarch64::regs::{LINK, SP, ZERO};

/// The upper one of the two bits for the kind, in the upper half of a record. It is set for jumps.
const KIND_JUMP_BIT: u8 = 21;

impl Stub<'_, '_> {
    /// Emits the exit half, with a record of this kind.
    pub(super) fn exit(&mut self, exit: u32) {
        let timed = self.records.timed;
        self.row();
        self.code.word(RETURN_POINT);
        let free = self.records.registers.free_after;
        self.scratch = Scratch::choose(free, 3 + usize::from(timed), None, PREFERENCE);
        let hot = self.hot(timed);
        self.keep();
        self.fetch_block(hot.block);
        if timed {
            self.take_time(hot);
        }
        let shortest = self.records.shortest.filter(|_| timed);
        let dropped = shortest.map(|shortest| self.take_back(hot, shortest));
        self.record(hot, exit);
        if let Some((dropped, slow)) = dropped {
            self.code.bind(dropped);
            self.slow[slow].then = Then::To(dropped);
        }
        self.leave_frames(hot);
        self.fetch_return(hot);
        self.give_back();
        self.code.ret();
    }

    /// `x30` = the return address in the shadow.
    fn fetch_return(&mut self, hot: Hot) {
        let Hot { block, a, b, .. } = hot;
        let place = mem(b, self.lowered.into());
        self.load(b, block, self.layout.to_shadow);
        self.code.add_extended(b, SP, b, (Extend::Uxtx, 0));
        if let Some(id) = self.records.check {
            self.code.ldr(a, place);
            let bad = self.code.label();
            self.code.tbz(a, OPEN.ilog2() as u8, bad);
            self.slow(bad, self.runtime.frame, hot, vec![id], Then::Back);
            self.code.andi(LINK, a, !OPEN);
        } else {
            self.code.ldr(LINK, place);
        }
        self.shadow = false;
        self.row();
        if self.records.check.is_some() {
            // Not earlier: unwinders must find the return address somewhere.
            self.code.str(ZERO, place);
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
        self.number(entry, spare, b);
        self.load(a, block, self.layout.cursor);
        self.code.ldr_w(b, mem(a, 4 - size));
        let [other, tails, done, long] = core::array::from_fn(|_| self.code.label());
        self.code.sub(spare, spare, b);
        self.code.cbnz(spare, other);
        self.code.ldr_w(b, mem(a, -size));
        self.code.sub_w(b, time, b);
        self.code.li(spare, shortest.into());
        self.code.sub(spare, b, spare);
        self.code.tbz(spare, LESS, long);
        self.code.str(ZERO, mem(a, -size));
        self.code.addi(b, a, -size);
        let again = self.code.label_here();
        self.code.ldxr(DOUBLE, spare, block);
        self.code.sub(spare, spare, a);
        self.code.cbnz(spare, done);
        self.code.stxr(DOUBLE, spare, b, block);
        self.code.cbnz_w(spare, again);
        self.code.b(done);
        self.code.bind(other);
        // The entry may be followed by records of jumps to other functions.
        self.code.tbz(b, KIND_JUMP_BIT, long);
        self.code.b(tails);
        self.code.bind(long);
        let words = vec![shortest, entry];
        // The target if it was taken back is not known yet.
        self.slow(tails, self.runtime.tails, hot, words, Then::Back);
        (done, self.slow.len() - 1)
    }
}
