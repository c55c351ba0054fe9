//! Frame information for an island: see `linked`.

use alloc::vec::Vec;

pub use crate::frames::{Frames, GROUP, header, table_room};
use crate::linked::frames::{self, How, Move, Tables};

use hodo_isa::cfa::SAVED;
use hodo_isa::riscv64::asm::fill;
use hodo_isa::riscv64::cfa::{CALLEE_SAVED, Row};
use hodo_isa::riscv64::decode::Insn;
use hodo_isa::riscv64::decode::operand::imm_i;
use hodo_isa::riscv64::encode::{OP, OP_IMM, i, r};
use hodo_isa::riscv64::regs::{RA, SP, T0, ZERO};
use hodo_isa::riscv64::scan::Sweep;

/// This instruction set.
struct Riscv64;

impl Tables for Riscv64 {
    const UNIT: u32 = 2;
    const STACK: u8 = SP;
    const RETURN: u8 = RA;
    const AGENT_LINK: u8 = T0;
    const SAVED: [u8; SAVED] = CALLEE_SAVED;

    fn fill(island: &mut Vec<u8>, len: usize) {
        fill(island, len);
    }

    fn moves(agent: &[u8]) -> impl Iterator<Item = Move> {
        let mut before = None;
        Sweep::new(agent, 0).filter_map(move |scanned| {
            let insn = &scanned.insn;
            let by = match copied(insn) {
                Some((SP, _)) => Some(SP),
                _ => copied_before(insn, before),
            };
            before = copied(insn);
            let how = match (by, lowering(insn)) {
                (Some(register), _) => How::Base(register),
                (None, 0) => return None,
                (None, bytes) => How::Lower(bytes),
            };
            let next = insn.end() as u32;
            Some(Move { next, how })
        })
    }
}

/// The data at offset `at` of an island of `size` bytes. `signal_return`: the address to which signal handlers return.
#[must_use]
pub fn build(at: u32, size: u32, shadow_distance: u64, signal_return: u64) -> Frames {
    frames::build::<Riscv64>(at, size, shadow_distance, signal_return)
}

/// Appends the FDE of the agent, which is alone in its island. Returns its search table entry. The agent's code lowers
/// and raises the stack pointer in the order of addresses, so its functions need not be told apart. If a register says
/// how much to lower it by, the preceding instruction has copied the stack pointer to another register.
#[must_use]
pub fn agent(island: &mut Vec<u8>, frames: &Frames, agent: &[u8], _: &[u32]) -> [u8; 8] {
    frames::agent::<Riscv64>(island, frames, agent)
}

/// Appends the FDE of the code from the first of the rows to the end of the island so far. Returns its search table
/// entry.
#[must_use]
pub fn group(island: &mut Vec<u8>, frames: &Frames, rows: &[Row]) -> [u8; 8] {
    frames::group::<Riscv64>(island, frames, rows)
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
    frames::detours::<Riscv64>(island, frames, start, syscalls)
}

/// The registers of an instruction that copies one to another (`mv`): destination and source.
fn copied(insn: &Insn) -> Option<(u8, u8)> {
    let (rd, rs1, rs2) = (insn.rd(), insn.rs1(), insn.rs2());
    // The latter is the expansion of `c.mv`.
    let from = match insn.word {
        word if word == i(OP_IMM, 0, rd, rs1, 0) => rs1,
        word if word == r(OP, 0, 0, rd, ZERO, rs2) => rs2,
        _ => return None,
    };
    (insn.rd() != from && from != 0).then_some((insn.rd(), from))
}

/// If an instruction subtracts a register from the stack pointer: the register to which the preceding instruction has
/// copied the stack pointer.
fn copied_before(insn: &Insn, before: Option<(u8, u8)>) -> Option<u8> {
    let subtracts = insn.word == r(OP, 0, 0x20, SP, SP, insn.rs2());
    before
        .filter(|&(_, from)| subtracts && from == SP)
        .map(|(to, _)| to)
}

/// By how much an instruction lowers the stack pointer.
fn lowering(insn: &Insn) -> i64 {
    let added = imm_i(insn.word);
    match insn.word == i(OP_IMM, 0, SP, SP, added) {
        true => -added,
        false => 0,
    }
}
