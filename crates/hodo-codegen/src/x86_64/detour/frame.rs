//! What a probe pushes before its work, and where that is.

use alloc::vec::Vec;

use crate::x86_64::masm::*;

/// Bytes below the stack pointer that belong to the program.
const RED_ZONE: i32 = 128;

/// The contents of a word that a probe has pushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Slot {
    Register(Reg),
    Flags,
    /// A word of a frame, or something else that is not looked up.
    Word,
}

/// What a probe has pushed, from the top of the red zone down.
#[derive(Clone, Default)]
pub(super) struct Saved {
    slots: Vec<Slot>,
}

impl Saved {
    /// The number of words.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn push(&mut self, code: &mut Masm<'_>, register: Reg) {
        code.push_r(register);
        self.slots.push(Slot::Register(register));
    }

    /// Pushes a register as something that is not looked up.
    pub(super) fn push_value(&mut self, code: &mut Masm<'_>, register: Reg) {
        code.push_r(register);
        self.slots.push(Slot::Word);
    }

    /// Pops what was pushed last into a register.
    pub(super) fn pop_value(&mut self, code: &mut Masm<'_>, register: Reg) {
        code.pop_r(register);
        self.slots.pop();
    }

    /// Pushes `rax`, and the flags unless they are dead.
    pub(super) fn begin(code: &mut Masm<'_>, flags_dead: bool) -> Self {
        let mut saved = Self::default();
        code.lea(RSP, mem(RSP, -RED_ZONE));
        saved.push(code, RAX);
        if !flags_dead {
            // pushf and popf would take seven times as long. lahf stores all flags but one.
            code.lahf();
            code.seto(AL);
            code.push_r(RAX);
            saved.slots.push(Slot::Flags);
        }
        saved
    }

    /// Pushes a register, unless it is pushed already.
    pub(super) fn need(&mut self, code: &mut Masm<'_>, register: Reg) {
        if self.slot(register).is_none() {
            self.push(code, register);
        }
    }

    /// Makes room for this many words. Returns the number of the lowest, for [`Self::word`].
    pub(super) fn frame(&mut self, code: &mut Masm<'_>, words: usize) -> usize {
        if words > 0 {
            let size = 8 * words as u32;
            code.lea(RSP, mem32(RSP, size.wrapping_neg()));
            self.slots.resize(self.slots.len() + words, Slot::Word);
        }
        self.slots.len()
    }

    /// The place of a word of a frame, relative to the stack pointer. `frame` is what [`Self::frame`] has returned.
    pub(super) fn word(&self, frame: usize, number: usize) -> Mem {
        mem32(RSP, ((self.slots.len() - frame + number) * 8) as u32)
    }

    /// Pops down to this many slots, and preserves all flags.
    pub(super) fn back(&mut self, code: &mut Masm<'_>, slots: usize) {
        while self.slots.len() > slots {
            let words = self.slots[slots..].iter().rev();
            let words = words.take_while(|slot| **slot == Slot::Word).count();
            if words > 0 {
                self.slots.truncate(self.slots.len() - words);
                code.lea(RSP, mem32(RSP, 8 * words as u32));
            } else if let Some(Slot::Register(register)) = self.slots.pop() {
                code.pop_r(register);
            }
        }
    }

    /// How many slots [`Self::begin`] has made.
    fn begun(&self) -> usize {
        1 + usize::from(self.slots.get(1) == Some(&Slot::Flags))
    }

    pub(super) fn end(mut self, code: &mut Masm<'_>) {
        let begun = self.begun();
        self.back(code, begun);
        if begun > 1 {
            code.pop_r(RAX);
            code.add_ri(AL, 127);
            code.sahf();
        }
        code.pop_r(RAX);
        code.lea(RSP, mem(RSP, RED_ZONE));
    }

    /// Like [`Self::end`], but clobbers the flags.
    pub(super) fn drop_flags(mut self, code: &mut Masm<'_>) {
        let begun = self.begun();
        self.back(code, begun);
        for _ in 0..begun {
            code.pop_r(RAX);
        }
        code.lea(RSP, mem(RSP, RED_ZONE));
    }

    fn find(&self, slot: Slot) -> Option<u32> {
        let at = self.slots.iter().position(|one| *one == slot)?;
        Some(((self.slots.len() - 1 - at) * 8) as u32)
    }

    /// Where a register was pushed, relative to the stack pointer.
    pub(super) fn slot(&self, register: Reg) -> Option<u32> {
        self.find(Slot::Register(register))
    }

    /// Where the flags were pushed, relative to the stack pointer.
    pub(super) fn flags(&self) -> Option<u32> {
        self.find(Slot::Flags)
    }

    /// How far the program's stack pointer is above ours.
    pub(super) fn depth(&self) -> u32 {
        (self.slots.len() * 8) as u32 + RED_ZONE as u32
    }
}
