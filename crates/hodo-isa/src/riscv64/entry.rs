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

/// Looks at no more instructions than this.
const LIMIT: usize = 64;
/// `s0`, the frame pointer where there is one.
const FRAME: u8 = 8;

fn is_addi(insn: &Insn) -> bool {
    insn.kind == Kind::Plain && insn.word & 0x707F == 0x13
}

/// Follows the straight line of code from the entry of a function, to the first jump or return.
#[must_use]
pub fn entry_facts(code: &[u8], addr: u64) -> EntryFacts {
    facts(Sweep::new(code, addr).take(LIMIT))
}

/// The same of instructions that were read.
pub(crate) fn entry_facts_of(code: &[Scanned]) -> EntryFacts {
    facts(code.iter().take(LIMIT).copied())
}

fn facts(code: impl Iterator<Item = Scanned>) -> EntryFacts {
    let mut facts = EntryFacts::default();
    // Bytes between the stack pointer and what it was at the entry, if that is known.
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
            // Helpers that save registers are called by another link register, and make the frame.
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
    /// The same, taken back from the stack.
    Back,
    /// The address after the last call. A return does not go there, for it would do so for ever: such a call does not
    /// return.
    Call,
    /// Something that the function has put onto the stack, or its caller: compilers take that back into any register.
    Stack,
    /// Something else.
    Other,
}

/// `t0`, `t1`, `t3`–`t6`: no caller passes arguments in them. (`t2` is what nested functions are called with.)
const NO_ARGUMENTS: u32 = 0xF000_0060;

/// Whether the straight line of code from a function's entry, up to its first call, takes something from registers that
/// no caller passes arguments in.
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

/// Follows all ways from the entry of a function. `code` is the function's, from `addr` on, and `scanned` its
/// instructions. `place` tells how far above the frame's start the place is that an instruction at an address uses, if
/// a table says so; else the code is asked.
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
    let mut found = ways.found;
    found.reads.sort_unstable();
    found.reads.dedup();
    found.leads_on = found.leads_on && takes_more_than_arguments(scanned);
    found
}

/// The ways through a function.
struct Ways<P> {
    found: LinkUse,
    addr: u64,
    /// By half words: which of the states was seen.
    seen: Vec<u8>,
    open: Vec<(u64, Held, State)>,
    /// Where the return address was saved: above the frame's start, or above the stack pointer where that is not known.
    /// And whether it may be elsewhere, too.
    places: Vec<(bool, i32)>,
    elsewhere: bool,
    place: P,
}

impl<P: Fn(u64, Slot) -> Option<i32>> Ways<P> {
    /// Goes through instructions, up to where control leaves them or has been.
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
            // What control comes to by a jump has no instruction before it that would tell where it goes.
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
            // What has the return address for a value may be on the stack meanwhile, in a place of its own.
            if loads && insn.rd() != RA && !self.places.is_empty() {
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

    /// The place on the stack that an instruction uses, as [`Self::places`] has it.
    fn here(&self, addr: u64, slot: Slot, before: &State) -> Option<(bool, i32)> {
        let (base, distance) = match slot {
            Slot::Stack(at) => (SP, at),
            Slot::Frame(at) => (FRAME, at),
            Slot::None => return None,
        };
        let tracked = || before.address(base, distance.into())?.checked_neg();
        let known = (self.place)(addr, slot).or_else(tracked);
        // In a large frame nobody knows how far it is below the frame's start, but then all are.
        let apart = || (base == SP).then_some((false, distance));
        known.map(|at| (true, at)).or_else(apart)
    }
}

/// Whether a load or store by this distance may be one of what the function saves: by the stack pointer, or below the
/// frame's start.
fn is_saved_place(insn: &Insn, distance: i64) -> bool {
    insn.rs1() == SP || insn.rs1() == FRAME && distance < 0
}

/// Whether an instruction stores `ra`, and not the floating-point register of this number.
fn stores_link(insn: &Insn) -> bool {
    insn.kind == Kind::Store(8) && insn.word & 0x7F == 0x23 && insn.rs2() == RA
}

/// Whether an instruction loads a general register with all its bits.
fn loads(insn: &Insn) -> bool {
    insn.kind == Kind::Load(8) && insn.word & 0x7F == 0x03
}

/// Whether an instruction that reads `ra` saves it on the stack or jumps by it.
fn is_usual(insn: &Insn) -> bool {
    match insn.kind {
        Kind::Store(8) => stores_link(insn) && matches!(insn.rs1(), SP | FRAME),
        Kind::Jalr => insn.rs1() == RA,
        _ => false,
    }
}

/// Registers that calls may change: `ra`, `t0`–`t6`, `a0`–`a7`.
pub const VOLATILE: u32 = 0xF003_FCE2;

/// Whether the return address, which the instruction at `read` copies, goes nowhere but to calls that are dropped.
/// `code` is the function's, from `addr` on.
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
    // Registers that hold it. Those that callees keep are taken to hold it to the function's end: blocks are not told
    // apart.
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
        // The frame's end brings back what callers had in these.
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
