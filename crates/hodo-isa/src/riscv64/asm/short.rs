//! The 16-bit forms of instructions.

use super::super::decode::operand::{funct3, imm_i, imm_s, imm_u, rd, rs1, rs2};
use super::super::encode::{JALR, LOAD, LUI, OP, OP_IMM, OP_IMM_32, STORE};
use super::super::regs::{SP, ZERO};

/// The number of a register in three bits.
fn three(register: u8) -> Option<u16> {
    (8..16).contains(&register).then(|| u16::from(register) - 8)
}

/// Moves some bits of a number to where they belong.
const fn bits(value: i64, low: u32, count: u32, to: u32) -> u16 {
    ((value >> low & ((1 << count) - 1)) as u16) << to
}

fn six(value: i64) -> Option<u16> {
    (-32..32)
        .contains(&value)
        .then(|| bits(value, 5, 1, 12) | bits(value, 0, 5, 2))
}

/// The 16-bit form of a 32-bit instruction, if it has one that is useful here.
pub(super) fn short(word: u32) -> Option<u16> {
    let (d, a, b) = (rd(word), rs1(word), rs2(word));
    let full = u16::from(d) << 7;
    let f3 = funct3(word);
    let opcode = word & 0x7F;
    match (opcode, f3) {
        (OP_IMM, 0) if d != ZERO => {
            let value = imm_i(word);
            if a == ZERO {
                return Some(0x4001 | full | six(value)?);
            }
            if value == 0 {
                return Some(0x8002 | full | u16::from(a) << 2);
            }
            if d == SP && a == SP && value % 16 == 0 && (-512..512).contains(&value) {
                let low = bits(value, 4, 1, 6) | bits(value, 6, 1, 5);
                let high = bits(value, 7, 2, 3) | bits(value, 5, 1, 2) | bits(value, 9, 1, 12);
                return Some(0x6101 | low | high);
            }
            if a == SP && value > 0 && value < 1024 && value % 4 == 0 {
                let low = bits(value, 4, 2, 11) | bits(value, 6, 4, 7);
                let high = bits(value, 2, 1, 6) | bits(value, 3, 1, 5);
                return Some(three(d)? << 2 | low | high);
            }
            (a == d).then_some(())?;
            Some(0x0001 | full | six(value)?)
        }
        (OP_IMM, 1) if d != ZERO && a == d => {
            let by = imm_i(word);
            (1..64).contains(&by).then_some(())?;
            Some(0x0002 | full | bits(by, 5, 1, 12) | bits(by, 0, 5, 2))
        }
        (OP_IMM, 5) if a == d => {
            let by = imm_i(word) & 0x3F;
            let arithmetic = u16::from(word >> 30 & 1 == 1) << 10;
            (by > 0).then_some(())?;
            Some(0x8001 | arithmetic | three(d)? << 7 | bits(by, 5, 1, 12) | bits(by, 0, 5, 2))
        }
        (OP_IMM, 7) if a == d => Some(0x8801 | three(d)? << 7 | six(imm_i(word))?),
        (OP_IMM_32, 0) if a == d && d != ZERO => Some(0x2001 | full | six(imm_i(word))?),
        (LUI, _) if opcode == LUI && d != ZERO && d != SP => {
            let value = imm_u(word) >> 12;
            (value != 0).then_some(())?;
            Some(0x6001 | full | six(value)?)
        }
        (OP, 0) if word >> 25 == 0 && d != ZERO && b != ZERO && (a == d || b == d) => {
            let other = if a == d { b } else { a };
            (other != ZERO).then_some(())?;
            Some(0x9002 | full | u16::from(other) << 2)
        }
        (OP, 0 | 4 | 6 | 7) if a == d && word >> 25 & !0x20 == 0 => {
            let which = match (f3, word >> 25) {
                (0, 0x20) => 0,
                (4, 0) => 1,
                (6, 0) => 2,
                (7, 0) => 3,
                _ => return None,
            };
            Some(0x8C01 | three(d)? << 7 | which << 5 | three(b)? << 2)
        }
        (LOAD | STORE, 3) => short_memory(word),
        (JALR, 0) if d == ZERO && a != ZERO && imm_i(word) == 0 => Some(0x8002 | u16::from(a) << 7),
        _ => None,
    }
}

/// The same for eight-byte loads and stores.
fn short_memory(word: u32) -> Option<u16> {
    let (d, a, b) = (rd(word), rs1(word), rs2(word));
    let full = u16::from(d) << 7;
    match word & 0x7F {
        LOAD if d != ZERO => {
            let at = imm_i(word);
            (at % 8 == 0 && at >= 0).then_some(())?;
            if a == SP && at < 512 {
                let low = bits(at, 3, 2, 5) | bits(at, 6, 3, 2);
                return Some(0x6002 | full | low | bits(at, 5, 1, 12));
            }
            (at < 256).then_some(())?;
            let low = bits(at, 3, 3, 10) | bits(at, 6, 2, 5);
            Some(0x6000 | three(a)? << 7 | three(d)? << 2 | low)
        }
        STORE => {
            let at = imm_s(word);
            (at % 8 == 0 && at >= 0).then_some(())?;
            if a == SP && at < 512 {
                let low = bits(at, 3, 3, 10) | bits(at, 6, 3, 7);
                return Some(0xE002 | u16::from(b) << 2 | low);
            }
            (at < 256).then_some(())?;
            let low = bits(at, 3, 3, 10) | bits(at, 6, 2, 5);
            Some(0xE000 | three(a)? << 7 | three(b)? << 2 | low)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::decode::Insn;
    use super::super::super::encode::{i, r, s, u};
    use super::*;

    /// Of the long forms that do the same, the one that the short form stands for.
    fn usual(word: u32) -> u32 {
        let (d, a, b) = (rd(word), rs1(word), rs2(word));
        match word & 0x7F {
            OP_IMM if funct3(word) == 0 && imm_i(word) == 0 && a != ZERO => r(OP, 0, 0, d, ZERO, a),
            OP if funct3(word) == 0 && word >> 25 == 0 && a != d => r(OP, 0, 0, d, b, a),
            _ => word,
        }
    }

    /// Each short form must expand to its instruction; enough instructions must have one.
    #[test]
    fn short_forms_say_the_same() {
        let mut count = 0;
        let mut check = |word: u32| {
            if let Some(half) = short(word) {
                count += 1;
                let expanded = Insn::new(&half.to_le_bytes(), 0).word;
                assert_eq!(expanded, usual(word), "{word:#x} {half:#x}");
            }
        };
        let registers = [0u8, 1, 2, 5, 8, 9, 15, 16, 31];
        for d in registers {
            for a in registers {
                for b in registers {
                    for (f3, f7) in [(0, 0), (0, 0x20), (4, 0), (6, 0), (7, 0), (5, 0), (0, 1)] {
                        check(r(OP, f3, f7, d, a, b));
                    }
                }
                for value in -2048..2048 {
                    for f3 in [0, 7] {
                        check(i(OP_IMM, f3, d, a, value));
                    }
                    check(i(OP_IMM_32, 0, d, a, value));
                    check(i(LOAD, 3, d, a, value));
                    check(s(STORE, 3, d, a, value));
                    check(i(JALR, 0, d, a, value));
                }
                for by in 0..64 {
                    check(i(OP_IMM, 1, d, a, by));
                    check(i(OP_IMM, 5, d, a, by));
                    check(i(OP_IMM, 5, d, a, by | 0x400));
                }
            }
            for value in -70..70 {
                check(u(LUI, d, value << 12));
            }
        }
        assert!(count > 5000, "{count}");
    }
}
