//! What a kernel does at a breakpoint, reduced to what cannot be left out: save the registers, find the probe, count
//! the hit, arrange for the replaced instruction, restore the registers. Linux does more at each of these steps.

use hodo_codegen::riscv64::patch;
use hodo_isa::Via;
use hodo_isa::riscv64::Kind;
use hodo_isa::riscv64::asm::ops::Insns as _;
use hodo_isa::riscv64::asm::{Code, If, OutOfRange, condition_bits};
use hodo_isa::riscv64::decode::Insn;
use hodo_isa::riscv64::decode::operand::{funct3, imm_b, imm_i, imm_j, imm_u};
use hodo_isa::riscv64::encode::{JALR, i};
use hodo_isa::riscv64::regs::{RA, SP, T0, T1, ZERO};

use super::region::{Execution, Region, execution};
use super::{BLOCK, COUNTER, DETOUR, Refused, Setup};
use crate::encode::{EBREAK, MRET, csr, csrr, csrrw};

/// The handler.
pub const HANDLER: u64 = 0x6000_0000;
/// Its frame: the saved registers by their numbers.
pub const FRAME: u64 = 0x6010_0000;
/// The breakpoint of the step that is open, and where it leads.
const OPEN: i32 = 0x6020_0000;
/// The table of probes.
const TABLE: i32 = 0x6030_0000;

const A0: u8 = 10;
const A1: u8 = 11;
const T2: u8 = 7;
const T3: u8 = 28;
const T4: u8 = 29;

const BREAKPOINT: [u8; 2] = [0x02, 0x90];

/// A probe in the table.
#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    /// Its address.
    at: u64,
    /// The code that simulates the instruction; 0: there is none.
    simulation: u64,
    /// Where the instruction is executed.
    slot: u64,
    /// The breakpoint after it; 0: there is none.
    step: u64,
    /// The instruction after the original.
    next: u64,
}

impl Entry {
    /// Bytes of a slot of the table, as a power of two.
    const SHIFT: u8 = 6;

    fn write(self, setup: &mut Setup) {
        let words = [self.at, self.simulation, self.slot, self.step, self.next];
        let bytes = words.map(u64::to_le_bytes).concat();
        let slot = (self.at >> 1 & 15) << Self::SHIFT;
        setup.writes.push((TABLE as u64 + slot, bytes));
    }
}

/// The code of the handler. Probes are found by a hash of their address.
#[must_use]
pub fn handler() -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut code = Code::new(&mut bytes, HANDLER);
    let (step, simulate, restore) = (code.label(), code.label(), code.label());
    let saved = || (1..32u8).filter(|&register| register != SP);
    code.word(csrrw(SP, csr::MSCRATCH, SP));
    for register in saved() {
        code.sd(register, 8 * i64::from(register), SP);
    }
    code.word(csrr(T0, csr::MSCRATCH));
    code.sd(T0, 8 * i64::from(SP), SP);
    code.word(csrr(A1, csr::MEPC));
    code.li(A0, OPEN);
    code.ld(T0, 0, A0);
    code.branch(If::Equal, T0, A1, step);
    code.srli(T1, A1, 1);
    code.andi(T1, T1, 15);
    code.slli(T1, T1, Entry::SHIFT);
    code.li(T2, TABLE);
    code.add(T1, T1, T2);
    code.ld(T3, 0, T1);
    let known = code.label();
    code.branch(If::Equal, T3, A1, known);
    code.word(EBREAK);
    code.bind(known);
    // The hit.
    let counter = (BLOCK as i64 + i64::from(COUNTER)) as i32;
    code.li(T4, counter);
    code.ld(T3, 0, T4);
    code.addi(T3, T3, 1);
    code.sd(T3, 0, T4);
    code.ld(T0, 8, T1);
    code.branch(If::NotEqual, T0, ZERO, simulate);
    code.ld(T2, 16, T1);
    code.word(csrrw(ZERO, csr::MEPC, T2));
    code.ld(T3, 24, T1);
    code.sd(T3, 0, A0);
    code.ld(T3, 32, T1);
    code.sd(T3, 8, A0);
    code.jal(ZERO, restore);
    code.bind(step);
    code.sd(ZERO, 0, A0);
    code.ld(A1, 8, A0);
    code.word(csrrw(ZERO, csr::MEPC, A1));
    code.jal(ZERO, restore);
    code.bind(simulate);
    code.call(T0);
    code.word(csrrw(ZERO, csr::MEPC, A1));
    code.bind(restore);
    for register in saved() {
        code.ld(register, 8 * i64::from(register), SP);
    }
    code.word(csrrw(SP, csr::MSCRATCH, SP));
    code.word(MRET);
    bytes
}

