//! Encodes instructions. Groups and fields are those of the Arm Architecture Reference Manual for A-profile ("A64
//! instruction set encoding"). Callers check that numbers fit their fields.

/// The bit of most instructions that makes them work on 64 bits instead of 32.
pub const WIDE: u32 = 1 << 31;

/// `nop`
pub const NOP: u32 = hint(0);
/// `ret`
pub const RET: u32 = 0xD65F_03C0;
/// `brk #0`
pub const BREAKPOINT: u32 = 0xD420_0000;
/// `svc #0`
pub const SYSTEM_CALL: u32 = 0xD400_0001;

/// The lowest bits of a number of instructions, for a field.
const fn instructions(distance: i64, bits: u32) -> u32 {
    (distance >> 2) as u32 & ((1 << bits) - 1)
}

/// `b`, or `bl`.
#[must_use]
pub const fn branch(link: bool, distance: i64) -> u32 {
    let opcode = if link { 0x9400_0000 } else { 0x1400_0000 };
    opcode | instructions(distance, 26)
}

/// `b.cond`, by the number of the condition.
#[must_use]
pub const fn conditional(condition: u32, distance: i64) -> u32 {
    0x5400_0000 | instructions(distance, 19) << 5 | condition
}

/// `cbz`, or `cbnz`.
#[must_use]
pub const fn compare_zero(wide: bool, not_zero: bool, register: u8, distance: i64) -> u32 {
    let opcode = 0x3400_0000 | (wide as u32) << 31 | (not_zero as u32) << 24;
    opcode | instructions(distance, 19) << 5 | register as u32
}

/// `tbz`, or `tbnz`.
#[must_use]
pub const fn test_bit(set: bool, register: u8, bit: u8, distance: i64) -> u32 {
    let bit = (bit as u32 & 31) << 19 | (bit as u32 >> 5) << 31;
    0x3600_0000 | (set as u32) << 24 | bit | instructions(distance, 14) << 5 | register as u32
}

/// `br`
#[must_use]
pub const fn jump(register: u8) -> u32 {
    0xD61F_0000 | (register as u32) << 5
}

/// `blr`
#[must_use]
pub const fn call(register: u8) -> u32 {
    0xD63F_0000 | (register as u32) << 5
}

/// The fields of a distance of 21 bits.
const fn parts(distance: i64) -> u32 {
    (distance as u32 & 3) << 29 | instructions(distance, 19) << 5
}

/// `adr`: an address.
#[must_use]
pub const fn adr(register: u8, distance: i64) -> u32 {
    0x1000_0000 | parts(distance) | register as u32
}

/// `adrp`: an address without its low 12 bits.
#[must_use]
pub const fn page(register: u8, pages: i64) -> u32 {
    0x9000_0000 | parts(pages) | register as u32
}

/// `ldr` of 64 bits relative to the instruction's address.
#[must_use]
pub const fn literal(register: u8, distance: i64) -> u32 {
    0x5800_0000 | instructions(distance, 19) << 5 | register as u32
}

/// An instruction with two registers besides its destination.
#[must_use]
pub const fn three(opcode: u32, rd: u8, rn: u8, rm: u8) -> u32 {
    opcode | (rm as u32) << 16 | (rn as u32) << 5 | rd as u32
}

/// An instruction with one register besides its destination.
#[must_use]
pub const fn two(opcode: u32, rd: u8, rn: u8) -> u32 {
    opcode | (rn as u32) << 5 | rd as u32
}

/// `add`, of an immediate below 4096.
pub const ADD: u32 = 0x1100_0000;
/// `adds`
pub const ADDS: u32 = 0x3100_0000;
/// `sub`
pub const SUB: u32 = 0x5100_0000;
/// `subs`
pub const SUBS: u32 = 0x7100_0000;

/// `add` and its like, of an immediate of 12 bits, perhaps shifted left by 12 bits.
#[must_use]
pub const fn add_immediate(opcode: u32, rd: u8, rn: u8, number: u32, shifted: bool) -> u32 {
    two(opcode, rd, rn) | (shifted as u32) << 22 | (number & 0xFFF) << 10
}

/// `and`, of a bitmask.
pub const AND: u32 = 0x1200_0000;
/// `orr`
pub const ORR: u32 = 0x3200_0000;
/// `eor`
pub const EOR: u32 = 0x5200_0000;
/// `ands`
pub const ANDS: u32 = 0x7200_0000;

/// `and` and its like, of an immediate in the form of [`bitmask`].
#[must_use]
pub const fn logical_immediate(opcode: u32, rd: u8, rn: u8, mask: u32) -> u32 {
    two(opcode, rd, rn) | mask << 10
}

/// The fields `N`, `immr` and `imms` of a logical immediate; `None` if it has none. Such a number consists of equal
/// elements of 2, 4, 8, 16, 32 or 64 bits, and the set bits of an element are next to each other, if the element is
/// taken as a ring. If it is not wide, it has 32 bits.
#[must_use]
pub const fn bitmask(number: u64, wide: bool) -> Option<u32> {
    let number = match wide {
        true => number,
        false if number >> 32 != 0 => return None,
        false => number << 32 | number,
    };
    if number == 0 || number == u64::MAX {
        return None;
    }
    let mut size = 64;
    while size > 2 && number.rotate_right(size / 2) == number {
        size /= 2;
    }
    // The set bits whose lower neighbour is not set: one for each element.
    let starts = number & !number.rotate_left(1);
    if starts.count_ones() != 64 / size {
        return None;
    }
    let ones = number.count_ones() / (64 / size);
    let rotated = (size - starts.trailing_zeros()) % size;
    // The bits above those of the number of ones say how large an element is.
    let large = (size == 64) as u32;
    Some(large << 12 | rotated << 6 | (!(size - 1) << 1 & 0x3F) | (ones - 1))
}

