//! Follows a function's frame, instruction by instruction, along straight-line code: see [`linked`](crate::linked).

use alloc::vec::Vec;

use crate::cfa::SAVED;
pub use crate::cfa::{Row, Rule};
use crate::linked::cfa::{self, Read};
pub use crate::linked::cfa::{Frame, add_row};
use crate::linked::relocate::Relocated;

use super::decode::Insn;
use super::decode::Kind;
use super::decode::operand::{imm_i, imm_s};
use super::regs::{RA, SP, ZERO};
use super::scan::{Flow, Reference, Scanned, Sweep};

/// The callee-saved registers, by column in frame tables: the return address, s0 to s11.
pub const CALLEE_SAVED: [u8; 13] = [RA, 8, 9, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27];
/// The frame pointer, if there is one: `s0`.
const FRAME: u8 = 8;

/// Where things are before an instruction runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State {
    /// S minus the stack pointer.
    sp: Option<i32>,
    /// S minus the frame pointer, if that holds an address of the frame.
    frame: Option<i32>,
    /// Where the registers of [`CALLEE_SAVED`] are saved: this many words below S; 0 for those that still have their
    /// values.
    saved: [u16; SAVED],
    /// The link register holds another value.
    linked: bool,
}

/// With this many bytes of stack in use below S, and the return address in its register.
#[must_use]
pub const fn pushed(bytes: i32) -> Rule {
    Rule::Frame {
        base: SP,
        offset: bytes,
        saved: [0; SAVED],
    }
}

impl State {
    /// At a function's entry.
    pub const ENTRY: Self = Self {
        sp: Some(0),
        frame: None,
        saved: [0; SAVED],
        linked: false,
    };

    /// The rule for this state.
    #[must_use]
    pub fn rule(&self) -> Rule {
        let (base, offset) = match (self.sp, self.frame) {
            (Some(offset), _) => (SP, offset),
            (None, Some(offset)) => (FRAME, offset),
            (None, None) => return Rule::Unknown,
        };
        if offset < 0 || self.linked && self.saved[0] == 0 {
            return Rule::Unknown;
        }
        Rule::Frame {
            base,
            offset,
            saved: self.saved,
        }
    }

    /// Moves the stack pointer down.
    pub fn lower(&mut self, bytes: i32) {
        self.sp = self.sp.and_then(|sp| sp.checked_add(bytes));
    }

    /// S minus an address.
    pub fn address(&self, base: u8, distance: i64) -> Option<i32> {
        let base = match base {
            SP => self.sp?,
            FRAME => self.frame?,
            _ => return None,
        };
        base.checked_sub(i32::try_from(distance).ok()?)
    }

    fn save(&mut self, register: u8, below: Option<i32>) {
        let index = CALLEE_SAVED.iter().position(|&saved| saved == register);
        let (Some(index), Some(below)) = (index, below) else {
            return;
        };
        let changed = register == RA && self.linked;
        if self.saved[index] == 0 && below >= 8 && below % 8 == 0 && !changed {
            self.saved[index] = u16::try_from(below / 8).unwrap_or(0);
        }
    }

    /// Loads a register, perhaps from where it was saved.
    fn load(&mut self, register: u8, below: Option<i32>) {
        let index = CALLEE_SAVED.iter().position(|&saved| saved == register);
        self.forget(register);
        let (Some(index), Some(below)) = (index, below) else {
            return;
        };
        if below > 0 && below == i32::from(self.saved[index]) * 8 {
            self.saved[index] = 0;
            self.linked &= register != RA;
        }
    }

    /// A register gets another value.
    fn forget(&mut self, register: u8) {
        match register {
            SP => self.sp = None,
            FRAME => self.frame = None,
            RA => self.linked = true,
            _ => {}
        }
    }

    /// Updates the state for an instruction that writes these general registers.
    pub fn step(&mut self, insn: &Insn, mut written: u32) {
        let (word, rd, rs1) = (insn.word, insn.rd(), insn.rs1());
        match (insn.kind, word & 0x7F, word >> 12 & 7) {
            // addi, and mv
            (Kind::Plain, 0x13, 0) if matches!(rd, SP | FRAME) => {
                let address = self.address(rs1, imm_i(word));
                match rd {
                    SP => self.sp = address,
                    _ => self.frame = address,
                }
            }
            // A copy.
            (Kind::Plain, 0x33, 0)
                if matches!(rd, SP | FRAME) && rs1 == ZERO && word >> 25 == 0 =>
            {
                let address = self.address(insn.rs2(), 0);
                match rd {
                    SP => self.sp = address,
                    _ => self.frame = address,
                }
            }
            (Kind::Store(8), 0x23, _) => {
                let below = self.address(rs1, imm_s(word));
                self.save(insn.rs2(), below);
            }
            (Kind::Load(8), 0x03, _) => {
                let below = self.address(rs1, imm_i(word));
                self.load(rd, below);
            }
            _ => {
                written &= 1 << SP | 1 << FRAME | 1 << RA;
                while written != 0 {
                    self.forget(written.trailing_zeros() as u8);
                    written &= written - 1;
                }
            }
        }
    }
}

