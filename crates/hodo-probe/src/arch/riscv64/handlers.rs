//! Reads the code of handlers to find which registers other than the general ones they may change.

use hodo_isa::native::Kind;
use hodo_isa::native::decode::Insn;
use hodo_isa::native::regs::state;
use hodo_isa::native::scan::{Flow, Reference, Sweep};

use crate::layout::{KEEP_ALL, KEEP_NONE, KEEP_SOME};

/// The most bytes that one step examines.
pub(crate) const MOST_BYTES: usize = 12;

/// An instruction, or several that together make a jump.
pub(crate) struct Look {
    /// One of `KEEP_…`: floating-point registers, or vector registers, too.
    pub keep: u32,
    pub flow: Flow,
    /// The memory word that it uses.
    pub word: Option<u64>,
    /// The address after it.
    pub end: u64,
}

/// What an instruction may change. Linux discards the vector registers at system calls.
fn keep(insn: &Insn) -> u32 {
    const VECTOR: u16 = state::VL | state::VTYPE | state::VSTART | state::VXRM | state::VXSAT;
    let writes = insn.writes();
    if insn.kind == Kind::Ecall || insn.is_vector() || writes.v != 0 || writes.state & VECTOR != 0 {
        KEEP_ALL
    } else if writes.f != 0 || writes.state & (state::FFLAGS | state::FRM) != 0 {
        KEEP_SOME
    } else {
        KEEP_NONE
    }
}

/// Looks at the instruction at the start of `code`. A jump through a register that was just computed, or loaded from a
/// constant address, counts as one with the instructions before it.
pub(crate) fn look(code: &[u8], addr: u64) -> Option<Look> {
    let mut sweep = Sweep::new(code, addr);
    let first = sweep.next()?;
    if first.insn.kind == Kind::Auipc
        && let Some(second) = sweep.next()
    {
        if matches!(second.flow, Flow::Jump(_) | Flow::Call(_)) && second.insn.kind == Kind::Jalr {
            return Some(Look {
                keep: KEEP_NONE,
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
                keep: KEEP_NONE,
                flow: third.flow,
                word: Some(word),
                end: third.insn.end(),
            });
        }
    }
    Some(Look {
        keep: keep(&first.insn),
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
        let keep = |word: u32| look(&code(&[word]), 0).expect("an instruction").keep;
        // addi; fld; fadd.d; frflags; fsflags; vsetvli; vadd.vv; ecall
        assert_eq!(keep(0x0015_0513), KEEP_NONE);
        assert_eq!(keep(0x0005_3507), KEEP_SOME);
        assert_eq!(keep(0x02C5_F553), KEEP_SOME);
        assert_eq!(keep(0x0010_2573), KEEP_NONE);
        assert_eq!(keep(0x0015_1073), KEEP_SOME);
        assert_eq!(keep(0x0D85_F557), KEEP_ALL);
        assert_eq!(keep(0x0288_0457), KEEP_ALL);
        assert_eq!(keep(0x0000_0073), KEEP_ALL);
        // fsd reads only.
        assert_eq!(keep(0x0085_B827), KEEP_NONE);
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
