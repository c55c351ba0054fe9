//! Which vector and floating-point registers an instruction may change.

use super::Kind;
use super::decode::Insn;
use super::regs::state;
use super::scan::{Flow, Reference, Sweep};
use crate::effects::{Look, Vectors};

/// The most bytes that [`look`] examines.
pub const MOST_BYTES: usize = 12;

/// What an instruction may change. Where a breakpoint is, anything may run. Linux discards the vector registers at
/// system calls.
fn vectors(insn: &Insn) -> Vectors {
    const VECTOR: u16 = state::VL | state::VTYPE | state::VSTART | state::VXRM | state::VXSAT;
    let writes = insn.writes();
    if matches!(insn.kind, Kind::Ecall | Kind::Ebreak)
        || insn.is_vector()
        || writes.v != 0
        || writes.state & VECTOR != 0
    {
        Vectors::All
    } else if writes.f != 0 || writes.state & (state::FFLAGS | state::FRM) != 0 {
        Vectors::Part
    } else {
        Vectors::None
    }
}

/// Looks at the instruction at the start of `code`. A jump through a register that was just computed, or loaded from a
/// constant address, counts as one with the instructions before it.
#[must_use]
pub fn look(code: &[u8], addr: u64) -> Option<Look> {
    let mut sweep = Sweep::new(code, addr);
    let first = sweep.next()?;
    if first.insn.kind == Kind::Auipc
        && let Some(second) = sweep.next()
    {
        if matches!(second.flow, Flow::Jump(_) | Flow::Call(_)) && second.insn.kind == Kind::Jalr {
            return Some(Look {
                vectors: Vectors::None,
                flow: second.flow,
                word: None,
                end: second.insn.end(),
            });
        }
        if second.insn.kind == Kind::Load(8)
            && let Reference::Memory(word) = second.reference
            && let Some(third) = sweep.next()
            && third.insn.kind == Kind::Jalr
            && third.insn.rs1() == second.insn.rd()
            && third.insn.memory().is_none()
            && matches!(third.flow, Flow::IndirectJump | Flow::IndirectCall)
        {
            return Some(Look {
                vectors: Vectors::None,
                flow: third.flow,
                word: Some(word),
                end: third.insn.end(),
            });
        }
    }
    Some(Look {
        vectors: vectors(&first.insn),
        flow: first.flow,
        word: None,
        end: first.insn.end(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(words: &[u32]) -> alloc::vec::Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn changed_registers_are_known() {
        let changes = |word: u32| look(&code(&[word]), 0).expect("an instruction").vectors;
        // addi; fld; fadd.d; frflags; fsflags; vsetvli; vadd.vv; ecall
        assert_eq!(changes(0x0015_0513), Vectors::None);
        assert_eq!(changes(0x0005_3507), Vectors::Part);
        assert_eq!(changes(0x02C5_F553), Vectors::Part);
        assert_eq!(changes(0x0010_2573), Vectors::None);
        assert_eq!(changes(0x0015_1073), Vectors::Part);
        assert_eq!(changes(0x0D85_F557), Vectors::All);
        assert_eq!(changes(0x0288_0457), Vectors::All);
        assert_eq!(changes(0x0000_0073), Vectors::All);
        // fsd reads only.
        assert_eq!(changes(0x0085_B827), Vectors::None);
    }

    #[test]
    fn calls_of_more_than_one_instruction_are_followed() {
        // auipc ra, 1; jalr ra, 16(ra)
        let near = look(&code(&[0x0000_1097, 0x0100_80E7]), 0x1000).expect("a call");
        assert_eq!((near.flow, near.end), (Flow::Call(0x2010), 0x1008));
        // auipc t3, 1; ld t3, 16(t3); jalr t1, t3
        let table = look(&code(&[0x0000_1E17, 0x010E_3E03, 0x000E_0367]), 0x1000).expect("a call");
        assert_eq!((table.flow, table.word), (Flow::IndirectCall, Some(0x2010)));
        assert_eq!(table.end, 0x100C);
    }
}
