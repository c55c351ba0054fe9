//! What the prologue of a function has done before it calls `_mcount`.

use super::signer::Key;

/// What the prologue of a function does.
pub(crate) struct Prologue {
    /// It sets the frame pointer above the stack pointer that it has at the call, by the size in question.
    pub(crate) sets_frame_pointer: bool,
    /// The key with which it signs the return address.
    pub(crate) signs: Option<Key>,
    /// How far it lowers the stack pointer after it has signed, in bytes. `None` if that cannot be followed.
    pub(crate) lowers: Option<usize>,
}

/// How far the record may be stored before the call, in bytes. A prologue may save all registers.
const FARTHEST: usize = 160;
/// How far the signing may be before that.
const BEFORE_RECORD: usize = 48;

const SP: u32 = 31;
const RET: u32 = 0xD65F_03C0;
const NOP: u32 = 0xD503_201F;
const ADD_X29_SP: u32 = 0x9100_03FD;
/// `stp x29, x30, [sp, #…]`, also with `!`.
const STORES_RECORD: u32 = 0xA900_7BFD;

/// Looks at the instructions before `pc`, up to the one that stores the frame record, and, for the signing, before it:
/// not, if the processor does not sign.
///
/// # Safety
/// `pc` must be the return address of a call.
pub(crate) unsafe fn prologue(pc: usize, size: usize, processor_signs: bool) -> Prologue {
    let word = |at: usize| {
        // SAFETY: it lies before the call, in the function or in what is before it. No text begins with a function.
        unsafe { *((pc - at) as *const u32) }
    };
    let mut result = Prologue {
        sets_frame_pointer: false,
        signs: None,
        lowers: None,
    };
    let mut lowered = Lowered::default();
    let mut at = 8;
    while at <= FARTHEST && word(at) & 0xFF40_7FFF != STORES_RECORD {
        let immediate = (word(at) >> 10 & 0xFFF) as usize;
        // Some lower the stack pointer further afterwards.
        let frame_pointer = lowered.by().map(|by| by + immediate);
        result.sets_frame_pointer |=
            word(at) & 0xFFC0_03FF == ADD_X29_SP && frame_pointer == Some(size);
        lowered.before(word(at));
        at += 4;
    }
    if processor_signs {
        let last = at + BEFORE_RECORD;
        // Before the function, there are the end of another one, or instructions that do nothing.
        while at < last && !matches!(word(at), RET | NOP) {
            result.signs = Key::of(word(at));
            if result.signs.is_some() {
                result.lowers = lowered.by();
                break;
            }
            lowered.before(word(at));
            at += 4;
        }
    }
    result
}

/// How far instructions lower the stack pointer, which are met from the last to the first.
#[derive(Default)]
struct Lowered {
    by: i64,
    /// Something else has been done to the stack pointer, or there are several ways.
    is_unknown: bool,
    /// The stack pointer is lowered by the constant in this register.
    register: Option<u32>,
    /// The part of this constant that is known, for `movk`, and which of its bits.
    constant: (u64, u64),
}

impl Lowered {
    /// One more instruction, before those that have been met.
    fn before(&mut self, word: u32) {
        let signed = |from: u32, bits: u32| {
            let unused = 32 - bits;
            i64::from((word >> from << unused).cast_signed() >> unused)
        };
        let is_sp = word >> 5 & 31 == SP;
        let adds = |by: u32| i64::from(by >> 10 & 0xFFF) << (12 * (by >> 22 & 1));
        match word {
            // stp, str with `!`: the new stack pointer is the address.
            _ if is_sp && word & 0xFFC0_0000 == 0xA980_0000 => self.by -= 8 * signed(15, 7),
            _ if is_sp && word & 0xFFC0_0000 == 0x6D80_0000 => self.by -= 8 * signed(15, 7),
            _ if is_sp && word & 0xFFC0_0000 == 0xAD80_0000 => self.by -= 16 * signed(15, 7),
            _ if is_sp && word & 0x3B60_0C00 == 0x3800_0C00 => self.by -= signed(12, 9),
            // sub sp, sp, #n; add sp, sp, #n
            _ if word & 0xFF80_03FF == 0xD100_03FF => self.by += adds(word),
            _ if word & 0xFF80_03FF == 0x9100_03FF => self.by -= adds(word),
            // sub sp, sp, xN
            _ if word & 0xFFE0_FFFF == 0xCB20_63FF && self.register.is_none() => {
                self.register = Some(word >> 16 & 31);
                self.constant = (0, 0);
            }
            _ if self.register == Some(word & 31) => self.is_unknown |= !self.loads(word),
            _ => self.is_unknown |= is_jump(word) || sets_sp(word),
        }
    }

