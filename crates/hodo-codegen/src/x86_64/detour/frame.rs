//! What a probe pushes before its work, and where it is then.

use super::{RAX, Register};
use crate::x86_64::emit::Code;
use alloc::vec::Vec;

/// What a probe has pushed, from the top of the red zone down.
#[derive(Clone)]
pub(super) struct Saved {
    /// Registers and the flags (`None`).
    pub(super) slots: Vec<Option<Register>>,
}

impl Saved {
    pub(super) fn push(&mut self, code: &mut Code<'_>, register: Register) {
        push(code, register);
        self.slots.push(Some(register));
    }

    /// Pushes `rax`, and the flags unless they are dead.
    pub(super) fn begin(code: &mut Code<'_>, flags_dead: bool) -> Self {
        let mut saved = Self { slots: Vec::new() };
        code.raw(&[0x48, 0x8D, 0x64, 0x24, 0x80]); // lea rsp, [rsp-128]
        saved.push(code, RAX);
        if !flags_dead {
            // pushf and popf would take seven times as long. lahf has all flags but one.
            code.raw(&[0x9F, 0x0F, 0x90, 0xC0]); // lahf; seto al
            push(code, RAX);
            saved.slots.push(None);
        }
        saved
    }

    /// Pushes a register that is not there yet.
    pub(super) fn need(&mut self, code: &mut Code<'_>, register: Register) {
        if self.slot(register).is_none() {
            self.push(code, register);
        }
    }

    /// Makes room for so many words; tells the number of the lowest, for [`Self::word`].
    pub(super) fn frame(&mut self, code: &mut Code<'_>, words: usize) -> usize {
        if words > 0 {
            let size = 8 * words as u32;
            code.op32(&[0x48, 0x8D, 0xA4, 0x24], size.wrapping_neg()); // lea rsp, [rsp-size]
            // Nobody's register: not to be found.
            self.slots
                .resize(self.slots.len() + words, Some(super::RSP));
        }
        self.slots.len()
    }

    /// Where a word of a frame is, from the stack pointer. `frame` is what [`Self::frame`] told.
    pub(super) fn word(&self, frame: usize, number: usize) -> u32 {
        ((self.slots.len() - frame + number) * 8) as u32
    }

    /// Pops down to so many slots, with all flags kept.
    pub(super) fn back(&mut self, code: &mut Code<'_>, slots: usize) {
        while self.slots.len() > slots {
            if self.slots.last() == Some(&Some(super::RSP)) {
                let mut words = 0;
                while self.slots.len() > slots && self.slots.last() == Some(&Some(super::RSP)) {
                    self.slots.pop();
                    words += 1;
                }
                code.op32(&[0x48, 0x8D, 0xA4, 0x24], 8 * words); // lea rsp, [rsp+8*words]
            } else if let Some(Some(register)) = self.slots.pop() {
                pop(code, register);
            }
        }
    }

    pub(super) fn end(mut self, code: &mut Code<'_>) {
        let kept = self
            .slots
            .len()
            .min(1 + usize::from(self.slots.get(1) == Some(&None)));
        self.back(code, kept);
        for slot in self.slots.into_iter().rev() {
            match slot {
                Some(register) => pop(code, register),
                None => {
                    pop(code, RAX);
                    code.raw(&[0x04, 0x7F, 0x9E]); // add al, 127; sahf
                }
            }
        }
        code.raw(&[0x48, 0x8D, 0xA4, 0x24, 0x80, 0, 0, 0]); // lea rsp, [rsp+128]
    }

    /// Where a register was pushed, from the stack pointer.
    pub(super) fn slot(&self, register: Register) -> Option<u32> {
        let at = self.slots.iter().position(|slot| *slot == Some(register))?;
        Some(((self.slots.len() - 1 - at) * 8) as u32)
    }

    /// As [`Self::end`], but the flags become anything.
    pub(super) fn drop_flags(mut self, code: &mut Code<'_>) {
        let flags = usize::from(self.slots.get(1) == Some(&None));
        self.back(code, 1 + flags);
        if flags == 1 {
            pop(code, RAX);
        }
        pop(code, RAX);
        code.raw(&[0x48, 0x8D, 0xA4, 0x24, 0x80, 0, 0, 0]); // lea rsp, [rsp+128]
    }

    /// Where the flags were pushed, from the stack pointer.
    pub(super) fn flags(&self) -> Option<u32> {
        let at = self.slots.iter().position(Option::is_none)?;
        Some(((self.slots.len() - 1 - at) * 8) as u32)
    }

    /// How far the program's stack pointer is above ours.
    pub(super) fn depth(&self) -> u32 {
        (self.slots.len() * 8) as u32 + 128
    }
}

pub(super) fn push(code: &mut Code<'_>, register: Register) {
    if register >= 8 {
        code.raw(&[0x41]);
    }
    code.raw(&[0x50 | register & 7]);
}

pub(super) fn pop(code: &mut Code<'_>, register: Register) {
    if register >= 8 {
        code.raw(&[0x41]);
    }
    code.raw(&[0x58 | register & 7]);
}
