//! Where values come from, and events: an event is at `rcx`; `rdx` holds what will be pushed as the record; `r8` and
//! `r9` are for texts.

use alloc::vec::Vec;

use super::{
    CHUNK_SHIFT, Counter, DetourError, Event, Fetch, NO_PROCESSOR, Probing, Register, STRING, Words,
};
use crate::lower::{Events, Sources};
use crate::stub::UNTRACED;
use crate::x86_64::clock;
use crate::x86_64::masm::*;

impl Probing<'_, '_> {
    /// Jumps back to a label while a register is below a number.
    fn below(&mut self, counter: Reg, end: u32, next: Label) {
        self.code.cmp_ri(counter, end);
        self.code.jcc_short(Cond::B, next);
    }

    /// Copies the byte whose index is in `r8`.
    fn copy_byte(&mut self, to: Mem, loads: &mut Vec<u64>) {
        loads.push(self.code.here());
        self.code.mov_rm(R9B, mem(RAX, 0).plus(R8));
        self.code.mov_mr(to.plus(R8), R9B);
    }

    /// Copies a text of at most [`STRING`] bytes, and binds a label after that.
    pub(super) fn copy_text(&mut self, to: Mem, done: Label, loads: &mut Vec<u64>) {
        self.code.xor_rr(R8D, R8D);
        let next = self.code.label_here();
        self.copy_byte(to, loads);
        self.code.test_rr(R9B, R9B);
        self.code.jcc_short(Cond::E, done);
        self.code.inc_r(R8D);
        self.below(R8D, STRING as u32, next);
        self.code.bind(done);
    }
}

impl Sources for Probing<'_, '_> {
    type Load = u64;

    fn here(&self) -> u64 {
        self.here
    }

    fn wide_number(&mut self, number: u64) {
        self.code.movabs_ri(RAX, number);
    }

    fn register(&mut self, register: Register) {
        let saved = &self.saved;
        match Reg::whole(register) {
            RSP => self.code.lea(RAX, mem32(RSP, saved.depth())),
            register => match saved.slot(register) {
                Some(slot) => self.code.mov_rm(RAX, mem32(RSP, slot)),
                None => self.code.mov_rr(RAX, register),
            },
        }
    }

    fn caller(&mut self, distance: u64) {
        // It is in the shadow of the word below the stack pointer.
        let at = u64::from(self.saved.depth()).wrapping_sub(8 + distance);
        self.code.movabs_ri(RAX, at);
        self.code.mov_rm(RAX, mem(RSP, 0).plus(RAX));
        self.code.btr_ri(RAX, 63); // `--check-frames` marks it
    }

    fn thread_pointer(&mut self, loads: &mut Vec<u64>) {
        // A program without such blocks has no base of fs either, so this faults.
        loads.push(self.code.here());
        self.code.mov_rm(RAX, fs(0));
    }

    fn flags(&mut self) -> Result<(), DetourError> {
        /// The flag that lahf does not store, and all that are saved.
        const OVERFLOW: u32 = 0x800;
        const KEPT: u32 = OVERFLOW | 0xD5;
        self.code.pushfq();
        self.code.pop_r(RAX);
        if let Some(slot) = self.saved.flags() {
            self.code.and_ri(RAX, !KEPT);
            self.code.or_rm(AL, mem32(RSP, slot + 1)); // as lahf had them
            self.code.test_mi(mem32(RSP, slot), 1); // as seto had it
            let none = self.code.label();
            self.code.jcc_short(Cond::E, none);
            self.code.or_ri(EAX, OVERFLOW);
            self.code.bind(none);
        }
        Ok(())
    }

    fn segment(&mut self, register: u8) -> Result<(), DetourError> {
        self.code.mov_rs(EAX, register);
        Ok(())
    }

    fn thread_word(&mut self, at: u32) {
        self.code.mov_rm(RAX, gs(at));
    }

