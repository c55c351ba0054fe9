//! Computing with whole vector registers of 32 or 64 bytes, and with mask registers. Intel's manual, volume 2, sections
//! 2.3 and 2.7.

use super::{Code, Reg};

/// Where the other operand is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WidePlace {
    /// A vector or mask register.
    Register(u8),
    /// Memory at this offset from the base of `gs`.
    Block(u32),
    /// Memory at a register plus a number.
    At(Reg, i32),
}

/// What is computed of two vectors, by elements of eight bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WideOp {
    /// Their sums.
    Add = 0xD4,
    /// Their differences.
    Subtract = 0xFB,
    /// The bits of both.
    And = 0xDB,
    /// The bits of any.
    Or = 0xEB,
    /// The bits of one of them.
    Xor = 0xEF,
}

/// An opcode: which table it is in, its prefix (0x66, 0xF3 and 0xF2 are 1, 2 and 3), and the bit W.
#[derive(Debug, Clone, Copy)]
struct Opcode {
    table: u8,
    prefix: u8,
    wide: bool,
    byte: u8,
}

const fn opcode(table: u8, prefix: u8, wide: bool, byte: u8) -> Opcode {
    Opcode {
        table,
        prefix,
        wide,
        byte,
    }
}

const LOAD: Opcode = opcode(1, 0, false, 0x10);
const STORE: Opcode = opcode(1, 0, false, 0x11);
const COPY: Opcode = opcode(1, 0, false, 0x28);
const MASK_LOAD: Opcode = opcode(1, 0, true, 0x90);
const MASK_STORE: Opcode = opcode(1, 0, true, 0x91);
const MASK_SET: Opcode = opcode(1, 3, true, 0x92);
const MASK_GET: Opcode = opcode(1, 3, true, 0x93);
const EQUAL: Opcode = opcode(2, 1, true, 0x29);
const SELECT: Opcode = opcode(1, 1, true, 0x6F);

/// The bits of a number that are not in the last bytes, inverted.
const fn high(number: u8, bit: u8) -> u8 {
    (!number >> bit) & 1
}

