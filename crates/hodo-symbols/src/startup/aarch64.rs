//! AArch64.

use super::linked::{Decoded, Machine, Registers, Step, Word, plus, signed};

/// The number of the register that is zero, or, in addresses and additions, the stack pointer.
const ZERO: usize = 31;
const LINK: usize = 30;

/// This instruction set.
pub(super) static MACHINE: Machine = Machine {
    zero: ZERO,
    link: LINK,
    argument: 0,
    step,
};

/// Returns what the first instruction does, and its length.
fn step(bytes: &[u8], pc: u64, registers: &Registers, word: &Word<'_>) -> Decoded {
    let code = u32::from_le_bytes(*bytes.first_chunk()?);
    let decoded = branch(code, pc, registers).or_else(|| other(code, pc, registers, word));
    Some((decoded?, 4))
}

/// A register's number at a bit of an instruction.
fn register(code: u32, bit: u32) -> usize {
    (code >> bit & 31) as usize
}

/// Decodes instructions that continue elsewhere.
fn branch(code: u32, pc: u64, registers: &Registers) -> Option<Step> {
    let near = || plus(Some(pc), 4 * signed(code & 0x03FF_FFFF, 26));
    let through = registers[register(code, 5)];
    Some(match (code >> 26, code & 0xFFFF_FC1F) {
        // b, bl
        (0x05, _) => Step::Jump(ZERO, near()),
        (0x25, _) => Step::Jump(LINK, near()),
        // br and ret, blr
        (_, 0xD61F_0000 | 0xD65F_0000) => Step::Jump(ZERO, through),
        (_, 0xD63F_0000) => Step::Jump(LINK, through),
        _ => return None,
    })
}

