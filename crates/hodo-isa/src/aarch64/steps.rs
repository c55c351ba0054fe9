//! Instructions as a planner of probes sees them: what they do with control and with registers, and whether they can be
//! moved.

use alloc::vec::Vec;

use super::decode::{Insn, Kind};
use super::regs::{ALL, FLAGS, GENERAL, LINK, Set};
use super::scan::{Flow, Scanned, Sweep};
use crate::linked;
pub use crate::linked::Part;
use crate::sequences;

/// The bit for the flags in the 32-bit masks of planners. It is that of the stack pointer, about which no planner asks.
pub const FLAGS_BIT: u32 = 1 << 31;

/// A set of registers in the form that planners use: `x0`–`x30`, and [`FLAGS_BIT`].
#[must_use]
#[inline]
pub const fn mask(set: Set) -> u32 {
    let flags = if set & FLAGS != 0 { FLAGS_BIT } else { 0 };
    (set & GENERAL) as u32 | flags
}

/// Why an instruction must not run elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Immovable {
    /// Not an instruction, or an unknown one.
    Invalid,
    /// It is there to fault, or it faults in programs.
    Faults,
    /// `brk`: whoever handles it knows its address.
    Breakpoint,
    /// `svc`: the kernel, signal handlers and children see its address. Code that takes care of that may move it.
    SystemCall,
    /// It deals with changed code, and would not know about copies.
    CodeChanges,
    /// It accesses a system register that programs may not be allowed to access.
    Register,
    /// It waits.
    Waits,
    /// It is or may be between an exclusive load and its store, where other accesses and jumps to elsewhere make the
    /// store fail.
    Reserved,
    /// It is a step of copying or setting memory; the kernel may restart at the instructions before it.
    Steps,
    /// It belongs to hardware transactions.
    Transaction,
}

impl core::fmt::Display for Immovable {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Invalid => "no valid instruction",
            Self::Faults => "it cannot be moved: an instruction that only faults",
            Self::Breakpoint => "it cannot be moved: a breakpoint of the program",
            Self::SystemCall => "it cannot be moved: a system call, whose address is seen",
            Self::CodeChanges => "it cannot be moved: it is about changed code",
            Self::Register => "it cannot be moved: a system register that may be refused",
            Self::Waits => "it cannot be moved: it waits",
            Self::Reserved => "it cannot be moved: between an exclusive load and its store",
            Self::Steps => {
                "it cannot be moved: the kernel may begin it again at what stands before it"
            }
            Self::Transaction => "it cannot be moved: it is about hardware transactions",
        })
    }
}

impl core::error::Error for Immovable {}

/// One instruction.
pub type Step = linked::Step<Immovable>;

/// The instructions of the code at this address, in order. Sequences of an exclusive load and its store are found by
/// control flow within the code, which should therefore be whole functions at least.
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
    let (uses, writes) = registers(scanned);
    Step {
        addr: insn.addr,
        flow: scanned.flow,
        len: insn.len,
        uses,
        writes,
        link: step_link(scanned.flow),
        padding: scanned.padding,
        immovable: immovable_alone(insn),
        part: match insn.kind {
            Kind::LoadExclusive => Part::First,
            Kind::StoreExclusive => Part::Last,
            _ => Part::Outside,
        },
        leaves: insn.kind == Kind::SystemCall,
    }
}

/// The register in which a call puts the return address.
#[inline]
fn step_link(flow: Flow) -> Option<u8> {
    matches!(flow, Flow::Call(_) | Flow::IndirectCall).then_some(LINK)
}

/// What an instruction uses and overwrites, in the form of [`mask`].
#[inline]
pub(super) fn registers(scanned: &Scanned) -> (u32, u32) {
    let uses = match scanned.insn.kind {
        // A breakpoint's handler may look at all registers.
        Kind::Breakpoint | Kind::Wait => ALL,
        // Its callee preserves all registers but a few, so many of them are needed after it.
        _ if scanned.keeps_all => ALL,
        _ => scanned.effects.reads,
    };
    (mask(uses), mask(scanned.effects.writes))
}

