//! An event at a hit: a record and its payload, in the thread's chunk.

use alloc::vec::Vec;

use super::asm::{If, Label, Op};
use super::{
    CHUNK_SHIFT, DetourError, Event, Fetch, MOST_VALUES, MOST_WORDS, NO_PROCESSOR, Probing, STRING,
    Source, fault_words,
};
use hodo_isa::riscv64::regs::{SP, TP, ZERO};

/// Bytes of an event before its values: the record, the payload's, and the payload's first word.
const HEAD: i64 = 24;

/// Where a value of an event was put before, as an offset from the stack pointer; `None`: it is to be fetched.
pub(super) type Kept<'a> = dyn Fn(usize) -> Option<i64> + 'a;

impl Probing<'_> {
    /// Writes the event.
    pub(super) fn record(&mut self, event: &Event, kept: &Kept<'_>) -> Result<(), DetourError> {
        let words: usize = event.values.iter().map(Fetch::words).sum();
        if words > MOST_WORDS {
            return Err(DetourError::TooLarge);
        }
        if event.values.len() > MOST_VALUES {
            return Err(DetourError::TooManyValues);
        }
        let layout = self.layout;
        let faults = fault_words(event.values.len());
        let size = HEAD + 8 * (faults + words) as i64;
        let regs = self.frame.regs;
        let again = self.asm.here();
        // The record: its upper half is constant.
        let info = u64::from(event.info);
        if event.timed {
            self.asm.time(regs.t);
            self.asm.ld(regs.x, regs.block, layout.epoch_end.into());
            let epoch = self.asm.label();
            self.asm.branch(If::NotBelow, regs.t, regs.x, epoch);
            self.cold.epoch.push((epoch, again, regs));
        }
        // One instruction takes the place: who interrupts this gets another one.
        let cursor = self.cursor();
        self.asm.li(regs.v, size.cast_unsigned());
        self.asm.amo_add(regs.p, regs.v, cursor);
        self.asm.op(Op::ADD, regs.v, regs.v, regs.p);
        self.asm.ld(regs.x, regs.block, layout.limit.into());
        let full = self.asm.label();
        self.asm.branch(If::Below, regs.x, regs.v, full);
        // A signal handler may have opened another chunk between these instructions: is it still one chunk?
        self.asm.add(regs.v, regs.v, -1);
        self.asm.op(Op::XOR, regs.v, regs.v, regs.p);
        self.asm.op_imm(Op::SRL, regs.v, regs.v, CHUNK_SHIFT.into());
        self.asm.branch(If::NotEqual, regs.v, ZERO, again);
        if event.timed {
            self.asm.op_imm(Op::SLL, regs.t, regs.t, 32);
            self.asm.op_imm(Op::SRL, regs.t, regs.t, 32);
            self.asm.li(regs.v, info);
            self.asm.op_imm(Op::SLL, regs.v, regs.v, 32);
            self.asm.op(Op::OR, regs.t, regs.t, regs.v);
        } else {
            self.asm.li(regs.t, info << 32);
        }
        let payload = u64::from(event.payload) << 32 | (size / 8 - 2).cast_unsigned();
        self.asm.li(regs.v, payload);
        self.asm.store(8, regs.v, regs.p, 8, regs.x);
        self.asm.li(regs.v, u64::from(NO_PROCESSOR) << 32);
        self.asm.store(8, regs.v, regs.p, 16, regs.x);
        for fault in 0..faults as i64 {
            self.asm.store(8, ZERO, regs.p, HEAD + 8 * fault, regs.x);
        }
        let mut at = HEAD + 8 * faults as i64;
        for (number, value) in event.values.iter().enumerate() {
            match kept(number) {
                Some(slot) => {
                    self.asm.ld(regs.v, SP, slot);
                    self.asm.store(8, regs.v, regs.p, at, regs.x);
                }
                None => self.value(value, at, number as u32)?,
            }
            at += 8 * value.words() as i64;
        }
        // The payload comes before its record: a reader must never take it for records.
        self.asm.fence_stores();
        self.asm.store(8, regs.t, regs.p, 0, regs.x);
        let done = self.asm.here();
        // A large one would not fit into the bucket, and try for ever.
        let large = size > i64::from(layout.bucket_size / 2);
        let large = large.then_some(done);
        self.cold.chunk.push((full, again, regs, large));
        Ok(())
    }

    /// The register with the address of the cursor.
    fn cursor(&mut self) -> u8 {
        let regs = self.frame.regs;
        match self.layout.cursor {
            0 => regs.block,
            at => {
                self.asm.add(regs.x, regs.block, at.into());
                regs.x
            }
        }
    }

    /// Brings a value of one word into `v`, as it is stored. Clobbers `x`.
    pub(super) fn fetch_word(
        &mut self,
        value: &Fetch,
        loads: &mut Vec<Label>,
    ) -> Result<(), DetourError> {
        let regs = self.frame.regs;
        match value {
            Fetch::Word(source) => self.source(source, loads)?,
            Fetch::Load(source, offset, size) => {
                self.source(source, loads)?;
                self.load(*size, *offset, loads);
            }
            Fetch::Thread(at, _) => self.asm.ld(regs.v, regs.block, (*at).into()),
            // The address of what is there.
            Fetch::Text(source, offset) | Fetch::Bytes(source, offset, _) => {
                self.source(source, loads)?;
                self.plus((*offset).into());
            }
            Fetch::Stack => return Err(DetourError::NoStack),
        }
        Ok(())
    }

    /// Loads into `v` from where `v` plus an offset leads.
    fn load(&mut self, size: u8, offset: i32, loads: &mut Vec<Label>) {
        let regs = self.frame.regs;
        let offset = i64::from(offset);
        let base = match super::asm::small(offset) {
            true => regs.v,
            false => {
                self.asm.mv(regs.x, regs.v);
                regs.x
            }
        };
        loads.push(self.asm.load(size, regs.v, base, offset));
    }

    /// Adds a number to `v`.
    fn plus(&mut self, number: i64) {
        let regs = self.frame.regs;
        if super::asm::small(number) {
            self.asm.add(regs.v, regs.v, number);
        } else {
            self.asm.li(regs.x, number.cast_unsigned());
            self.asm.op(Op::ADD, regs.v, regs.v, regs.x);
        }
    }

    /// Stores a value at `p` plus an offset. `v` and `x` are free, `a` and `b` for texts, too.
    fn value(&mut self, value: &Fetch, at: i64, number: u32) -> Result<(), DetourError> {
        let regs = self.frame.regs;
        let mut loads = Vec::new();
        if let Fetch::Thread(from, words) = value {
            for word in 0..i64::from(*words) {
                self.asm.ld(regs.v, regs.block, i64::from(*from) + 8 * word);
                self.asm.store(8, regs.v, regs.p, at + 8 * word, regs.x);
            }
            return Ok(());
        }
        if let Fetch::Bytes(_, _, bytes) = value {
            self.asm.li(regs.a, 0);
            self.fetch_word(value, &mut loads)?;
            self.copy(*bytes, at + 8, &mut loads);
            let done = self.asm.here();
            self.asm.store(8, regs.a, regs.p, at, regs.x);
            self.cold
                .leave
                .extend(loads.into_iter().map(|load| (load, done)));
            return Ok(());
        }
        self.fetch_word(value, &mut loads)?;
        let store = if matches!(value, Fetch::Text(..)) {
            self.asm.add(regs.a, regs.p, at);
            self.text(&mut loads)
        } else {
            let store = self.asm.here();
            self.asm.store(8, regs.v, regs.p, at, regs.x);
            store
        };
        let failed = loads.into_iter().map(|load| (store, number, load, regs));
        self.cold.fault.extend(failed);
        Ok(())
    }

    /// Copies a text of [`STRING`] bytes at most from `v` to `a`. Clobbers these, `b` and `x`. Gives the place behind it.
    pub(super) fn text(&mut self, loads: &mut Vec<Label>) -> Label {
        let regs = self.frame.regs;
        let done = self.asm.label();
        self.asm.add(regs.x, regs.a, STRING as i64);
        let next = self.asm.here();
        loads.push(self.asm.load(1, regs.b, regs.v, 0));
        self.asm.store(1, regs.b, regs.a, 0, ZERO);
        self.asm.branch(If::Equal, regs.b, ZERO, done);
        self.asm.add(regs.v, regs.v, 1);
        self.asm.add(regs.a, regs.a, 1);
        self.asm.branch(If::NotEqual, regs.a, regs.x, next);
        self.asm.bind(done);
        done
    }

    /// Copies bytes from `v` to `p` plus an offset; `a` counts them, from 0. Clobbers `v`, `b` and `x`.
    fn copy(&mut self, bytes: u32, at: i64, loads: &mut Vec<Label>) {
        let regs = self.frame.regs;
        let whole = bytes & !7;
        self.asm.add(regs.b, regs.p, at);
        if whole > 0 {
            let next = self.asm.here();
            loads.push(self.asm.load(8, regs.x, regs.v, 0));
            self.asm.store(8, regs.x, regs.b, 0, ZERO);
            for register in [regs.v, regs.b, regs.a] {
                self.asm.add(register, register, 8);
            }
            self.asm.li(regs.x, whole.into());
            self.asm.branch(If::Below, regs.a, regs.x, next);
        }
        if bytes > whole {
            self.asm.store(8, ZERO, regs.b, 0, ZERO);
        }
        for byte in 0..i64::from(bytes - whole) {
            loads.push(self.asm.load(1, regs.x, regs.v, byte));
            self.asm.store(1, regs.x, regs.b, byte, ZERO);
            self.asm.add(regs.a, regs.a, 1);
        }
    }

    /// Brings a value into `v`. Clobbers `x`.
    pub(super) fn source(
        &mut self,
        source: &Source,
        loads: &mut Vec<Label>,
    ) -> Result<(), DetourError> {
        let regs = self.frame.regs;
        match source {
            Source::Here => self.asm.li(regs.v, self.here),
            Source::Number(number) => self.asm.li(regs.v, *number),
            Source::Register(SP) => self.asm.add(regs.v, SP, self.frame.depth()),
            Source::Register(register) => match self.frame.slot(*register) {
                Some(slot) => self.asm.ld(regs.v, SP, slot),
                None => self.asm.mv(regs.v, *register),
            },
            Source::Caller(distance) => {
                let at = self.frame.depth().wrapping_sub_unsigned(*distance);
                self.asm.li(regs.x, at.cast_unsigned());
                self.asm.op(Op::ADD, regs.x, regs.x, SP);
                self.asm.ld(regs.v, regs.x, 0);
                // `--check-frames` marks it in its top bit.
                self.asm.op_imm(Op::SLL, regs.v, regs.v, 1);
                self.asm.op_imm(Op::SRL, regs.v, regs.v, 1);
            }
            Source::Near(distance) => {
                let at = self.here.wrapping_add_signed(*distance);
                self.asm.li(regs.v, at);
            }
            Source::Plus(base, number) => {
                self.source(base, loads)?;
                self.plus(*number);
            }
            Source::ThreadPointer => self.asm.mv(regs.v, TP),
            Source::Flags | Source::Segment(_) => return Err(DetourError::NoRegister),
            Source::Memory(base, offset) => {
                self.source(base, loads)?;
                self.load(8, *offset, loads);
            }
        }
        Ok(())
    }
}
