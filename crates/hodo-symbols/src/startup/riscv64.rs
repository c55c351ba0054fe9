//! RISC-V.

use super::linked::{Decoded, Machine, Registers, Step, Word, plus, signed};

const RA: usize = 1;
const A0: usize = 10;

/// This instruction set.
pub(super) static MACHINE: Machine = Machine {
    zero: 0,
    link: RA,
    argument: A0,
    step,
};

/// Returns what the first instruction does, and its length.
fn step(bytes: &[u8], pc: u64, registers: &Registers, word: &Word<'_>) -> Decoded {
    let half = u16::from_le_bytes(*bytes.first_chunk()?);
    if half & 3 != 3 {
        return Some((short(half, pc, registers)?, 2));
    }
    let code = u32::from_le_bytes(*bytes.first_chunk()?);
    Some((long(code, pc, registers, word)?, 4))
}

/// Decodes a four-byte instruction. Returns `None` for instructions that startup code does not use before that call.
fn long(code: u32, pc: u64, registers: &Registers, word: &Word<'_>) -> Option<Step> {
    let register = |shift: u32| (code >> shift & 31) as usize;
    let to = register(7);
    let first = registers[register(15)];
    let upper = i64::from((code & !0xFFF).cast_signed());
    let immediate = signed(code >> 20, 12);
    Some(match (code & 0x7F, code >> 12 & 7) {
        // lui
        (0x37, _) => Step::Write(to, Some(upper.cast_unsigned())),
        // auipc
        (0x17, _) => Step::Write(to, plus(Some(pc), upper)),
        // addi
        (0x13, 0) => Step::Write(to, plus(first, immediate)),
        // ld
        (0x03, 3) => Step::Write(to, plus(first, immediate).and_then(word)),
        // jal
        (0x6F, _) => {
            let bits = code >> 31 << 20
                | (code >> 12 & 0xFF) << 12
                | (code >> 20 & 1) << 11
                | (code >> 21 & 0x3FF) << 1;
            Step::Jump(to, plus(Some(pc), signed(bits, 21)))
        }
        // jalr
        (0x67, 0) => Step::Jump(to, plus(first, immediate)),
        // Other loads and operations.
        (0x03 | 0x13 | 0x1B | 0x33 | 0x3B, _) => Step::Write(to, None),
        // Stores change no register.
        (0x23, _) => Step::Write(0, None),
        _ => return None,
    })
}

