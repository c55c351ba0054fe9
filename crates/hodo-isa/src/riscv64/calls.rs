//! Recognizes calls, jumps and short functions by their bytes.

use super::regs::RA;
pub use crate::calls::Called;

/// The lowest bits of an instruction as a signed number.
fn signed(word: u32, bits: u32) -> i64 {
    i64::from((word << (32 - bits)).cast_signed() >> (32 - bits))
}

/// How far a `jal` with this register as its link jumps; `None` if it is not one.
fn jal(word: u32, link: u8) -> Option<i64> {
    let distance = (word >> 31) << 20
        | (word >> 12 & 0xFF) << 12
        | (word >> 20 & 1) << 11
        | (word >> 21 & 0x3FF) << 1;
    (word & 0xFFF == 0x6F | u32::from(link) << 7).then(|| signed(distance, 21))
}

fn half_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at + 4)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

/// Where the long jump with these bytes at `at` leads, if it is one: `auipc` and `jalr`, perhaps after the instructions
/// that save their register, or `jal`.
#[must_use]
pub fn jump_target(at: u64, bytes: &[u8]) -> Option<u64> {
    let first = half_at(bytes, 0)?;
    if let Some(distance) = jal(first, 0) {
        return Some(at.wrapping_add_signed(distance));
    }
    // c.addi sp, -16; c.sdsp REGISTER, 0(sp)
    let keeps = first & 0xFFFF == 0x1141 && first >> 16 & 0xFF83 == 0xE002;
    let start = if keeps { 4 } else { 0 };
    let (upper, lower) = (half_at(bytes, start)?, half_at(bytes, start + 4)?);
    let register = upper >> 7 & 31;
    // jalr zero, LOWER(REGISTER)
    let jumps = lower & 0xF_FFFF == register << 15 | 0x67;
    (upper & 0x7F == 0x17 && jumps).then(|| {
        let distance = signed(upper & 0xFFFF_F000, 32) + signed(lower >> 20, 12);
        (at + start as u64).wrapping_add_signed(distance)
    })
}

/// What the `jal` with these bytes at `at` calls, if it is one.
#[must_use]
pub fn call_target(at: u64, code: [u8; 4]) -> Option<u64> {
    Some(at.wrapping_add_signed(jal(u32::from_le_bytes(code), RA)?))
}

/// Whether these bytes end with a call of a hook.
#[must_use]
pub fn is_call_of_hook(before: [u8; 4]) -> bool {
    let word = u32::from_le_bytes(before);
    // jal ra; jalr ra; c.jalr
    jal(word, RA).is_some()
        || word & 0x7FFF == 0xE7
        || word >> 16 & 0xF07F == 0x9002 && word >> 23 & 31 != 0
}

/// What the call that ends at `at` with these 8 bytes calls.
#[must_use]
pub fn called_by(before: [u8; 8], at: u64) -> Called {
    let (first, last) = (half_at(&before, 0), half_at(&before, 4));
    let (Some(first), Some(last)) = (first, last) else {
        return Called::Nothing;
    };
    if let Some(distance) = jal(last, RA) {
        return Called::This(at.wrapping_sub(4).wrapping_add_signed(distance));
    }
    let link = u32::from(RA) << 7;
    if last & 0x7FFF == link | 0x67 {
        let register = last >> 15 & 31;
        if first & 0xFFF != register << 7 | 0x17 {
            return Called::Something;
        }
        let distance = signed(first & 0xFFFF_F000, 32) + signed(last >> 20, 12);
        return Called::This(at.wrapping_sub(8).wrapping_add_signed(distance));
    }
    // c.jalr
    match last >> 16 & 0xF07F == 0x9002 && last >> 23 & 31 != 0 {
        true => Called::Something,
        false => Called::Nothing,
    }
}

/// Whether [`leaving_jump`] finds jumps.
pub const FINDS_LEAVING_JUMPS: bool = false;

/// The first jump to another function that a long jump could replace: there is none, because such jumps have four
/// bytes.
#[must_use]
pub fn leaving_jump(_at: u64, _code: &[u8]) -> Option<(u64, u64)> {
    None
}