/// Why an instruction must not run elsewhere, judged by itself; `None` if it may.
#[must_use]
#[inline]
pub fn immovable_alone(insn: &Insn) -> Option<Immovable> {
    Some(match insn.kind {
        Kind::Invalid => Immovable::Invalid,
        Kind::Undefined | Kind::Privileged => Immovable::Faults,
        Kind::Breakpoint => Immovable::Breakpoint,
        Kind::SystemCall => Immovable::SystemCall,
        // ic: instruction cache maintenance
        Kind::System if insn.field(12, 4) == 7 && matches!(insn.field(8, 4), 1 | 5) => {
            Immovable::CodeChanges
        }
        Kind::WriteSystem | Kind::ReadSystem | Kind::System | Kind::SystemResult
            if !is_harmless(insn) =>
        {
            Immovable::Register
        }
        Kind::Wait => Immovable::Waits,
        // wfe, wfi
        Kind::Hint if matches!(insn.field(5, 7), 2 | 3) => Immovable::Waits,
        Kind::LoadExclusive | Kind::StoreExclusive => Immovable::Reserved,
        Kind::MemorySteps => Immovable::Steps,
        Kind::TransactionStart | Kind::TransactionEnd | Kind::TransactionOther => {
            Immovable::Transaction
        }
        _ => return None,
    })
}

/// Whether programs may use a system register or operation, or the kernel emulates it for them: registers that list
/// features.
fn is_harmless(insn: &Insn) -> bool {
    let of_programs = insn.field(16, 3) == 3;
    let features = insn.kind == Kind::ReadSystem && insn.field(12, 7) == 0;
    of_programs || features
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(words: &[u32]) -> Vec<(Part, Option<Immovable>)> {
        let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let steps = steps(&code, 0x1000);
        steps
            .iter()
            .map(|step| (step.part, step.immovable))
            .collect()
    }

    #[test]
    fn what_cannot_be_moved_says_why() {
        let cases = [
            (0xFFFF_FFFF, Some(Immovable::Invalid)),
            (0x0000_0000, Some(Immovable::Faults)),
            (0xD69F_03E0, Some(Immovable::Faults)),     // eret
            (0xD420_7D00, Some(Immovable::Breakpoint)), // brk #1000
            (0xD400_0001, Some(Immovable::SystemCall)),
            (0xD50B_7520, Some(Immovable::CodeChanges)), // ic ivau, x0
            (0xD53B_D040, None),                         // mrs x0, tpidr_el0
            (0xD538_0600, None),                         // mrs x0, id_aa64isar0_el1
            (0xD538_4240, Some(Immovable::Register)),    // mrs x0, currentel
            (0xD50B_7420, None),                         // dc zva, x0
            (0xD503_205F, Some(Immovable::Waits)),       // wfe
            (0xC85F_7C01, Some(Immovable::Reserved)),    // ldxr x1, [x0]
            (0x1904_0440, Some(Immovable::Steps)),
            (0xD503_233F, None), // paciasp
            (0xF940_0000, None),
        ];
        for (word, expected) in cases {
            assert_eq!(found(&[word])[0].1, expected, "{word:08x}");
        }
    }

    #[test]
    fn what_is_between_exclusive_accesses_stays() {
        // ldaxr w1, [x0]; cmp w1, w2; b.ne out; stlxr w3, w4, [x0]; cbnz w3, first; out: ret
        let parts = found(&[
            0x885F_FC01,
            0x6B02_003F,
            0x5400_0061,
            0x8803_FC04,
            0x35FF_FF83,
            0xD65F_03C0,
        ]);
        let reserved = Some(Immovable::Reserved);
        let expected = [
            (Part::First, reserved),
            (Part::Between, reserved),
            (Part::Between, reserved),
            (Part::Last, reserved),
            (Part::Outside, None),
            (Part::Outside, None),
        ];
        assert_eq!(parts, expected);
    }

    #[test]
    fn flags_have_the_highest_bit() {
        assert_eq!(mask(FLAGS | 5), FLAGS_BIT | 5);
        assert_eq!(mask(ALL & !FLAGS), 0x7FFF_FFFF);
    }
}
