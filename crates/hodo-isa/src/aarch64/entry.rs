//! What a function does with its return address, which callers pass in `x30`.

use super::LEN;
use super::cfa::State;
use super::decode::{Insn, Kind};
use super::regs::{FLAGS, FRAME, LINK, SP, STACK, Set, VOLATILE, general};
use super::scan::{self, Flow, Scanned, Sweep};
use crate::code::{EntryFacts, Slot};
use crate::linked::entry::{LIMIT, Linked};

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
    let mut state = State::ENTRY;
    let (mut branched, mut called) = (false, false);
    let mut below_known = false;
    let mut flags_known = false;
    for scanned in code {
        let insn = scanned.insn;
        if let Some(memory) = insn.memory()
            && memory.base == SP
            && memory.moves.is_none()
            && memory.distance.is_some_and(|distance| distance < 0)
            && !below_known
        {
            facts.reads_red_zone |= memory.reads;
            below_known = true;
        }
        facts.reads_flags |=
            !flags_known && scanned.effects.reads & FLAGS != 0 && !may_see_all(&insn);
        flags_known |= scanned.effects.changes & FLAGS != 0;
        match scanned.flow {
            Flow::Next => {}
            Flow::Branch(_) => {
                branched = true;
                below_known = true;
            }
            Flow::Call(_) | Flow::IndirectCall => {
                called = true;
                flags_known = true;
            }
            _ => break,
        }
        let forms_frame = insn.rd() == FRAME && insn.added().is_some();
        let before = state.address(SP, 0);
        state.step(&insn, &scanned.effects);
        let after = state.address(SP, 0);
        if scanned.effects.changes & STACK != 0 {
            // A large frame, or one with scalable vectors.
            let lowers = match (before, after) {
                (Some(_), Some(after)) => after > 0,
                _ => true,
            };
            facts.makes_frame |= !branched && lowers;
        }
        let holds = state.address(FRAME, 0).is_some_and(|below| below > 0);
        facts.frame_pointer |= forms_frame && holds && !called;
        if after.is_none_or(|below| below < 0) {
            break;
        }
    }
    facts
}

/// Whether an instruction is only assumed to read all registers, because nothing is known about it.
fn may_see_all(insn: &Insn) -> bool {
    matches!(insn.kind, Kind::Breakpoint | Kind::Scalable | Kind::Matrix)
}

/// `x9`–`x14`, `x16`, `x17`: no caller passes arguments in them. (Nested functions may be called with something in
/// `x15` or `x18`; `x8` holds the address of the result.)
const NO_ARGUMENTS: Set = 0x0003_7E00;

impl Linked for Scanned {
    type State = State;

    const ENTRY: State = State::ENTRY;
    const UNIT: usize = LEN as usize;
    const STACK: u8 = SP;
    const FRAME: u8 = FRAME;
    const NO_ARGUMENTS: Set = NO_ARGUMENTS;
    const VOLATILE: Set = VOLATILE;
    const RESULT: Set = 1;

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

    fn reads(&self) -> Set {
        match may_see_all(&self.insn) {
            true => 0,
            false => self.effects.reads,
        }
    }

    fn changes(&self) -> Set {
        self.effects.changes
    }

    fn exposes_link(&self) -> bool {
        self.reads() & general(LINK) != 0 && !is_usual(&self.insn)
    }

    fn changes_link(&self) -> bool {
        self.effects.changes & general(LINK) != 0 && !signs(&self.insn)
    }

    fn saves(&self) -> Option<Slot> {
        link_slot(&self.insn).filter(|_| !self.insn.is_load())
    }

    fn restores(&self) -> Option<Slot> {
        let slot = link_slot(&self.insn).filter(|_| self.insn.is_load())?;
        let below = matches!(slot, Slot::Frame(_)) || self.insn.rn() == SP;
        below.then_some(slot)
    }

    fn loads_other(&self) -> bool {
        loads(&self.insn) && self.insn.rd() != LINK
    }

    fn takes_address(&self) -> bool {
        self.insn.kind == Kind::AddImmediate && !matches!(self.insn.rd(), SP | FRAME)
    }

    fn step(&self, state: &mut State) {
        state.step(&self.insn, &self.effects);
    }

    fn below(state: &State, register: u8, distance: i64) -> Option<i32> {
        state.address(register, distance)
    }

    fn result(&self) -> Set {
        general(self.insn.rd())
    }

    fn copies_return(&self) -> bool {
        loads(&self.insn) || self.insn.copied() == Some(LINK)
    }

    fn copied(&self) -> Set {
        self.insn.copied().map_or(0, general)
    }

    fn uses(&self) -> Set {
        self.effects.reads
    }

    fn replaces(&self) -> Set {
        // The epilogue restores the caller's values of these.
        let restores = self.insn.is_load() && self.insn.rn() == SP;
        let writes = self.effects.writes;
        if restores { writes } else { writes & VOLATILE }
    }
}

/// Whether an instruction loads a whole general register.
fn loads(insn: &Insn) -> bool {
    insn.kind == Kind::Single && insn.is_whole() && insn.is_load()
}

/// The stack slot in which a load or store has the link register.
fn link_slot(insn: &Insn) -> Option<Slot> {
    let distance = scan::link_distance(insn)?;
    match scan::at(insn.rn(), distance) {
        Slot::None => None,
        slot => Some(slot),
    }
}

/// Whether an instruction signs or authenticates the link register, which keeps its address.
fn signs(insn: &Insn) -> bool {
    match insn.kind {
        Kind::Hint => true,
        Kind::Sign | Kind::SignZero => insn.rd() == LINK,
        _ => false,
    }
}

/// Whether an instruction that reads `x30` saves it on the stack, signs it or jumps through it.
pub(super) fn is_usual(insn: &Insn) -> bool {
    match insn.kind {
        Kind::Single | Kind::Pair => !insn.is_load() && link_slot(insn).is_some(),
        Kind::JumpRegister | Kind::CallRegister | Kind::Return => true,
        _ => signs(insn),
    }
}

/// Whether the instruction at the start of `code` writes memory.
#[must_use]
pub fn stores(code: &[u8]) -> bool {
    Insn::new(code, 0)
        .memory()
        .is_some_and(|memory| memory.writes)
}

/// Whether code is a signal handler's return: `mov x8, #139; svc #0`.
#[must_use]
pub fn is_signal_return(code: &[u8]) -> bool {
    code.starts_with(&[0x68, 0x11, 0x80, 0xD2, 0x01, 0, 0, 0xD4])
}