/// Code that executes an instruction on the saved registers: it gets its address in a1, and returns the address of the
/// next one there.
fn simulation(insn: &Insn, at: u64) -> Result<Vec<u8>, OutOfRange> {
    let mut bytes = Vec::new();
    let mut code = Code::new(&mut bytes, at);
    let literal = at + 0x40;
    let word = insn.word;
    let saved = |register: u8| 8 * i64::from(register);
    let len = i64::from(insn.len);
    let mut value = 0;
    match insn.kind {
        Kind::Auipc => {
            value = insn.addr.wrapping_add_signed(imm_u(word));
            code.load_from(T0, literal)?;
            code.sd(T0, saved(insn.rd()), SP);
            code.addi(A1, A1, len);
        }
        Kind::Jal | Kind::Jalr => {
            if insn.kind == Kind::Jal {
                value = insn.addr.wrapping_add_signed(imm_j(word));
                code.load_from(T0, literal)?;
            } else {
                // The first word of the frame is zero.
                code.ld(T0, saved(insn.rs1()), SP);
                code.addi(T0, T0, imm_i(word));
                code.andi(T0, T0, -2);
            }
            if insn.rd() != 0 {
                code.addi(T1, A1, len);
                code.sd(T1, saved(insn.rd()), SP);
            }
            code.addi(A1, T0, 0);
        }
        _ => {
            value = insn.addr.wrapping_add_signed(imm_b(word));
            code.ld(T0, saved(insn.rs1()), SP);
            code.ld(T1, saved(insn.rs2()), SP);
            code.addi(T2, A1, len);
            code.load_from(A1, literal)?;
            let taken = code.label();
            let condition = [
                If::Equal,
                If::NotEqual,
                If::Less,
                If::NotLess,
                If::Below,
                If::NotBelow,
            ];
            let f3 = funct3(word);
            let condition = condition.into_iter().find(|&one| condition_bits(one) == f3);
            code.branch(condition.ok_or(OutOfRange)?, T0, T1, taken);
            code.addi(A1, T2, 0);
            code.bind(taken);
        }
    }
    code.word(i(JALR, 0, ZERO, RA, 0));
    bytes.resize(0x40, 0);
    bytes.extend(value.to_le_bytes());
    Ok(bytes)
}

/// The bytes of a simulation that are code or literal, not padding.
fn used(bytes: &[u8]) -> usize {
    let code = bytes[..0x40]
        .chunks(4)
        .filter(|word| *word != [0; 4])
        .count();
    4 * code + 8
}

/// Builds a probe by breakpoint. With `boosted`, the copy is followed by a jump instead of a breakpoint.
///
/// # Errors
/// If the instruction is one that the slides reject; with `boosted`, also if it cannot be copied, or no register is
/// free after it for the jump.
pub fn build(region: &Region<'_>, at: u64, boosted: bool) -> Result<Setup, Refused> {
    let index = region.index(at).ok_or(Refused::NoRoom)?;
    let insn = &region.insns[index];
    let next = insn.end();
    let mut setup = Setup {
        handler: true,
        ..Setup::default()
    };
    let mut entry = Entry {
        at,
        slot: DETOUR,
        next,
        ..Entry::default()
    };
    let mut code = region.bytes(at, next).to_vec();
    match (execution(insn)?, boosted) {
        (Execution::Simulated, true) => return Err(Refused::Relative),
        (Execution::Simulated, false) => {
            entry.simulation = DETOUR;
            code = simulation(insn, DETOUR).map_err(|_| Refused::Encoding)?;
            setup.elsewhere = used(&code);
        }
        (Execution::Copied, true) => {
            let via = region.back(next).ok_or(Refused::NoWayBack)?;
            let from = DETOUR + code.len() as u64;
            code.extend(patch::jump(from, next, via).ok_or(Refused::Encoding)?);
            setup.elsewhere = code.len();
            if let Via::Free(register) = via {
                setup.clobbers = 1 << register;
            }
        }
        (Execution::Copied, false) => {
            entry.step = DETOUR + code.len() as u64;
            code.extend(BREAKPOINT);
            setup.elsewhere = code.len();
        }
    }
    // A breakpoint is as long as the instruction.
    let patch = match insn.len {
        2 => BREAKPOINT.to_vec(),
        _ => EBREAK.to_le_bytes().to_vec(),
    };
    setup.patched = patch.len();
    setup.writes.push((DETOUR, code));
    setup.writes.push((at, patch));
    setup.writes.push((HANDLER, handler()));
    entry.write(&mut setup);
    Ok(setup)
}
