//! Finds dead registers: an eight-byte jump needs one, and our code is shorter with some.
//!
//! A general register is dead at an instruction if, wherever control may go from there, the register is overwritten
//! before anything reads it. [`dead_registers`] goes forward from one instruction, as far as it is told to;
//! [`live_registers`] handles all instructions of a function at once. Both take everything that they cannot see for a
//! use: jumps through registers, code outside, breakpoints, and code beyond their limits. They assume the [calling
//! convention](Convention) at calls and returns only if told to, because compilers keep values in caller-saved
//! registers across calls of functions that they know.
//!
//! Signal handlers that look at the registers of the interrupted code may see a changed value in a dead register. The
//! analysis does not support languages in which any load may throw an exception, because it does not see the paths from
//! there to the handler.

use alloc::vec::Vec;

use super::decode::Kind;
use super::regs::RA;
use super::regs::{ALL, ARGUMENTS};
use super::scan::{Flow, Scanned, Sweep};
use super::steps::{FIXED, Step, used};
use crate::sequences::Places;

/// `a0` and `a1`.
pub(super) const RESULTS: u32 = 0x0000_0C00;
/// `t0`–`t6`.
const TEMPORARIES: u32 = 0xF000_00E0;
/// The register through which nested functions find the variables of the enclosing function: `t2`.
const STATIC_CHAIN: u32 = 1 << 7;
/// The registers in which a function may find something that it uses or preserves.
pub(super) const ENTRY: u32 = !(TEMPORARIES & !STATIC_CHAIN);
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
        Flow::Return { by: RA } if standard => (false, None, RETURN),
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
        let rest = offset
            .and_then(|offset| code.get(offset..))
            .unwrap_or_default();
        looked_at += 1;
        let mut sweep = Sweep::new(rest, addr);
        let Some(mut scanned) = sweep.next().filter(|_| looked_at <= most) else {
            live |= registers;
            continue;
        };
        let mut pass = |scanned: &Scanned| {
            let used = used(scanned.insn.kind, scanned.reads);
            live |= used & registers;
            registers &= !(used | scanned.writes);
        };
        pass(&scanned);
        // Together with the jump after it, it determines the target.
        if scanned.insn.kind == Kind::Auipc
            && let Some(jump) = sweep.next()
            && jump.flow != jump.insn.flow()
        {
            scanned = jump;
            pass(&scanned);
        }
        let leaving = leaving(scanned.flow, scanned.insn.link(), convention);
        live |= leaving.live & registers;
        registers &= !leaving.live;
        if leaving.next {
            open.push((scanned.insn.end(), registers));
        }
        if let Some(target) = leaving.target {
            open.push((target, registers));
        }
    }
    !live
}

/// Goes through all instructions at most this often: once for each level of nested loops, and once more.
const PASSES: usize = 20;

/// The general registers that are live before each of these instructions, which are whole functions, in order. Code
/// outside may use all registers.
#[must_use]
pub fn live_registers(steps: &[Step], convention: Convention) -> Vec<u32> {
    let mut live = vec![0; steps.len()];
    let places = Places::new(steps);
    for _ in 0..PASSES {
        let mut changed = false;
        for (index, step) in steps.iter().enumerate().rev() {
            let leaving = leaving(step.flow, step.link, convention);
            let mut after = leaving.live;
            if leaving.next {
                after |= live.get(index + 1).copied().unwrap_or(ALL);
            }
            if let Some(target) = leaving.target {
                after |= places.at(target).map_or(ALL, |target| live[target]);
            }
            let before = after & !step.writes | step.uses | FIXED;
            changed |= live[index] != before;
            live[index] = before;
        }
        if !changed {
            return live;
        }
    }
    // Practically never happens.
    live.fill(ALL);
    live
}

#[cfg(test)]
mod tests {
    use super::super::encode::{AUIPC, JALR, OP_IMM, b, i, j, u};
    use super::super::regs::T0;
    use super::super::steps::steps;
    use super::*;

    const BASE: u64 = 0x1000;
    const A0: u8 = 10;
    const A5: u8 = 15;
    const T1: u8 = 6;
    const T3: u8 = 28;
    const RET: u32 = 0x8067;

