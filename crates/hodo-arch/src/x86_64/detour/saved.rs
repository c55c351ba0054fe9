//! What a probe pushes before its work, and where it is then.

use super::{RAX, Register};
use crate::x86_64::emit::Code;
use alloc::vec::Vec;

/// What a probe has pushed, from the top of the red zone down.
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

    pub(super) fn end(self, code: &mut Code<'_>) {
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
