//! 16-bit instructions. Each is expanded to the 32-bit instruction that it stands for.

use super::super::encode::{
    self, LOAD, LOAD_FP, LUI, OP, OP_32, OP_IMM, OP_IMM_32, STORE, STORE_FP,
};
use super::super::regs::{RA, SP, ZERO};
use super::operand::Operand::{self, *};
use super::operand::{field, signed};

/// The 32-bit `ebreak`.
const EBREAK: u32 = 0x0010_0073;

/// A 16-bit instruction.
pub(crate) struct Compressed {
    pub name: &'static str,
    /// How it is written as text, by the fields of the expanded instruction.
    pub shown: &'static [Operand],
    /// The 32-bit instruction.
    pub word: u32,
}

/// One of the eight registers that three bits name.
fn short(half: u32, low: u32) -> u8 {
    field(half, low, 3) as u8 + 8
}

/// Collects bits. Each pair is the lowest bit and the number of bits; the highest ones come first.
fn gather(half: u32, parts: &[(u32, u32)]) -> u32 {
    parts.iter().fold(0, |value, &(low, bits)| {
        value << bits | field(half, low, bits)
    })
}

/// The six-bit immediate that most instructions have.
fn imm6(half: u32) -> u32 {
    gather(half, &[(12, 1), (2, 5)])
}

/// The offset of eight-byte and of four-byte loads and stores.
fn offset8(half: u32) -> i64 {
    i64::from(gather(half, &[(5, 2), (10, 3)]) << 3)
}

fn offset4(half: u32) -> i64 {
    i64::from(gather(half, &[(5, 1), (10, 3), (6, 1)]) << 2)
}

/// The 32-bit instruction for a 16-bit one; `None` if there is none.
pub(crate) fn expand(half: u16) -> Option<Compressed> {
    let half = u32::from(half);
    let found = |name, shown, word| Some(Compressed { name, shown, word });
    match (half & 3, half >> 13) {
        (0, _) => memory(half),
        (1, 0b100) => arithmetic(half),
        (1, 0b101) => {
            let distance = gather(
                half,
                &[
                    (12, 1),
                    (8, 1),
                    (9, 2),
                    (6, 1),
                    (7, 1),
                    (2, 1),
                    (11, 1),
                    (3, 3),
                ],
            );
            found("c.j", &[Jump], encode::j(ZERO, signed(distance << 1, 12)))
        }
        (1, which @ (0b110 | 0b111)) => {
            let distance = gather(half, &[(12, 1), (5, 2), (2, 1), (10, 2), (3, 2)]);
            let name = if which == 0b110 { "c.beqz" } else { "c.bnez" };
            let word = encode::b(which & 1, short(half, 7), ZERO, signed(distance << 1, 9));
            found(name, &[Rs1, Branch], word)
        }
        (1, _) => constants(half),
        _ => stack(half),
    }
}

/// Loads and stores through a register, and addresses of stack slots.
fn memory(half: u32) -> Option<Compressed> {
    let (data, base) = (short(half, 2), short(half, 7));
    let (name, shown, word): (_, &[Operand], _) = match half >> 13 {
        0b000 => {
            let value = gather(half, &[(7, 4), (11, 2), (5, 1), (6, 1)]) << 2;
            if value == 0 {
                return None;
            }
            let word = encode::i(OP_IMM, 0, data, SP, i64::from(value));
            ("c.addi4spn", &[Rd, Rs1, ImmI], word)
        }
        0b001 => {
            let word = encode::i(LOAD_FP, 3, data, base, offset8(half));
            ("c.fld", &[Fd, MemI], word)
        }
        0b010 => {
            let word = encode::i(LOAD, 2, data, base, offset4(half));
            ("c.lw", &[Rd, MemI], word)
        }
        0b011 => {
            let word = encode::i(LOAD, 3, data, base, offset8(half));
            ("c.ld", &[Rd, MemI], word)
        }
        0b101 => {
            let word = encode::s(STORE_FP, 3, data, base, offset8(half));
            ("c.fsd", &[Fs2, MemS], word)
        }
        0b110 => {
            let word = encode::s(STORE, 2, data, base, offset4(half));
            ("c.sw", &[Rs2, MemS], word)
        }
        0b111 => {
            let word = encode::s(STORE, 3, data, base, offset8(half));
            ("c.sd", &[Rs2, MemS], word)
        }
        _ => return None,
    };
    Some(Compressed { name, shown, word })
}

/// Adds and loads of constants.
fn constants(half: u32) -> Option<Compressed> {
    let rd = field(half, 7, 5) as u8;
    let value = signed(imm6(half), 6);
    let (name, shown, word): (_, &[Operand], _) = match half >> 13 {
        0b000 => {
            let name = if rd == ZERO { "c.nop" } else { "c.addi" };
            let shown: &[Operand] = match (rd, value) {
                (ZERO, 0) => &[],
                (ZERO, _) => &[ImmI],
                _ => &[Rd, ImmI],
            };
            (name, shown, encode::i(OP_IMM, 0, rd, rd, value))
        }
        0b001 if rd != ZERO => {
            let word = encode::i(OP_IMM_32, 0, rd, rd, value);
            ("c.addiw", &[Rd, ImmI], word)
        }
        0b010 => ("c.li", &[Rd, ImmI], encode::i(OP_IMM, 0, rd, ZERO, value)),
        0b011 if value != 0 && rd == SP => {
            let value = gather(half, &[(12, 1), (3, 2), (5, 1), (2, 1), (6, 1)]) << 4;
            let word = encode::i(OP_IMM, 0, SP, SP, signed(value, 10));
            ("c.addi16sp", &[Rd, ImmI], word)
        }
        0b011 if value != 0 => ("c.lui", &[Rd, ImmU], encode::u(LUI, rd, value << 12)),
        _ => return None,
    };
    Some(Compressed { name, shown, word })
}