    /// Whether an instruction is one of those that put a constant into the register by which the stack pointer is
    /// lowered.
    fn loads(&mut self, word: u32) -> bool {
        let shift = 16 * (word >> 21 & 3);
        let (known, bits) = self.constant;
        let here = u64::from(word >> 5 & 0xFFFF) << shift & !bits;
        match word >> 23 & 0xFF {
            // movk
            0xE5 if word >> 31 == 1 => self.constant = (known | here, bits | 0xFFFF << shift),
            // movz, of 64 or 32 bits
            0xA5 => {
                self.by += (known | here).cast_signed();
                self.register = None;
            }
            _ => return false,
        }
        true
    }

    fn by(&self) -> Option<usize> {
        let is_known = !self.is_unknown && self.register.is_none();
        usize::try_from(self.by).ok().filter(|_| is_known)
    }
}

/// Whether an instruction may go on elsewhere.
fn is_jump(word: u32) -> bool {
    // b, bl; b.cond; cbz, cbnz, tbz, tbnz; br, blr, ret
    word & 0x7C00_0000 == 0x1400_0000
        || word & 0xFF00_0000 == 0x5400_0000
        || word & 0x7C00_0000 == 0x3400_0000
        || word & 0xFE00_0000 == 0xD600_0000
}

/// Whether an instruction sets the stack pointer in another way: `add`, `and` with it as result, `addvl`.
fn sets_sp(word: u32) -> bool {
    let is_result = word & 31 == SP;
    let immediate = word & 0x7F80_0000 == 0x1100_0000 || word & 0x7F80_0000 == 0x5100_0000;
    let extended = word & 0x3FE0_0000 == 0x0B20_0000;
    let logical = word & 0x1F80_0000 == 0x1200_0000 && word >> 29 & 3 != 3;
    let scalable = word & 0xFFE0_F000 == 0x0460_5000 || word & 0xFFE0_F000 == 0x0420_5000;
    is_result && (immediate || extended || logical || scalable)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How far these instructions lower the stack pointer.
    fn lowered(words: &[u32]) -> Option<usize> {
        let mut lowered = Lowered::default();
        words.iter().rev().for_each(|&word| lowered.before(word));
        lowered.by()
    }

    #[test]
    fn prologues_of_all_sizes_are_followed() {
        // stp x29, x30, [sp, #-32]!; mov x29, sp; str x19, [sp, #16]
        assert_eq!(lowered(&[0xA9BE_7BFD, 0x9100_03FD, 0xF900_0BF3]), Some(32));
        // sub sp, sp, #640; stp x29, x30, [sp]
        assert_eq!(lowered(&[0xD10A_03FF, 0xA900_7BFD]), Some(640));
        // sub sp, sp, #1184; sub sp, sp, #488, lsl #12
        assert_eq!(
            lowered(&[0xD112_83FF, 0xD147_A3FF]),
            Some(1184 + (488 << 12))
        );
        // mov x12, #5040; sub sp, sp, x12
        assert_eq!(lowered(&[0xD282_760C, 0xCB2C_63FF]), Some(5040));
        // mov w12, #5040; sub sp, sp, x12
        assert_eq!(lowered(&[0x5282_760C, 0xCB2C_63FF]), Some(5040));
        // mov x12, #0x1230; movk x12, #0x12, lsl #16; sub sp, sp, x12
        let words = [0xD282_460C, 0xF2A0_024C, 0xCB2C_63FF];
        assert_eq!(lowered(&words), Some(0x12_1230));
        // stp d8, d9, [sp, #-96]!; str x30, [sp, #-16]!
        assert_eq!(lowered(&[0x6DBA_27E8, 0xF81F_0FFE]), Some(112));
        assert_eq!(lowered(&[]), Some(0));
    }

    #[test]
    fn what_is_not_known_is_not_followed() {
        // sub sp, sp, x12, with anything in x12.
        assert_eq!(lowered(&[0xCB2C_63FF]), None);
        // orr x12, xzr, #0x10001; sub sp, sp, x12
        assert_eq!(lowered(&[0xB200_83EC, 0xCB2C_63FF]), None);
        // and sp, x9, #-32; mov sp, x9; addvl sp, sp, #-1; b.ne .-8
        for word in [0x927B_E93F, 0x9100_013F, 0x043F_57FF, 0x54FF_FFC1] {
            assert_eq!(lowered(&[0xD10A_03FF, word]), None, "{word:08x}");
        }
        // add sp, sp, #16 alone
        assert_eq!(lowered(&[0x9100_43FF]), None);
    }
}
