//! Where the frame is: the stack pointer, the frame pointer and the registers that are saved, as far as straight-line
//! code shows. S is the stack pointer at the function's entry; see also [`linked`](crate::linked).

use alloc::vec::Vec;

use crate::Signing;
use crate::cfa::SAVED;
pub use crate::cfa::{Row, Rule};
use crate::linked::cfa::{self, Read};
pub use crate::linked::cfa::{Frame, add_row};
use crate::linked::relocate::Relocated;

use super::decode::{Insn, Kind};
use super::effects::Effects;
use super::regs::{FRAME, LINK, SP, STACK, general};
use super::scan::{Flow, Reference, Scanned, Sweep};

/// What frame tables say something about, by column: the return address, the frame pointer, `x19` to `x28`. The last is
/// no register, but says how the return address is signed: see [`SIGNED`].
pub const CALLEE_SAVED: [u8; SAVED] = [LINK, FRAME, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 34];

/// The index of what says how the return address is signed.
pub const SIGNED: usize = SAVED - 1;

/// Where things are before an instruction runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State {
    /// S minus the stack pointer.
    stack: Option<i32>,
    /// S minus the frame pointer, if that holds an address of the frame.
    frame: Option<i32>,
    /// Where the registers of [`CALLEE_SAVED`] are saved: this many words below S; 0 for those that still have their
    /// values. At [`SIGNED`] is how the return address is signed: see [`signing`].
    saved: [u16; SAVED],
    /// The link register holds another value.
    linked: bool,
}

/// With this many bytes of stack in use below S, and the return address in its register, without a signature.
#[must_use]
pub const fn pushed(bytes: i32) -> Rule {
    Rule::Frame {
        base: SP,
        offset: bytes,
        saved: [0; SAVED],
    }
}

/// What an instruction that puts a signature on the link register's address, or takes it off, leaves there.
fn signs(insn: &Insn) -> Option<Signing> {
    match (insn.kind, insn.hint()) {
        // paciaz, paciasp
        (_, Some(24 | 25)) => Some(Signing::A),
        // pacibz, pacibsp
        (_, Some(26 | 27)) => Some(Signing::B),
        // xpaclri, autiaz, autiasp, autibz, autibsp
        (_, Some(7 | 28..=31)) => Some(Signing::None),
        (Kind::Sign | Kind::SignZero, _) if insn.rd() == LINK => {
            // autia, autiza, xpaci and their like have one of these bits
            Some(match (insn.bit(12) || insn.bit(14), insn.bit(10)) {
                (true, _) => Signing::None,
                (false, false) => Signing::A,
                (false, true) => Signing::B,
            })
        }
        _ => None,
    }
}

/// What the number at [`SIGNED`] means.
#[must_use]
pub const fn signing(number: u16) -> Signing {
    match number {
        0 => Signing::None,
        1 => Signing::A,
        _ => Signing::B,
    }
}

impl State {
    /// At a function's entry.
    pub const ENTRY: Self = Self {
        stack: Some(0),
        frame: None,
        saved: [0; SAVED],
        linked: false,
    };

    /// The same, if the return address is signed in this way.
    #[must_use]
    pub const fn signed(mut self, signing: Signing) -> Self {
        self.saved[SIGNED] = match signing {
            Signing::None => 0,
            Signing::A => 1,
            Signing::B => 2,
        };
        self
    }

    /// The rule for this state.
    #[must_use]
    pub fn rule(&self) -> Rule {
        let (base, offset) = match (self.stack, self.frame) {
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
        self.stack = self.stack.and_then(|stack| stack.checked_add(bytes));
    }

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

    fn save(&mut self, register: u8, below: Option<i32>) {
        let index = CALLEE_SAVED.iter().position(|&saved| saved == register);
        let (Some(index), Some(below)) = (index, below) else {
            return;
        };
        let changed = register == LINK && self.linked;
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
            self.linked &= register != LINK;
        }
    }

    /// A register gets another value.
    fn forget(&mut self, register: u8) {
        match register {
            FRAME => self.frame = None,
            LINK => self.linked = true,
            _ => {}
        }
    }

    /// Updates the state for an instruction.
    pub fn step(&mut self, insn: &Insn, effects: &Effects) {
        if let Some(added) = insn.added() {
            let address = self.address(insn.rn(), added);
            match insn.rd() {
                // For `adds` and `subs`, register 31 is the zero register.
                SP if !insn.bit(29) => self.stack = address,
                FRAME => self.frame = address,
                LINK => self.linked = true,
                _ => {}
            }
            return;
        }
        if let Some(signing) = signs(insn) {
            *self = self.signed(signing);
            return;
        }
        let memory = insn.memory();
        let whole = memory
            .filter(|_| insn.is_whole())
            .and_then(|memory| Some((memory.base, memory.distance?)));
        if let Some((base, distance)) = whole {
            let count = if insn.kind == Kind::Pair { 2 } else { 1 };
            let places = [(insn.rd(), 0), (insn.ra(), 8)]
                .map(|(register, more)| (register, self.address(base, distance + more)));
            for &(register, below) in &places[..count] {
                match insn.is_load() {
                    true => self.load(register, below),
                    false => self.save(register, below),
                }
            }
        } else {
            for register in [FRAME, LINK] {
                if effects.changes & general(register) != 0 {
                    self.forget(register);
                }
            }
        }
        match memory.and_then(|memory| Some((memory.base, memory.moves?))) {
            Some((SP, by)) => self.stack = self.address(SP, by),
            Some((FRAME, _)) => self.frame = None,
            _ if effects.changes & STACK != 0 => self.stack = None,
            _ => {}
        }
    }
}

