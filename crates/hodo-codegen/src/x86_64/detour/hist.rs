//! Histograms as machine code.

use alloc::vec::Vec;

use super::block::Given;
use super::condition::{JA, JNE, Label, Writer};
use super::frame::Saved;
use super::{Cold, HEAD, Histogram, Key, Part, R8, R9, RCX, RDX, STRING, Text};
use crate::x86_64::emit::Code;

const LOAD: [u8; 4] = [0x48, 0x8B, 0x84, 0x24]; // mov rax, [rsp+…]
const STORE: [u8; 4] = [0x48, 0x89, 0x84, 0x24]; // mov [rsp+…], rax
const LOAD_RDX: [u8; 4] = [0x48, 0x8B, 0x94, 0x24]; // mov rdx, [rsp+…]

pub(super) fn emit_histogram(
    code: &mut Code<'_>,
    saved: &mut Saved,
    histogram: &Histogram,
    given: Given<'_>,
    cold: &mut Cold,
) {
    let words = histogram.words();
    let mark = saved.slots.len();
    for register in [RCX, RDX, R8, R9] {
        saved.need(code, register);
    }
    // Keys, sums, and a place for the slot's number.
    let frame = saved.frame(code, words.keys + words.sums + 1);
    let saved_now = saved.clone();
    let word = |number: usize| saved_now.word(frame, number);
    let mut lost = Lost::new();
    let mut at = 0;
    for key in &histogram.keys {
        put_key(code, &saved_now, key, (&given, at, frame), &mut lost);
        at += key.words();
    }
    for sum in &histogram.sums {
        lost.from(given.writer(code, &saved_now), |writer| writer.number(sum));
        code.op32(&STORE, word(at));
        at += 1;
    }
    let mut table = Table {
        code,
        saved: &saved_now,
        given: &given,
        histogram,
        frame,
    };
    let unread = table.emit(lost.jumps);
    cold.leave
        .extend(lost.loads.into_iter().map(|load| (load, unread)));
    saved.back(code, mark);
}

/// Where a hit is lost, for something cannot be computed.
struct Lost {
    /// Loads that may fault.
    loads: Vec<u64>,
    /// Jumps.
    jumps: Label,
}

impl Lost {
    fn new() -> Self {
        Self {
            loads: Vec::new(),
            jumps: Label::new(),
        }
    }

    /// Has something computed.
    fn from(&mut self, mut writer: Writer<'_, '_>, compute: impl FnOnce(&mut Writer<'_, '_>)) {
        core::mem::swap(&mut writer.out, &mut self.jumps);
        compute(&mut writer);
        core::mem::swap(&mut writer.out, &mut self.jumps);
        self.loads.append(&mut writer.loads);
    }
}

