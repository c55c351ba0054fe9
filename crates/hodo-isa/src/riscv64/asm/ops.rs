//! Single instructions, by their names.

use super::super::encode::{AMO, C_NOP, JALR, LOAD, LUI, OP, OP_IMM, OP_IMM_32, STORE};
use super::super::encode::{c_jr, c_ldsp, c_sdsp, i, r, rdtime, s, u};
use super::super::regs::{RA, ZERO};
use super::{Code, OutOfRange, Reach};

/// Single instructions, for both ways to write code.
pub trait Insns {
    /// Appends an instruction, given as 32 bits.
    fn word(&mut self, word: u32);

    /// `rd` = the 64 bits at `base` + `distance`.
    fn ld(&mut self, rd: u8, distance: i64, base: u8) {
        self.word(i(LOAD, 3, rd, base, distance));
    }

    /// `rd` = the 32 bits at `base` + `distance`, with their sign.
    fn lw(&mut self, rd: u8, distance: i64, base: u8) {
        self.word(i(LOAD, 2, rd, base, distance));
    }

    /// `rd` = the 16 bits at `base` + `distance`, with their sign.
    fn lh(&mut self, rd: u8, distance: i64, base: u8) {
        self.word(i(LOAD, 1, rd, base, distance));
    }

    /// `rd` = the byte at `base` + `distance`.
    fn lbu(&mut self, rd: u8, distance: i64, base: u8) {
        self.word(i(LOAD, 4, rd, base, distance));
    }

    /// The 64 bits at `base` + `distance` = `from`.
    fn sd(&mut self, from: u8, distance: i64, base: u8) {
        self.word(s(STORE, 3, from, base, distance));
    }

    /// The 32 bits at `base` + `distance` = the lower half of `from`.
    fn sw(&mut self, from: u8, distance: i64, base: u8) {
        self.word(s(STORE, 2, from, base, distance));
    }

    /// `rd` = `from` + `value`.
    fn addi(&mut self, rd: u8, from: u8, value: i64) {
        self.word(i(OP_IMM, 0, rd, from, value));
    }

    /// `rd` = `from` & `value`.
    fn andi(&mut self, rd: u8, from: u8, value: i64) {
        self.word(i(OP_IMM, 7, rd, from, value));
    }

    /// `rd` = `from` | `value`.
    fn ori(&mut self, rd: u8, from: u8, value: i64) {
        self.word(i(OP_IMM, 6, rd, from, value));
    }

    /// `rd` = `from` << `bits`.
    fn slli(&mut self, rd: u8, from: u8, bits: u8) {
        self.word(i(OP_IMM, 1, rd, from, bits.into()));
    }

    /// `rd` = `from` >> `bits`, unsigned.
    fn srli(&mut self, rd: u8, from: u8, bits: u8) {
        self.word(i(OP_IMM, 5, rd, from, bits.into()));
    }

    /// `rd` = `a` + `b`.
    fn add(&mut self, rd: u8, a: u8, b: u8) {
        self.word(r(OP, 0, 0, rd, a, b));
    }

    /// `rd` = `a` - `b`.
    fn sub(&mut self, rd: u8, a: u8, b: u8) {
        self.word(r(OP, 0, 0x20, rd, a, b));
    }

    /// `rd` = the 32 bits of `a` - `b` with their sign.
    fn subw(&mut self, rd: u8, a: u8, b: u8) {
        self.word(r(super::super::encode::OP_32, 0, 0x20, rd, a, b));
    }

    /// `rd` = `a` | `b`.
    fn or(&mut self, rd: u8, a: u8, b: u8) {
        self.word(r(OP, 6, 0, rd, a, b));
    }

    /// `rd` = the lower 32 bits of `from` with their sign.
    fn sext_w(&mut self, rd: u8, from: u8) {
        self.word(i(OP_IMM_32, 0, rd, from, 0));
    }

    /// `rd` = the memory at `base`; adds `from` to it.
    fn amoadd_d(&mut self, rd: u8, from: u8, base: u8) {
        self.word(r(AMO, 3, 0, rd, base, from));
    }

    /// `rd` = the memory at `base`; reserves it.
    fn lr_d(&mut self, rd: u8, base: u8) {
        self.word(r(AMO, 3, 0x02 << 2, rd, base, ZERO));
    }

    /// The same; later loads are performed after it.
    fn lr_d_aq(&mut self, rd: u8, base: u8) {
        self.word(r(AMO, 3, 0x02 << 2 | 2, rd, base, ZERO));
    }

    /// Stores `from` at `base` if it is still reserved; `rd` = 0 if that was done.
    fn sc_d(&mut self, rd: u8, from: u8, base: u8) {
        self.word(r(AMO, 3, 0x03 << 2, rd, base, from));
    }

    /// `rd` = the time counter.
    fn rdtime(&mut self, rd: u8) {
        self.word(rdtime(rd));
    }

