//! What instructions compute.

use hodo_isa::riscv64::decode::operand::field;

const fn word(value: u64) -> u64 {
    value as i32 as u64
}

/// Arithmetic on 64 bits, or on 32 with the sign extended: the result; `None` if there is no such instruction. `f7` has
/// the upper seven bits of the instruction, `f3` its three-bit function.
#[must_use]
pub const fn op(f7: u32, f3: u32, a: u64, b: u64, narrow: bool) -> Option<u64> {
    let (signed, other) = (a as i64, b as i64);
    let result = match (f7, f3, narrow) {
        (0, 0, false) => a.wrapping_add(b),
        (0x20, 0, false) => a.wrapping_sub(b),
        (0, 1, false) => a << (b & 63),
        (0, 2, false) => (signed < other) as u64,
        (0, 3, false) => (a < b) as u64,
        (0, 4, false) => a ^ b,
        (0, 5, false) => a >> (b & 63),
        (0x20, 5, false) => (signed >> (b & 63)) as u64,
        (0, 6, false) => a | b,
        (0, 7, false) => a & b,
        (0, 0, true) => word(a.wrapping_add(b)),
        (0x20, 0, true) => word(a.wrapping_sub(b)),
        (0, 1, true) => word(((a as u32) << (b & 31)) as u64),
        (0, 5, true) => word(((a as u32) >> (b & 31)) as u64),
        (0x20, 5, true) => ((a as i32) >> (b & 31)) as u64,
        (1, 0, _) => {
            let product = a.wrapping_mul(b);
            if narrow { word(product) } else { product }
        }
        (1, 1, false) => ((signed as i128 * other as i128) >> 64) as u64,
        (1, 2, false) => ((signed as i128 * b as i128) >> 64) as u64,
        (1, 3, false) => ((a as u128 * b as u128) >> 64) as u64,
        (1, 4..=7, _) => divide(f3, a, b, narrow),
        _ => return None,
    };
    Some(result)
}

/// Quotients and remainders: signed and unsigned. Division by zero and overflow have results.
const fn divide(f3: u32, a: u64, b: u64, narrow: bool) -> u64 {
    let unsigned = f3 & 1 == 1;
    let (a, b) = match (narrow, unsigned) {
        (true, true) => (a as u32 as u64, b as u32 as u64),
        (true, false) => (word(a), word(b)),
        _ => (a, b),
    };
    let (quotient, remainder) = match (b, unsigned) {
        (0, _) => (u64::MAX, a),
        (_, true) => (a / b, a % b),
        _ => {
            let (a, b) = (a as i64, b as i64);
            (a.wrapping_div(b) as u64, a.wrapping_rem(b) as u64)
        }
    };
    let result = if f3 < 6 { quotient } else { remainder };
    if narrow { word(result) } else { result }
}

/// Arithmetic with a 12-bit immediate: as [`op`], with the upper bits of the instruction where it shifts.
#[must_use]
pub const fn op_imm(insn: u32, f3: u32, a: u64, value: u64, narrow: bool) -> Option<u64> {
    let shifts = f3 == 1 || f3 == 5;
    let f7 = match (shifts, narrow) {
        (false, _) => 0,
        (true, true) => field(insn, 25, 7),
        // The lowest of the seven bits belongs to the distance.
        (true, false) => field(insn, 26, 6) << 1,
    };
    if narrow && !shifts && f3 != 0 {
        return None;
    }
    op(f7, f3, a, value, narrow)
}

/// Whether a branch is taken; `None` if there is no such branch.
#[must_use]
pub const fn taken(f3: u32, a: u64, b: u64) -> Option<bool> {
    Some(match f3 {
        0 => a == b,
        1 => a != b,
        4 => (a as i64) < b as i64,
        5 => a as i64 >= b as i64,
        6 => a < b,
        7 => a >= b,
        _ => return None,
    })
}

/// What an atomic operation stores, for the old value and an operand, both sign-extended if they have 32 bits; `None`
/// if there is no such operation.
#[must_use]
pub fn amo(f5: u32, old: u64, operand: u64, narrow: bool) -> Option<u64> {
    let (signed, other) = (old as i64, operand as i64);
    // Comparing sign-extended numbers without sign gives the same order.
    let operand = if narrow { word(operand) } else { operand };
    let other = if narrow { operand as i64 } else { other };
    Some(match f5 {
        0x00 => old.wrapping_add(operand),
        0x01 => operand,
        0x04 => old ^ operand,
        0x08 => old | operand,
        0x0C => old & operand,
        0x10 => signed.min(other) as u64,
        0x14 => signed.max(other) as u64,
        0x18 => old.min(operand),
        0x1C => old.max(operand),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn division_has_results_everywhere() {
        let least = i64::MIN as u64;
        assert_eq!(op(1, 4, 7, 0, false), Some(u64::MAX));
        assert_eq!(op(1, 6, 7, 0, false), Some(7));
        assert_eq!(op(1, 4, least, u64::MAX, false), Some(least));
        assert_eq!(op(1, 6, least, u64::MAX, false), Some(0));
        assert_eq!(
            op(1, 4, 0x8000_0000, u64::MAX, true),
            Some(0xFFFF_FFFF_8000_0000)
        );
        assert_eq!(
            op(1, 7, 0xFFFF_FFFF_8000_0000, 0, true),
            Some(0xFFFF_FFFF_8000_0000)
        );
        assert_eq!(op(1, 1, 0, 0, true), None);
    }

    #[test]
    fn shifts_take_the_bits_that_count() {
        assert_eq!(
            op(0x20, 5, 0x8000_0000, 33, true),
            Some(0xFFFF_FFFF_C000_0000)
        );
        assert_eq!(op(0, 1, 1, 127, false), Some(1 << 63));
        // srai a0, a0, 63; slliw with a bit that makes it reserved
        assert_eq!(
            op_imm(0x43F5_5513, 5, 1 << 63, 0x43F, false),
            Some(u64::MAX)
        );
        assert_eq!(op_imm(0x0205_151B, 1, 1, 0x20, true), None);
    }
}
