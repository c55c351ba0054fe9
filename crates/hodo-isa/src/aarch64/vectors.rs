//! Which vector and floating-point registers an instruction may change.

use super::decode::{Insn, Kind};
use super::scan::{Reference, Sweep};
use crate::effects::{Flow, Look, Vectors};

/// The most bytes that [`look`] examines: the sequence by which linkage tables jump.
pub const MOST_BYTES: usize = 16;

/// `msr` and `mrs` name `fpcr` and `fpsr` by these bits (Arm ARM, C5.2).
const REGISTER: u32 = 0x001F_FFE0;
const FPCR: u32 = 0x001B_4400;
const FPSR: u32 = 0x001B_4420;

/// What an instruction may change. Where a breakpoint is, anything may run. Linux may discard what is above the lower
/// 128 bits of vector registers at system calls (`Documentation/arch/arm64/sve.rst`).
fn vectors(insn: &Insn) -> Vectors {
    match insn.kind {
        Kind::Invalid
        | Kind::Breakpoint
        | Kind::SystemCall
        | Kind::Scalable
        | Kind::Matrix
        | Kind::SetState => Vectors::All,
        Kind::WriteSystem => match insn.word & REGISTER {
            FPCR | FPSR => Vectors::Part,
            _ => Vectors::None,
        },
        Kind::Literal if insn.bit(26) => Vectors::Part,
        Kind::SingleVector | Kind::PairVector | Kind::VectorStructure | Kind::OrderedVector => {
            // Stores change none.
            if insn.bit(22) {
                Vectors::Part
            } else {
                Vectors::None
            }
        }
        Kind::FloatGeneral
        | Kind::FloatCompare
        | Kind::FloatConditionalCompare
        | Kind::FloatSelect
        | Kind::VectorFromGeneral
        | Kind::VectorToGeneral
        | Kind::Vector => Vectors::Part,
        _ => Vectors::None,
    }
}

/// Looks at the instruction at the start of `code`. A jump through a register that was just computed, or loaded from a
/// constant address, counts as one with the instructions before it.
#[must_use]
pub fn look(code: &[u8], addr: u64) -> Option<Look> {
    let mut sweep = Sweep::new(code, addr);
    let first = sweep.next()?;
    let one = Look {
        vectors: vectors(&first.insn),
        flow: first.flow,
        word: None,
        end: first.insn.end(),
    };
    if first.insn.kind != Kind::Adrp {
        return Some(one);
    }
    // adrp x16; ldr x17, [x16]; add x16, x16; br x17
    for next in sweep.take(3) {
        match (next.flow, next.reference) {
            (Flow::IndirectJump | Flow::IndirectCall, Reference::Memory(word)) => {
                return Some(Look {
                    flow: next.flow,
                    word: Some(word),
                    end: next.insn.end(),
                    ..one
                });
            }
            (Flow::Next, _) if vectors(&next.insn) == Vectors::None => {}
            _ => break,
        }
    }
    Some(one)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_registers_are_known() {
        let changes = |word: u32| vectors(&Insn::of(word, 0));
        // add x0, x1, #1; str q0, [x0]; stp d0, d1, [sp]; mrs x0, fpcr; msr tpidr_el0, x0
        for word in [
            0x9100_0420,
            0x3D80_0000,
            0x6D00_07E0,
            0xD53B_4400,
            0xD51B_D040,
        ] {
            assert_eq!(changes(word), Vectors::None, "{word:#x}");
        }
        // ldr q0, [x0]; fadd d0, d0, d1; fmov d0, x0; dup v0.2d, x0; ldr d0, literal; msr fpcr, x0; ld1 {v0.16b}, [x0]
        for word in [
            0x3DC0_0000,
            0x1E61_2800,
            0x9E67_0000,
            0x4E08_0C00,
            0x5C00_0000,
            0xD51B_4400,
            0x4C40_7000,
        ] {
            assert_eq!(changes(word), Vectors::Part, "{word:#x}");
        }
        // svc #0; brk #0; ptrue p0.b; smstart
        for word in [0xD400_0001, 0xD420_0000, 0x2518_E3E0, 0xD503_477F] {
            assert_eq!(changes(word), Vectors::All, "{word:#x}");
        }
    }

    #[test]
    fn jumps_through_linkage_tables_are_followed() {
        let words = [0x9000_0090u32, 0xF940_0611, 0x9100_2210, 0xD61F_0220];
        let code: alloc::vec::Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let jump = look(&code, 0x1000).expect("a jump");
        assert_eq!((jump.flow, jump.word), (Flow::IndirectJump, Some(0x1_1008)));
        assert_eq!(jump.end, 0x1010);
    }
}
