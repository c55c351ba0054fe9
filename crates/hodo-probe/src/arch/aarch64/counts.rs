//! Detours of probes that only count: no handler is called. Registers that are dead are used first.
//!
//! One register is enough if the processor adds to memory by one instruction: see [`sums`](crate::arch::sums). Otherwise
//! there are three. The flags stay.

use alloc::vec::Vec;

use hodo_isa::aarch64::asm::Code;
use hodo_isa::aarch64::asm::operand::{DOUBLE, after, before, mem};
use hodo_isa::aarch64::asm::ops::Insns as _;
use hodo_isa::aarch64::encode::adr;
use hodo_isa::aarch64::regs::{SP, ZERO};

/// Registers that are saved if too few are dead.
const SAVED: [u8; 3] = [16, 17, 15];

/// Whether the processor adds to memory by one instruction.
#[cfg(target_os = "linux")]
fn has_atomics() -> bool {
    super::sys::has_atomics()
}

#[cfg(not(target_os = "linux"))]
fn has_atomics() -> bool {
    cfg!(target_feature = "lse")
}

/// The code that counts, at `start`. `dead`: registers that may be overwritten.
pub(super) fn emit(start: u64, counter: u64, dead: u32) -> Option<Vec<u8>> {
    with(start, counter, dead, has_atomics())
}

fn with(start: u64, counter: u64, dead: u32, atomics: bool) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut code = Code::new(&mut bytes, start);
    let need = if atomics { 1 } else { 3 };
    let free = (0..31).filter(|&register| dead >> register & 1 == 1);
    let mut registers: Vec<u8> = free.take(need).collect();
    let dead_ones = registers.len();
    let others = SAVED
        .into_iter()
        .filter(|register| dead >> register & 1 == 0);
    registers.extend(others.take(need - dead_ones));
    let saved = &registers[dead_ones..];
    match *saved {
        [] => {}
        [first] => code.str(first, before(SP, -16)),
        [first, second, ..] => code.stp(first, second, before(SP, -32)),
    }
    if let [_, _, third] = *saved {
        code.str(third, mem(SP, 16));
    }
    let address = registers[0];
    let distance = counter.wrapping_sub(code.here()).cast_signed();
    if !(-(1 << 20)..1 << 20).contains(&distance) {
        return None;
    }
    code.word(adr(address, distance));
    if atomics {
        code.ldadd(DOUBLE, address, ZERO, address);
    } else {
        let (sum, status) = (registers[1], registers[2]);
        let again = code.label_here();
        code.ldxr(DOUBLE, sum, address);
        code.add(sum, sum, address);
        code.stxr(DOUBLE, status, sum, address);
        code.cbnz_w(status, again);
    }
    if let [_, _, third] = *saved {
        code.ldr(third, mem(SP, 16));
    }
    match *saved {
        [] => {}
        [first] => code.ldr(first, after(SP, 16)),
        [first, second, ..] => code.ldp(first, second, after(SP, 32)),
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hodo_isa::aarch64::decode::Insn;
    use hodo_isa::aarch64::regs::GENERAL;
    use hodo_isa::aarch64::scan::Sweep;

    /// Instructions that a hit takes beside the program's own: the jump to the detour and the one back are two more.
    fn count(dead: u32, atomics: bool) -> usize {
        let code = with(0x1000, 0x2_1008, dead, atomics).expect("it is in reach");
        code.len() / 4 + 2
    }

    #[test]
    fn a_hit_takes_six_instructions_at_most() {
        assert_eq!(count(0, true), 6);
        assert_eq!(count(1 << 3, true), 4);
        assert_eq!(count(0b1110, false), 7);
        assert_eq!(count(0, false), 11);
    }

    #[test]
    fn registers_that_live_are_kept() {
        for (dead, atomics) in [
            (0, true),
            (1 << 16, false),
            (0, false),
            (0b11, false),
            (1 << 9, true),
        ] {
            let code = with(0x1000, 0x2_1008, dead, atomics).expect("it is in reach");
            let (mut written, mut kept) = (0, 0);
            for scanned in Sweep::new(&code, 0x1000) {
                let insn: &Insn = &scanned.insn;
                let on_stack = insn.memory().is_some_and(|memory| memory.base == SP);
                match on_stack {
                    true if !insn.is_load() => kept |= scanned.effects.reads,
                    true => {}
                    false => written |= scanned.effects.changes,
                }
            }
            let lost = written & GENERAL & !(u64::from(dead) | kept);
            assert_eq!(lost, 0, "{dead:#x} {atomics}");
        }
    }
}