/// The slot from which code at `at` loads the address that it jumps to: an entry of a PLT, or a stub's copy of one.
#[must_use]
pub fn slot_of(code: &[u8], at: u64) -> Option<u64> {
    // A copy begins by forming the address after the entry.
    [0, 8].into_iter().find_map(|start| {
        let (upper, load) = (half_at(code, start)?, half_at(code, start + 4)?);
        let register = upper >> 7 & 31;
        // auipc REGISTER; ld REGISTER, LOWER(REGISTER)
        let loads = load & 0xF_FFFF == register << 15 | 3 << 12 | register << 7 | 3;
        (upper & 0x7F == 0x17 && loads).then(|| {
            let distance = signed(upper & 0xFFFF_F000, 32) + signed(load >> 20, 12);
            (at + start as u64).wrapping_add_signed(distance)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn jumps_lead_where_their_bytes_say() {
        // auipc t0, 0x1; jalr zero, -4(t0)
        let long = [0x97, 0x12, 0, 0, 0x67, 0x80, 0xC2, 0xFF];
        assert_eq!(jump_target(0x1_0000, &long), Some(0x1_0FFC));
        let kept = [&[0x41, 0x11, 0x16, 0xE0][..], &long].concat();
        assert_eq!(jump_target(0x1_0000, &kept), Some(0x1_1000));
        // jalr ra, -4(t0)
        let call = [0x97, 0x12, 0, 0, 0xE7, 0x80, 0xC2, 0xFF];
        assert_eq!(jump_target(0x1_0000, &call), None);
        // jal zero, -16; jal ra, -16
        assert_eq!(
            jump_target(0x1_0000, &[0x6F, 0xF0, 0x1F, 0xFF]),
            Some(0xFFF0)
        );
        assert_eq!(jump_target(0x1_0000, &[0xEF, 0xF0, 0x1F, 0xFF]), None);
        assert_eq!(jal(0xFF1F_F0EF, RA), Some(-16));
    }

    #[test]
    fn calls_tell_what_they_call() {
        let by = |first: u32, last: u32| {
            let mut before = [0; 8];
            before[..4].copy_from_slice(&first.to_le_bytes());
            before[4..].copy_from_slice(&last.to_le_bytes());
            called_by(before, 0x1014)
        };
        // jal ra, 40
        assert_eq!(by(0, 0x0280_00EF), Called::This(0x1038));
        // auipc ra, 0x12; jalr ra, -100(ra)
        assert_eq!(by(0x0001_2097, 0xF9C0_80E7), Called::This(0x1_2FA8));
        // auipc t1, 1; jalr ra, 8(t1)
        assert_eq!(by(0x1317, 0x0083_00E7), Called::This(0x2014));
        // jalr ra, 0(a5) after auipc of another register; c.jalr a5
        assert_eq!(by(0x0001_2097, 0x0007_80E7), Called::Something);
        assert_eq!(by(0, 0x9782_0001), Called::Something);
        // jal t0, 40; jalr t1, t3; ret
        for other in [0x0280_02EF, 0x000E_0367, 0x8082_0001] {
            assert_eq!(by(0, other), Called::Nothing);
        }
    }

    #[test]
    fn entries_of_a_plt_tell_their_slot() {
        // auipc t3, 2; ld t3, -1850(t3); jalr t1, t3
        let entry = [0x0000_2E17u32, 0x8C6E_3E03, 0x000E_0367];
        let entry: Vec<u8> = entry.iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(slot_of(&entry, 0x101A), Some(0x28E0));
        // A stub's copy begins with auipc t1, 0; addi t1, t1, 12.
        let copy = [
            &0x317u32.to_le_bytes()[..],
            &0x00C3_0313u32.to_le_bytes(),
            &entry,
        ]
        .concat();
        assert_eq!(slot_of(&copy, 0x1012), Some(0x28E0));
        assert_eq!(slot_of(&entry[4..], 0x101E), None);
    }
}
