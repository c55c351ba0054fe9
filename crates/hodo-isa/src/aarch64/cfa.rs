//! Where the stack pointer and the frame pointer are, as far as straight-line code shows. S is the stack pointer at the
//! function's entry.

use super::decode::Insn;
use super::effects::Effects;
use super::regs::{FRAME, SP, STACK, general};

/// Where things are before an instruction runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State {
    /// S minus the stack pointer.
    stack: Option<i32>,
    /// S minus the frame pointer, if that holds an address of the frame.
    frame: Option<i32>,
}

impl State {
    /// At a function's entry.
    pub const ENTRY: Self = Self {
        stack: Some(0),
        frame: None,
    };

    /// S minus an address.
    #[must_use]
    pub fn address(&self, base: u8, distance: i64) -> Option<i32> {
        let base = match base {
            SP => self.stack?,
            FRAME => self.frame?,
            _ => return None,
        };
        base.checked_sub(i32::try_from(distance).ok()?)
    }

    /// Updates the state for an instruction.
    pub fn step(&mut self, insn: &Insn, effects: &Effects) {
        if let Some(added) = insn.added() {
            let address = self.address(insn.rn(), added);
            match insn.rd() {
                // For `adds` and `subs`, register 31 is the zero register.
                SP if !insn.bit(29) => self.stack = address,
                FRAME => self.frame = address,
                _ => {}
            }
            return;
        }
        let moved = insn
            .memory()
            .and_then(|memory| Some((memory.base, memory.moves?)));
        if effects.changes & general(FRAME) != 0 {
            self.frame = None;
        }
        match moved {
            Some((SP, by)) => self.stack = self.address(SP, by),
            _ if effects.changes & STACK != 0 => self.stack = None,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(words: &[u32]) -> State {
        let mut state = State::ENTRY;
        for &word in words {
            let insn = Insn::of(word, 0);
            state.step(&insn, &insn.effects());
        }
        state
    }

    #[test]
    fn prologues_and_epilogues() {
        // stp x29, x30, [sp, #-32]!; mov x29, sp
        let inside = after(&[0xA9BE_7BFD, 0x9100_03FD]);
        assert_eq!(inside.address(SP, 0), Some(32));
        assert_eq!(inside.address(FRAME, 8), Some(24));
        // ldp x29, x30, [sp], #32
        let behind = after(&[0xA9BE_7BFD, 0x9100_03FD, 0xA8C2_7BFD]);
        assert_eq!(behind, State::ENTRY);
        // sub sp, sp, #0x1, lsl #12; sub sp, sp, x0
        assert_eq!(after(&[0xD140_07FF]).address(SP, 0), Some(4096));
        assert_eq!(after(&[0xCB20_63FF]).address(SP, 0), None);
    }
}
