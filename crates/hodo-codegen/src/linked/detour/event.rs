//! Where values come from, and events: an event is at `p`, its record in `t`; `a` and `b` are for texts.

use alloc::vec::Vec;

use super::{
    Arithmetic, CHUNK_SHIFT, Counter, DetourError, Event, NO_PROCESSOR, Probing, Register, STRING,
    Words, emit_count,
};
use crate::linked::asm::Assembler;
use crate::lower::{Events, Sources};
use crate::stub::UNTRACED;
use hodo_isa::buffer::Label;
use hodo_isa::linked::If;

impl<A: Assembler> Probing<'_, A> {
    /// Copies a text of at most [`STRING`] bytes from `v` to `a`. Clobbers these, `b` and `x`. Binds a label after it.
    pub(super) fn copy_text(&mut self, done: Label, loads: &mut Vec<Label>) {
        let regs = self.frame.regs;
        self.asm.add(regs.x, regs.a, STRING as i64);
        let next = self.asm.here();
        loads.push(self.asm.load(1, regs.b, regs.v, 0));
        self.asm.store(1, regs.b, regs.a, 0, A::ZERO);
        self.asm.branch(If::Equal, regs.b, A::ZERO, done);
        self.asm.add(regs.v, regs.v, 1);
        self.asm.add(regs.a, regs.a, 1);
        self.asm.branch(If::NotEqual, regs.a, regs.x, next);
        self.asm.bind(done);
    }
}

impl<A: Assembler> Sources for Probing<'_, A> {
    type Load = Label;

    fn here(&self) -> u64 {
        self.here
    }

    fn wide_number(&mut self, number: u64) {
        self.asm.li(self.frame.regs.v, number);
    }

    fn register(&mut self, register: Register) {
        let v = self.frame.regs.v;
        match (register, self.frame.slot(register)) {
            (register, _) if register == A::STACK => self.asm.add(v, A::STACK, self.frame.depth()),
            (_, Some(slot)) => {
                self.asm.load(8, v, A::STACK, slot);
            }
            (register, None) => self.asm.mv(v, register),
        }
    }

    fn caller(&mut self, distance: u64) {
        let regs = self.frame.regs;
        let at = self.frame.depth().wrapping_sub_unsigned(distance);
        self.asm.li(regs.x, at.cast_unsigned());
        self.asm.add_stack(regs.x, regs.x);
        self.asm.load(8, regs.v, regs.x, 0);
        // `--check-frames` marks it in its top bit.
        self.asm
            .op_number((Arithmetic::ShiftLeft, false), regs.v, regs.v, 1);
        self.asm
            .op_number((Arithmetic::ShiftRight, false), regs.v, regs.v, 1);
    }

    fn thread_pointer(&mut self, _: &mut Vec<Label>) {
        self.asm.thread_pointer(self.frame.regs.v);
    }

    fn flags(&mut self) -> Result<(), DetourError> {
        Err(DetourError::NoRegister)
    }

    fn segment(&mut self, _: u8) -> Result<(), DetourError> {
        Err(DetourError::NoRegister)
    }

    fn thread_word(&mut self, at: u32) {
        let regs = self.frame.regs;
        self.asm.load(8, regs.v, regs.block, at.into());
    }

    fn plus(&mut self, number: i64) {
        let regs = self.frame.regs;
        if A::small(number) {
            self.asm.add(regs.v, regs.v, number);
        } else {
            self.asm.li(regs.x, number.cast_unsigned());
            self.asm.op(Arithmetic::Add, regs.v, regs.v, regs.x);
        }
    }

    fn offset(&mut self, offset: i32) {
        self.plus(offset.into());
    }

    fn load_from(&mut self, size: u8, offset: i32, loads: &mut Vec<Label>) {
        let regs = self.frame.regs;
        let offset = i64::from(offset);
        let base = match A::near(size, offset) {
            true => regs.v,
            false => {
                self.asm.mv(regs.x, regs.v);
                regs.x
            }
        };
        loads.push(self.asm.load(size, regs.v, base, offset));
    }
}

