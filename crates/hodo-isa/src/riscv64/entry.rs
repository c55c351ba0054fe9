//! What a function does with its return address, which callers pass in `ra`.

use alloc::vec::Vec;
use core::borrow::Borrow;

use super::cfa::State;
use super::decode::Insn;
use super::decode::Kind;
use super::decode::operand::imm_i;
use super::regs::{RA, SP, ZERO};
use super::scan::{Flow, Scanned, Sweep};
use crate::code::{EntryFacts, LinkUse, Slot};

/// Looks at this many instructions at most.
const LIMIT: usize = 64;
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
        if scanned.writes & 1 << SP != 0 {
            if !(is_addi(&insn) && insn.rs1() == SP) {
                // A large frame, or another stack.
                facts.makes_frame |= !branched && scanned.reads & 1 << SP != 0;
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

/// What `ra` holds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Held {
    /// The return address of the function.
    Own,
    /// The same, reloaded from the stack.
    Back,
    /// The address after the last call. No return goes there, since it would loop forever: such a call does not return.
    Call,
    /// Something that the function or its caller has stored on the stack: compilers reload it into any register.
    Stack,
    /// Something else.
    Other,
}

/// `t0`, `t1`, `t3`–`t6`: no caller passes arguments in them. (Nested functions are called with something in `t2`.)
const NO_ARGUMENTS: u32 = 0xF000_0060;

/// Whether the straight-line code from a function's entry to its first call uses values from registers in which no
/// caller passes arguments.
fn takes_more_than_arguments(code: &[Scanned]) -> bool {
    let mut written = 0;
    for scanned in code.iter().take(LIMIT) {
        if scanned.reads & NO_ARGUMENTS & !written != 0 {
            return true;
        }
        written |= scanned.writes;
        if scanned.flow != Flow::Next {
            break;
        }
    }
    false
}

/// Follows all paths from the entry of a function. `code` is the function's code from `addr` on, and `scanned` its
/// instructions. `place` returns how far above the frame's start the slot lies that the instruction at an address uses,
/// if a table says so; otherwise it is derived from the code.
pub(crate) fn link_use(
    (code, addr): (&[u8], u64),
    scanned: &[Scanned],
    place: impl Fn(u64, Slot) -> Option<i32>,
) -> LinkUse {
    let mut ways = Ways {
        found: LinkUse::default(),
        addr,
        seen: vec![0; code.len() / 2 + 1],
        open: Vec::new(),
        places: Vec::new(),
        elsewhere: false,
        jumps_on: false,
        place,
    };
    ways.pass(scanned.iter(), Held::Own, State::ENTRY);
    while let Some((at, held, state)) = ways.open.pop() {
        let Some(offset) = at
            .checked_sub(addr)
            .and_then(|offset| usize::try_from(offset).ok())
            .filter(|&offset| offset < code.len())
        else {
            continue;
        };
        if ways.seen[offset / 2] & 1 << held as u8 != 0 {
            continue;
        }
        match scanned.binary_search_by_key(&at, |scanned| scanned.insn.addr) {
            Ok(index) => ways.pass(scanned[index..].iter(), held, state),
            // The middle of an instruction.
            Err(_) => ways.pass(Sweep::new(&code[offset..], at), held, state),
        }
    }
    let jumps_on = ways.jumps_on;
    let mut found = ways.found;
    found.reads.sort_unstable();
    found.reads.dedup();
    let calls = |scanned: &Scanned| matches!(scanned.flow, Flow::Call(_) | Flow::IndirectCall);
    found.hands_on = jumps_on && !found.reads.is_empty() && !scanned.iter().any(calls);
    found.leads_on = found.leads_on && takes_more_than_arguments(scanned);
    found
}

/// The paths through a function.
struct Ways<P> {
    found: LinkUse,
    addr: u64,
    /// For each half word, the states of `ra` with which it was seen.
    seen: Vec<u8>,
    open: Vec<(u64, Held, State)>,
    /// Where the return address was saved: above the frame's start (`true`), or above the stack pointer if the frame's
    /// start is not known.
    places: Vec<(bool, i32)>,
    /// Whether it may also be at a place that is not known.
    elsewhere: bool,
    /// Whether it jumps to another function with its return address.
    jumps_on: bool,
    place: P,
}

impl<P: Fn(u64, Slot) -> Option<i32>> Ways<P> {
    /// Follows instructions until control leaves them or reaches what was seen before.
    fn pass(
        &mut self,
        code: impl Iterator<Item: Borrow<Scanned>>,
        mut held: Held,
        mut state: State,
    ) {
        let mut first = true;
        for scanned in code {
            let scanned = scanned.borrow();
            let insn = &scanned.insn;
            // After a jump, no earlier instruction shows where this one leads.
            let flow = match core::mem::take(&mut first) {
                true => insn.flow(),
                false => scanned.flow,
            };
            let mark = &mut self.seen[((insn.addr - self.addr) / 2) as usize];
            let bit = 1 << held as u8;
            if *mark & bit != 0 {
                break;
            }
            *mark |= bit;
            let own = matches!(held, Held::Own | Held::Back);
            if own && scanned.reads & 1 << RA != 0 && !is_usual(insn) {
                self.found.reads.push(insn.addr);
            }
            if own && stores_link(insn) {
                let slot = scanned.slot;
                self.found.saves.push((insn.addr, slot));
                match self.here(insn.addr, slot, &state) {
                    Some(at) if self.places.contains(&at) => {}
                    Some(at) => self.places.push(at),
                    None => self.elsewhere = true,
                }
            }
            let loads = loads(insn);
            // A copy of the return address may be reloaded from a stack slot of its own. Who has the address of the slot
            // can do that, too.
            let takes = is_addi(insn) && !matches!(insn.rd(), SP | FRAME | ZERO);
            if (loads && insn.rd() != RA || takes) && !self.places.is_empty() {
                let here = self.here(insn.addr, scanned.slot, &state);
                if here.is_some_and(|at| self.places.contains(&at)) {
                    self.found.reads.push(insn.addr);
                }
            }
            let restores = loads && insn.rd() == RA && is_saved_place(insn, imm_i(insn.word));
            let from = match restores && !self.elsewhere && !self.places.is_empty() {
                true => self.here(insn.addr, scanned.slot, &state),
                false => None,
            };
            state.step(insn, scanned.writes);
            match flow {
                Flow::Next => {}
                Flow::Branch(to) => self.open.push((to, held, state)),
                Flow::Jump(to) => {
                    let inside = to >= self.addr && (to - self.addr) / 2 < self.seen.len() as u64;
                    self.jumps_on |= own && !inside;
                    self.open.push((to, held, state));
                    break;
                }
                Flow::Call(_) | Flow::IndirectCall => {}
                Flow::Return { by: RA } => {
                    self.found.moves |= held == Held::Other;
                    break;
                }
                Flow::IndirectJump => {
                    self.found.leads_on |= matches!(held, Held::Back | Held::Stack);
                    self.jumps_on |= own;
                    break;
                }
                _ => break,
            }
            if scanned.writes & 1 << RA != 0 {
                held = match flow {
                    _ if restores => match from {
                        Some(at) if !self.places.contains(&at) => Held::Stack,
                        _ => Held::Back,
                    },
                    Flow::Call(_) | Flow::IndirectCall => Held::Call,
                    _ => Held::Other,
                };
            }
        }
    }

    /// The stack slot that an instruction uses, as in [`Self::places`].
    fn here(&self, addr: u64, slot: Slot, before: &State) -> Option<(bool, i32)> {
        let (base, distance) = match slot {
            Slot::Stack(at) => (SP, at),
            Slot::Frame(at) => (FRAME, at),
            Slot::None => return None,
        };
        let tracked = || before.address(base, distance.into())?.checked_neg();
        let known = (self.place)(addr, slot).or_else(tracked);
        // In a large frame its distance from the frame's start is not known, but that is then true of all slots.
        let apart = || (base == SP).then_some((false, distance));
        known.map(|at| (true, at)).or_else(apart)
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

/// Whether the return address, which the instruction at `read` copies, is used for nothing but calls that are dropped.
/// `code` is the function's code from `addr` on.
#[must_use]
pub fn is_only_passed_on(
    code: &[u8],
    addr: u64,
    read: u64,
    is_dropped: &dyn Fn(u64) -> bool,
) -> bool {
    let end = addr.wrapping_add(code.len() as u64);
    let Some(code) = read
        .checked_sub(addr)
        .and_then(|at| code.get(usize::try_from(at).ok()?..))
    else {
        return false;
    };
    let mut sweep = Sweep::new(code, read);
    let Some(first) = sweep.next() else {
        return false;
    };
    let copied = |insn: &Insn| -> Option<(u8, u8)> {
        let add = insn.kind == Kind::Plain && insn.word & 0xFE00_707F == 0x33;
        if is_addi(insn) && imm_i(insn.word) == 0 {
            Some((insn.rd(), insn.rs1()))
        } else if add && insn.rs1() == ZERO {
            Some((insn.rd(), insn.rs2()))
        } else if add && insn.rs2() == ZERO {
            Some((insn.rd(), insn.rs1()))
        } else {
            None
        }
    };
    let from_stack = matches!(first.insn.kind, Kind::Load(8));
    let from_link = copied(&first.insn).is_some_and(|(_, from)| from == RA);
    if !from_stack && !from_link {
        return false;
    }
    // Registers that hold it. Callee-saved registers count as holding it to the function's end, since we do not tell
    // blocks apart.
    let mut holders = 1u32 << first.insn.rd();
    for scanned in sweep {
        if holders == 0 {
            return true;
        }
        let insn = scanned.insn;
        let (reads, writes) = insn.general();
        match scanned.flow {
            Flow::Call(_) | Flow::IndirectCall => {
                if !is_dropped(insn.addr) && holders & VOLATILE != 0 {
                    return false;
                }
                holders &= !VOLATILE;
                continue;
            }
            Flow::Return { .. } if holders & 1 << 10 != 0 => return false,
            Flow::Jump(to) => {
                let inside = read <= to && to < end || addr <= to && to < read;
                if !inside {
                    if !is_dropped(insn.addr) && holders & VOLATILE != 0 {
                        return false;
                    }
                    holders &= !VOLATILE;
                }
                continue;
            }
            Flow::IndirectJump if holders & VOLATILE != 0 => return false,
            _ => {}
        }
        if let Some((to, from)) = copied(&insn)
            && holders & 1 << from != 0
        {
            holders |= 1 << to;
            continue;
        }
        // The epilogue restores the caller's values of these.
        let restores = matches!(insn.kind, Kind::Load(8)) && insn.rs1() == SP;
        if reads & holders != 0 {
            return false;
        }
        if restores || writes & VOLATILE != 0 {
            holders &= !(writes & VOLATILE);
        }
    }
    true
}

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
