//! Detours of probes that only count: no handler is called. Where two registers are dead, none is saved.

use alloc::vec::Vec;

use super::asm::{Asm, SP, T0, T1, ZERO};

/// The code that counts, at `start`. `dead`: registers that may be overwritten.
pub(super) fn emit(start: u64, counter: u64, dead: u32) -> Option<Vec<u8>> {
    let mut code = Asm::new(start);
    let highest = |set: u32| set.checked_ilog2();
    let address = highest(dead);
    let one = address.and_then(|address| highest(dead & !(1 << address)));
    let spare = |used: Option<u32>| if used == Some(T0) { T1 } else { T0 };
    // Which registers are kept on the stack.
    let (address, one, kept): (u32, u32, &[u32]) = match (address, one) {
        (Some(address), Some(one)) => (address, one, &[]),
        (Some(address), None) => {
            let one = spare(Some(address));
            (address, one, if one == T0 { &[T0] } else { &[T1] })
        }
        _ => (T1, T0, &[T0, T1]),
    };
    if !kept.is_empty() {
        code.addi(SP, SP, -16);
    }
    for (register, place) in kept.iter().zip([0, 8]) {
        code.sd(*register, place, SP);
    }
    code.address(address, counter)?;
    code.addi(one, ZERO, 1);
    code.amoadd(one, address);
    for (register, place) in kept.iter().zip([0, 8]) {
        code.ld(*register, place, SP);
    }
    if !kept.is_empty() {
        code.addi(SP, SP, 16);
    }
    Some(code.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Instructions that a hit takes beside the program's own: the jump to the detour and the one back are two more.
    fn count(dead: u32) -> usize {
        emit(0x1000, 0x2_1000, dead).expect("it is in reach").len() / 4 + 2
    }

    #[test]
    fn a_hit_takes_twelve_instructions_at_most() {
        assert_eq!(count(0), 12);
        assert_eq!(count(1 << 15), 10);
        assert_eq!(count(1 << T0), 10);
        assert_eq!(count(1 << 15 | 1 << 14), 6);
    }

    #[test]
    fn registers_that_live_are_kept() {
        for dead in [0, 1 << T0, 1 << T1, 1 << 15] {
            let code = emit(0x1000, 0x2_1000, dead).expect("it is in reach");
            let mut written = 0;
            let mut kept = 0;
            for at in (0..code.len()).step_by(4) {
                let insn = hodo_arch::riscv64::decode::Insn::new(&code[at..], 0);
                let word = insn.word;
                match word & 0x707F {
                    0x3023 => kept |= 1u32 << (word >> 20 & 31),
                    0x3003 => {}
                    _ => written |= insn.general().1,
                }
            }
            assert_eq!(written & !(dead | kept | 1 << SP), 0);
        }
    }
}
