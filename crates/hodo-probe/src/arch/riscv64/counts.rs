//! Detours of probes that only count: no handler is called. If a register is dead, none is saved.
//!
//! One register is enough: what a hit adds to the counter is not one but the counter's own address, which is in the
//! register anyway. So the counter holds the number of hits times its address, modulo 2^64. An address is an odd number
//! times a power of two, and odd numbers have an inverse, so the number of hits is known but for as many bits as that
//! power has.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
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

/// How many hits a counter has seen since it was zero.
pub(crate) fn hits(counter: &AtomicU64) -> u64 {
    let address = core::ptr::from_ref(counter) as u64;
    quotient(counter.load(Ordering::Relaxed), address)
}

/// The number that, multiplied by `address`, is `sum` modulo 2^64; as many upper bits as the address has zeros at its
/// end are lost.
fn quotient(sum: u64, address: u64) -> u64 {
    let zeros = address.trailing_zeros();
    let odd = address >> zeros;
    // An odd number is its own inverse modulo 8; each step doubles how many bits are right.
    let mut inverse = odd;
    for _ in 0..5 {
        inverse = inverse.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(inverse)));
    }
    (sum >> zeros).wrapping_mul(inverse) << zeros >> zeros
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

    #[test]
    fn sums_of_addresses_are_numbers_of_hits() {
        for address in [
            0x2a_aaaa_b008,
            0x3f_f7fd_0048,
            0x7fff_ffff_f000,
            8,
            u64::MAX << 3,
        ] {
            let zeros = address.trailing_zeros();
            for hits in [0, 1, 2, 1000, 1 << 40, (1u64 << 48) - 1, u64::MAX >> zeros] {
                let sum = address.wrapping_mul(hits);
                assert_eq!(quotient(sum, address), hits, "{address:#x}");
            }
        }
    }

    #[test]
    fn a_counter_is_read_by_its_address() {
        let counter = AtomicU64::new(0);
        let address = &raw const counter as u64;
        counter.store(address.wrapping_mul(77), Ordering::Relaxed);
        assert_eq!(hits(&counter), 77);
    }
}
