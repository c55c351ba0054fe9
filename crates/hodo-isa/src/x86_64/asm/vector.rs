//! Loads and stores of vector and mask registers, and the base of `fs`. Intel's manual, volume 2, sections 2.3 and 2.7.

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

    /// The highest bits of the elements of a vector register, one of the first sixteen, to a general register:
    /// `pmovmskb r32, xmm`, `vmovmskps r32, ymm`, or `vmovmskpd r32, ymm`. `size`: the bytes of an element, 1, 4 or 8.
    pub fn signs(&mut self, to: Reg, vector: u8, size: u8) {
        let registers = 0xC0 | (to.number & 7) << 3 | vector & 7;
        if size == 1 {
            let rex = 0x40 | to.number >> 3 << 2 | vector >> 3;
            return self.plain(&[0x66, rex, 0x0F, 0xD7, registers]);
        }
        let first = inverted(to.number, 3) << 7 | 0x40 | inverted(vector, 3) << 5 | 1;
        self.plain(&[0xC4, first, 0x7C | u8::from(size == 8), 0x50, registers]);
    }

    /// `vmovups [base + offset], vector`: the first `len` bytes, 16, 32 or 64, of which the offset is a multiple.
    pub fn save_vector(&mut self, base: Reg, offset: i8, vector: u8, len: u8) {
        self.vector(0x11, (base, offset), vector, len);
    }

    /// `vmovups vector, [base + offset]`: `len` bytes, 16, 32 or 64, of which the offset is a multiple; the rest
    /// becomes zero.
    pub fn load_vector(&mut self, vector: u8, base: Reg, offset: i8, len: u8) {
        self.vector(0x10, (base, offset), vector, len);
    }

    fn vector(&mut self, opcode: u8, (base, offset): (Reg, i8), vector: u8, len: u8) {
        let first = inverted(vector, 3) << 7 | 0x40 | inverted(base.number, 3) << 5 | 1;
        let long = len >> 5;
        let mut offset = offset;
        if vector < 16 && len < 64 {
            self.plain(&[0xC4, first, 0x78 | long << 2]);
        } else {
            let first = first | inverted(vector, 4) << 4;
            self.plain(&[0x62, first, 0x7C, 8 | long << 5]);
            // Here it counts vectors.
            offset /= len.cast_signed();
        }
        self.near(opcode, (base, offset), vector);
    }

    /// `vxorps xmm, xmm, xmm`, of one of the first sixteen registers: all of it becomes zero.
    pub fn clear_vector(&mut self, vector: u8) {
        let (high, low) = (inverted(vector, 3), vector & 7);
        let first = high << 7 | 0x40 | high << 5 | 1;
        let second = (!vector & 15) << 3;
        self.plain(&[0xC4, first, second, 0x57, 0xC0 | low << 3 | low]);
    }

    /// `kmovw [base + offset], mask`, or `kmovq` if it is `long`
    pub fn save_mask(&mut self, base: Reg, offset: i8, mask: u8, long: bool) {
        let first = 0xC1 | inverted(base.number, 3) << 5;
        self.plain(&[0xC4, first, 0x78 | u8::from(long) << 7]);
        self.near(0x91, (base, offset), mask);
    }

    /// `kxorw mask, mask, mask`: all of it becomes zero.
    pub fn clear_mask(&mut self, mask: u8) {
        self.plain(&[
            0xC5,
            0x84 | (!mask & 15) << 3,
            0x47,
            0xC0 | mask << 3 | mask,
        ]);
    }

    /// An opcode, and an operand at a base register plus one byte.
    fn near(&mut self, opcode: u8, (base, offset): (Reg, i8), field: u8) {
        let low = base.number & 7;
        self.plain(&[opcode, 0x40 | (field & 7) << 3 | low]);
        if low == 4 {
            self.plain(&[0x24]);
        }
        self.plain(&[offset.cast_unsigned()]);
    }

    /// `rdgsbase to`
    pub fn rdgsbase(&mut self, to: Reg) {
        let rex = 0x48 | to.number >> 3;
        self.plain(&[0xF3, rex, 0x0F, 0xAE, 0xC8 | to.number & 7]);
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

    use iced_x86::{Code as Iced, Decoder, DecoderOptions, Instruction, OpKind, Register};

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

    fn one(write: impl FnOnce(&mut Code)) -> (Instruction, usize) {
        let mut bytes = Vec::new();
        write(&mut Code::new(&mut bytes, 0x1000));
        let mut decoder = Decoder::with_ip(64, &bytes, 0x1000, DecoderOptions::NONE);
        (decoder.decode(), bytes.len())
    }

    /// The code of a store; that of a load is another form of the same instruction.
    fn check_near(
        write: impl FnOnce(&mut Code),
        (code, register): (Iced, Register),
        (base, offset): (Reg, i8),
        operand: u32,
    ) -> Instruction {
        let (insn, len) = one(write);
        assert_eq!((insn.mnemonic(), insn.len()), (code.mnemonic(), len));
        assert!(operand == 0 || insn.code() == code);
        assert_eq!(insn.op_register(operand), register);
        assert_eq!(insn.memory_base().number(), usize::from(base.number));
        assert_eq!(insn.memory_index(), Register::None);
        assert_eq!(insn.memory_displacement64().cast_signed(), offset.into());
        insn
    }

    #[test]
    fn registers_are_saved_and_cleared() {
        for (len, first, code) in [
            (
                16,
                Register::XMM0,
                [
                    Iced::VEX_Vmovups_xmmm128_xmm,
                    Iced::EVEX_Vmovups_xmmm128_k1z_xmm,
                ],
            ),
            (
                32,
                Register::YMM0,
                [
                    Iced::VEX_Vmovups_ymmm256_ymm,
                    Iced::EVEX_Vmovups_ymmm256_k1z_ymm,
                ],
            ),
            (64, Register::ZMM0, [Iced::EVEX_Vmovups_zmmm512_k1z_zmm; 2]),
        ] {
            for (vector, base) in (0..32).flat_map(|vector| (0..16).map(move |base| (vector, base)))
            {
                let code = code[usize::from(vector > 15)];
                let register = first + u32::from(vector);
                let at = (Reg::whole(base), -128);
                check_near(
                    |to| to.save_vector(at.0, at.1, vector, len),
                    (code, register),
                    at,
                    1,
                );
                let insn = check_near(
                    |to| to.load_vector(vector, at.0, at.1, len),
                    (code, register),
                    at,
                    0,
                );
                assert_eq!(insn.op1_kind(), OpKind::Memory);
            }
        }
        for mask in 0..8 {
            let register = Register::K0 + u32::from(mask);
            for base in 0..16 {
                let at = (Reg::whole(base), 64);
                for (long, code) in [
                    (false, Iced::VEX_Kmovw_m16_kr),
                    (true, Iced::VEX_Kmovq_m64_kr),
                ] {
                    let save = |to: &mut Code<'_>| to.save_mask(at.0, at.1, mask, long);
                    check_near(save, (code, register), at, 1);
                }
            }
            let (insn, len) = one(|code| code.clear_mask(mask));
            assert_eq!((insn.code(), insn.len()), (Iced::VEX_Kxorw_kr_kr_kr, len));
            assert!((0..3).all(|operand| insn.op_register(operand) == register));
        }
        let (insn, len) = one(|code| code.rdgsbase(Reg::whole(9)));
        assert_eq!((insn.code(), insn.len()), (Iced::Rdgsbase_r64, len));
        assert_eq!(insn.op0_register(), Register::R9);
        for vector in 0..16 {
            let (insn, len) = one(|code| code.clear_vector(vector));
            let register = Register::XMM0 + u32::from(vector);
            assert_eq!(
                (insn.code(), insn.len()),
                (Iced::VEX_Vxorps_xmm_xmm_xmmm128, len)
            );
            assert!((0..3).all(|operand| insn.op_register(operand) == register));
        }
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
