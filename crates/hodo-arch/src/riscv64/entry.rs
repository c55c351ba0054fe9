//! What a function does with its return address, which it is called with in `ra`.

use alloc::collections::BTreeSet;

use super::decode::Insn;
use super::operand::imm_i;
use super::registers::{RA, SP, ZERO};
use super::rows::Kind;
use super::scan::{self, Flow, Sweep};
use super::track::State;
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
    let mut facts = EntryFacts::default();
    // Bytes between the stack pointer and what it was at the entry, if that is known.
    let mut depth = 0i64;
    let mut branched = false;
    let mut below_known = false;
    for scanned in Sweep::new(code, addr).take(LIMIT) {
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
        if insn.general().1 & 1 << SP != 0 {
            if !(is_addi(&insn) && insn.rs1() == SP) {
                // A large frame, or another stack.
                facts.makes_frame |= !branched && insn.general().0 & 1 << SP != 0;
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
    /// The address behind the last call. A return does not go there, for it would do so for ever: such a call does not return.
    Call,
    /// Something that the function has put onto the stack, or its caller: compilers take that back into any register.
    Stack,
    /// Something else.
    Other,
}

/// `t0`, `t1`, `t3`–`t6`: no caller passes arguments in them. (`t2` is what nested functions are called with.)
const NO_ARGUMENTS: u32 = 0xF000_0060;

/// Whether the straight line of code from a function's entry, up to its first call, takes something from registers that no caller
/// passes arguments in.
fn takes_more_than_arguments(code: &[u8], addr: u64) -> bool {
    let mut written = 0;
    for scanned in Sweep::new(code, addr).take(LIMIT) {
        let (reads, writes) = scanned.insn.general();
        if reads & NO_ARGUMENTS & !written != 0 {
            return true;
        }
        written |= writes;
        if scanned.flow != Flow::Next {
            break;
        }
    }
    false
}

/// Follows all ways from the entry of a function. `code` is the function's, from `addr` on. `place` tells how far above the frame's
/// start the place is that an instruction at an address uses, if a table says so; else the code is asked.
#[must_use]
pub fn link_use(code: &[u8], addr: u64, place: &dyn Fn(u64, Slot) -> Option<i32>) -> LinkUse {
    let mut found = LinkUse::default();
    // By half words: which of the states was seen.
    let mut seen = vec![0u8; code.len() / 2 + 1];
    let mut open = vec![(addr, Held::Own, State::ENTRY)];
    // Where it was saved: above the frame's start, or above the stack pointer where that is not known. And whether it may be elsewhere, too.
    let mut places = BTreeSet::new();
    let mut elsewhere = false;
    while let Some((at, mut held, mut state)) = open.pop() {
        let Some(offset) = at
            .checked_sub(addr)
            .and_then(|offset| usize::try_from(offset).ok())
            .filter(|&offset| offset < code.len())
        else {
            continue;
        };
        for scanned in Sweep::new(&code[offset..], at) {
            let insn = scanned.insn;
            let before = state;
            state.step(&insn);
            let mark = &mut seen[((insn.addr - addr) / 2) as usize];
            let bit = 1 << held as u8;
            if *mark & bit != 0 {
                break;
            }
            *mark |= bit;
            let (reads, writes) = insn.general();
            let own = matches!(held, Held::Own | Held::Back);
            if own && reads & 1 << RA != 0 && !is_usual(&insn) {
                found.reads.push(insn.addr);
            }
            let slot = match scanned.slot {
                scan::Slot::Stack(at) => Slot::Stack(at),
                scan::Slot::Frame(at) => Slot::Frame(at),
                scan::Slot::None => Slot::None,
            };
            let here = || {
                let (base, distance) = match slot {
                    Slot::Stack(at) => (SP, at),
                    Slot::Frame(at) => (FRAME, at),
                    Slot::None => return None,
                };
                let tracked = || before.address(base, distance.into())?.checked_neg();
                let known = place(insn.addr, slot).or_else(tracked);
                // In a large frame nobody knows how far it is below the frame's start, but then all are.
                let apart = || (base == SP).then_some((false, distance));
                known.map(|at| (true, at)).or_else(apart)
            };
            if own && stores_link(&insn) {
                found.saves.push((insn.addr, slot));
                match here() {
                    Some(at) => _ = places.insert(at),
                    None => elsewhere = true,
                }
            }
            // What has the return address for a value may be on the stack meanwhile, in a place of its own.
            let takes_it = |at: (bool, i32)| places.contains(&at);
            if loads(&insn) && insn.rd() != RA && here().is_some_and(takes_it) {
                found.reads.push(insn.addr);
            }
            match scanned.flow {
                Flow::Next => {}
                Flow::Branch(to) => open.push((to, held, state)),
                Flow::Jump(to) => {
                    open.push((to, held, state));
                    break;
                }
                Flow::Call(_) | Flow::IndirectCall => {}
                Flow::Return { by: RA } => {
                    found.moves |= held == Held::Other;
                    break;
                }
                Flow::IndirectJump => {
                    found.leads_on |= matches!(held, Held::Back | Held::Stack);
                    break;
                }
                _ => break,
            }
            if writes & 1 << RA != 0 {
                let restores =
                    loads(&insn) && insn.rd() == RA && is_saved_place(&insn, imm_i(insn.word));
                let known = || !elsewhere && !places.is_empty();
                held = match scanned.flow {
                    _ if restores => match here().filter(|_| known()) {
                        Some(at) if !places.contains(&at) => Held::Stack,
                        _ => Held::Back,
                    },
                    Flow::Call(_) | Flow::IndirectCall => Held::Call,
                    _ => Held::Other,
                };
            }
        }
    }
    found.reads.sort_unstable();
    found.reads.dedup();
    found.leads_on &= takes_more_than_arguments(code, addr);
    found
}

/// Whether a load or store by this distance may be one of what the function saves: by the stack pointer, or below the frame's start.
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

/// Whether the return address, which the instruction at `read` copies, goes nowhere but to calls that are dropped. `code` is
/// the function's, from `addr` on.
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
    // Registers that hold it. Those that callees keep are taken to hold it to the function's end: blocks are not told apart.
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