/// `movn`: all bits but these 16 are set, which are inverted.
pub const MOVN: u32 = 0x1280_0000;
/// `movz`: all bits but these 16 are clear.
pub const MOVZ: u32 = 0x5280_0000;
/// `movk`: all bits but these 16 stay.
pub const MOVK: u32 = 0x7280_0000;

/// `movz` and its like, of 16 bits, shifted left by `part` × 16 bits.
#[must_use]
pub const fn move_wide(opcode: u32, register: u8, bits: u16, part: u32) -> u32 {
    opcode | part << 21 | (bits as u32) << 5 | register as u32
}

/// `sbfm`: the field has a sign.
pub const SBFM: u32 = 0x1300_0000;
/// `bfm`: other bits of the destination stay.
pub const BFM: u32 = 0x3300_0000;
/// `ubfm`: other bits of the destination become 0.
pub const UBFM: u32 = 0x5300_0000;

/// `ubfm` and its like: the bits up to `last`, rotated right.
#[must_use]
pub const fn bitfield(opcode: u32, wide: bool, (rd, rn): (u8, u8), right: u8, last: u8) -> u32 {
    let width = (wide as u32) << 31 | (wide as u32) << 22;
    two(opcode, rd, rn) | width | (right as u32) << 16 | (last as u32) << 10
}

/// `extr`: the bits from `low` on of two registers in a row.
#[must_use]
pub const fn extract(wide: bool, (rd, rn, rm): (u8, u8, u8), low: u8) -> u32 {
    let width = (wide as u32) << 31 | (wide as u32) << 22;
    three(0x1380_0000, rd, rn, rm) | width | (low as u32) << 10
}

/// A hint: `nop`, those that sign the return address, those that mark branch targets, and so on.
#[must_use]
pub const fn hint(number: u32) -> u32 {
    0xD503_201F | number << 5
}

/// `str REGISTER, [sp, #-16]!`
#[must_use]
pub const fn push(register: u8) -> u32 {
    0xF81F_0FE0 | register as u32
}

/// `ldr REGISTER, [sp], #16`
#[must_use]
pub const fn pop(register: u8) -> u32 {
    0xF841_07E0 | register as u32
}

#[cfg(test)]
mod tests {
    use super::super::Insn;
    use super::*;
    use alloc::collections::BTreeMap;

    /// The number of an immediate, as the manual's `DecodeBitMasks` computes it.
    fn decoded(mask: u32, wide: bool) -> Option<u64> {
        let (large, rotated, imms) = (mask >> 12, mask >> 6 & 0x3F, mask & 0x3F);
        let len = (large << 6 | !imms & 0x3F).checked_ilog2()?;
        let size = 1u32 << len;
        let levels = size - 1;
        if len == 0 || imms & levels == levels || size > if wide { 64 } else { 32 } {
            return None;
        }
        let ones = (1u64 << ((imms & levels) + 1)) - 1;
        let rotated = rotated & levels;
        let limit = u64::MAX >> (64 - size);
        let element = match rotated {
            0 => ones,
            _ => (ones >> rotated | ones << (size - rotated)) & limit,
        };
        let width = if wide { 64 } else { 32 };
        Some((0..width / size).fold(0, |all, index| all | element << (index * size)))
    }

    #[test]
    fn bitmasks_have_all_values() {
        for wide in [true, false] {
            let mut all = BTreeMap::new();
            for mask in 0..1 << 13 {
                if let Some(number) = decoded(mask, wide) {
                    // Bits of the rotation that are beyond the element do not count.
                    all.entry(number).or_insert(mask);
                }
            }
            assert_eq!(all.len(), if wide { 5334 } else { 1302 });
            for (&number, &mask) in &all {
                assert_eq!(bitmask(number, wide), Some(mask), "{number:#x}");
                for other in [
                    number ^ 1,
                    number ^ 2,
                    number ^ 0x8000,
                    number.wrapping_add(1),
                ] {
                    assert_eq!(bitmask(other, wide), all.get(&other).copied(), "{other:#x}");
                }
            }
            for none in [0, u64::MAX, 0xFFFF_FFFF_0000_0001 ^ 1 << 40, 5, 0x1234] {
                assert_eq!(bitmask(none, wide), None, "{none:#x}");
            }
        }
        assert_eq!(bitmask(0xFFFF_FFFF, false), None);
        assert_eq!(bitmask(0x1_0000_0001, false), None);
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        let target = |word: u32| {
            Insn::of(word, 1 << 40)
                .target()
                .map(|to| to as i64 - (1 << 40))
        };
        for distance in [-0x800_0000, -4, 0, 4, 0x7FF_FFFC] {
            assert_eq!(target(branch(true, distance)), Some(distance));
            assert_eq!(target(branch(false, distance)), Some(distance));
        }
        for distance in [-0x10_0000, -4, 0, 4, 0xF_FFFC] {
            assert_eq!(target(conditional(5, distance)), Some(distance));
            assert_eq!(
                target(compare_zero(true, true, 31, distance)),
                Some(distance)
            );
            assert_eq!(target(literal(31, distance)), Some(distance));
            assert_eq!(target(adr(31, distance)), Some(distance));
            assert_eq!(target(adr(0, distance + 3)), Some(distance + 3));
            assert_eq!(target(page(30, distance)), Some(distance << 12));
        }
        for distance in [-0x8000, -4, 0, 4, 0x7FFC] {
            assert_eq!(target(test_bit(true, 31, 63, distance)), Some(distance));
        }
    }
}
