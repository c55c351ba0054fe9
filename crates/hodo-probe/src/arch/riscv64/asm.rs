//! The few instructions that detours are made of.

use alloc::vec::Vec;

pub(super) const ZERO: u32 = 0;
pub(super) const RA: u32 = 1;
pub(super) const SP: u32 = 2;
pub(super) const T0: u32 = 5;
pub(super) const T1: u32 = 6;

/// Code that is written for a known address.
pub(super) struct Asm {
    start: u64,
    pub bytes: Vec<u8>,
}

impl Asm {
    pub fn new(start: u64) -> Self {
        let bytes = Vec::new();
        Self { start, bytes }
    }

    pub fn here(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    pub fn word(&mut self, word: u32) {
        self.bytes.extend(word.to_le_bytes());
    }

    fn i(&mut self, opcode: u32, f3: u32, rd: u32, rs1: u32, value: i32) {
        let value = value.cast_unsigned() & 0xFFF;
        self.word(value << 20 | rs1 << 15 | f3 << 12 | rd << 7 | opcode);
    }

    /// Adds a constant of 12 bits.
    pub fn addi(&mut self, rd: u32, rs1: u32, value: i32) {
        self.i(0x13, 0, rd, rs1, value);
    }

    pub fn andi(&mut self, rd: u32, rs1: u32, value: i32) {
        self.i(0x13, 7, rd, rs1, value);
    }

    /// Loads eight bytes.
    pub fn ld(&mut self, rd: u32, distance: i32, base: u32) {
        self.i(0x03, 3, rd, base, distance);
    }

    /// Stores eight bytes.
    pub fn sd(&mut self, source: u32, distance: i32, base: u32) {
        let d = distance.cast_unsigned();
        let word = (d >> 5 & 0x7F) << 25 | source << 20 | base << 15 | 3 << 12 | (d & 0x1F) << 7;
        self.word(word | 0x23);
    }

    pub fn add(&mut self, rd: u32, rs1: u32, rs2: u32) {
        self.word(rs2 << 20 | rs1 << 15 | rd << 7 | 0x33);
    }

    pub fn sub(&mut self, rd: u32, rs1: u32, rs2: u32) {
        self.word(0x20 << 25 | rs2 << 20 | rs1 << 15 | rd << 7 | 0x33);
    }

    /// Adds a register to eight bytes of memory at once, and forgets what was there.
    pub fn amoadd(&mut self, source: u32, base: u32) {
        self.word(source << 20 | base << 15 | 3 << 12 | 0x2F);
    }

    /// The two parts of a distance from the next instruction.
    fn parts(&self, to: u64) -> Option<(u32, i32)> {
        let distance = i32::try_from(to.wrapping_sub(self.here()).cast_signed()).ok()?;
        let low = distance << 20 >> 20;
        let high = distance.wrapping_sub(low);
        // Just below 2 GiB the upper part does not fit.
        (i64::from(high) + i64::from(low) == i64::from(distance))
            .then_some((high.cast_unsigned(), low))
    }

    /// The upper part of an address into a register; the lower part is the result.
    pub fn auipc(&mut self, rd: u32, to: u64) -> Option<i32> {
        let (high, low) = self.parts(to)?;
        self.word(high | rd << 7 | 0x17);
        Some(low)
    }

    /// An address into a register.
    pub fn address(&mut self, rd: u32, to: u64) -> Option<()> {
        let low = self.auipc(rd, to)?;
        self.addi(rd, rd, low);
        Some(())
    }

    /// Eight bytes of memory at a constant address into a register.
    pub fn load(&mut self, rd: u32, from: u64) -> Option<()> {
        let low = self.auipc(rd, from)?;
        self.ld(rd, low, rd);
        Some(())
    }

    /// `jalr`.
    pub fn jalr(&mut self, rd: u32, distance: i32, base: u32) {
        self.i(0x67, 0, rd, base, distance);
    }

    /// `jal`, if it reaches.
    pub fn jal(&mut self, rd: u32, to: u64) -> Option<()> {
        let distance = i32::try_from(to.wrapping_sub(self.here()).cast_signed()).ok()?;
        self.word(jal(rd, distance)?);
        Some(())
    }

    /// A branch by the three bits of its condition.
    pub fn branch(&mut self, f3: u32, rs1: u32, rs2: u32, to: u64) {
        let d = to.wrapping_sub(self.here()) as u32;
        let upper = (d >> 12 & 1) << 31 | (d >> 5 & 0x3F) << 25;
        let lower = (d >> 1 & 0xF) << 8 | (d >> 11 & 1) << 7;
        self.word(upper | rs2 << 20 | rs1 << 15 | f3 << 12 | lower | 0x63);
    }

    /// This many bytes of breakpoints until an address.
    pub fn pad(&mut self, to: u64) {
        while self.here() < to {
            self.bytes.extend_from_slice(super::BREAKPOINT);
        }
    }
}

/// `jal`, if it reaches.
pub(super) fn jal(rd: u32, distance: i32) -> Option<u32> {
    (-1 << 20..1 << 20).contains(&distance).then(|| {
        let d = distance.cast_unsigned();
        (d >> 20 & 1) << 31
            | (d >> 1 & 0x3FF) << 21
            | (d >> 11 & 1) << 20
            | (d >> 12 & 0xFF) << 12
            | rd << 7
            | 0x6F
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::String;

    fn text(fill: impl FnOnce(&mut Asm)) -> String {
        let mut asm = Asm::new(0x10_0000);
        fill(&mut asm);
        hodo_isa::riscv64::text(&asm.bytes, 0x10_0000)
    }

    #[test]
    fn instructions_are_what_their_names_say() {
        assert_eq!(text(|asm| asm.addi(SP, SP, -256)), "addi sp, sp, -256");
        assert_eq!(text(|asm| asm.andi(T0, RA, 7)), "andi t0, ra, 7");
        assert_eq!(text(|asm| asm.ld(T0, -8, T1)), "ld t0, -8(t1)");
        assert_eq!(text(|asm| asm.sd(T0, -8, SP)), "sd t0, -8(sp)");
        assert_eq!(text(|asm| asm.sd(RA, 2024, SP)), "sd ra, 2024(sp)");
        assert_eq!(text(|asm| asm.add(T0, T1, SP)), "add t0, t1, sp");
        assert_eq!(text(|asm| asm.sub(T0, T1, SP)), "sub t0, t1, sp");
        assert_eq!(text(|asm| asm.amoadd(T0, T1)), "amoadd.d zero, t0, (t1)");
        assert_eq!(text(|asm| asm.jalr(ZERO, 0, RA)), "jalr zero, 0(ra)");
        assert_eq!(
            text(|asm| asm.branch(7, T0, T1, 0x10_0100)),
            "bgeu t0, t1, 0x100100"
        );
        assert_eq!(
            text(|asm| assert!(asm.jal(RA, 0xF_FF00).is_some())),
            "jal ra, 0xfff00"
        );
        assert_eq!(jal(0, 1 << 20), None);
        assert_eq!(
            text(|asm| assert_eq!(asm.auipc(T0, 0x10_1800), Some(-0x800))),
            "auipc t0, 0x2"
        );
        let mut asm = Asm::new(0);
        assert_eq!(asm.address(T0, 0x7FFF_F800), None);
        assert_eq!(asm.address(T0, 0x8000_0000), None);
        assert_eq!(asm.address(T0, 0x7FFF_F7FF), Some(()));
    }
}