/// Brings a key into the frame, from word `at` on.
fn put_key(
    code: &mut Code<'_>,
    saved: &Saved,
    key: &Key,
    (given, at, frame): (&Given<'_>, usize, usize),
    lost: &mut Lost,
) {
    let word = |number: usize| saved.word(frame, at + number);
    match key {
        Key::Number(test, part) => {
            lost.from(given.writer(code, saved), |writer| writer.number(test));
            put_part(code, saved, *part, given);
            code.op32(&STORE, word(0));
        }
        Key::Text(Text::Thread(from)) => {
            for number in 0..2 {
                code.op32(&[0x65, 0x48, 0x8B, 0x04, 0x25], from + 8 * number); // mov rax, gs:[from]
                code.op32(&STORE, word(number as usize));
            }
        }
        Key::Text(Text::Value(value)) => {
            code.raw(&[0x31, 0xC0]); // xor eax, eax
            for number in 0..STRING / 8 {
                code.op32(&STORE, word(number));
            }
            lost.from(given.writer(code, saved), |writer| writer.word(*value));
            code.raw(&[0x45, 0x31, 0xC0]); // xor r8d, r8d
            let next = code.here();
            lost.loads.push(next);
            code.raw(&[0x46, 0x8A, 0x0C, 0x00]); // mov r9b, [rax+r8]
            code.op32(&[0x46, 0x88, 0x8C, 0x04], word(0)); // mov [rsp+r8+word], r9b
            code.raw(&[0x45, 0x84, 0xC9]); // test r9b, r9b
            code.raw(&[0x74, 0x0C]); // je over the rest
            code.raw(&[0x41, 0xFF, 0xC0]); // inc r8d
            code.op32(&[0x41, 0x81, 0xF8], STRING as u32); // cmp r8d, STRING
            let back = next.wrapping_sub(code.here() + 2).cast_signed() as i8;
            code.raw(&[0x72, back.cast_unsigned()]); // jb next
        }
        Key::Text(Text::Fixed(text)) => {
            let mut bytes = text.clone();
            bytes.resize(STRING, 0);
            for (number, eight) in bytes.chunks_exact(8).enumerate() {
                let eight = u64::from_le_bytes(eight.try_into().unwrap_or_default());
                code.op64(&[0x48, 0xB8], eight); // mov rax, …
                code.op32(&STORE, word(number));
            }
        }
    }
}

/// What `rax` is counted as.
fn put_part(code: &mut Code<'_>, saved: &Saved, part: Part, given: &Given<'_>) {
    match part {
        Part::Each => {}
        Part::Log2 => {
            // bsr leaves its result as it is for 0.
            code.raw(&[0x48, 0x0F, 0xBD, 0xC8]); // bsr rcx, rax
            code.raw(&[0x8D, 0x49, 0x01]); // lea ecx, [rcx+1]
            code.raw(&[0x48, 0x85, 0xC0]); // test rax, rax
            code.raw(&[0x0F, 0x45, 0xC1]); // cmovne eax, ecx
        }
        Part::Linear(width, signed) => {
            code.raw(&[0x49, 0x89, 0xC0]); // mov r8, rax
            code.op64(&[0x48, 0xB9], width); // mov rcx, width
            if signed && width <= i64::MAX as u64 {
                code.raw(&[0x48, 0x99, 0x48, 0xF7, 0xF9]); // cqo; idiv rcx
                code.raw(&[0x49, 0x29, 0xD0]); // sub r8, rdx
                let mut writer = given.writer(code, saved);
                let mut above = Label::new();
                writer.code.raw(&[0x48, 0x85, 0xD2]); // test rdx, rdx
                writer.jump_if(0x89, &mut above); // jns
                writer.code.raw(&[0x49, 0x29, 0xC8]); // sub r8, rcx
                writer.bind(above);
            } else {
                code.raw(&[0x31, 0xD2, 0x48, 0xF7, 0xF1]); // xor edx, edx; div rcx
                code.raw(&[0x49, 0x29, 0xD0]); // sub r8, rdx
            }
            code.raw(&[0x4C, 0x89, 0xC0]); // mov rax, r8
        }
    }
}

/// The code that finds the slot.
struct Table<'a, 'c> {
    code: &'a mut Code<'c>,
    saved: &'a Saved,
    given: &'a Given<'a>,
    histogram: &'a Histogram,
    frame: usize,
}

impl Table<'_, '_> {
    fn word(&self, number: usize) -> u32 {
        self.saved.word(self.frame, number)
    }

    fn jump_if(&mut self, condition: u8, to: &mut Label) {
        self.given
            .writer(self.code, self.saved)
            .jump_if(condition, to);
    }

    fn jump_to(&mut self, to: &mut Label) {
        self.given.writer(self.code, self.saved).jump_to(to);
    }

    fn bind(&mut self, label: Label) {
        self.given.writer(self.code, self.saved).bind(label);
    }

    /// The keys are in the frame, the sums behind them. Tells where to go on if one cannot be read, to which `lost` leads.
    fn emit(&mut self, lost: Label) -> u64 {
        let words = self.histogram.words();
        let slots = Histogram::slots(self.histogram.size);
        let sums_at = 16;
        let keys_at = 16 + 8 * words.sums as u32;
        let index = self.word(words.keys + words.sums);
        self.hash(words.keys);
        self.code.raw(&[0x48, 0x83, 0xE0, 0xFC]); // and rax, -4
        self.code.raw(&[0x4C, 0x8D, 0x48, 0x02]); // lea r9, [rax+2]
        let shift = 64 - slots.trailing_zeros();
        self.code.raw(&[0x48, 0xC1, 0xE8, shift as u8]); // shr rax, …
        self.table();
        let again = self.code.here();
        let slot = words.slot() as u32;
        self.code.op32(&[0x4C, 0x69, 0xC0], slot); // imul r8, rax, slot
        self.code.raw(&[0x4E, 0x8D, 0x44, 0x01, HEAD as u8]); // lea r8, [rcx+r8+HEAD]
        let look = self.code.here();
        let (mut other, mut next, mut raced) = (Label::new(), Label::new(), Label::new());
        let (mut full, mut end) = (Label::new(), Label::new());
        self.code.raw(&[0x49, 0x8B, 0x10, 0x4C, 0x39, 0xCA]); // mov rdx, [r8]; cmp rdx, r9
        self.jump_if(JNE, &mut other);
        for key in 0..words.keys {
            let word = self.word(key);
            self.code.op32(&LOAD_RDX, word);
            self.code
                .op32(&[0x49, 0x3B, 0x90], keys_at + 8 * key as u32); // cmp rdx, [r8+key]
            self.jump_if(JNE, &mut next);
        }
        let found = self.code.here();
        self.code.raw(&[0xF0, 0x49, 0xFF, 0x40, 0x08]); // lock inc qword [r8+8]
        for sum in 0..words.sums {
            let word = self.word(words.keys + sum);
            self.code.op32(&LOAD_RDX, word);
            self.code
                .op32(&[0xF0, 0x49, 0x01, 0x90], sums_at + 8 * sum as u32); // lock add [r8+sum], rdx
        }
        self.jump_to(&mut end);
        self.bind(other);
        self.code.raw(&[0x48, 0x85, 0xD2]); // test rdx, rdx
        self.jump_if(JNE, &mut next);
        // A free one. First an entry is taken, then the slot.
        let size = self.histogram.size - 1;
        self.code.raw(&[0x48, 0x8B, 0x11]); // mov rdx, [rcx]
        self.code.op32(&[0x48, 0x81, 0xFA], size); // cmp rdx, size-1
        self.jump_if(JA, &mut full);
        self.code.op32(&[0xBA], 1); // mov edx, 1
        self.code.raw(&[0xF0, 0x48, 0x0F, 0xC1, 0x11]); // lock xadd [rcx], rdx
        self.code.op32(&[0x48, 0x81, 0xFA], size); // cmp rdx, size-1
        let mut over = Label::new();
        self.jump_if(JA, &mut over);
        self.code.op32(&STORE, index);
        self.code.raw(&[0x31, 0xC0, 0x49, 0x8D, 0x51, 0xFF]); // xor eax, eax; lea rdx, [r9-1]
        self.code.raw(&[0xF0, 0x49, 0x0F, 0xB1, 0x10]); // lock cmpxchg [r8], rdx
        self.jump_if(JNE, &mut raced);
        for key in 0..words.keys {
            let word = self.word(key);
            self.code.op32(&LOAD_RDX, word);
            self.code
                .op32(&[0x49, 0x89, 0x90], keys_at + 8 * key as u32); // mov [r8+key], rdx
        }
        self.code.raw(&[0x4D, 0x89, 0x08]); // mov [r8], r9
        self.code.branch(&[0xE9], found);
        self.bind(raced);
        self.code.raw(&[0xF0, 0x48, 0xFF, 0x09]); // lock dec qword [rcx]
        self.code.op32(&LOAD, index);
        self.code.branch(&[0xE9], look);
        self.bind(over);
        self.code.raw(&[0xF0, 0x48, 0xFF, 0x09]); // lock dec qword [rcx]
        self.bind(full);
        self.code.raw(&[0xF0, 0x48, 0xFF, 0x41, 0x08]); // lock inc qword [rcx+8]
        self.jump_to(&mut end);
        self.bind(next);
        self.code.raw(&[0xFF, 0xC0]); // inc eax
        self.code.op32(&[0x25], (slots - 1) as u32); // and eax, slots-1
        self.code.branch(&[0xE9], again);
        let unread = self.code.here();
        self.bind(lost);
        self.table();
        self.code.raw(&[0xF0, 0x48, 0xFF, 0x41, 0x10]); // lock inc qword [rcx+16]
        self.bind(end);
        unread
    }

    /// The table's address into `rcx`. Clobbers `rdx`.
    fn table(&mut self) {
        let base = self.given.block.base;
        self.code.op32(&[0x65, 0x48, 0x8B, 0x0C, 0x25], base); // mov rcx, gs:[base]
        let table = self.histogram.table.cast_unsigned();
        self.code.op64(&[0x48, 0xBA], table); // mov rdx, table
        self.code.raw(&[0x48, 0x01, 0xD1]); // add rcx, rdx
    }

    /// Brings the hash of the keys into `rax`.
    fn hash(&mut self, keys: usize) {
        // An odd number whose bits look random: the golden ratio's.
        self.code.op64(&[0x48, 0xB9], 0x9E37_79B9_7F4A_7C15); // mov rcx, …
        let first = self.word(0);
        self.code.op32(&LOAD, first);
        self.code.raw(&[0x48, 0x0F, 0xAF, 0xC1]); // imul rax, rcx
        for key in 1..keys {
            let word = self.word(key);
            self.code.raw(&[0x48, 0x89, 0xC2, 0x48, 0xC1, 0xEA, 0x20]); // mov rdx, rax; shr rdx, 32
            self.code.raw(&[0x48, 0x31, 0xD0]); // xor rax, rdx
            self.code.op32(&[0x48, 0x33, 0x84, 0x24], word); // xor rax, [rsp+word]
            self.code.raw(&[0x48, 0x0F, 0xAF, 0xC1]); // imul rax, rcx
        }
    }
}