impl Frame for State {
    type Insn = Insn;

    const ENTRY: Self = Self::ENTRY;

    fn read(code: &[u8], address: u64) -> Vec<Read<Insn>> {
        let read = |scanned: Scanned| Read {
            insn: scanned.insn,
            addr: scanned.insn.addr,
            flow: match scanned.flow {
                Flow::Next if scanned.insn.kind == Kind::Ebreak => Flow::Fault,
                flow => flow,
            },
            link: scanned.insn.rd(),
            forms: match scanned.reference {
                Reference::Forms(to) if scanned.insn.kind != Kind::Auipc => Some(to),
                _ => None,
            },
        };
        Sweep::new(code, address).map(read).collect()
    }

    fn rule(&self) -> Rule {
        self.rule()
    }

    fn follow(&mut self, insn: &Insn) {
        self.step(insn, insn.general().1);
    }

    fn forget(&mut self, register: u8) {
        self.forget(register);
    }
}

/// The rows of code at an address that control leaves only by returns and jumps; calls come back. `entries` are
/// offsets.
#[must_use]
pub fn code_rows(code: &[u8], address: u64, entries: &[(u32, State)]) -> Vec<Row> {
    cfa::code_rows(code, address, entries)
}

/// The rows of the function that begins with this code, as far as jumps and branches within it lead.
#[must_use]
pub fn function_rows(code: &[u8], address: u64) -> Vec<Row> {
    cfa::function_rows::<State>(code, address)
}

/// The rows of the moved first instructions of a function, and of what comes after them. Also returns the state at the
/// end, if control gets there.
#[must_use]
pub fn moved_rows(code: &[u8], from: u64, moved: &Relocated) -> (Vec<Row>, Option<State>) {
    cfa::moved_rows(code, from, moved, State::ENTRY)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rules of code that begins with a function.
    fn of(code: &[u8]) -> Vec<(u32, Rule)> {
        let rows = code_rows(code, 0x1000, &[(0, State::ENTRY)]);
        rows.into_iter().map(|row| (row.at, row.rule)).collect()
    }

    fn frame(base: u8, offset: i32, at: &[(usize, u16)]) -> Rule {
        let mut saved = [0; SAVED];
        for &(index, words) in at {
            saved[index] = words;
        }
        Rule::Frame {
            base,
            offset,
            saved,
        }
    }

    #[test]
    fn prologues_and_epilogues_are_followed() {
        // c.addi sp, -32; c.sdsp ra, 24(sp); c.sdsp s0, 16(sp); c.addi4spn s0, sp, 32; c.ldsp ra, 24(sp); c.ldsp s0,
        // 16(sp); c.addi16sp sp, 32; ret
        let code = [
            0x01, 0x11, 0x06, 0xEC, 0x22, 0xE8, 0x00, 0x10, 0xE2, 0x60, 0x42, 0x64, 0x05, 0x61,
            0x82, 0x80,
        ];
        assert_eq!(
            of(&code),
            [
                (0, frame(SP, 0, &[])),
                (2, frame(SP, 32, &[])),
                (4, frame(SP, 32, &[(0, 1)])),
                (6, frame(SP, 32, &[(0, 1), (1, 2)])),
                (10, frame(SP, 32, &[(1, 2)])),
                (12, frame(SP, 32, &[])),
                (14, frame(SP, 0, &[])),
            ]
        );
    }

    #[test]
    fn the_frame_pointer_holds_the_frame() {
        // c.addi sp, -16; c.sdsp s0, 8(sp); c.addi4spn s0, sp, 16; sub sp, sp, a0; addi sp, s0, -16; c.nop
        let code = [
            0x41, 0x11, 0x22, 0xE4, 0x00, 0x08, 0x33, 0x01, 0xA1, 0x40, 0x13, 0x01, 0x04, 0xFF,
            0x01, 0x00,
        ];
        assert_eq!(
            of(&code)[2..],
            [
                (4, frame(SP, 16, &[(1, 1)])),
                (10, frame(8, 0, &[(1, 1)])),
                (14, frame(SP, 16, &[(1, 1)])),
            ]
        );
    }

    #[test]
    fn a_link_that_is_overwritten_is_not_the_return_address() {
        // auipc ra, 0; nop; c.sdsp ra, 8(sp); nop
        let code = [0x97, 0, 0, 0, 0x01, 0, 0x06, 0xE4, 0x01, 0];
        assert_eq!(of(&code), [(0, frame(SP, 0, &[])), (4, Rule::Unknown)]);
    }
}
