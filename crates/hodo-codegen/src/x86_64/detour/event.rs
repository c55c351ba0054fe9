//! An event at a hit: a record and its payload, in the thread's chunk.

use super::frame::Saved;
use super::{
    CHUNK_SHIFT, Cold, DetourError, Event, Fetch, MOST_VALUES, MOST_WORDS, NO_PROCESSOR, STRING,
    Source, fault_words,
};
use crate::x86_64::masm::*;
use crate::x86_64::stub::Layout;
use alloc::vec::Vec;

/// Bytes of an event before its values: the record, the payload's, and the payload's first word.
const HEAD: u32 = 24;

pub(super) fn emit_event(
    code: &mut Masm<'_>,
    layout: (&Layout, Option<u64>),
    flags_dead: bool,
    event: &Event,
    here: u64,
    cold: &mut Cold,
) -> Result<(), DetourError> {
    let mut saved = Saved::begin(code, flags_dead);
    emit_record(code, layout, &mut saved, event, (here, &|_| None), cold)?;
    saved.end(code);
    Ok(())
}

/// Where a value of an event was put before, as the number of a slot; `None`: it is to be fetched.
pub(super) type Kept<'a> = dyn Fn(usize) -> Option<usize> + 'a;

/// Writes the event. What has been pushed has `rax` and the flags. With the layout comes the address of what packs a stack.
pub(super) fn emit_record(
    code: &mut Masm<'_>,
    (layout, pack): (&Layout, Option<u64>),
    saved: &mut Saved,
    event: &Event,
    (here, kept): (u64, &Kept<'_>),
    cold: &mut Cold,
) -> Result<(), DetourError> {
    let words: usize = event.values.iter().map(Fetch::words).sum();
    if words > MOST_WORDS {
        return Err(DetourError::TooLarge);
    }
    if event.values.len() > MOST_VALUES {
        return Err(DetourError::TooManyValues);
    }
    let faults = fault_words(event.values.len()) as u32;
    let size = HEAD + 8 * (faults + words as u32);
    let mark = saved.len();
    saved.need(code, RCX);
    saved.need(code, RDX);
    let packed = event.values.last() == Some(&Fetch::Stack);
    if packed && pack.is_none() {
        return Err(DetourError::NoStack);
    }
    let texts = |value: &Fetch| matches!(value, Fetch::Text(..) | Fetch::Bytes(..) | Fetch::Stack);
    if event.values.iter().any(texts) {
        saved.need(code, R8);
        saved.need(code, R9);
    }
    let again = code.label_here();
    if event.timed {
        code.rdtsc();
        code.cmp_rm(EDX, gs(layout.epoch));
        let pending = code.label();
        code.jcc(Cond::NE, pending);
        cold.epoch.push((pending, code.label_here()));
    } else {
        code.xor_rr(EAX, EAX);
    }
    code.mov_ri(ECX, size);
    code.xadd_mr(gs(layout.cursor), RCX);
    code.lea(RDX, mem32(RCX, size));
    code.cmp_rm(RDX, gs(layout.limit));
    let full = code.label();
    code.jcc(Cond::A, full);
    // A signal handler may have opened another chunk between these instructions: is it still one chunk?
    code.dec_r(RDX);
    code.xor_rr(RDX, RCX);
    code.shr_ri(RDX, CHUNK_SHIFT);
    code.jcc(Cond::NE, again);
    code.mov_ri(EDX, event.info);
    code.shl_ri(RDX, 32);
    code.or_rr(RDX, RAX);
    saved.push_value(code, RDX);
    // The payload comes before its record: a reader must never take it for records.
    let payload = u64::from(event.payload) << 32 | u64::from(size / 8 - 2);
    code.movabs_ri(RAX, payload);
    code.mov_mr(mem(RCX, 8), RAX);
    if event.rdpid {
        code.rdpid(RAX);
        code.shl_ri(RAX, 32);
    } else {
        code.movabs_ri(RAX, u64::from(NO_PROCESSOR) << 32);
    }
    code.mov_mr(mem(RCX, 16), RAX);
    for fault in 0..faults {
        code.mov_mi(QWORD, mem32(RCX, HEAD + 8 * fault), 0);
    }
    let mut at = HEAD + 8 * faults;
    for (number, value) in event.values.iter().enumerate() {
        match kept(number) {
            Some(slot) => {
                let slot = ((saved.len() - 1 - slot) * 8) as u32;
                code.mov_rm(RAX, mem32(RSP, slot));
                code.mov_mr(mem32(RCX, at), RAX);
            }
            None if *value == Fetch::Stack => {
                emit_stack(code, saved, at, size, pack.unwrap_or_default());
            }
            None => emit_value(code, (saved, here), value, at, number as u32, cold),
        }
        at += 8 * value.words() as u32;
    }
    saved.pop_value(code, RDX);
    code.mov_mr(mem(RCX, 0), RDX);
    // A large one would not fit into the bucket, and try for ever.
    match size > layout.bucket_size / 2 {
        true => cold.large.push((full, again, code.label_here())),
        false => cold.chunk.push((full, again)),
    }
    saved.back(code, mark);
    Ok(())
}

/// Packs the stack into the event at `rcx`, from `at` to its end. Clobbers `rdx` and `r8`, too.
fn emit_stack(code: &mut Masm<'_>, saved: &Saved, at: u32, size: u32, pack: u64) {
    code.lea(RAX, mem32(RSP, saved.depth())); // the program's rsp
    code.lea(RDX, mem32(RCX, at));
    code.lea(R8, mem32(RCX, size));
    code.call_to(pack);
}

/// Brings a value of one word into `rax`, as it is stored. Nothing else is changed.
pub(super) fn emit_word(
    code: &mut Masm<'_>,
    saved: (&Saved, u64),
    value: &Fetch,
    loads: &mut Vec<u64>,
) {
    match value {
        Fetch::Word(source) => emit_source(code, saved, source, loads),
        Fetch::Load(source, offset, size) => {
            emit_source(code, saved, source, loads);
            loads.push(code.here());
            let mem = mem32(RAX, offset.cast_unsigned());
            match size {
                1 => code.movzx_rm(EAX, Size::Byte, mem),
                2 => code.movzx_rm(EAX, Size::Word, mem),
                4 => code.mov_rm(EAX, mem),
                _ => code.mov_rm(RAX, mem),
            }
        }
        Fetch::Thread(at, _) => code.mov_rm(RAX, gs(*at)),
        // The address of what is there.
        Fetch::Text(source, offset) | Fetch::Bytes(source, offset, _) => {
            emit_source(code, saved, source, loads);
            code.lea(RAX, mem32(RAX, offset.cast_unsigned()));
        }
        Fetch::Stack => unreachable!("it is no word"),
    }
}

/// Stores a value at `rcx + at`. `rax` is free, `r8` and `r9` for strings, too.
fn emit_value(
    code: &mut Masm<'_>,
    saved: (&Saved, u64),
    value: &Fetch,
    at: u32,
    number: u32,
    cold: &mut Cold,
) {
    let mut loads = Vec::new();
    if let Fetch::Thread(from, words) = value {
        for word in 0..u32::from(*words) {
            code.mov_rm(RAX, gs(from + 8 * word));
            code.mov_mr(mem32(RCX, at + 8 * word), RAX);
        }
        return;
    }
    if let Fetch::Bytes(_, _, bytes) = value {
        code.xor_rr(R8D, R8D);
        emit_word(code, saved, value, &mut loads);
        copy(code, *bytes, at + 8, &mut loads);
        let done = code.here();
        code.mov_mr(mem32(RCX, at), R8);
        cold.leave
            .extend(loads.into_iter().map(|load| (load, done)));
        return;
    }
    emit_word(code, saved, value, &mut loads);
    if matches!(value, Fetch::Text(..)) {
        code.xor_rr(R8D, R8D);
        let (next, done) = (code.label_here(), code.label());
        loads.push(code.here());
        code.mov_rm(R9B, mem(RAX, 0).plus(R8));
        code.mov_mr(mem32(RCX, at).plus(R8), R9B);
        code.test_rr(R9B, R9B);
        code.jcc_short(Cond::E, done);
        code.inc_r(R8D);
        code.cmp_ri(R8D, STRING as u32);
        code.jcc_short(Cond::B, next);
        code.bind(done);
        cold.fault
            .extend(loads.into_iter().map(|load| (done, number, load)));
        return;
    }
    let store = code.label_here();
    code.mov_mr(mem32(RCX, at), RAX);
    cold.fault
        .extend(loads.into_iter().map(|load| (store, number, load)));
}

/// Copies bytes from `rax` to `rcx + at`; `r8` counts them, from 0. Clobbers `r9`.
fn copy(code: &mut Masm<'_>, bytes: u32, at: u32, loads: &mut Vec<u64>) {
    let whole = bytes & !7;
    if whole > 0 {
        let next = code.label_here();
        loads.push(code.here());
        code.mov_rm(R9, mem(RAX, 0).plus(R8));
        code.mov_mr(mem32(RCX, at).plus(R8), R9);
        code.add_ri8(R8D, 8);
        code.cmp_ri(R8D, whole);
        code.jcc_short(Cond::B, next);
    }
    if bytes > whole {
        code.mov_mi(QWORD, mem32(RCX, at + whole), 0);
    }
    for _ in whole..bytes {
        loads.push(code.here());
        code.mov_rm(R9B, mem(RAX, 0).plus(R8));
        code.mov_mr(mem32(RCX, at).plus(R8), R9B);
        code.inc_r(R8D);
    }
}

/// Brings a value into `rax`.
pub(super) fn emit_source(
    code: &mut Masm<'_>,
    (saved, here): (&Saved, u64),
    source: &Source,
    loads: &mut Vec<u64>,
) {
    match source {
        Source::Here => code.movabs_ri(RAX, here),
        Source::Number(number) => code.movabs_ri(RAX, *number),
        Source::Register(register) => match Reg::whole(*register) {
            RSP => code.lea(RAX, mem32(RSP, saved.depth())),
            register => match saved.slot(register) {
                Some(slot) => code.mov_rm(RAX, mem32(RSP, slot)),
                None => code.mov_rr(RAX, register),
            },
        },
        Source::Caller(distance) => {
            // It is in the shadow of the word below the stack pointer.
            let at = u64::from(saved.depth()).wrapping_sub(8 + distance);
            code.movabs_ri(RAX, at);
            code.mov_rm(RAX, mem(RSP, 0).plus(RAX));
            code.btr_ri(RAX, 63); // `--check-frames` marks it
        }
        Source::Near(distance) => {
            let at = here.wrapping_add_signed(*distance);
            code.movabs_ri(RAX, at);
        }
        Source::Plus(base, number) => {
            emit_source(code, (saved, here), base, loads);
            let (constant, behind) = (code.label(), code.label());
            code.add_rm(RAX, label(constant));
            code.jmp_short(behind);
            code.bind(constant);
            code.data(number.cast_unsigned());
            code.bind(behind);
        }
        Source::ThreadPointer => {
            // A program without such blocks has no base of fs either, and this faults.
            loads.push(code.here());
            code.mov_rm(RAX, fs(0));
        }
        Source::Segment(register) => code.mov_rs(EAX, *register),
        Source::Flags => {
            /// The flag that lahf does not have, and all that are kept.
            const OVERFLOW: u32 = 0x800;
            const KEPT: u32 = OVERFLOW | 0xD5;
            code.pushfq();
            code.pop_r(RAX);
            if let Some(slot) = saved.flags() {
                code.and_ri(RAX, !KEPT);
                code.or_rm(AL, mem32(RSP, slot + 1)); // as lahf had them
                code.test_mi(mem32(RSP, slot), 1); // as seto had it
                let none = code.label();
                code.jcc_short(Cond::E, none);
                code.or_ri(EAX, OVERFLOW);
                code.bind(none);
            }
        }
        Source::Memory(base, offset) => {
            emit_source(code, (saved, here), base, loads);
            loads.push(code.here());
            code.mov_rm(RAX, mem32(RAX, offset.cast_unsigned()));
        }
    }
}
