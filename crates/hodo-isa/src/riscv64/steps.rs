//! Instructions as a planner of probes sees them: what they do with control and with registers, and whether they can be
//! moved.

use alloc::vec::Vec;

use super::decode::Insn;
use super::decode::Kind;
use super::regs::{ALL, ARGUMENTS};
use super::regs::{GP, SP, TP, state};
use super::scan::{Scanned, Sweep};

use crate::linked;
pub use crate::linked::Part;
use crate::sequences;

/// The general registers that are never free, whatever the code does with them: zero; the stack pointer, below which
/// the kernel builds signal frames; and the global and thread pointers, which signal handlers use.
pub const FIXED: u32 = 1 | 1 << SP | 1 << GP | 1 << TP;

/// Why an instruction must not run elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Immovable {
    /// Not an instruction.
    Invalid,
    /// It is there to fault, or it faults in programs.
    Faults,
    /// `ebreak`: whoever handles it knows its address.
    Breakpoint,
    /// `ecall`: the kernel, signal handlers and children see its address. Code that takes care of that may move it.
    SystemCall,
    /// `fence.i`: it deals with changed code, and would not know about copies.
    CodeChanges,
    /// It accesses a control and status register that may not be accessible, or whose accesses have side effects.
    Register,
    /// It waits.
    Waits,
    /// It is or may be between an `lr` and its `sc`, where other accesses and jumps to elsewhere make the `sc` fail.
    Reserved,
}

impl core::fmt::Display for Immovable {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Invalid => "no valid instruction",
            Self::Faults => "it cannot be moved: an instruction that only faults",
            Self::Breakpoint => "it cannot be moved: a breakpoint of the program",
            Self::SystemCall => "it cannot be moved: a system call, whose address is seen",
            Self::CodeChanges => "it cannot be moved: it is about changed code",
            Self::Register => {
                "it cannot be moved: a control register that may be refused, or has effects"
            }
            Self::Waits => "it cannot be moved: it waits",
            Self::Reserved => "it cannot be moved: between lr and sc",
        })
    }
}

impl core::error::Error for Immovable {}

/// One instruction.
pub type Step = linked::Step<Immovable>;

/// The instructions of the code at this address, in order. Sequences of `lr` and `sc` are found by control flow within
/// the code, which should therefore be whole functions at least.
#[must_use]
pub fn steps(code: &[u8], addr: u64) -> Vec<Step> {
    let mut steps: Vec<Step> = Sweep::new(code, addr).map(|insn| alone(&insn)).collect();
    sequences::mark(&mut steps, Immovable::Reserved);
    steps
}

/// An instruction judged by itself.
#[inline]
pub(super) fn alone(scanned: &Scanned) -> Step {
    let insn = &scanned.insn;
    Step {
        addr: insn.addr,
        flow: scanned.flow,
        len: insn.len,
        uses: used(insn.kind, scanned.effects.reads),
        writes: scanned.effects.writes,
        link: insn.link(),
        padding: scanned.padding,
        immovable: immovable_alone(insn),
        part: part_alone(insn),
        leaves: insn.kind == Kind::Ecall,
    }
}

#[inline]
fn part_alone(insn: &Insn) -> Part {
    match insn.kind {
        Kind::LoadReserved(_) => Part::First,
        Kind::StoreConditional(_) => Part::Last,
        _ => Part::Outside,
    }
}

/// Why an instruction must not run elsewhere, judged by itself; `None` if it may.
#[must_use]
#[inline]
pub fn immovable_alone(insn: &Insn) -> Option<Immovable> {
    Some(match insn.kind {
        Kind::Invalid => Immovable::Invalid,
        Kind::Unimp | Kind::Privileged => Immovable::Faults,
        Kind::Ebreak => Immovable::Breakpoint,
        Kind::Ecall => Immovable::SystemCall,
        Kind::FenceI => Immovable::CodeChanges,
        Kind::Wait => Immovable::Waits,
        Kind::LoadReserved(_) | Kind::StoreConditional(_) => Immovable::Reserved,
        Kind::Csr if !is_harmless(insn) => Immovable::Register,
        _ => return None,
    })
}

/// Whether a control register is accessible everywhere: those of floating point and vectors, and the time.
fn is_harmless(insn: &Insn) -> bool {
    /// The time, and the bytes of a vector register: read only.
    const CONSTANT: [u16; 2] = [0xC01, 0xC22];
    let known = state::OTHER & (insn.reads().state | insn.writes().state) == 0;
    let number = insn.csr().unwrap_or_default();
    // The highest bits of the number mark a register as read-only: a write is there to fault.
    let writable = number >> 10 != 3;
    (known || CONSTANT.contains(&number)) && (writable || !insn.writes_csr())
}

/// The registers that count as read by an instruction of this kind that reads `reads`: a breakpoint's handler may look
/// at all, the kernel at the arguments.
#[inline]
pub(super) fn used(kind: Kind, reads: u32) -> u32 {
    match kind {
        Kind::Ebreak | Kind::Wait => ALL,
        Kind::Ecall => ARGUMENTS,
        _ => reads,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(word: u32) -> Option<Immovable> {
        steps(&word.to_le_bytes(), 0x1000)[0].immovable
    }

    #[test]
    fn what_cannot_be_moved_says_why() {
        let cases = [
            (0x0000_007F, Some(Immovable::Invalid)),
            (0xC000_1073, Some(Immovable::Faults)),
            (0x3020_0073, Some(Immovable::Faults)),
            (0x1200_0073, Some(Immovable::Faults)), // sfence.vma
            (0x0010_0073, Some(Immovable::Breakpoint)),
            (0x0000_0073, Some(Immovable::SystemCall)),
            (0x0000_100F, Some(Immovable::CodeChanges)),
            (0x1050_0073, Some(Immovable::Waits)),
            (0x1005_A52F, Some(Immovable::Reserved)), // lr.w
            (0x18C5_A52F, Some(Immovable::Reserved)), // sc.w
            (0xC000_2573, Some(Immovable::Register)), // rdcycle
            (0x0150_1573, Some(Immovable::Register)), // csrrw a0, seed, zero
            (0xC010_1573, Some(Immovable::Register)), // csrrw a0, time, zero
            (0xC010_2573, None),                      // rdtime
            (0x0030_2573, None),                      // frcsr
            (0x0010_1573, None),                      // fsflags
            (0xC220_2573, None),                      // csrr a0, vlenb
            (0x0FF0_000F, None),                      // fence
            (0x0085_3503, None),                      // ld
        ];
        for (word, expected) in cases {
            assert_eq!(why(word), expected, "{word:08x}");
        }
    }
}

#[cfg(test)]
mod sequence_tests;
