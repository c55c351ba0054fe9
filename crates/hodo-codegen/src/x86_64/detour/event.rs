//! An event at a hit: a record and its payload, in the thread's chunk.

use super::frame::{Saved, pop, push};
use super::{
    CALL, CHUNK_SHIFT, Cold, DetourError, Event, Fetch, JA, JNE, MOST_VALUES, MOST_WORDS,
    NO_PROCESSOR, R8, R9, RCX, RDX, RSP, STRING, Source, fault_words,
};
use crate::x86_64::emit::Code;
use crate::x86_64::stub::Layout;
use alloc::vec::Vec;

/// Bytes of an event before its values: the record, the payload's, and the payload's first word.
const HEAD: u32 = 24;

pub(super) fn emit_event(
    code: &mut Code<'_>,
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
    code: &mut Code<'_>,
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
    let mark = saved.slots.len();
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
    let again = code.here();
    if event.timed {
        code.raw(&[0x0F, 0x31]); // rdtsc
        code.op32(&[0x65, 0x3B, 0x14, 0x25], layout.epoch); // cmp edx, gs:[epoch]
        let pending = code.forward(JNE);
        cold.epoch.push((pending, code.here()));
    } else {
        code.raw(&[0x31, 0xC0]); // xor eax, eax
    }
    code.op32(&[0xB9], size); // mov ecx, size
    code.op32(&[0x65, 0x48, 0x0F, 0xC1, 0x0C, 0x25], layout.cursor); // xadd gs:[cursor], rcx
    code.op32(&[0x48, 0x8D, 0x91], size); // lea rdx, [rcx+size]
    code.op32(&[0x65, 0x48, 0x3B, 0x14, 0x25], layout.limit); // cmp rdx, gs:[limit]
    let full = code.forward(JA);
    // A signal handler may have opened another chunk between these instructions: is it still one chunk?
    code.raw(&[0x48, 0xFF, 0xCA, 0x48, 0x31, 0xCA]); // dec rdx; xor rdx, rcx
    code.raw(&[0x48, 0xC1, 0xEA, CHUNK_SHIFT]); // shr rdx, CHUNK_SHIFT
    code.branch(JNE, again);
    code.op32(&[0xBA], event.info); // mov edx, info
    code.raw(&[0x48, 0xC1, 0xE2, 0x20, 0x48, 0x09, 0xC2]); // shl rdx, 32; or rdx, rax
    push(code, RDX);
    saved.slots.push(Some(RSP)); // nobody's register: not to be found
    // The payload comes before its record: a reader must never take it for records.
    let payload = u64::from(event.payload) << 32 | u64::from(size / 8 - 2);
    code.op64(&[0x48, 0xB8], payload); // movabs rax, payload
    code.raw(&[0x48, 0x89, 0x41, 0x08]); // mov [rcx+8], rax
    if event.rdpid {
        code.raw(&[0xF3, 0x0F, 0xC7, 0xF8]); // rdpid rax
        code.raw(&[0x48, 0xC1, 0xE0, 0x20]); // shl rax, 32
    } else {
        code.op64(&[0x48, 0xB8], u64::from(NO_PROCESSOR) << 32);
    }
    code.raw(&[0x48, 0x89, 0x41, 0x10]); // mov [rcx+16], rax
    for fault in 0..faults {
        code.op32(&[0x48, 0xC7, 0x81], HEAD + 8 * fault); // mov qword [rcx+word], 0
        code.raw(&[0; 4]);
    }
    let mut at = HEAD + 8 * faults;
    for (number, value) in event.values.iter().enumerate() {
        match kept(number) {
            Some(slot) => {
                let slot = ((saved.slots.len() - 1 - slot) * 8) as u32;
                code.op32(&[0x48, 0x8B, 0x84, 0x24], slot); // mov rax, [rsp+slot]
                code.op32(&[0x48, 0x89, 0x81], at); // mov [rcx+at], rax
            }
            None if *value == Fetch::Stack => {
                emit_stack(code, saved, at, size, pack.unwrap_or_default());
            }
            None => emit_value(code, (saved, here), value, at, number as u32, cold),
        }
        at += 8 * value.words() as u32;
    }
    saved.slots.pop();
    pop(code, RDX);
    code.raw(&[0x48, 0x89, 0x11]); // mov [rcx], rdx
    // A large one would not fit into the bucket, and try for ever.
    match size > layout.bucket_size / 2 {
        true => cold.large.push((full, again, code.here())),
        false => cold.chunk.push((full, again)),
    }
    saved.back(code, mark);
    Ok(())
}