/// Decodes the others.
fn other(code: u32, pc: u64, registers: &Registers, word: &Word<'_>) -> Option<Step> {
    let to = register(code, 0);
    let from = register(code, 5);
    // The stack pointer is not known.
    let base = registers[from].filter(|_| from != ZERO);
    let written = |value: Option<u64>| match to {
        ZERO => Step::Write(ZERO, Some(0)),
        _ => Step::Write(to, value),
    };
    let sum = |value: Option<u64>| Step::Write(to, value.filter(|_| to != ZERO));
    let immediate = i64::from(code >> 10 & 0xFFF);
    let halfword = || u64::from(code >> 5 & 0xFFFF) << (16 * (code >> 21 & 3));
    let relative = || signed((code >> 5 & 0x7FFFF) << 2 | code >> 29 & 3, 21);
    Some(match code {
        // Hints, among them landings of branches.
        _ if code & 0xFFFF_F01F == 0xD503_201F => Step::Write(ZERO, Some(0)),
        // adr, adrp
        _ if code & 0x9F00_0000 == 0x1000_0000 => written(plus(Some(pc), relative())),
        _ if code & 0x9F00_0000 == 0x9000_0000 => {
            written(plus(Some(pc & !0xFFF), relative() << 12))
        }
        // add and sub of a number
        _ if code & 0xFFC0_0000 == 0x9100_0000 => sum(plus(base, immediate)),
        _ if code & 0xFFC0_0000 == 0x9140_0000 => sum(plus(base, immediate << 12)),
        _ if code & 0x7F80_0000 == 0x5100_0000 => sum(None),
        // movz, movn, movk
        _ if code & 0xFF80_0000 == 0xD280_0000 => written(Some(halfword())),
        _ if code & 0xFF80_0000 == 0x9280_0000 => written(Some(!halfword())),
        _ if code & 0xFF80_0000 == 0xF280_0000 => {
            let mask = 0xFFFF << (16 * (code >> 21 & 3));
            written(registers[to].map(|value| value & !mask | halfword()))
        }
        // mov
        _ if code & 0xFFE0_FFE0 == 0xAA00_03E0 => written(registers[register(code, 16)]),
        // and of a number
        _ if code & 0x7F80_0000 == 0x1200_0000 => sum(None),
        // ldr, after the instruction and through a register
        _ if code & 0xFF00_0000 == 0x5800_0000 => {
            let at = plus(Some(pc), 4 * signed(code >> 5 & 0x7FFFF, 19));
            written(at.and_then(word))
        }
        _ if code & 0xFFC0_0000 == 0xF940_0000 => written(plus(base, 8 * immediate).and_then(word)),
        // str, and stp without a change of the register
        _ if code & 0xFFC0_0000 == 0xF900_0000 || code & 0xFFC0_0000 == 0xA900_0000 => {
            Step::Write(ZERO, Some(0))
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::linked::Code;
    use super::*;

    const START: u64 = 0x40_0580;

    fn bytes_of(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn code<'c>(bytes: &'c [u8], word: &'c Word<'c>) -> Code<'c> {
        Code {
            machine: &MACHINE,
            bytes,
            start: START,
            word,
        }
    }

    fn found(words: &[u32], word: &Word<'_>) -> Option<u64> {
        code(&bytes_of(words), word).main()
    }

    /// glibc's code: bti c; mov x29, #0; mov x30, #0; mov x5, x0; ldr x1, [sp]; add x2, sp, #8; mov x6, sp; …; mov x3,
    /// #0; mov x4, #0; bl __libc_start_main; bl abort
    fn glibc(load: &[u32]) -> Vec<u32> {
        let start = [
            0xD503_245F,
            0xD280_001D,
            0xD280_001E,
            0xAA00_03E5,
            0xF940_03E1,
            0x9100_23E2,
            0x9100_03E6,
        ];
        let end = [0xD280_0003, 0xD280_0004, 0x97FF_FFD9, 0x97FF_FFE0];
        [&start[..], load, &end].concat()
    }

    #[test]
    fn startup_code_shows_where_main_is() {
        // adrp x0, 0; add x0, x0, #0x5b4
        let words = glibc(&[0x9000_0000, 0x9116_D000]);
        assert_eq!(found(&words, &|_| None), Some(0x40_05B4));
        // adrp x0, 0x1f000; ldr x0, [x0, #4056]
        let words = glibc(&[0xF000_00E0, 0xF947_EC00]);
        let word = |addr| (addr == 0x41_FFD8).then_some(0x40_1234);
        assert_eq!(found(&words, &word), Some(0x40_1234));
        assert_eq!(found(&words, &|_| None), None);
        // movz x0, #0x754; movk x0, #0x40, lsl #16: the large code model
        let words = glibc(&[0xD280_EA80, 0xF2A0_0800]);
        assert_eq!(found(&words, &|_| None), Some(0x40_0754));
        // adr x0, .+0x14
        let words = glibc(&[0x1000_00A0]);
        assert_eq!(found(&words, &|_| None), Some(0x40_05B0));
    }

    #[test]
    fn jumps_are_followed() {
        // musl's code: mov x29, #0; mov x30, #0; mov x0, sp; adrp x1, …; add x1, x1, #16; and sp, x0, #-16; b +8;
        // (brk); ldr x1, [x0]; add x2, x0, #8; adr x0, .+12; b …
        let words = [
            0xD280_001D,
            0xD280_001E,
            0x9100_03E0,
            0xB000_0001,
            0x9100_4021,
            0x927C_EC1F,
            0x1400_0002,
            0xD420_0000,
            0xF940_0001,
            0x9100_2002,
            0x1000_0060,
            0x17FF_FF00,
        ];
        assert_eq!(found(&words, &|_| None), Some(START + 40 + 12));
    }

    #[test]
    fn code_that_only_jumps_is_followed() {
        let jump = |words: &[u32]| code(&bytes_of(words), &|_| None).jump_at(START);
        // b main, with and without a landing
        assert_eq!(jump(&[0x1400_0033]), Some(START + 0xCC));
        assert_eq!(jump(&[0xD503_245F, 0x1400_0033]), Some(START + 4 + 0xCC));
        // adr x16, .+16; br x16
        assert_eq!(jump(&[0x1000_0090, 0xD61F_0200]), Some(START + 16));
        // bl …; mov w0, #0, ret; sub sp, sp, #16, b
        assert_eq!(jump(&[0x9400_0033]), None);
        assert_eq!(jump(&[0x5280_0000, 0xD65F_03C0]), None);
        assert_eq!(jump(&[0xD100_43FF, 0x1400_0033]), None);
    }

    #[test]
    fn other_code_yields_nothing() {
        assert_eq!(found(&[0; 16], &|_| None), None);
        assert_eq!(found(&[], &|_| None), None);
        // b to itself
        assert_eq!(found(&[0x1400_0000; 4], &|_| None), None);
        // cbz x0, …
        assert_eq!(found(&[0xB400_0040; 4], &|_| None), None);
        for seed in 0..=u16::MAX {
            let word = u32::from(seed).wrapping_mul(0x9E37_79B1);
            found(&[word, !word, word.rotate_left(7), 0xD65F_03C0], &Some);
        }
    }
}
