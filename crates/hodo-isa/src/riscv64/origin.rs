//! Finds where jumps through registers lead.

use super::decode::operand::imm_i;
use super::decode::{Insn, Kind};
use super::regs::{SP, ZERO};
use crate::code::Origin;

/// What is known about the register that is jumped through, following the code backward.
enum Seen {
    /// It is the value of this one; nothing else is known.
    Register(u8),
    /// It is the sum of these.
    Sum(u8, u8),
    /// It is the sum of a distance that is loaded through the first, and the second.
    Entry(u8, u8),
}

/// Where a jump through a register gets its target, as far as the instructions before it show. `path` gives code and
/// address of each, the jump first, then backward.
#[must_use]
pub fn origin<'c>(path: impl IntoIterator<Item = (&'c [u8], u64)>) -> Origin {
    let mut path = path.into_iter().map(|(code, addr)| Insn::new(code, addr));
    let Some(jump) = path.next() else {
        return Origin::Computed;
    };
    let mut seen = Seen::Register(jump.rs1());
    let mut leaves = false;
    let mut formed = false;
    for insn in path {
        if matches!(insn.kind, Kind::Jal | Kind::Jalr) && insn.rd() != ZERO {
            // A value that the call returned, or that it preserved.
            leaves = true;
            break;
        }
        let written = insn.general().1;
        leaves |= written & 1 << SP != 0 && imm_i(insn.word) > 0;
        let writes = |register: u8| written & 1 << register != 0;
        let is = |opcode: u32, f3: u32| {
            insn.kind == Kind::Plain && insn.word & 0x707F == f3 << 12 | opcode
        };
        let upper = insn.word >> 25;
        let is_add = is(0x33, 0) && upper == 0;
        match seen {
            Seen::Register(register) if writes(register) => {
                let copy = is(0x13, 0) && imm_i(insn.word) == 0
                    || is_add && insn.rs1() == ZERO
                    || is_add && insn.rs2() == ZERO;
                seen = match insn.kind {
                    Kind::Load(8) => return Origin::Loaded,
                    // A table of 32-bit addresses.
                    Kind::Load(4) => return Origin::Loaded,
                    Kind::Auipc => return Origin::Loaded,
                    Kind::Plain if copy => Seen::Register(insn.rs1().max(insn.rs2_of_add(is_add))),
                    Kind::Plain if is_add => Seen::Sum(insn.rs1(), insn.rs2()),
                    // The lower part of an address.
                    Kind::Plain if is(0x13, 0) => Seen::Register(insn.rs1()),
                    _ => return Origin::Computed,
                };
            }
            Seen::Sum(a, b) if writes(a) || writes(b) => {
                let other = if writes(a) { b } else { a };
                match insn.kind {
                    Kind::Load(4) if formed || insn.rs1() == other => return Origin::Distances,
                    Kind::Load(4) => seen = Seen::Entry(insn.rs1(), other),
                    // If this forms the base of the distances between the two, the base is not the table's start, which
                    // was used before.
                    Kind::Auipc => formed = true,
                    Kind::Plain if is(0x13, 0) && insn.rs1() == insn.rd() => {}
                    _ => return Origin::Computed,
                }
            }
            Seen::Entry(place, base) if writes(place) => {
                // sh2add
                let scaled = is(0x33, 4) && upper == 0x10;
                return match (is_add || scaled) && (insn.rs1() == base || insn.rs2() == base) {
                    true => Origin::Table,
                    false => Origin::Distances,
                };
            }
            Seen::Entry(_, base) if writes(base) && insn.kind == Kind::Plain && !is(0x13, 0) => {
                return Origin::Distances;
            }
            _ => {}
        }
    }
    match seen {
        // The frame is gone: this is a tail call.
        Seen::Register(_) if leaves => Origin::Loaded,
        Seen::Register(_) => Origin::Open,
        Seen::Sum(..) => Origin::Computed,
        Seen::Entry(..) => Origin::Distances,
    }
}

impl Insn {
    /// The second source of an addition, otherwise the zero register.
    fn rs2_of_add(&self, is_add: bool) -> u8 {
        if is_add { self.rs2() } else { ZERO }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    fn of(words: &[u32]) -> Origin {
        let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let at = |index: usize| (&code[index * 4..index * 4 + 4], index as u64 * 4);
        origin((0..words.len()).rev().map(at))
    }

    const JR_A5: u32 = 0x0007_8067;
    const LW_A5_A0: u32 = 0x0005_2783;
    const ADD_A5_A5_A4: u32 = 0x00E7_87B3;
    const ADD_A0_A0_A4: u32 = 0x00E5_0533;

    #[test]
    fn origins_of_jumps() {
        // jr a5, alone; ld a5, (a0) before it; mv a5, a1 and a call
        assert_eq!(of(&[JR_A5]), Origin::Open);
        assert_eq!(of(&[0x0005_3783, JR_A5]), Origin::Loaded);
        assert_eq!(of(&[0x0000_00EF, 0x0005_8793, JR_A5]), Origin::Loaded);
        // add a0, a0, a4; lw a5, (a0); add a5, a5, a4
        let table = [ADD_A0_A0_A4, LW_A5_A0, ADD_A5_A5_A4, JR_A5];
        assert_eq!(of(&table), Origin::Table);
        // sh2add a0, a0, a4 in place of the first
        let table = [0x20E5_4533, LW_A5_A0, ADD_A5_A5_A4, JR_A5];
        assert_eq!(of(&table), Origin::Table);
        // From another register than the table's, and from one that is formed after the use of the table.
        let other = [0x00D5_0533, LW_A5_A0, ADD_A5_A5_A4, JR_A5];
        assert_eq!(of(&other), Origin::Distances);
        let formed = [
            ADD_A0_A0_A4,
            LW_A5_A0,
            0x0000_0717, // auipc a4, 0
            0xEFC7_0713, // addi a4, a4, -260
            ADD_A5_A5_A4,
            JR_A5,
        ];
        assert_eq!(of(&formed), Origin::Distances);
        // slli a5, a5, 2
        assert_eq!(of(&[0x0027_9793, JR_A5]), Origin::Computed);
    }
}
