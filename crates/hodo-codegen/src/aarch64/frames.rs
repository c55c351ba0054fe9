//! Frame information for an island: see `linked`.

use alloc::vec::Vec;

pub use crate::frames::{Frames, GROUP, header, table_room};
use crate::linked::frames::{self, How, Move, Tables};

use hodo_isa::Signing;
use hodo_isa::aarch64::asm::fill;
use hodo_isa::aarch64::cfa::{CALLEE_SAVED, Row, SIGNED, signing};
use hodo_isa::aarch64::decode::{Insn, Kind};
use hodo_isa::aarch64::regs::{BETWEEN, LINK, SP};
use hodo_isa::aarch64::scan::Sweep;
use hodo_isa::cfa::SAVED;

/// The link of calls to the agent.
pub(super) const AGENT_LINK: u8 = BETWEEN[0];

/// This instruction set.
struct Aarch64;

impl Tables for Aarch64 {
    const UNIT: u32 = 4;
    const STACK: u8 = SP;
    const RETURN: u8 = LINK;
    const AGENT_LINK: u8 = AGENT_LINK;
    const SAVED: [u8; SAVED] = CALLEE_SAVED;

    fn fill(island: &mut Vec<u8>, len: usize) {
        fill(island, len);
    }

    fn moves(agent: &[u8]) -> impl Iterator<Item = Move> {
        let mut before = None;
        Sweep::new(agent, 0).filter_map(move |scanned| {
            let insn = &scanned.insn;
            let copied = copied(insn);
            let how = match copied {
                Some((SP, _)) => Some(How::Base(SP)),
                _ => lowering(insn).or_else(|| before_lowering(insn, before)),
            };
            before = copied;
            let next = insn.end() as u32;
            how.map(|how| Move { next, how })
        })
    }

    fn signing(saved: &[u16; SAVED]) -> Signing {
        signing(saved[SIGNED])
    }
}

/// The data at offset `at` of an island of `size` bytes. `signal_return`: the address to which signal handlers return.
#[must_use]
pub fn build(at: u32, size: u32, shadow_distance: u64, signal_return: u64) -> Frames {
    frames::build::<Aarch64>(at, size, shadow_distance, signal_return)
}

/// Appends the FDE of the agent, which is alone in its island. Returns its search table entry. The agent's code lowers
/// and raises the stack pointer in the order of addresses, so its functions need not be told apart. If a register says
/// how much to lower it by, the preceding instruction has copied the stack pointer to another register.
#[must_use]
pub fn agent(island: &mut Vec<u8>, frames: &Frames, agent: &[u8], _: &[u32]) -> [u8; 8] {
    frames::agent::<Aarch64>(island, frames, agent)
}

/// Appends the FDE of the code from the first of the rows to the end of the island so far. Returns its search table
/// entry.
#[must_use]
pub fn group(island: &mut Vec<u8>, frames: &Frames, rows: &[Row]) -> [u8; 8] {
    frames::group::<Aarch64>(island, frames, rows)
}

/// Appends the FDE of detours, from offset `start` to the end of the island so far: see `linked`.
/// Returns its search table entry.
#[must_use]
pub fn detours(
    island: &mut Vec<u8>,
    frames: &Frames,
    start: u32,
    syscalls: &[(u32, u64)],
) -> [u8; 8] {
    frames::detours::<Aarch64>(island, frames, start, syscalls)
}

/// The registers of an instruction that copies one to another, of which one is the stack pointer: destination and
/// source.
fn copied(insn: &Insn) -> Option<(u8, u8)> {
    let copies = insn.added() == Some(0) && !insn.bit(29);
    let registers = (insn.rd(), insn.rn());
    (copies && (registers.0 == SP) != (registers.1 == SP)).then_some(registers)
}

/// If an instruction lowers the stack pointer by an amount that a register or the length of vectors says: the register
/// to which the preceding instruction has copied the stack pointer.
fn before_lowering(insn: &Insn, before: Option<(u8, u8)>) -> Option<How> {
    let lowers = match insn.kind {
        // sub sp, sp, REGISTER
        Kind::AddExtended => insn.bit(30) && (insn.rd(), insn.rn()) == (SP, SP),
        // addvl sp, sp, #NUMBER; addpl
        Kind::Scalable => insn.word & 0xFFBF_F81F == 0x043F_501F,
        _ => false,
    };
    let (to, _) = before.filter(|&(_, from)| lowers && from == SP)?;
    Some(How::Base(to))
}

/// By how much an instruction lowers the stack pointer.
fn lowering(insn: &Insn) -> Option<How> {
    let memory = insn.memory().filter(|memory| memory.base == SP);
    let added = match memory {
        Some(memory) => memory.moves?,
        None if (insn.rd(), insn.rn()) == (SP, SP) && !insn.bit(29) => insn.added()?,
        None => return None,
    };
    Some(How::Lower(-added))
}