impl Frame for State {
    type Insn = Scanned;

    const ENTRY: Self = Self::ENTRY;

    fn read(code: &[u8], address: u64) -> Vec<Read<Scanned>> {
        let read = |scanned: Scanned| Read {
            insn: scanned,
            addr: scanned.insn.addr,
            flow: match scanned.flow {
                Flow::Next if scanned.insn.kind == Kind::Breakpoint => Flow::Fault,
                flow => flow,
            },
            link: LINK,
            forms: match scanned.reference {
                Reference::Forms(to) if scanned.insn.kind != Kind::Adrp => Some(to),
                _ => None,
            },
        };
        Sweep::new(code, address).map(read).collect()
    }

    fn rule(&self) -> Rule {
        self.rule()
    }

    fn follow(&mut self, scanned: &Scanned) {
        self.step(&scanned.insn, &scanned.effects);
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

/// The rows of the moved first instructions of a function, and of what comes after them. `signing`: how the
/// return address is signed there. Also returns the state at the end, if control gets there.
#[must_use]
pub fn moved_rows(
    code: &[u8],
    from: u64,
    moved: &Relocated,
    signing: Signing,
) -> (Vec<Row>, Option<State>) {
    cfa::moved_rows(code, from, moved, State::ENTRY.signed(signing))
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

    /// The rows of code that begins with a function.
    fn of(words: &[u32]) -> Vec<(u32, Rule)> {
        let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let rows = code_rows(&code, 0x1000, &[(0, State::ENTRY)]);
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
    fn rows_say_where_registers_are_saved_and_whether_the_link_is_signed() {
        // paciasp; stp x29, x30, [sp, #-32]!; mov x29, sp; str x19, [sp, #16]; bl .; ldr x19, [sp, #16]; ldp x29, x30,
        // [sp], #32; autiasp; ret
        let words = [
            0xD503_233F,
            0xA9BE_7BFD,
            0x9100_03FD,
            0xF900_0BF3,
            0x9400_0100,
            0xF940_0BF3,
            0xA8C2_7BFD,
            0xD503_23BF,
            0xD65F_03C0,
        ];
        let saved = [(0, 3), (1, 4), (SIGNED, 1)];
        let more = [(0, 3), (1, 4), (2, 2), (SIGNED, 1)];
        assert_eq!(
            of(&words),
            [
                (0, pushed(0)),
                (4, frame(SP, 0, &[(SIGNED, 1)])),
                (8, frame(SP, 32, &saved)),
                (16, frame(SP, 32, &more)),
                (24, frame(SP, 32, &saved)),
                (28, frame(SP, 0, &[(SIGNED, 1)])),
                (32, pushed(0)),
            ]
        );
    }

    #[test]
    fn the_frame_pointer_holds_the_frame() {
        // stp x29, x30, [sp, #-16]!; mov x29, sp; sub sp, sp, x0; mov sp, x29; nop
        let rows = of(&[
            0xA9BF_7BFD,
            0x9100_03FD,
            0xCB20_63FF,
            0x9100_03BF,
            0xD503_201F,
        ]);
        let saved = [(0, 1), (1, 2)];
        assert_eq!(
            rows[1..],
            [
                (4, frame(SP, 16, &saved)),
                (12, frame(FRAME, 16, &saved)),
                (16, frame(SP, 16, &saved)),
            ]
        );
    }

    #[test]
    fn a_link_that_is_overwritten_is_not_the_return_address() {
        // adr x30, .; nop; str x30, [sp, #-16]!; nop
        let rows = of(&[0x1000_001E, 0xD503_201F, 0xF81F_0FFE, 0xD503_201F]);
        assert_eq!(rows, [(0, pushed(0)), (4, Rule::Unknown)]);
    }

    #[test]
    fn moved_code_begins_with_a_signed_link_if_it_did_so_where_it_was() {
        // sub sp, sp, #16
        let code = 0xD100_43FFu32.to_le_bytes();
        let moved = Relocated {
            bytes: code.to_vec(),
            map: vec![crate::relocate::Moved { old: 0, new: 0 }],
            falls_through: true,
            exits: Vec::new(),
        };
        for (signing, number) in [(Signing::None, 0), (Signing::A, 1), (Signing::B, 2)] {
            assert_eq!(super::signing(number), signing);
            let (rows, last) = moved_rows(&code, 0x1000, &moved, signing);
            let mark = [(SIGNED, number)];
            let rules: Vec<_> = rows.iter().map(|row| (row.at, row.rule)).collect();
            assert_eq!(rules, [(0, frame(SP, 0, &mark)), (4, frame(SP, 16, &mark))]);
            assert_eq!(last.map(|state| state.rule()), Some(frame(SP, 16, &mark)));
        }
    }
}