    fn plus(&mut self, number: i64) {
        let (constant, after) = (self.code.label(), self.code.label());
        self.code.add_rm(RAX, label(constant));
        self.code.jmp_short(after);
        self.code.bind(constant);
        self.code.data(number.cast_unsigned());
        self.code.bind(after);
    }

    fn offset(&mut self, offset: i32) {
        self.code.lea(RAX, mem32(RAX, offset.cast_unsigned()));
    }

    fn load_from(&mut self, size: u8, offset: i32, loads: &mut Vec<u64>) {
        loads.push(self.code.here());
        let from = mem32(RAX, offset.cast_unsigned());
        match size {
            1 => self.code.movzx_rm(EAX, Size::Byte, from),
            2 => self.code.movzx_rm(EAX, Size::Word, from),
            4 => self.code.mov_rm(EAX, from),
            _ => self.code.mov_rm(RAX, from),
        }
    }
}

impl Events for Probing<'_, '_> {
    fn count(&mut self, counter: Counter) {
        match counter {
            Counter::Thread(at) => self.code.inc_m(QWORD, gs(at.cast_unsigned())),
            Counter::Shared { base, at } => {
                self.code.mov_rm(RAX, gs(base));
                let counter = mem32(RAX, at.cast_unsigned());
                self.code.lock().inc_m(QWORD, counter);
            }
        }
    }

    fn unless_on(&mut self, base: u32, at: u32, off: Label) {
        self.code.mov_rm(RAX, gs(base));
        self.code.cmp_mi(BYTE, mem32(RAX, at), 0);
        self.code.jcc(Cond::E, off);
    }

    fn unless_traced(&mut self, off: Label) {
        self.code.mov_rm(RAX, gs(self.layout.base));
        self.code.test_mi(mem32(RAX, self.layout.owner), UNTRACED);
        self.code.jcc(Cond::NE, off);
    }

    fn switch(&mut self, base: u32, at: u32, on: bool) {
        let done = self.code.label();
        self.code.mov_rm(RAX, gs(base));
        self.code.cmp_mi(BYTE, mem32(RAX, at), on.into());
        self.code.jcc_short(Cond::E, done);
        self.code.mov_mi(BYTE, mem32(RAX, at), on.into());
        self.code.bind(done);
    }

    fn begin_histogram(&mut self, words: Words) {
        self.begin(&[RCX, RDX, R8, R9]);
        // Includes a word for the slot's number.
        self.keys = self.saved.frame(self.code, words.keys + words.sums + 1);
    }

    fn begin_name(&mut self) {
        self.begin(&[RCX, RDX]);
    }

    fn begin_event(&mut self, event: &Event) -> Result<(), DetourError> {
        if event.values.last() == Some(&Fetch::Stack) && self.pack.is_none() {
            return Err(DetourError::NoStack);
        }
        let long =
            |value: &Fetch| matches!(value, Fetch::Text(..) | Fetch::Bytes(..) | Fetch::Stack);
        match event.values.iter().any(long) {
            true => self.begin(&[RCX, RDX, R8, R9]),
            false => self.begin(&[RCX, RDX]),
        }
        Ok(())
    }

    fn end(&mut self) {
        self.saved.back(self.code, self.mark);
    }

    fn leave(&mut self, loads: Vec<u64>, to: Label) {
        let ways = loads.into_iter().map(|load| (load, to));
        self.cold.leave.extend(ways);
    }

    fn copy_name(&mut self, at: u32, done: Label, loads: &mut Vec<u64>) {
        let code = &mut *self.code;
        code.xor_rr(ECX, ECX);
        code.mov_ri(DL, 1);
        let (next, ended) = (code.label_here(), code.label());
        code.test_rr(DL, DL);
        code.jcc_short(Cond::E, ended);
        loads.push(code.here());
        code.mov_rm(DL, mem(RAX, 0).plus(RCX));
        code.bind(ended);
        code.mov_mr(mem32(RCX, at).in_gs(), DL);
        code.inc_r(ECX);
        code.cmp_ri8(ECX, 15);
        code.jcc_short(Cond::B, next);
        code.bind(done);
        code.mov_mi(BYTE, gs(at + 15), 0);
    }