/// Arithmetic on the eight registers that three bits can name.
fn arithmetic(half: u32) -> Option<Compressed> {
    let (rd, rs2) = (short(half, 7), short(half, 2));
    let wide = field(half, 12, 1) == 0;
    let shift = i64::from(imm6(half));
    let (name, shown, word): (_, &[Operand], _) =
        match (field(half, 10, 2), wide, field(half, 5, 2)) {
            (0, ..) => {
                let word = encode::i(OP_IMM, 5, rd, rd, shift);
                ("c.srli", &[Rd, Shamt6], word)
            }
            (1, ..) => {
                let word = encode::i(OP_IMM, 5, rd, rd, 0x400 | shift);
                ("c.srai", &[Rd, Shamt6], word)
            }
            (2, ..) => {
                let word = encode::i(OP_IMM, 7, rd, rd, signed(imm6(half), 6));
                ("c.andi", &[Rd, ImmI], word)
            }
            (_, true, 0) => ("c.sub", &[Rd, Rs2], encode::r(OP, 0, 0x20, rd, rd, rs2)),
            (_, true, 1) => ("c.xor", &[Rd, Rs2], encode::r(OP, 4, 0, rd, rd, rs2)),
            (_, true, 2) => ("c.or", &[Rd, Rs2], encode::r(OP, 6, 0, rd, rd, rs2)),
            (_, true, _) => ("c.and", &[Rd, Rs2], encode::r(OP, 7, 0, rd, rd, rs2)),
            (_, false, 0) => ("c.subw", &[Rd, Rs2], encode::r(OP_32, 0, 0x20, rd, rd, rs2)),
            (_, false, 1) => ("c.addw", &[Rd, Rs2], encode::r(OP_32, 0, 0, rd, rd, rs2)),
            _ => return None,
        };
    Some(Compressed { name, shown, word })
}

/// Loads and stores on the stack, shifts, copies, and jumps through registers.
fn stack(half: u32) -> Option<Compressed> {
    let (rd, rs2) = (field(half, 7, 5) as u8, field(half, 2, 5) as u8);
    let load8 = i64::from(gather(half, &[(2, 3), (12, 1), (5, 2)]) << 3);
    let load4 = i64::from(gather(half, &[(2, 2), (12, 1), (4, 3)]) << 2);
    let store8 = i64::from(gather(half, &[(7, 3), (10, 3)]) << 3);
    let store4 = i64::from(gather(half, &[(7, 2), (9, 4)]) << 2);
    let (name, shown, word): (_, &[Operand], _) = match half >> 13 {
        0b000 => {
            let word = encode::i(OP_IMM, 1, rd, rd, i64::from(imm6(half)));
            ("c.slli", &[Rd, Shamt6], word)
        }
        0b001 => {
            let word = encode::i(LOAD_FP, 3, rd, SP, load8);
            ("c.fldsp", &[Fd, MemI], word)
        }
        0b010 if rd != ZERO => {
            let word = encode::i(LOAD, 2, rd, SP, load4);
            ("c.lwsp", &[Rd, MemI], word)
        }
        0b011 if rd != ZERO => {
            let word = encode::i(LOAD, 3, rd, SP, load8);
            ("c.ldsp", &[Rd, MemI], word)
        }
        0b100 => match (field(half, 12, 1), rd, rs2) {
            (0, ZERO, ZERO) => return None,
            (0, rs1, ZERO) => ("c.jr", &[Rs1], encode::i(encode::JALR, 0, ZERO, rs1, 0)),
            (0, ..) => ("c.mv", &[Rd, Rs2], encode::r(OP, 0, 0, rd, ZERO, rs2)),
            (_, ZERO, ZERO) => ("c.ebreak", &[], EBREAK),
            (_, rs1, ZERO) => ("c.jalr", &[Rs1], encode::i(encode::JALR, 0, RA, rs1, 0)),
            _ => ("c.add", &[Rd, Rs2], encode::r(OP, 0, 0, rd, rd, rs2)),
        },
        0b101 => {
            let word = encode::s(STORE_FP, 3, rs2, SP, store8);
            ("c.fsdsp", &[Fs2, MemS], word)
        }
        0b110 => {
            let word = encode::s(STORE, 2, rs2, SP, store4);
            ("c.swsp", &[Rs2, MemS], word)
        }
        0b111 => {
            let word = encode::s(STORE, 3, rs2, SP, store8);
            ("c.sdsp", &[Rs2, MemS], word)
        }
        _ => return None,
    };
    Some(Compressed { name, shown, word })
}