    /// A jump to the address in a register.
    fn jr(&mut self, register: u8) {
        self.word(i(JALR, 0, ZERO, register, 0));
    }
}

impl Insns for Code<'_> {
    fn word(&mut self, word: u32) {
        Code::word(self, word);
    }
}

impl Code<'_> {
    /// `rd` = the 32 bits of a number with their sign.
    pub fn li(&mut self, rd: u8, value: i32) {
        let low = value << 20 >> 20;
        let high = value.wrapping_sub(low);
        if high == 0 {
            return self.addi(rd, ZERO, low.into());
        }
        self.word(u(LUI, rd, high.into()));
        if low != 0 {
            self.word(i(OP_IMM_32, 0, rd, rd, low.into()));
        }
    }

    /// A call of the address in a register.
    pub fn call(&mut self, register: u8) {
        self.word(i(JALR, 0, RA, register, 0));
    }

    /// `ld` from an address.
    ///
    /// # Errors
    /// If it is too far away.
    pub fn load_from(&mut self, rd: u8, address: u64) -> Result<(), OutOfRange> {
        let at = self.offset();
        self.address(rd, address, Reach::Pair)?;
        // The second instruction loads instead of adding.
        let low = self.from(at + 4);
        let low = u32::from_le_bytes([low[0], low[1], low[2], low[3]]);
        self.replace(at + 4, low & !0x707F | i(LOAD, 3, 0, 0, 0));
        Ok(())
    }

    /// `c.addi sp, …` by 16 up or down.
    pub fn move_stack(&mut self, up: bool) {
        self.half(if up { 0x0141 } else { 0x1141 });
    }

    /// Saves a register on the stack: [`KEEP`](crate::riscv64::KEEP) bytes.
    pub fn keep(&mut self, register: u8) {
        self.move_stack(false);
        self.half(c_sdsp(register));
    }

    /// Restores it.
    pub fn take_back(&mut self, register: u8) {
        self.half(c_ldsp(register));
        self.move_stack(true);
    }

    /// `c.nop`
    pub fn nop(&mut self) {
        self.half(C_NOP);
    }

    /// `c.jr`, to the address in a register.
    pub fn c_jr(&mut self, register: u8) {
        self.half(c_jr(register));
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::text;
    use super::*;
    use alloc::string::String;
    use alloc::vec::Vec;

    #[test]
    fn instructions_are_what_their_names_say() {
        let mut bytes = Vec::new();
        let mut code = Code::new(&mut bytes, 0);
        code.ld(10, -8, 4);
        code.lw(1, 64, 1);
        code.lh(10, 2, 1);
        code.lbu(10, 2047, 11);
        code.sd(1, 16, 6);
        code.sw(0, 4, 10);
        code.addi(2, 2, -16);
        code.ori(10, 10, 4);
        code.slli(10, 2, 18);
        code.srli(10, 10, 1);
        code.add(10, 2, 11);
        code.sub(10, 2, 11);
        code.subw(10, 2, 11);
        code.or(10, 2, 11);
        code.amoadd_d(10, 11, 12);
        code.lr_d(10, 12);
        code.sc_d(10, 11, 12);
        code.rdtime(1);
        code.jr(1);
        let texts: Vec<String> = bytes.chunks(4).map(|word| text(word, 0)).collect();
        assert_eq!(
            texts,
            [
                "ld a0, -8(tp)",
                "lw ra, 64(ra)",
                "lh a0, 2(ra)",
                "lbu a0, 2047(a1)",
                "sd ra, 16(t1)",
                "sw zero, 4(a0)",
                "addi sp, sp, -16",
                "ori a0, a0, 4",
                "slli a0, sp, 0x12",
                "srli a0, a0, 0x1",
                "add a0, sp, a1",
                "sub a0, sp, a1",
                "subw a0, sp, a1",
                "or a0, sp, a1",
                "amoadd.d a0, a1, (a2)",
                "lr.d a0, (a2)",
                "sc.d a0, a1, (a2)",
                "csrrs ra, time, zero",
                "jalr zero, 0(ra)",
            ]
        );
    }

    #[test]
    fn constants_are_made_of_two_parts() {
        for value in [
            0,
            1,
            2047,
            2048,
            -2048,
            -2049,
            0x12345,
            0x3F_FFFF,
            i32::MAX,
            i32::MIN,
        ] {
            let mut bytes = Vec::new();
            Code::new(&mut bytes, 0).li(10, value);
            let mut result = 0i32;
            for word in bytes.chunks(4) {
                let word = u32::from_le_bytes(word.try_into().expect("four bytes"));
                result = match word & 0x7F {
                    LUI => super::super::super::decode::operand::imm_u(word) as i32,
                    _ => result
                        .wrapping_add(super::super::super::decode::operand::imm_i(word) as i32),
                };
            }
            assert_eq!(result, value, "{value:#x}");
        }
    }
}