    fn take_place(&mut self, event: &Event, size: u32, again: Label, full: Label) {
        let layout = self.layout;
        let code = &mut *self.code;
        if event.timed {
            clock::read_into(code, layout);
            let changed = code.label();
            code.jcc(Cond::NE, changed);
            self.cold.epoch.push((changed, code.label_here()));
        } else {
            code.xor_rr(EAX, EAX);
        }
        code.mov_ri(ECX, size);
        code.xadd_mr(gs(layout.cursor), RCX);
        code.lea(RDX, mem32(RCX, size));
        code.cmp_rm(RDX, gs(layout.limit));
        code.jcc(Cond::A, full);
        // A signal handler may have opened another chunk between these instructions: are both ends in one chunk?
        code.dec_r(RDX);
        code.xor_rr(RDX, RCX);
        code.shr_ri(RDX, CHUNK_SHIFT);
        code.jcc(Cond::NE, again);
        code.mov_ri(EDX, event.info);
        code.shl_ri(RDX, 32);
        code.or_rr(RDX, RAX);
        self.saved.push_value(self.code, RDX);
    }

    fn processor_word(&mut self, rdpid: bool) {
        if rdpid {
            self.code.rdpid(RAX);
            self.code.shl_ri(RAX, 32);
        } else {
            self.wide_number(u64::from(NO_PROCESSOR) << 32);
        }
    }

    fn put(&mut self, at: u32) {
        self.code.mov_mr(in_event(at), RAX);
    }

    fn clear(&mut self, at: u32) {
        self.code.mov_mi(QWORD, in_event(at), 0);
    }

    fn pack(&mut self, at: u32, size: u32) -> Result<(), DetourError> {
        let pack = self.pack.ok_or(DetourError::NoStack)?;
        let depth = self.saved.depth();
        self.code.lea(RAX, mem32(RSP, depth)); // the program's rsp
        self.code.lea(RDX, in_event(at));
        self.code.lea(R8, in_event(size));
        self.code.call_to(pack);
        Ok(())
    }

    fn put_text(&mut self, at: u32, done: Label, loads: &mut Vec<u64>) {
        self.copy_text(in_event(at), done, loads);
    }

    fn begin_bytes(&mut self) {
        self.code.xor_rr(R8D, R8D);
    }

    fn copy_bytes(&mut self, bytes: u32, at: u32, loads: &mut Vec<u64>) {
        let whole = bytes & !7;
        if whole > 0 {
            let next = self.code.label_here();
            loads.push(self.code.here());
            self.code.mov_rm(R9, mem(RAX, 0).plus(R8));
            self.code.mov_mr(in_event(at).plus(R8), R9);
            self.code.add_ri8(R8D, 8);
            self.below(R8D, whole, next);
        }
        if bytes > whole {
            self.clear(at + whole);
        }
        for _ in whole..bytes {
            self.copy_byte(in_event(at), loads);
            self.code.inc_r(R8D);
        }
    }

    fn end_bytes(&mut self, at: u32) {
        self.code.mov_mr(in_event(at), R8);
    }

    fn failed(&mut self, loads: Vec<u64>, number: u32, store: Label) {
        let ways = loads.into_iter().map(|load| (store, number, load));
        self.cold.fault.extend(ways);
    }

    fn publish_event(&mut self) {
        self.saved.pop_value(self.code, RDX);
        self.code.mov_mr(mem(RCX, 0), RDX);
    }

    fn chunk_is_full(&mut self, size: u32, full: Label, (again, done): (Label, Label)) {
        // A large event would not fit into the bucket, and would be tried forever.
        match size > self.layout.bucket_size / 2 {
            true => self.cold.large.push((full, again, done)),
            false => self.cold.chunk.push((full, again)),
        }
    }
}

/// A word of the event; words before its values get a short displacement.
fn in_event(at: u32) -> Mem {
    match at {
        0..24 => mem(RCX, at.cast_signed()),
        _ => mem32(RCX, at),
    }
}