/// Packs the stack into the event at `rcx`, from `at` to its end. Clobbers `rdx` and `r8`, too.
fn emit_stack(code: &mut Code<'_>, saved: &Saved, at: u32, size: u32, pack: u64) {
    code.op32(&[0x48, 0x8D, 0x84, 0x24], saved.depth()); // lea rax, [rsp+depth]: the program's rsp
    code.op32(&[0x48, 0x8D, 0x91], at); // lea rdx, [rcx+at]
    code.op32(&[0x4C, 0x8D, 0x81], size); // lea r8, [rcx+size]
    code.branch(CALL, pack);
}

/// Brings a value of one word into `rax`, as it is stored. Nothing else is changed.
pub(super) fn emit_word(
    code: &mut Code<'_>,
    saved: (&Saved, u64),
    value: &Fetch,
    loads: &mut Vec<u64>,
) {
    match value {
        Fetch::Word(source) => emit_source(code, saved, source, loads),
        Fetch::Load(source, offset, size) => {
            emit_source(code, saved, source, loads);
            loads.push(code.here());
            let opcode: &[u8] = match size {
                1 => &[0x0F, 0xB6, 0x80], // movzx eax, byte [rax+offset]
                2 => &[0x0F, 0xB7, 0x80], // movzx eax, word [rax+offset]
                4 => &[0x8B, 0x80],       // mov eax, [rax+offset]
                _ => &[0x48, 0x8B, 0x80], // mov rax, [rax+offset]
            };
            code.op32(opcode, offset.cast_unsigned());
        }
        Fetch::Thread(at, _) => code.op32(&[0x65, 0x48, 0x8B, 0x04, 0x25], *at), // mov rax, gs:[at]
        // The address of what is there.
        Fetch::Text(source, offset) | Fetch::Bytes(source, offset, _) => {
            emit_source(code, saved, source, loads);
            code.op32(&[0x48, 0x8D, 0x80], offset.cast_unsigned()); // lea rax, [rax+offset]
        }
        Fetch::Stack => unreachable!("it is no word"),
    }
}

/// Stores a value at `rcx + at`. `rax` is free, `r8` and `r9` for strings, too.
fn emit_value(
    code: &mut Code<'_>,
    saved: (&Saved, u64),
    value: &Fetch,
    at: u32,
    number: u32,
    cold: &mut Cold,
) {
    let mut loads = Vec::new();
    if let Fetch::Thread(from, words) = value {
        for word in 0..u32::from(*words) {
            code.op32(&[0x65, 0x48, 0x8B, 0x04, 0x25], from + 8 * word); // mov rax, gs:[from]
            code.op32(&[0x48, 0x89, 0x81], at + 8 * word); // mov [rcx+at], rax
        }
        return;
    }
    if let Fetch::Bytes(_, _, bytes) = value {
        code.raw(&[0x45, 0x31, 0xC0]); // xor r8d, r8d
        emit_word(code, saved, value, &mut loads);
        copy(code, *bytes, at + 8, &mut loads);
        let done = code.here();
        code.op32(&[0x4C, 0x89, 0x81], at); // mov [rcx+at], r8
        cold.leave
            .extend(loads.into_iter().map(|load| (load, done)));
        return;
    }
    emit_word(code, saved, value, &mut loads);
    if matches!(value, Fetch::Text(..)) {
        code.raw(&[0x45, 0x31, 0xC0]); // xor r8d, r8d
        let next = code.here();
        loads.push(next);
        code.raw(&[0x46, 0x8A, 0x0C, 0x00]); // mov r9b, [rax+r8]
        code.op32(&[0x46, 0x88, 0x8C, 0x01], at); // mov [rcx+r8+at], r9b
        code.raw(&[0x45, 0x84, 0xC9]); // test r9b, r9b
        code.raw(&[0x74, 0x0C]); // je over the rest
        code.raw(&[0x41, 0xFF, 0xC0]); // inc r8d
        code.op32(&[0x41, 0x81, 0xF8], STRING as u32); // cmp r8d, STRING
        let back = next.wrapping_sub(code.here() + 2).cast_signed() as i8;
        code.raw(&[0x72, back.cast_unsigned()]); // jb next
        let done = code.here();
        cold.fault
            .extend(loads.into_iter().map(|load| (done, number, load)));
        return;
    }
    let store = code.here();
    code.op32(&[0x48, 0x89, 0x81], at); // mov [rcx+at], rax
    cold.fault
        .extend(loads.into_iter().map(|load| (store, number, load)));
}

