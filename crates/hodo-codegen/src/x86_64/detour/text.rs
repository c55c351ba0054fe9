//! Texts in conditions: compared, and fitted to patterns. Of each the first [`STRING`] bytes count, as in events.

use super::condition::{JA, JB, JE, JNE, Label, Writer};
use super::{Atom, Fetch, STRING, Text, cut};

/// A text in memory whose address is in a register.
#[derive(Clone, Copy)]
struct Place {
    /// In the segment of the control block.
    thread: bool,
    /// Bytes to add.
    at: u32,
}

impl Writer<'_, '_> {
    /// An instruction with a memory operand at `rax` (or what `modrm` says) plus the place's offset plus `more`.
    fn at(&mut self, place: Place, opcode: &[u8], modrm: u8, more: u32) {
        self.loads.push(self.code.here());
        if place.thread {
            self.code.raw(&[0x65]);
        }
        self.code.raw(opcode);
        self.code.op32(&[modrm], place.at.wrapping_add(more));
    }

    /// Brings the address of a text into `rax`.
    fn address(&mut self, text: &Text) -> Place {
        match text {
            Text::Value(value) => {
                debug_assert!(matches!(self.values[*value], Fetch::Text(..)));
                self.word(*value);
                Place {
                    thread: false,
                    at: 0,
                }
            }
            Text::Thread(at) => {
                self.code.raw(&[0x31, 0xC0]); // xor eax, eax
                Place {
                    thread: true,
                    at: *at,
                }
            }
            Text::Fixed(_) => Place {
                thread: false,
                at: 0,
            },
        }
    }

    /// Goes to `to` if it is as wanted that two texts are the same.
    pub(super) fn same(&mut self, left: &Text, right: &Text, when: bool, to: &mut Label) {
        let mut differ = Label::new();
        match (left, right) {
            (Text::Fixed(left), Text::Fixed(right)) => {
                let same = cut(left) == cut(right);
                if same == when {
                    self.code.raw(&[0x31, 0xC0]); // xor eax, eax
                    self.jump_if(JE, to);
                }
                return;
            }
            (Text::Fixed(fixed), text) | (text, Text::Fixed(fixed)) => {
                let place = self.address(text);
                if fixed.len() > STRING {
                    self.code.raw(&[0x31, 0xC0]); // xor eax, eax
                    self.jump_if(JE, &mut differ);
                }
                let end = (fixed.len() < STRING).then_some(&0);
                for (index, &byte) in fixed.iter().chain(end).take(STRING).enumerate() {
                    self.at(place, &[0x80], 0xB8, index as u32); // cmp byte [rax+index], byte
                    self.code.raw(&[byte]);
                    self.jump_if(JNE, &mut differ);
                }
            }
            (left, right) => self.same_memory(left, right, &mut differ),
        }
        if when {
            self.jump_to(to);
            self.bind(differ);
        } else {
            let mut same = Label::new();
            self.jump_to(&mut same);
            self.bind(differ);
            self.jump_to(to);
            self.bind(same);
        }
    }

    fn same_memory(&mut self, left: &Text, right: &Text, differ: &mut Label) {
        self.needs.registers = true;
        let spare = self.take();
        let left = self.address(left);
        let slot = self.spare(spare);
        self.code.op32(&[0x48, 0x89, 0x84, 0x24], slot); // mov [rsp+spare], rax
        let right = self.address(right);
        self.code.raw(&[0x48, 0x89, 0xC2]); // mov rdx, rax
        self.code.op32(&[0x48, 0x8B, 0x84, 0x24], slot); // mov rax, [rsp+spare]
        self.code.op32(&[0x48, 0x81, 0x84, 0x24], slot); // add qword [rsp+spare], STRING
        self.code.raw(&(STRING as u32).to_le_bytes());
        let next = self.code.here();
        let mut same = Label::new();
        self.at(left, &[0x8A], 0x88, 0); // mov cl, [rax]
        self.at(right, &[0x3A], 0x8A, 0); // cmp cl, [rdx]
        self.jump_if(JNE, differ);
        self.code.raw(&[0x84, 0xC9]); // test cl, cl
        self.jump_if(JE, &mut same);
        self.code.raw(&[0x48, 0xFF, 0xC0, 0x48, 0xFF, 0xC2]); // inc rax; inc rdx
        self.code.op32(&[0x48, 0x3B, 0x84, 0x24], slot); // cmp rax, [rsp+spare]
        self.code.branch(&[0x0F, JNE], next);
        self.bind(same);
        self.scratch -= 1;
    }

