//! Counts by one register: what a hit adds to the counter is not one but the counter's own address, which is in the
//! register anyway. So the counter holds the number of hits times its address, modulo 2^64. An address is an odd number
//! times a power of two, and odd numbers have an inverse, so the number of hits is known but for as many bits as that
//! power has.

use core::sync::atomic::{AtomicU64, Ordering};

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
