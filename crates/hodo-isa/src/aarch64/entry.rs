//! What a function does with its return address, which callers pass in `x30`.

use alloc::vec::Vec;
use core::borrow::Borrow;

use super::LEN;
use super::cfa::State;
use super::decode::{Insn, Kind};
use super::regs::{FLAGS, FRAME, LINK, SP, STACK, Set, VOLATILE, ZERO, general};
use super::scan::{self, Flow, Scanned, Sweep};
use crate::code::{EntryFacts, LinkUse, Slot};

/// Looks at this many instructions at most.
const LIMIT: usize = 64;

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

/// What `x30` holds.
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

/// `x9`–`x14`, `x16`, `x17`: no caller passes arguments in them. (Nested functions may be called with something in
/// `x15` or `x18`; `x8` holds the address of the result.)
const NO_ARGUMENTS: Set = 0x0003_7E00;

/// Whether the straight-line code from a function's entry to its first call uses values from registers in which no
/// caller passes arguments.
fn takes_more_than_arguments(code: &[Scanned]) -> bool {
    let mut written = 0;
    for scanned in code.iter().take(LIMIT) {
        if scanned.effects.reads & NO_ARGUMENTS & !written != 0 && !may_see_all(&scanned.insn) {
            return true;
        }
        written |= scanned.effects.changes;
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
        seen: vec![0; code.len() / LEN as usize + 1],
        open: Vec::new(),
        places: Vec::new(),
        elsewhere: false,
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
        match scanned.binary_search_by_key(&at, |scanned| scanned.insn.addr) {
            Ok(index) => ways.pass(scanned[index..].iter(), held, state),
            // The middle of an instruction, where a jump would fault.
            Err(_) if !(offset as u64).is_multiple_of(LEN) => {}
            Err(_) => ways.pass(Sweep::new(&code[offset..], at), held, state),
        }
    }
    let mut found = ways.found;
    found.reads.sort_unstable();
    found.reads.dedup();
    found.leads_on = found.leads_on && takes_more_than_arguments(scanned);
    found
}

/// The paths through a function.
struct Ways<P> {
    found: LinkUse,
    addr: u64,
    /// For each instruction, the states of `x30` with which it was seen.
    seen: Vec<u8>,
    open: Vec<(u64, Held, State)>,
    /// Where the return address was saved: above the frame's start (`true`), or above the stack pointer if the frame's
    /// start is not known.
    places: Vec<(bool, i32)>,
    /// Whether it may also be at a place that is not known.
    elsewhere: bool,
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
            let mark = &mut self.seen[((insn.addr - self.addr) / LEN) as usize];
            let bit = 1 << held as u8;
            if *mark & bit != 0 {
                break;
            }
            *mark |= bit;
            self.reads(scanned, held, &state);
            let restored = self.restored(insn, &state);
            state.step(insn, &scanned.effects);
            match flow {
                Flow::Next => {}
                Flow::Branch(to) => self.open.push((to, held, state)),
                Flow::Jump(to) => {
                    self.open.push((to, held, state));
                    break;
                }
                Flow::Call(_) | Flow::IndirectCall => {}
                Flow::Return { by: LINK } => {
                    self.found.moves |= held == Held::Other;
                    break;
                }
                Flow::IndirectJump => {
                    self.found.leads_on |= matches!(held, Held::Back | Held::Stack);
                    break;
                }
                _ => break,
            }
            if scanned.effects.changes & general(LINK) != 0 && !signs(insn) {
                held = match (restored, flow) {
                    (Some(held), _) => held,
                    (None, Flow::Call(_) | Flow::IndirectCall) => Held::Call,
                    (None, _) => Held::Other,
                };
            }
        }
    }

    /// Records how an instruction uses the return address; `held` says whether the link register has it.
    fn reads(&mut self, scanned: &Scanned, held: Held, state: &State) {
        let insn = &scanned.insn;
        let own = matches!(held, Held::Own | Held::Back);
        if own
            && scanned.effects.reads & general(LINK) != 0
            && !may_see_all(insn)
            && !is_usual(insn)
        {
            self.found.reads.push(insn.addr);
        }
        if own
            && !insn.is_load()
            && let Some(slot) = link_slot(insn)
        {
            self.found.saves.push((insn.addr, slot));
            match self.here(insn.addr, slot, state) {
                Some(at) if self.places.contains(&at) => {}
                Some(at) => self.places.push(at),
                None => self.elsewhere = true,
            }
        }
        // A copy of the return address may be reloaded from a stack slot of its own.
        if insn.kind == Kind::Single
            && insn.is_whole()
            && insn.is_load()
            && insn.rd() != LINK
            && !self.places.is_empty()
        {
            let here = self.here(insn.addr, scanned.slot, state);
            if here.is_some_and(|at| self.places.contains(&at)) {
                self.found.reads.push(insn.addr);
            }
        }
    }

    /// What the link register holds after an instruction that reloads it from the stack.
    fn restored(&self, insn: &Insn, state: &State) -> Option<Held> {
        let slot = link_slot(insn).filter(|_| insn.is_load())?;
        let below = matches!(slot, Slot::Frame(_)) || insn.rn() == SP;
        if !below {
            return None;
        }
        if self.elsewhere || self.places.is_empty() {
            return Some(Held::Back);
        }
        match self.here(insn.addr, slot, state) {
            Some(at) if !self.places.contains(&at) => Some(Held::Stack),
            _ => Some(Held::Back),
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
    let from_stack =
        first.insn.kind == Kind::Single && first.insn.is_whole() && first.insn.is_load();
    if !from_stack && first.insn.copied() != Some(LINK) {
        return false;
    }
    // Registers that hold it. Callee-saved registers count as holding it to the function's end, since we do not tell
    // blocks apart.
    let mut holders: Set = general(first.insn.rd());
    for scanned in sweep {
        if holders == 0 {
            return true;
        }
        let insn = scanned.insn;
        let gone = match scanned.flow {
            Flow::Call(_) | Flow::IndirectCall => true,
            Flow::Jump(to) => {
                if (read..end).contains(&to) || (addr..read).contains(&to) {
                    continue;
                }
                true
            }
            Flow::Return { .. } if holders & 1 != 0 => return false,
            Flow::IndirectJump if holders & VOLATILE != 0 => return false,
            _ => false,
        };
        if gone {
            if !is_dropped(insn.addr) && holders & VOLATILE != 0 {
                return false;
            }
            holders &= !VOLATILE;
            continue;
        }
        if let Some(from) = insn.copied().filter(|&from| from != ZERO)
            && holders & general(from) != 0
        {
            holders |= general(insn.rd());
            continue;
        }
        if scanned.effects.reads & holders != 0 {
            return false;
        }
        // The epilogue restores the caller's values of these.
        let restores = insn.is_load() && insn.rn() == SP;
        let writes = scanned.effects.writes;
        holders &= !if restores { writes } else { writes & VOLATILE };
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

/// Whether code is a signal handler's return: `mov x8, #139; svc #0`.
#[must_use]
pub fn is_signal_return(code: &[u8]) -> bool {
    code.starts_with(&[0x68, 0x11, 0x80, 0xD2, 0x01, 0, 0, 0xD4])
}