    /// addi rd, rs1, 1
    fn add(rd: u8, rs1: u8) -> u32 {
        i(OP_IMM, 0, rd, rs1, 1)
    }

    fn dead(words: &[u32], convention: Convention) -> u32 {
        let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let dead = dead_registers(&code, BASE, BASE, 100, convention);
        let live = live_registers(&steps(&code, BASE), convention);
        assert_eq!(!dead, live[0], "both ways find the same");
        dead
    }

    fn mask(registers: &[u8]) -> u32 {
        registers
            .iter()
            .fold(0, |mask, register| mask | 1 << register)
    }

    #[test]
    fn what_is_overwritten_before_it_is_read_is_dead() {
        // a5 := a0 + 1; ret
        assert_eq!(dead(&[add(A5, A0), RET], Convention::Unknown), mask(&[A5]));
        // a5 := a5 + 1: read first
        assert_eq!(dead(&[add(A5, A5), RET], Convention::Unknown), 0);
        // The zero register and the stack pointer never are.
        assert_eq!(dead(&[add(0, A0), add(2, A0), RET], Convention::Unknown), 0);
    }

    #[test]
    fn all_ways_must_overwrite_it() {
        // beq a0, a0, +12; a5 := …; ret; (target) a5 and t1 := …; ret
        let both = [
            b(0, A0, A0, 12),
            add(A5, A0),
            RET,
            add(A5, A0),
            add(T1, A0),
            RET,
        ];
        assert_eq!(dead(&both, Convention::Unknown), mask(&[A5]));
        // A loop that reads it in its second iteration: add a0, a5; a5 := a0; beq back
        let round = [
            b(0, A0, A0, 8),
            add(A0, A5),
            add(A5, A0),
            b(0, A0, A0, -8),
            RET,
        ];
        assert_eq!(dead(&round, Convention::Unknown), 0);
    }

    #[test]
    fn the_convention_is_supposed_only_if_told() {
        let call = j(RA, 0x100);
        assert_eq!(dead(&[call], Convention::Unknown), mask(&[RA]));
        // t0, t1, t3…t6, but not the static chain
        assert_eq!(dead(&[call], Convention::Standard), 0xF000_0062);
        assert_eq!(dead(&[RET], Convention::Unknown), 0);
        assert_eq!(dead(&[RET], Convention::Standard), 0xF003_F0E0);
        // By t0, to helpers with a convention of their own; through a register, perhaps a table.
        assert_eq!(dead(&[j(T0, 0x100)], Convention::Standard), mask(&[T0]));
        assert_eq!(dead(&[i(JALR, 0, 0, T0, 0)], Convention::Standard), 0);
        assert_eq!(dead(&[i(JALR, 0, 0, A5, 0)], Convention::Standard), 0);
    }

    #[test]
    fn pairs_are_followed() {
        // auipc t1; jr 12(t1); …; t3 := 1; ret
        let code = [u(AUIPC, T1, 0), i(JALR, 0, 0, T1, 12), RET, add(T3, 0), RET];
        assert_eq!(dead(&code, Convention::Unknown), mask(&[T1, T3]));
    }

    #[test]
    fn breakpoints_see_everything_and_the_kernel_the_arguments() {
        let (ebreak, ecall) = (0x0010_0073, 0x73);
        assert_eq!(dead(&[ebreak, add(A5, 0)], Convention::Standard), 0);
        let code = [ecall, add(T3, 0), add(A5, 0), RET];
        assert_eq!(dead(&code, Convention::Unknown), mask(&[T3]));
        // Nothing is known of bytes that are not an instruction.
        assert_eq!(dead(&[0x7F, add(A5, 0)], Convention::Standard), 0);
    }

    #[test]
    fn patience_ends() {
        let code: Vec<u8> = [add(A0, A0), add(A0, A0), add(T3, 0), RET]
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect();
        let of = |most| dead_registers(&code, BASE, BASE, most, Convention::Unknown);
        assert_eq!((of(2), of(3)), (0, mask(&[T3])));
        // Out of the code.
        assert_eq!(
            dead_registers(&code, BASE, BASE - 2, 9, Convention::Standard),
            0
        );
    }
}
