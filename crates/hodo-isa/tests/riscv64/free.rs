//! Free registers of RISC-V code, found in two independent ways: by a search from one instruction, and by the analysis
//! of all code that planners use.
//!
//! A general register is dead at an instruction if, wherever control may go from there, the register is overwritten
//! before anything reads it. [`dead_registers`] goes forward from one instruction, as far as it is told to;
//! [`live_registers`] handles all instructions of a function at once. Both take everything that they cannot see for a
//! use: jumps through registers, code outside, breakpoints, and code beyond their limits. They assume the [calling
//! convention](Convention) at calls and returns only if told to.

#![allow(dead_code, reason = "each test uses a part")]

use hodo_isa::code::How;
use hodo_isa::liveness::{Graph, Leads, Passes, solve};
use hodo_isa::riscv64::Kind;
use hodo_isa::riscv64::decode::Insn;
use hodo_isa::riscv64::regs::{ALL, ARGUMENTS, ENTRY, RA, RESULTS};
use hodo_isa::riscv64::scan::Flow;
use hodo_isa::riscv64::steps::{FIXED, Step, steps};

/// `t0`–`t6`.
const TEMPORARIES: u32 = 0xF000_00E0;
/// The registers in which the caller of a function may find something.
const RETURN: u32 = !(TEMPORARIES | ARGUMENTS & !RESULTS | 1 << RA);

/// What is assumed about calls and returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Convention {
    /// Nothing: callees and the code returned to may use any register.
    Unknown,
    /// The standard convention, for callers and callees that are compiled separately: functions that a library exports,
    /// code without optimization across functions (`-fno-ipa-ra`).
    Standard,
}

/// Where control goes from an instruction, as far as can be seen.
struct Leaving {
    next: bool,
    target: Option<u64>,
    /// The registers that are live after it because control goes somewhere that cannot be seen.
    live: u32,
}

fn leaving(flow: Flow, link: Option<u8>, convention: Convention) -> Leaving {
    let standard = convention == Convention::Standard;
    let (next, target, live) = match flow {
        Flow::Next => (true, None, 0),
        Flow::Branch(to) => (true, Some(to), 0),
        Flow::Jump(to) => (false, Some(to), 0),
        // Registers that the callee does not receive are lost when it returns. Registers that it preserves may be used
        // by a catch block, which cannot be seen; so the code after the call proves nothing.
        Flow::Call(_) | Flow::IndirectCall if standard && link == Some(RA) => (false, None, ENTRY),
        Flow::Return { how: How::Plain } if standard => (false, None, RETURN),
        _ => (false, None, ALL),
    };
    Leaving { next, target, live }
}

/// The general registers that are dead at the instruction at `at`: neither it nor any later instruction reads them
/// before they are overwritten.
///
/// Only `code` is looked at, whose first byte is at `base`, and at most `most` of its instructions. Code outside may
/// use all registers.
#[must_use]
pub fn dead_registers(code: &[u8], base: u64, at: u64, most: usize, convention: Convention) -> u32 {
    let mut live = FIXED;
    let mut seen: Vec<(u64, u32)> = Vec::new();
    // Where to continue, and which registers were not overwritten on the way there.
    let mut open = vec![(at, ALL)];
    let mut looked_at = 0;
    while let Some((addr, registers)) = open.pop() {
        let mut registers = registers & !live;
        match seen.binary_search_by_key(&addr, |&(addr, _)| addr) {
            Ok(index) => {
                registers &= !seen[index].1;
                seen[index].1 |= registers;
            }
            Err(index) => seen.insert(index, (addr, registers)),
        }
        if registers == 0 {
            continue;
        }
        let offset = usize::try_from(addr.wrapping_sub(base)).ok();
        let rest = offset.and_then(|offset| code.get(offset..));
        let rest = rest.map_or(&[][..], |rest| &rest[..rest.len().min(8)]);
        looked_at += 1;
        // Two instructions at the most, whatever is before them.
        let here = steps(rest, addr);
        let Some(mut step) = here.first().filter(|_| looked_at <= most) else {
            live |= registers;
            continue;
        };
        let mut pass = |step: &Step| {
            live |= step.uses & registers;
            registers &= !(step.uses | step.writes);
        };
        pass(step);
        // Together with the jump after it, it determines the target.
        if Insn::new(rest, addr).kind == Kind::Auipc
            && let Some(jump) = here.get(1)
            && jump.flow != Insn::new(&rest[usize::from(step.len)..], jump.addr).flow()
        {
            step = jump;
            pass(step);
        }
        let leaving = leaving(step.flow, step.link, convention);
        live |= leaving.live & registers;
        registers &= !leaving.live;
        if leaving.next {
            open.push((step.end(), registers));
        }
        if let Some(target) = leaving.target {
            open.push((target, registers));
        }
    }
    !live
}

/// Whole functions, and what is assumed about them.
struct Functions<'s>(&'s [Step], Convention);

impl Graph for Functions<'_> {
    fn count(&self) -> usize {
        self.0.len()
    }

    fn leads(&self, step: usize) -> Leads {
        let at = |addr: u64| self.0.binary_search_by_key(&addr, |step| step.addr);
        match self.0[step].flow {
            Flow::Next => Leads::Next,
            Flow::Branch(to) => at(to).map_or(Leads::Away, Leads::Branch),
            Flow::Jump(to) => at(to).map_or(Leads::Away, Leads::Jump),
            _ => Leads::Away,
        }
    }

    fn away(&self, step: usize, _next: u32, _live: &[u32]) -> u32 {
        let step = &self.0[step];
        match leaving(step.flow, step.link, self.1) {
            // To code that cannot be seen.
            Leaving {
                target: Some(_), ..
            } => ALL,
            leaving => leaving.live,
        }
    }

    fn before(&self, step: usize, after: u32) -> u32 {
        let step = &self.0[step];
        after & !step.writes | step.uses | FIXED
    }

    fn all(&self) -> u32 {
        ALL
    }

    fn end(&self) -> u32 {
        ALL
    }
}

/// The general registers that are live before each of these instructions, which are whole functions, in order. Code
/// outside may use all registers.
#[must_use]
pub fn live_registers(steps: &[Step], convention: Convention) -> Vec<u32> {
    let mut live = vec![0; steps.len()];
    solve(
        &Functions(steps, convention),
        &mut live,
        &mut Passes::default(),
    );
    live
}
