//! Stores of vector and mask registers, and the base of `fs`. Intel's manual, volume 2, sections 2.3 and 2.7.

use super::{Code, Reg};

/// The last bytes: an operand at a base register other than `rsp` and `r12` plus a number of four bytes.
fn operand(base: Reg, field: u8) -> u8 {
    debug_assert!(base.number & 7 != 4);
    0x80 | (field & 7) << 3 | base.number & 7
}

/// 0 or 1, inverted.
fn inverted(number: u8, bit: u8) -> u8 {
    !number >> bit & 1
}

impl Code<'_> {
    /// `vmovups [base + offset], ymm`: the first sixteen registers.
    pub fn store_ymm(&mut self, base: Reg, offset: u32, vector: u8) {
        let first = inverted(vector, 3) << 7 | 0x40 | inverted(base.number, 3) << 5 | 1;
        self.plain(&[0xC4, first, 0x7C, 0x11, operand(base, vector)]);
        self.plain(&offset.to_le_bytes());
    }

    /// `vmovups [base + offset], zmm`
    pub fn store_zmm(&mut self, base: Reg, offset: u32, vector: u8) {
        let low = inverted(vector, 3) << 7 | 0x40 | inverted(base.number, 3) << 5;
        let first = low | inverted(vector, 4) << 4 | 1;
        self.plain(&[0x62, first, 0x7C, 0x48, 0x11, operand(base, vector)]);
        self.plain(&offset.to_le_bytes());
    }

    /// `kmovq [base + offset], k`
    pub fn store_mask(&mut self, base: Reg, offset: u32, mask: u8) {
        let first = 0xC0 | inverted(base.number, 3) << 5 | 1;
        self.plain(&[0xC4, first, 0xF8, 0x91, operand(base, mask)]);
        self.plain(&offset.to_le_bytes());
    }

    /// `rdfsbase to`
    pub fn rdfsbase(&mut self, to: Reg) {
        let rex = 0x48 | to.number >> 3;
        self.plain(&[0xF3, rex, 0x0F, 0xAE, 0xC0 | to.number & 7]);
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use iced_x86::{Code as Iced, Decoder, DecoderOptions, Register};

    use super::*;

    fn check(code: Iced, base: Reg, register: Register, write: impl FnOnce(&mut Code)) {
        let mut bytes = Vec::new();
        write(&mut Code::new(&mut bytes, 0x1000));
        let mut decoder = Decoder::with_ip(64, &bytes, 0x1000, DecoderOptions::NONE);
        let insn = decoder.decode();
        assert_eq!((insn.code(), insn.len()), (code, bytes.len()));
        assert_eq!(insn.memory_base().number(), usize::from(base.number));
        assert_eq!(insn.memory_displacement64(), 0x120);
        assert_eq!(insn.op1_register(), register);
    }

    #[test]
    fn stores_are_what_a_disassembler_reads() {
        for base in [0, 1, 5, 7, 8, 13, 15].map(Reg::whole) {
            for vector in 0..16 {
                let register = Register::YMM0 + u32::from(vector);
                check(Iced::VEX_Vmovups_ymmm256_ymm, base, register, |code| {
                    code.store_ymm(base, 0x120, vector);
                });
            }
            for vector in 0..32 {
                let register = Register::ZMM0 + u32::from(vector);
                check(Iced::EVEX_Vmovups_zmmm512_k1z_zmm, base, register, |code| {
                    code.store_zmm(base, 0x120, vector);
                });
            }
            for mask in 0..8 {
                let register = Register::K0 + u32::from(mask);
                check(Iced::VEX_Kmovq_m64_kr, base, register, |code| {
                    code.store_mask(base, 0x120, mask);
                });
            }
        }
        for (base, index, power) in [(0, 1, 0), (4, 13, 3), (13, 12, 2), (5, 15, 1)] {
            let (base, index) = (Reg::whole(base), Reg::whole(index));
            let mut bytes = Vec::new();
            let place = super::super::mem(base, 0).plus_scaled(index, power);
            Code::new(&mut bytes, 0).lea(Reg::whole(9), place);
            let insn = Decoder::new(64, &bytes, DecoderOptions::NONE).decode();
            assert_eq!((insn.code(), insn.len()), (Iced::Lea_r64_m, bytes.len()));
            assert_eq!(insn.memory_base().number(), usize::from(base.number));
            assert_eq!(insn.memory_index().number(), usize::from(index.number));
            assert_eq!(insn.memory_index_scale(), 1 << power);
        }
        for (index, power) in [(0, 3), (5, 2), (12, 1), (13, 0)] {
            let mut bytes = Vec::new();
            let place = super::super::scaled(Reg::whole(index), power, -8);
            Code::new(&mut bytes, 0).lea(Reg::whole(9), place);
            let insn = Decoder::new(64, &bytes, DecoderOptions::NONE).decode();
            assert_eq!((insn.code(), insn.len()), (Iced::Lea_r64_m, bytes.len()));
            assert_eq!(insn.memory_base(), Register::None);
            assert_eq!(insn.memory_index().number(), usize::from(index));
            assert_eq!(insn.memory_index_scale(), 1 << power);
            assert_eq!(insn.memory_displacement64(), -8i64 as u64);
        }
        let mut bytes = Vec::new();
        Code::new(&mut bytes, 0).rdfsbase(Reg::whole(9));
        let insn = Decoder::new(64, &bytes, DecoderOptions::NONE).decode();
        assert_eq!(
            (insn.code(), insn.op0_register()),
            (Iced::Rdfsbase_r64, Register::R9)
        );
    }
}