/// Decodes a two-byte instruction.
fn short(code: u16, pc: u64, registers: &Registers) -> Option<Step> {
    let code = u32::from(code);
    let to = (code >> 7 & 31) as usize;
    let from = (code >> 2 & 31) as usize;
    // A register from x8 to x15.
    let few = (8 + (code >> 2 & 7)) as usize;
    let immediate = signed((code >> 12 & 1) << 5 | code >> 2 & 31, 6);
    Some(match (code & 3, code >> 13) {
        // c.addi4spn, c.lw, c.ld
        (0, 0 | 2 | 3) if code != 0 => Step::Write(few, None),
        // c.sw, c.sd
        (0, 6 | 7) => Step::Write(0, None),
        // c.addi, c.li
        (1, 0) => Step::Write(to, plus(registers[to], immediate)),
        (1, 2) => Step::Write(to, Some(immediate.cast_unsigned())),
        // c.addiw, and c.addi16sp or c.lui
        (1, 1) => Step::Write(to, None),
        (1, 3) if to == 2 => Step::Write(to, None),
        (1, 3) => Step::Write(to, Some((immediate << 12).cast_unsigned())),
        // c.srli and the like
        (1, 4) => Step::Write((8 + (code >> 7 & 7)) as usize, None),
        // c.j
        (1, 5) => {
            let bit = |from: u32, to: u32| (code >> from & 1) << to;
            let bits = bit(12, 11)
                | bit(11, 4)
                | bit(10, 9)
                | bit(9, 8)
                | bit(8, 10)
                | bit(7, 6)
                | bit(6, 7)
                | bit(5, 3)
                | bit(4, 2)
                | bit(3, 1)
                | bit(2, 5);
            Step::Jump(0, plus(Some(pc), signed(bits, 12)))
        }
        // c.slli, c.lwsp, c.ldsp
        (2, 0 | 2 | 3) => Step::Write(to, None),
        // c.jr, c.jalr; c.mv, c.add
        (2, 4) => match (code >> 12 & 1, to, from) {
            (0, 1.., 0) => Step::Jump(0, registers[to]),
            (1, 1.., 0) => Step::Jump(RA, registers[to]),
            (0, _, 1..) => Step::Write(to, registers[from]),
            (1, _, 1..) => Step::Write(to, None),
            _ => return None,
        },
        // c.swsp, c.sdsp
        (2, 6 | 7) => Step::Write(0, None),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::linked::Code;
    use super::*;

    const START: u64 = 0x1_0570;

    fn bytes_of(code: &[u32]) -> Vec<u8> {
        // Two-byte instructions have no upper bits.
        let bytes = code.iter().flat_map(|code| {
            let size = if code & 3 == 3 { 4 } else { 2 };
            code.to_le_bytes().into_iter().take(size)
        });
        bytes.collect()
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

    // glibc's code, after the call of `load_gp`: mv a5, a0; …; ld a1, 0(sp); addi a2, sp, 8; andi sp, sp, -16; li a3,
    // 0; mv a6, sp
    const REST: [u32; 5] = [0x6582, 0x0030, 0xff01_7113, 0x4681, 0x880a];
    // jal __libc_start_main; ebreak; auipc gp, 2; addi gp, gp, -200; ret
    const END: [u32; 5] = [0xf95f_f0ef, 0x9002, 0x0000_2197, 0xf381_8193, 0x8082];

    fn glibc(load: [u32; 2]) -> Vec<u32> {
        // jal load_gp; mv a5, a0
        let mut code = vec![0x020_000ef, 0x87aa];
        code.extend(load);
        code.extend(REST);
        code.extend(END);
        code
    }

    #[test]
    fn startup_code_shows_where_main_is() {
        // auipc a0, 0; addi a0, a0, -36
        let code = glibc([0x0000_0517, 0xfdc5_0513]);
        assert_eq!(found(&code, &|_| None), Some(0x1_0552));
        // auipc a0, 2; ld a0, -1510(a0)
        let code = glibc([0x0000_2517, 0xa1a5_3503]);
        let word = |addr| (addr == 0x1_0576 + 0x2000 - 1510).then_some(0x1_1234);
        assert_eq!(found(&code, &word), Some(0x1_1234));
        assert_eq!(found(&code, &|_| None), None);
    }

    #[test]
    fn jumps_are_followed() {
        // musl's code. auipc a0, 0 is not in `_start` itself: mv a0, sp; j +4; (ebreak); auipc a0, 1; addi a0, a0, 4;
        // jr t1
        let code = [0x850a, 0xa011, 0x9002, 0x0000_1517, 0x0045_0513, 0x8302];
        assert_eq!(found(&code, &|_| None), Some(0x1_0576 + 0x1004));
    }

    #[test]
    fn code_that_only_jumps_is_followed() {
        let jump = |words: &[u32]| code(&bytes_of(words), &|_| None).jump_at(START);
        // j -0x432
        assert_eq!(jump(&[0xb6f9]), Some(START - 0x432));
        // auipc t1, 1; jr t1 - 4
        assert_eq!(jump(&[0x0000_1317, 0xffc3_0067]), Some(START + 0xFFC));
        // jal ra, …; li a0, 0, ret; addi sp, sp, -16, j
        assert_eq!(jump(&[0x0200_00ef]), None);
        assert_eq!(jump(&[0x4501, 0x8082]), None);
        assert_eq!(jump(&[0x1141, 0xb6f9]), None);
    }

    #[test]
    fn other_code_yields_nothing() {
        assert_eq!(found(&[0; 16], &|_| None), None);
        assert_eq!(found(&[], &|_| None), None);
        // j to itself
        assert_eq!(found(&[0xa001; 4], &|_| None), None);
        // beqz a0, …
        assert_eq!(found(&[0xc101; 4], &|_| None), None);
        for seed in 0..=u16::MAX {
            let code = u32::from(seed).wrapping_mul(0x9E37_79B1);
            found(&[code | 3, seed.into(), code & !3, 0x8082, 0x8082], &Some);
        }
    }
}