/// Copies bytes from `rax` to `rcx + at`; `r8` counts them, from 0. Clobbers `r9`.
fn copy(code: &mut Code<'_>, bytes: u32, at: u32, loads: &mut Vec<u64>) {
    let whole = bytes & !7;
    if whole > 0 {
        let next = code.here();
        loads.push(next);
        code.raw(&[0x4E, 0x8B, 0x0C, 0x00]); // mov r9, [rax+r8]
        code.op32(&[0x4E, 0x89, 0x8C, 0x01], at); // mov [rcx+r8+at], r9
        code.raw(&[0x41, 0x83, 0xC0, 8]); // add r8d, 8
        code.op32(&[0x41, 0x81, 0xF8], whole); // cmp r8d, whole
        let back = next.wrapping_sub(code.here() + 2).cast_signed() as i8;
        code.raw(&[0x72, back.cast_unsigned()]); // jb next
    }
    if bytes > whole {
        code.op32(&[0x48, 0xC7, 0x81], at + whole); // mov qword [rcx+at+whole], 0
        code.raw(&[0; 4]);
    }
    for _ in whole..bytes {
        loads.push(code.here());
        code.raw(&[0x46, 0x8A, 0x0C, 0x00]); // mov r9b, [rax+r8]
        code.op32(&[0x46, 0x88, 0x8C, 0x01], at); // mov [rcx+r8+at], r9b
        code.raw(&[0x41, 0xFF, 0xC0]); // inc r8d
    }
}

/// Brings a value into `rax`.
pub(super) fn emit_source(
    code: &mut Code<'_>,
    (saved, here): (&Saved, u64),
    source: &Source,
    loads: &mut Vec<u64>,
) {
    match source {
        Source::Here => code.op64(&[0x48, 0xB8], here),
        Source::Number(number) => code.op64(&[0x48, 0xB8], *number),
        Source::Register(RSP) => code.op32(&[0x48, 0x8D, 0x84, 0x24], saved.depth()),
        Source::Register(register) => match saved.slot(*register) {
            Some(slot) => code.op32(&[0x48, 0x8B, 0x84, 0x24], slot), // mov rax, [rsp+slot]
            None => {
                let rex = 0x48 | (register >> 3) << 2;
                code.raw(&[rex, 0x89, 0xC0 | (register & 7) << 3]); // mov rax, register
            }
        },
        Source::Caller(distance) => {
            // It is in the shadow of the word below the stack pointer.
            let at = u64::from(saved.depth()).wrapping_sub(8 + distance);
            code.op64(&[0x48, 0xB8], at); // movabs rax, at
            code.raw(&[0x48, 0x8B, 0x04, 0x04]); // mov rax, [rsp+rax]
            code.raw(&[0x48, 0x0F, 0xBA, 0xF0, 0x3F]); // btr rax, 63: `--check-frames` marks it
        }
        Source::Near(distance) => {
            let at = here.wrapping_add_signed(*distance);
            code.op64(&[0x48, 0xB8], at);
        }
        Source::Plus(base, number) => {
            emit_source(code, (saved, here), base, loads);
            code.op32(&[0x48, 0x03, 0x05], 2); // add rax, [rip+2]
            code.raw(&[0xEB, 8]); // jmp over the number
            code.raw(&number.to_le_bytes());
        }
        Source::ThreadPointer => {
            // A program without such blocks has no base of fs either, and this faults.
            loads.push(code.here());
            code.op32(&[0x64, 0x48, 0x8B, 0x04, 0x25], 0); // mov rax, fs:[0]
        }
        Source::Segment(register) => code.raw(&[0x8C, 0xC0 | (register & 7) << 3]), // mov eax, register
        Source::Flags => {
            const KEPT: u32 = 0x8D5;
            code.raw(&[0x9C, 0x58]); // pushfq; pop rax
            if let Some(slot) = saved.flags() {
                code.op32(&[0x48, 0x25], !KEPT); // and rax, ~kept
                code.op32(&[0x0A, 0x84, 0x24], slot + 1); // or al, [rsp+slot+1]: as lahf had them
                code.op32(&[0xF6, 0x84, 0x24], slot); // test byte [rsp+slot], 1: as seto had it
                code.raw(&[1, 0x74, 5]); // je over the next
                code.op32(&[0x0D], 0x800); // or eax, 0x800
            }
        }
        Source::Memory(base, offset) => {
            emit_source(code, (saved, here), base, loads);
            loads.push(code.here());
            code.op32(&[0x48, 0x8B, 0x80], offset.cast_unsigned()); // mov rax, [rax+offset]
        }
    }
}