impl<A: Assembler> Events for Probing<'_, A> {
    fn count(&mut self, counter: Counter) {
        let regs = self.frame.regs;
        emit_count(self.asm, self.layout, counter, &regs);
        self.asm.block(regs.block, self.layout);
    }

    fn unless_on(&mut self, base: u32, at: u32, off: Label) {
        let regs = self.frame.regs;
        self.asm.load(8, regs.v, regs.block, base.into());
        self.asm.load(1, regs.x, regs.v, at.into());
        self.asm.branch(If::Equal, regs.x, A::ZERO, off);
    }

    fn unless_traced(&mut self, off: Label) {
        let regs = self.frame.regs;
        self.asm
            .load(8, regs.v, regs.block, self.layout.base.into());
        self.asm.load(1, regs.x, regs.v, self.layout.owner.into());
        self.asm
            .op_number((Arithmetic::And, false), regs.x, regs.x, UNTRACED.into());
        self.asm.branch(If::NotEqual, regs.x, A::ZERO, off);
    }

    fn switch(&mut self, base: u32, at: u32, on: bool) {
        let regs = self.frame.regs;
        let done = self.asm.label();
        self.asm.load(8, regs.v, regs.block, base.into());
        self.asm.load(1, regs.x, regs.v, at.into());
        self.asm.li(regs.t, on.into());
        self.asm.branch(If::Equal, regs.x, regs.t, done);
        self.asm.store(1, regs.t, regs.v, at.into(), regs.x);
        self.asm.bind(done);
    }

    // The frame has everything from the beginning.
    fn begin_histogram(&mut self, _: Words) {}

    fn begin_name(&mut self) {}

    fn begin_event(&mut self, _: &Event) -> Result<(), DetourError> {
        Ok(())
    }

    fn end(&mut self) {}

    fn leave(&mut self, loads: Vec<Label>, to: Label) {
        let ways = loads.into_iter().map(|load| (load, to));
        self.cold.leave.extend(ways);
    }

    fn copy_name(&mut self, at: u32, done: Label, loads: &mut Vec<Label>) {
        let regs = self.frame.regs;
        let asm = &mut *self.asm;
        asm.add(regs.a, regs.block, at.into());
        asm.add(regs.b, regs.a, 15);
        asm.li(regs.x, 1);
        let (next, ended) = (asm.here(), asm.label());
        asm.branch(If::Equal, regs.x, A::ZERO, ended);
        loads.push(asm.load(1, regs.x, regs.v, 0));
        asm.bind(ended);
        asm.store(1, regs.x, regs.a, 0, A::ZERO);
        asm.add(regs.v, regs.v, 1);
        asm.add(regs.a, regs.a, 1);
        asm.branch(If::NotEqual, regs.a, regs.b, next);
        asm.bind(done);
        asm.store(1, A::ZERO, regs.block, i64::from(at) + 15, regs.x);
    }

    fn take_place(&mut self, event: &Event, size: u32, again: Label, full: Label) {
        let layout = self.layout;
        let regs = self.frame.regs;
        if event.timed {
            self.asm.rdtime(regs.t);
            self.asm
                .load(8, regs.x, regs.block, layout.epoch_end.into());
            let epoch = self.asm.label();
            self.asm.branch(If::NotBelow, regs.t, regs.x, epoch);
            self.cold.epoch.push((epoch, again, regs));
        }
        // A single instruction reserves the place, so code that interrupts this gets another one.
        let (place, block) = ((regs.p, regs.v), (regs.block, regs.x));
        self.asm.take(layout, size, place, block);
        self.asm.load(8, regs.x, regs.block, layout.limit.into());
        self.asm.branch(If::Below, regs.x, regs.v, full);
        // A signal handler may have opened another chunk between these instructions: are both ends in one chunk?
        self.asm.add(regs.v, regs.v, -1);
        self.asm.op(Arithmetic::Xor, regs.v, regs.v, regs.p);
        self.asm.op_number(
            (Arithmetic::ShiftRight, false),
            regs.v,
            regs.v,
            CHUNK_SHIFT.into(),
        );
        self.asm.branch(If::NotEqual, regs.v, A::ZERO, again);
        // The record: its upper half is constant.
        if event.timed {
            self.asm.upper_half(regs.t, event.info, regs.v);
        } else {
            self.asm.li(regs.t, u64::from(event.info) << 32);
        }
    }

    fn processor_word(&mut self, _: bool) {
        self.wide_number(u64::from(NO_PROCESSOR) << 32);
    }

    fn put(&mut self, at: u32) {
        let regs = self.frame.regs;
        self.asm.store(8, regs.v, regs.p, at.into(), regs.x);
    }

    fn clear(&mut self, at: u32) {
        let regs = self.frame.regs;
        self.asm.store(8, A::ZERO, regs.p, at.into(), regs.x);
    }

    fn pack(&mut self, _: u32, _: u32) -> Result<(), DetourError> {
        Err(DetourError::NoStack)
    }

    fn put_text(&mut self, at: u32, done: Label, loads: &mut Vec<Label>) {
        let regs = self.frame.regs;
        self.asm.add(regs.a, regs.p, at.into());
        self.copy_text(done, loads);
    }

    fn begin_bytes(&mut self) {
        self.asm.li(self.frame.regs.a, 0);
    }

    fn copy_bytes(&mut self, bytes: u32, at: u32, loads: &mut Vec<Label>) {
        let regs = self.frame.regs;
        let whole = bytes & !7;
        self.asm.add(regs.b, regs.p, at.into());
        if whole > 0 {
            let next = self.asm.here();
            loads.push(self.asm.load(8, regs.x, regs.v, 0));
            self.asm.store(8, regs.x, regs.b, 0, A::ZERO);
            for register in [regs.v, regs.b, regs.a] {
                self.asm.add(register, register, 8);
            }
            self.asm.li(regs.x, whole.into());
            self.asm.branch(If::Below, regs.a, regs.x, next);
        }
        if bytes > whole {
            self.asm.store(8, A::ZERO, regs.b, 0, A::ZERO);
        }
        for byte in 0..i64::from(bytes - whole) {
            loads.push(self.asm.load(1, regs.x, regs.v, byte));
            self.asm.store(1, regs.x, regs.b, byte, A::ZERO);
            self.asm.add(regs.a, regs.a, 1);
        }
    }

    fn end_bytes(&mut self, at: u32) {
        let regs = self.frame.regs;
        self.asm.store(8, regs.a, regs.p, at.into(), regs.x);
    }

    fn failed(&mut self, loads: Vec<Label>, number: u32, store: Label) {
        let regs = self.frame.regs;
        let ways = loads.into_iter().map(|load| (store, number, load, regs));
        self.cold.fault.extend(ways);
    }

    fn publish_event(&mut self) {
        let regs = self.frame.regs;
        self.asm.fence_stores();
        self.asm.store(8, regs.t, regs.p, 0, regs.x);
    }

    fn chunk_is_full(&mut self, size: u32, full: Label, (again, done): (Label, Label)) {
        // A large event would not fit into the bucket, and would be tried forever.
        let large = (size > self.layout.bucket_size / 2).then_some(done);
        let regs = self.frame.regs;
        self.cold.chunk.push((full, again, regs, large));
    }
}
