//! A region of code with a probe on one of its instructions.

use hodo_isa::Via;
use hodo_isa::riscv64::Kind;
use hodo_isa::riscv64::decode::Insn;
use hodo_isa::riscv64::relocate::choose;
use hodo_plan::model::ProbeSite;

use super::Refused;

/// A region as the planner found it: control enters it only at its start.
#[derive(Debug, Clone)]
pub struct Region<'a> {
    /// What the planner does with it.
    pub site: &'a ProbeSite,
    /// Its bytes.
    pub code: &'a [u8],
    /// Its instructions.
    pub insns: Vec<Insn>,
}

/// How a kernel executes an instruction that a breakpoint has replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Execution {
    /// A copy does the same.
    Copied,
    /// It uses its own address or jumps, so it is simulated on the saved registers.
    Simulated,
}

/// How the slides execute an instruction that a breakpoint has replaced.
///
/// # Errors
/// If they do not.
pub fn execution(insn: &Insn) -> Result<Execution, Refused> {
    match insn.kind {
        Kind::Auipc | Kind::Branch | Kind::Jal | Kind::Jalr => Ok(Execution::Simulated),
        Kind::Csr
        | Kind::Privileged
        | Kind::Fence
        | Kind::FenceI
        | Kind::Ecall
        | Kind::Ebreak
        | Kind::Unimp
        | Kind::LoadReserved(_)
        | Kind::StoreConditional(_)
        | Kind::Wait
        | Kind::Invalid => Err(Refused::Rejected),
        _ => Ok(Execution::Copied),
    }
}

impl<'a> Region<'a> {
    /// Reads the code of a region.
    #[must_use]
    pub fn new(site: &'a ProbeSite, code: &'a [u8]) -> Self {
        let mut insns = Vec::new();
        let mut at = 0;
        while at < code.len() {
            let insn = Insn::new(&code[at..], site.displaced.start + at as u64);
            at += usize::from(insn.len.max(1));
            insns.push(insn);
        }
        Self { site, code, insns }
    }

    /// Its first address.
    #[must_use]
    pub fn start(&self) -> u64 {
        self.site.displaced.start
    }

    /// The address after it.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.site.displaced.end
    }

    /// The index of the instruction at an address.
    #[must_use]
    pub fn index(&self, at: u64) -> Option<usize> {
        self.insns.iter().position(|insn| insn.addr == at)
    }

    /// The bytes from one address to another.
    #[must_use]
    pub fn bytes(&self, from: u64, to: u64) -> &'a [u8] {
        &self.code[(from - self.start()) as usize..(to - self.start()) as usize]
    }

    /// The registers that are dead before an instruction.
    #[must_use]
    pub fn free(&self, at: u64) -> u32 {
        let probes = &self.site.probes;
        let found = probes.binary_search_by_key(&at, |probe| probe.addr);
        found.map_or(0, |index| probes[index].free)
    }

    /// Where a branch or jump of an instruction leads.
    #[must_use]
    pub fn target(insn: &Insn) -> Option<u64> {
        use hodo_isa::riscv64::decode::operand::{imm_b, imm_j};
        let distance = match insn.kind {
            Kind::Branch => imm_b(insn.word),
            Kind::Jal => imm_j(insn.word),
            _ => return None,
        };
        Some(insn.addr.wrapping_add_signed(distance))
    }

    /// Whether one of its own branches leads to between these addresses, both ends excluded.
    #[must_use]
    pub fn is_entered_between(&self, from: u64, to: u64) -> bool {
        let mut targets = self.insns.iter().filter_map(Self::target);
        targets.any(|target| from < target && target < to)
    }

    /// From where a jump of this many bytes overwrites the instruction at an address and has room, the last such place
    /// first. Nothing leads to the jump's other bytes.
    pub fn starts(&self, at: u64, length: u64) -> impl Iterator<Item = u64> {
        let before = self.insns.iter().rev().map(|insn| insn.addr);
        let before = before.skip_while(move |&start| start > at);
        let before = before.take_while(move |&start| start + length > at);
        before.filter(move |&start| {
            let end = start + length;
            end <= self.end() && !self.is_entered_between(start, end.max(at + 1))
        })
    }

    /// Where the last instruction ends that a jump of this many bytes overwrites at least in part.
    #[must_use]
    pub fn overwritten(&self, start: u64, length: u64) -> u64 {
        let ends = self.insns.iter().map(|insn| insn.end());
        ends.into_iter()
            .find(|&end| end >= start + length)
            .unwrap_or(self.end())
    }

    /// What a jump back to an address needs, if there is a free register; at the region's end, the planner says which.
    #[must_use]
    pub fn back(&self, to: u64) -> Option<Via> {
        match (to < self.end(), self.site.spare.back) {
            (true, _) => choose(self.free(to)).map(Via::Free),
            (false, Via::Free(register)) => Some(Via::Free(register)),
            (false, _) => None,
        }
    }
}
