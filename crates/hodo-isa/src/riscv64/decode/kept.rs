//! Decodes all code of a file, in which most instructions occur again and again.

use alloc::vec;
use alloc::vec::Vec;

use super::operand::Operand;
use super::{Insn, Kind};

/// How many instructions are kept, as a power of two.
const BITS: u32 = 11;

/// An instruction, wherever it stands, and the general registers that it reads and writes.
#[derive(Debug, Clone, Copy)]
struct Entry {
    /// The bits of it that matter; 16-bit ones have zeros above. 0 marks an empty entry.
    bits: u32,
    /// The 32-bit instruction that it stands for, if it is a 16-bit one.
    word: u32,
    reads: u32,
    writes: u32,
    kind: Kind,
    operands: &'static [Operand],
}

/// Keeps decoded instructions. Their bytes choose the entry, which holds the most recent instruction.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    entries: Vec<Entry>,
}

/// Decodes instructions.
pub(crate) trait Decode {
    /// The instruction at the start of `code`, and the general registers that it reads and writes.
    fn decode(&mut self, code: &[u8], addr: u64) -> (Insn, (u32, u32));
}

/// Decodes each instruction anew.
pub struct Fresh;

impl Decode for Fresh {
    #[inline(always)]
    fn decode(&mut self, code: &[u8], addr: u64) -> (Insn, (u32, u32)) {
        let insn = Insn::new(code, addr);
        (insn, insn.general())
    }
}

/// The bits of a 32-bit instruction that determine what it is and its registers. The others are a constant, which
/// differs from place to place if it is a distance.
#[inline]
fn telling(word: u32) -> u32 {
    /// Which registers an instruction may have, besides opcode and function.
    const RD: u32 = 0xFFF;
    const RD_RS1: u32 = 0xF_FFFF;
    const RS1_RS2: u32 = 0x1FF_F07F;
    match (word & 0x7F, word >> 12 & 7) {
        // lui, auipc, jal
        (0x37 | 0x17 | 0x6F, _) => RD,
        // Loads, and additions of constants
        (0x03, _) | (0x13 | 0x1B, 0) => RD_RS1,
        // Stores, branches
        (0x23 | 0x63, _) => RS1_RS2,
        _ => u32::MAX,
    }
}

impl Kept {
    /// Allocates the entries, if that is not done yet.
    pub fn prepare(&mut self) {
        const NONE: Entry = Entry {
            bits: 0,
            word: 0,
            reads: 0,
            writes: 0,
            kind: Kind::Unimp,
            operands: &[],
        };
        if self.entries.is_empty() {
            self.entries = vec![NONE; 1 << BITS];
        }
    }
}

impl Decode for &mut Kept {
    #[inline]
    fn decode(&mut self, code: &[u8], addr: u64) -> (Insn, (u32, u32)) {
        let low = code
            .first_chunk()
            .map_or(0, |&half| u16::from_le_bytes(half));
        let (bits, len, word) = match code.first_chunk() {
            _ if low & 0b11 != 0b11 => (low.into(), 2, None),
            Some(&word) if low & 0b1_1100 != 0b1_1100 => {
                let word = u32::from_le_bytes(word);
                (word & telling(word), 4, Some(word))
            }
            _ => (0, 0, None),
        };
        let place = bits.wrapping_mul(0x9E37_79B1) >> (32 - BITS);
        match self.entries.get_mut(place as usize) {
            // Zeros are not kept: they may also mean the end of the code.
            Some(kept) if bits != 0 => {
                if kept.bits != bits {
                    let insn = Insn::new(code, addr);
                    let (reads, writes) = insn.general();
                    *kept = Entry {
                        bits,
                        word: insn.word,
                        reads,
                        writes,
                        kind: insn.kind,
                        operands: insn.operands,
                    };
                }
                let insn = Insn {
                    addr,
                    len,
                    word: word.unwrap_or(kept.word),
                    kind: kept.kind,
                    operands: kept.operands,
                };
                (insn, (kept.reads, kept.writes))
            }
            _ => Fresh.decode(code, addr),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_what_is_decoded() {
        let mut kept = Kept::default();
        kept.prepare();
        let mut seed = 1u32;
        // Some instructions again and again, others in the same entries.
        for round in 0..40_000u32 {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let bytes = match round % 4 {
                0 => (seed >> 16 & 0x3F) * 0x0411,
                1 => seed & 0xF7FF_F003 | (seed >> 20 & 7) << 4 | 3,
                2 => seed >> 16 & 0xFFFF,
                _ => seed ^ seed >> 16,
            };
            let bytes = bytes.to_le_bytes();
            let code = &bytes[..4 - (round % 9 / 6) as usize];
            let addr = u64::from(round) * 2;
            let (insn, general) = (&mut kept).decode(code, addr);
            let (fresh, expected) = Fresh.decode(code, addr);
            let parts = |insn: &Insn| (insn.addr, insn.len, insn.word, insn.kind, insn.reads());
            assert_eq!(parts(&insn), parts(&fresh), "{code:02x?}");
            assert_eq!(general, expected, "{code:02x?}");
        }
    }
}