impl Code<'_> {
    /// `vmovups vector, place`: `len` bytes, 32 or 64. Vectors of 32 bytes are among the first sixteen.
    pub fn wide_load(&mut self, vector: u8, from: WidePlace, len: u8) {
        let is_register = matches!(from, WidePlace::Register(_));
        let opcode = if is_register { COPY } else { LOAD };
        self.wide(opcode, (vector, 0, from), (len, 0));
    }

    /// `vmovups place, vector`
    pub fn wide_store(&mut self, to: WidePlace, vector: u8, len: u8) {
        self.wide(STORE, (vector, 0, to), (len, 0));
    }

    /// `vpbroadcastq vector, place`
    pub fn wide_fill(&mut self, vector: u8, from: WidePlace, len: u8) {
        self.wide(opcode(2, 1, len == 64, 0x59), (vector, 0, from), (len, 0));
    }

    /// `vpaddq to, to, from`, or another operation
    pub fn wide_compute(&mut self, op: WideOp, to: u8, from: u8, len: u8) {
        let opcode = opcode(1, 1, len == 64, op as u8);
        self.wide(opcode, (to, to, WidePlace::Register(from)), (len, 0));
    }

    /// `vpcmpeqq mask, one, other`: vectors of 64 bytes.
    pub fn wide_equal(&mut self, mask: u8, one: u8, other: u8) {
        self.wide(EQUAL, (mask, one, WidePlace::Register(other)), (64, 0));
    }

    /// `vmovdqa64 to {mask}, from`: vectors of 64 bytes. The mask is not the first one.
    pub fn wide_select(&mut self, to: u8, mask: u8, from: u8) {
        self.wide(SELECT, (to, 0, WidePlace::Register(from)), (64, mask));
    }

    /// `kmovq mask, place`
    pub fn mask_load(&mut self, mask: u8, from: WidePlace) {
        self.wide(MASK_LOAD, (mask, 0, from), (16, 0));
    }

    /// `kmovq place, mask`
    pub fn mask_store(&mut self, to: WidePlace, mask: u8) {
        self.wide(MASK_STORE, (mask, 0, to), (16, 0));
    }

    /// `kmovq mask, from`
    pub fn mask_set(&mut self, mask: u8, from: Reg) {
        self.wide(
            MASK_SET,
            (mask, 0, WidePlace::Register(from.number)),
            (16, 0),
        );
    }

    /// `kmovq to, mask`
    pub fn mask_get(&mut self, to: Reg, mask: u8) {
        self.wide(MASK_GET, (to.number, 0, WidePlace::Register(mask)), (16, 0));
    }

    /// An instruction with a register, another one, and a place.
    fn wide(
        &mut self,
        opcode: Opcode,
        (reg, other, place): (u8, u8, WidePlace),
        (len, mask): (u8, u8),
    ) {
        const GS: u8 = 0x65;
        let (base, beyond) = match place {
            WidePlace::Register(number) => (number, number >> 1),
            WidePlace::Block(_) => (0, 0),
            WidePlace::At(base, _) => (base.number, 0),
        };
        if let WidePlace::Block(_) = place {
            self.plain(&[GS]);
        }
        let first = high(reg, 3) << 7 | high(beyond, 3) << 6 | high(base, 3) << 5;
        let second = u8::from(opcode.wide) << 7 | (!other & 15) << 3 | opcode.prefix;
        match len {
            64 => self.plain(&[
                0x62,
                first | high(reg, 4) << 4 | opcode.table,
                second | 4,
                0x40 | high(other, 4) << 3 | mask,
                opcode.byte,
            ]),
            _ => self.plain(&[
                0xC4,
                first & 0xA0 | 0x40 | opcode.table,
                second | (len >> 5) << 2,
                opcode.byte,
            ]),
        }
        let field = (reg & 7) << 3;
        match place {
            WidePlace::Register(number) => self.plain(&[0xC0 | field | number & 7]),
            WidePlace::Block(offset) => {
                self.plain(&[field | 4, 0x25]);
                self.plain(&offset.to_le_bytes());
            }
            WidePlace::At(base, offset) => {
                self.plain(&[0x80 | field | base.number & 7]);
                if base.number & 7 == 4 {
                    self.plain(&[0x24]);
                }
                self.plain(&offset.to_le_bytes());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::String;
    use alloc::vec::Vec;

    use iced_x86::{Decoder, DecoderOptions, FastFormatter};

    use super::*;

    fn text(write: impl FnOnce(&mut Code<'_>)) -> String {
        let mut bytes = Vec::new();
        write(&mut Code::new(&mut bytes, 0x1000));
        let mut decoder = Decoder::with_ip(64, &bytes, 0x1000, DecoderOptions::NONE);
        let insn = decoder.decode();
        assert_eq!(insn.len(), bytes.len());
        let mut text = String::new();
        FastFormatter::new().format(&insn, &mut text);
        text
    }

    #[test]
    fn vectors_are_what_a_disassembler_reads() {
        for (len, kind, count) in [(32, 'y', 16), (64, 'z', 32)] {
            for one in 0..count {
                let other = (one * 7 + 3) % count;
                let name = |number: u8| alloc::format!("{kind}mm{number}");
                let (first, second) = (name(one), name(other));
                let registers = alloc::format!("{first},{second}");
                let copied = text(|code| code.wide_load(one, WidePlace::Register(other), len));
                assert_eq!(copied, alloc::format!("vmovaps {registers}"));
                let sum = text(|code| code.wide_compute(WideOp::Add, one, other, len));
                assert_eq!(sum, alloc::format!("vpaddq {first},{registers}"));
                let in_block = text(|code| code.wide_load(one, WidePlace::Block(0x440), len));
                assert!(in_block.starts_with(&alloc::format!("vmovups {first},")));
                assert!(in_block.ends_with("gs:[440h]"), "{in_block}");
                for base in 0..16 {
                    let place = WidePlace::At(Reg::whole(base), -0x140);
                    let stored = text(|code| code.wide_store(place, one, len));
                    assert!(
                        stored.contains("-140h]") && stored.ends_with(&first),
                        "{stored}"
                    );
                    let named = stored.contains(
                        [
                            "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9",
                            "r10", "r11", "r12", "r13", "r14", "r15",
                        ][usize::from(base)],
                    );
                    assert!(named, "{stored}");
                }
                let filled = text(|code| code.wide_fill(one, WidePlace::Block(0x440), len));
                assert!(
                    filled.starts_with(&alloc::format!("vpbroadcastq {first},")),
                    "{filled}"
                );
            }
        }
        for (op, name) in [
            (WideOp::Subtract, "vpsubq"),
            (WideOp::And, "vpandq"),
            (WideOp::Or, "vporq"),
            (WideOp::Xor, "vpxorq"),
        ] {
            let long = text(|code| code.wide_compute(op, 17, 30, 64));
            assert_eq!(long, alloc::format!("{name} zmm17,zmm17,zmm30"));
            let short = text(|code| code.wide_compute(op, 1, 14, 32));
            let name = if op == WideOp::Subtract {
                name
            } else {
                &name[..name.len() - 1]
            };
            assert_eq!(short, alloc::format!("{name} ymm1,ymm1,ymm14"));
        }
    }

    #[test]
    fn masks_are_what_a_disassembler_reads() {
        for mask in 0..8 {
            let other = (mask + 3) % 8;
            let get = text(|code| code.mask_get(Reg::whole(mask + 6), mask));
            let names = ["rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13"];
            let general = names[usize::from(mask)];
            assert_eq!(get, alloc::format!("kmovq {general},k{mask}"));
            let set = text(|code| code.mask_set(mask, Reg::whole(mask + 6)));
            assert_eq!(set, alloc::format!("kmovq k{mask},{general}"));
            let copied = text(|code| code.mask_load(mask, WidePlace::Register(other)));
            assert_eq!(copied, alloc::format!("kmovq k{mask},k{other}"));
            let loaded = text(|code| code.mask_load(mask, WidePlace::Block(0x440)));
            assert!(
                loaded.starts_with("kmovq k") && loaded.ends_with("gs:[440h]"),
                "{loaded}"
            );
            let stored = text(|code| code.mask_store(WidePlace::Block(0x440), mask));
            assert!(stored.ends_with(&alloc::format!("k{mask}")), "{stored}");
        }
        let equal = text(|code| code.wide_equal(3, 18, 31));
        assert_eq!(equal, "vpcmpeqq k3,zmm18,zmm31");
        let selected = text(|code| code.wide_select(29, 2, 8));
        assert_eq!(selected, "vmovdqa64 zmm29{k2},zmm8");
    }
}
