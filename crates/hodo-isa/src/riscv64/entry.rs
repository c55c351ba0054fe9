//! What a function does with its return address, which callers pass in `ra`.

use super::cfa::State;
use super::decode::Insn;
use super::decode::Kind;
use super::decode::operand::imm_i;
use super::regs::{RA, SP, ZERO};
use super::scan::{Flow, Scanned, Sweep};
use crate::code::{EntryFacts, Slot};
use crate::linked::entry::{LIMIT, Linked};

/// `s0`, the frame pointer if there is one.
const FRAME: u8 = 8;

fn is_addi(insn: &Insn) -> bool {
    insn.kind == Kind::Plain && insn.word & 0x707F == 0x13
}

/// Follows the straight-line code from the entry of a function to the first jump or return.
#[must_use]
pub fn entry_facts(code: &[u8], addr: u64) -> EntryFacts {
    facts(Sweep::new(code, addr).take(LIMIT))
}

/// The same for instructions that were read already.
pub(crate) fn entry_facts_of(code: &[Scanned]) -> EntryFacts {
    facts(code.iter().take(LIMIT).copied())
}

fn facts(code: impl Iterator<Item = Scanned>) -> EntryFacts {
    let mut facts = EntryFacts::default();
    // How far the stack pointer has moved down since the entry, if that is known.
    let mut depth = 0i64;
    let mut branched = false;
    let mut below_known = false;
    for scanned in code {
        let insn = scanned.insn;
        if let Some(memory) = insn.memory()
            && memory.base == SP
            && memory.vector.is_none()
            && memory.distance < 0
            && !below_known
        {
            facts.reads_red_zone |= memory.reads;
            below_known = true;
        }
        match scanned.flow {
            Flow::Next => {}
            Flow::Branch(_) => {
                branched = true;
                below_known = true;
            }
            // Helpers that save registers are called through another link register, and make the frame.
            Flow::Call(_) if insn.link() != Some(RA) => {
                facts.makes_frame |= !branched;
                break;
            }
            Flow::Call(_) | Flow::IndirectCall => {}
            _ => break,
        }
        if scanned.effects.writes & 1 << SP != 0 {
            if !(is_addi(&insn) && insn.rs1() == SP) {
                // A large frame, or another stack.
                facts.makes_frame |= !branched && scanned.effects.reads & 1 << SP != 0;
                break;
            }
            depth -= imm_i(insn.word);
            facts.makes_frame |= !branched && depth > 0;
        }
        if is_addi(&insn) && insn.rd() == FRAME && insn.rs1() == SP {
            facts.frame_pointer |= imm_i(insn.word) == depth && depth > 0;
        }
        if depth < 0 {
            break;
        }
    }
    facts
}

/// `t0`, `t1`, `t3`–`t6`: no caller passes arguments in them. (Nested functions are called with something in `t2`.)
const NO_ARGUMENTS: u32 = 0xF000_0060;

impl Linked for Scanned {
    type State = State;

    const ENTRY: State = State::ENTRY;
    const UNIT: usize = 2;
    const STACK: u8 = SP;
    const FRAME: u8 = FRAME;
    const NO_ARGUMENTS: u64 = NO_ARGUMENTS as u64;
    const VOLATILE: u64 = VOLATILE as u64;
    const RESULT: u64 = 1 << 10;

    fn sweep(code: &[u8], addr: u64) -> impl Iterator<Item = Self> {
        Sweep::new(code, addr)
    }

    fn addr(&self) -> u64 {
        self.insn.addr
    }

    fn flow(&self) -> Flow {
        self.flow
    }

    fn flow_alone(&self) -> Flow {
        self.insn.flow()
    }

    fn slot(&self) -> Slot {
        self.slot
    }

    fn reads(&self) -> u64 {
        self.effects.reads.into()
    }

    fn changes(&self) -> u64 {
        self.effects.writes.into()
    }

    fn exposes_link(&self) -> bool {
        self.effects.reads & 1 << RA != 0 && !is_usual(&self.insn)
    }

    fn changes_link(&self) -> bool {
        self.effects.writes & 1 << RA != 0
    }

    fn saves(&self) -> Option<Slot> {
        stores_link(&self.insn).then_some(self.slot)
    }

    fn restores(&self) -> Option<Slot> {
        let insn = &self.insn;
        let restores = loads(insn) && insn.rd() == RA && is_saved_place(insn, imm_i(insn.word));
        restores.then_some(self.slot)
    }

    fn loads_other(&self) -> bool {
        loads(&self.insn) && self.insn.rd() != RA
    }

    fn takes_address(&self) -> bool {
        is_addi(&self.insn) && !matches!(self.insn.rd(), SP | FRAME | ZERO)
    }

    fn step(&self, state: &mut State) {
        state.step(&self.insn, self.effects.writes);
    }

    fn below(state: &State, register: u8, distance: i64) -> Option<i32> {
        state.address(register, distance)
    }

    fn result(&self) -> u64 {
        1 << self.insn.rd()
    }

    fn copies_return(&self) -> bool {
        matches!(self.insn.kind, Kind::Load(8)) || self.copied() == 1 << RA
    }

    fn copied(&self) -> u64 {
        let insn = &self.insn;
        let add = insn.kind == Kind::Plain && insn.word & 0xFE00_707F == 0x33;
        if is_addi(insn) && imm_i(insn.word) == 0 || add && insn.rs2() == ZERO {
            1 << insn.rs1()
        } else if add && insn.rs1() == ZERO {
            1 << insn.rs2()
        } else {
            0
        }
    }

    fn uses(&self) -> u64 {
        self.insn.general().0.into()
    }

    fn replaces(&self) -> u64 {
        u64::from(self.insn.general().1) & Self::VOLATILE
    }
}

/// Whether a load or store at this distance may access what the function saves: relative to the stack pointer, or below
/// the frame's start.
fn is_saved_place(insn: &Insn, distance: i64) -> bool {
    insn.rs1() == SP || insn.rs1() == FRAME && distance < 0
}

/// Whether an instruction stores `ra`, and not the floating-point register with that number.
fn stores_link(insn: &Insn) -> bool {
    insn.kind == Kind::Store(8) && insn.word & 0x7F == 0x23 && insn.rs2() == RA
}

/// Whether an instruction loads a whole general register.
fn loads(insn: &Insn) -> bool {
    insn.kind == Kind::Load(8) && insn.word & 0x7F == 0x03
}

/// Whether an instruction that reads `ra` saves it on the stack or jumps through it.
fn is_usual(insn: &Insn) -> bool {
    match insn.kind {
        Kind::Store(8) => stores_link(insn) && matches!(insn.rs1(), SP | FRAME),
        Kind::Jalr => insn.rs1() == RA,
        _ => false,
    }
}

/// Registers that calls may change: `ra`, `t0`–`t6`, `a0`–`a7`.
pub const VOLATILE: u32 = 0xF003_FCE2;

/// Whether the instruction at the start of `code` writes memory.
#[must_use]
pub fn stores(code: &[u8]) -> bool {
    Insn::new(code, 0)
        .memory()
        .is_some_and(|memory| memory.writes)
}

/// Whether code is a signal handler's return: `li a7, 139; ecall`.
#[must_use]
pub fn is_signal_return(code: &[u8]) -> bool {
    code.starts_with(&[0x93, 0x08, 0xB0, 0x08, 0x73, 0, 0, 0])
}