    /// Goes to `to` if it is as wanted that a text fits a pattern. What is between two `*` is looked for from the left: where
    /// it is found first leaves most for the rest.
    pub(super) fn fits(&mut self, text: &Text, pattern: &[Atom], when: bool, to: &mut Label) {
        if let Text::Fixed(fixed) = text {
            let fits = u64::from(Atom::fit(pattern, cut(fixed)));
            self.jump(&super::Test::Number(fits), when, to);
            return;
        }
        self.needs.registers = true;
        let place = self.address(text);
        let mut differ = Label::new();
        // rdx: the end of the text.
        self.code.raw(&[0x48, 0x89, 0xC2]); // mov rdx, rax
        self.code.op32(&[0x48, 0x8D, 0x88], STRING as u32); // lea rcx, [rax+STRING]
        let next = self.code.here();
        let mut end = Label::new();
        self.at(place, &[0x80], 0xBA, 0); // cmp byte [rdx], 0
        self.code.raw(&[0]);
        self.jump_if(JE, &mut end);
        self.code.raw(&[0x48, 0xFF, 0xC2, 0x48, 0x39, 0xCA]); // inc rdx; cmp rdx, rcx
        self.code.branch(&[0x0F, JNE], next);
        self.bind(end);
        let mut parts = pattern.split(|atom| *atom == Atom::Many).peekable();
        let first = parts.next().unwrap_or_default();
        let alone = parts.peek().is_none();
        self.room(first, &mut differ, if alone { JNE } else { JA });
        self.part(place, first, &mut differ);
        self.skip(first);
        while let Some(part) = parts.next() {
            if part.is_empty() {
                continue;
            }
            if parts.peek().is_none() {
                let length = (part.len() as u32).wrapping_neg();
                self.code.op32(&[0x48, 0x8D, 0x8A], length); // lea rcx, [rdx-length]
                self.code.raw(&[0x48, 0x39, 0xC1]); // cmp rcx, rax
                self.jump_if(JB, &mut differ);
                self.code.raw(&[0x48, 0x89, 0xC8]); // mov rax, rcx
                self.part(place, part, &mut differ);
                break;
            }
            let again = self.code.here();
            let (mut other, mut found) = (Label::new(), Label::new());
            self.room(part, &mut differ, JA);
            self.part(place, part, &mut other);
            self.jump_to(&mut found);
            self.bind(other);
            self.code.raw(&[0x48, 0xFF, 0xC0]); // inc rax
            self.code.branch(&[0xE9], again);
            self.bind(found);
            self.skip(part);
        }
        if when {
            self.jump_to(to);
            self.bind(differ);
        } else {
            let mut fits = Label::new();
            self.jump_to(&mut fits);
            self.bind(differ);
            self.jump_to(to);
            self.bind(fits);
        }
    }

    /// Compares where the text would be behind a part with its end.
    fn room(&mut self, part: &[Atom], differ: &mut Label, unless: u8) {
        self.code.op32(&[0x48, 0x8D, 0x88], part.len() as u32); // lea rcx, [rax+length]
        self.code.raw(&[0x48, 0x39, 0xD1]); // cmp rcx, rdx
        self.jump_if(unless, differ);
    }

    fn skip(&mut self, part: &[Atom]) {
        self.code.op32(&[0x48, 0x05], part.len() as u32); // add rax, length
    }

    /// Compares a part with the text at `rax`.
    fn part(&mut self, place: Place, part: &[Atom], differ: &mut Label) {
        for (index, atom) in part.iter().enumerate() {
            match atom {
                Atom::Many | Atom::One => {}
                Atom::Byte(byte) => {
                    self.at(place, &[0x80], 0xB8, index as u32); // cmp byte [rax+index], byte
                    self.code.raw(&[*byte]);
                    self.jump_if(JNE, differ);
                }
                Atom::Class(none, ranges) => {
                    let mut inside = Label::new();
                    for &(low, high) in ranges.iter().filter(|(low, high)| low <= high) {
                        self.at(place, &[0x0F, 0xB6], 0x88, index as u32); // movzx ecx, byte [rax+index]
                        self.code.raw(&[0x80, 0xE9, low]); // sub cl, low
                        self.code.raw(&[0x80, 0xF9, high - low]); // cmp cl, high-low
                        self.jump_if(0x86, &mut inside); // jbe
                    }
                    if *none {
                        let mut outside = Label::new();
                        self.jump_to(&mut outside);
                        self.bind(inside);
                        self.jump_to(differ);
                        self.bind(outside);
                    } else {
                        self.jump_to(differ);
                        self.bind(inside);
                    }
                }
            }
        }
    }
}
