//! Detours of probes that only count: no handler is called. If a register is dead, none is saved.
//!
//! One register is enough: see [`sums`](crate::arch::sums).

use alloc::vec::Vec;
use hodo_isa::riscv64::asm::ops::Insns as _;

use hodo_isa::riscv64::asm::{Code, Reach};
use hodo_isa::riscv64::regs::{SP, T0, ZERO};

/// The code that counts, at `start`. `dead`: registers that may be overwritten.
pub(super) fn emit(start: u64, counter: u64, dead: u32) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut code = Code::new(&mut bytes, start);
    let free = dead.checked_ilog2().map(|register| register as u8);
    let address = free.unwrap_or(T0);
    if free.is_none() {
        code.addi(SP, SP, -16);
        code.sd(address, 0, SP);
    }
    code.address(address, counter, Reach::Pair).ok()?;
    code.amoadd_d(ZERO, address, address);
    if free.is_none() {
        code.ld(address, 0, SP);
        code.addi(SP, SP, 16);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hodo_isa::riscv64::encode::{LOAD, STORE};

    /// Instructions that a hit takes beside the program's own: the jump to the detour, which may need a second one, and
    /// the one back are three more.
    fn count(dead: u32) -> usize {
        emit(0x1000, 0x2_1000, dead).expect("it is in reach").len() / 4 + 3
    }

    #[test]
    fn a_hit_takes_ten_instructions_at_most() {
        assert_eq!(count(0), 10);
        assert_eq!(count(1 << 15), 6);
        assert_eq!(count(1 << T0), 6);
        assert_eq!(count(1 << 15 | 1 << 14), 6);
    }

    #[test]
    fn registers_that_live_are_kept() {
        for dead in [0, 1 << T0, 1 << 6, 1 << 15] {
            let code = emit(0x1000, 0x2_1000, dead).expect("it is in reach");
            let mut written = 0;
            let mut kept = 0;
            for at in (0..code.len()).step_by(4) {
                let insn = hodo_isa::riscv64::decode::Insn::new(&code[at..], 0);
                match insn.word & 0x7F {
                    STORE => kept |= 1u32 << insn.rs2(),
                    LOAD => {}
                    _ => written |= insn.general().1,
                }
            }
            assert_eq!(written & !(dead | kept | 1 << SP), 0);
        }
    }
}
