//! Single instructions, by their names.

use super::super::encode::{
    ADD, ADDS, AND, ANDS, BFM, EOR, MOVK, MOVN, MOVZ, ORR, SBFM, SUB, SUBS, UBFM, WIDE,
    add_immediate, bitfield, bitmask, call, extract, hint, jump, logical_immediate, move_wide,
    three, two,
};
use super::super::regs::{LINK, ZERO};
use super::constant::moves;
use super::operand::{
    Access, CNTVCT_EL0, Cond, Extend, Mem, Rm, Rmw, Shift, Size, SystemRegister, Test,
};
use super::{If, Refer};
use crate::buffer::Label;

/// Operations on two registers, the last of which may be shifted.
macro_rules! registers {
    ($($does:literal $name:ident $half:ident $opcode:literal;)*) => { $(
        #[doc = concat!($does, ".")]
        fn $name(&mut self, rd: u8, rn: u8, rm: impl Into<Rm>) {
            self.word(WIDE | with_shift($opcode, rd, rn, rm.into()));
        }

        #[doc = concat!($does, ", of 32 bits.")]
        fn $half(&mut self, rd: u8, rn: u8, rm: impl Into<Rm>) {
            let rm = rm.into();
            debug_assert!(rm.by < 32);
            self.word(with_shift($opcode, rd, rn, rm));
        }
    )* };
}

/// Operations on two registers.
macro_rules! plain {
    ($($does:literal $name:ident $half:ident $opcode:literal;)*) => { $(
        #[doc = concat!($does, ".")]
        fn $name(&mut self, rd: u8, rn: u8, rm: u8) {
            self.word(WIDE | three($opcode, rd, rn, rm));
        }

        #[doc = concat!($does, ", of 32 bits.")]
        fn $half(&mut self, rd: u8, rn: u8, rm: u8) {
            self.word(three($opcode, rd, rn, rm));
        }
    )* };
}

/// Operations on a register and a bitmask.
macro_rules! masks {
    ($($does:literal $name:ident $half:ident $opcode:ident;)*) => { $(
        #[doc = concat!($does, ", which must be a [bitmask](super::is_mask).")]
        ///
        /// # Panics
        /// If it is none.
        fn $name(&mut self, rd: u8, rn: u8, mask: u64) {
            let mask = bitmask(mask, true).expect("a bitmask");
            self.word(WIDE | logical_immediate($opcode, rd, rn, mask));
        }

        #[doc = concat!($does, ", which must be a bitmask of 32 bits.")]
        ///
        /// # Panics
        /// If it is none.
        fn $half(&mut self, rd: u8, rn: u8, mask: u32) {
            let mask = bitmask(mask.into(), false).expect("a bitmask");
            self.word(logical_immediate($opcode, rd, rn, mask));
        }
    )* };
}

/// Loads and stores of one register: the opcode with an unsigned offset, and the power of two that is the size.
macro_rules! single {
    ($($does:literal $name:ident $opcode:literal $power:literal;)*) => { $(
        #[doc = concat!($does, ".")]
        ///
        /// # Panics
        /// If the offset does not fit; see [`near`](super::operand::near).
        fn $name(&mut self, register: u8, at: Mem) {
            self.word(at.single($opcode, $power, register));
        }
    )* };
}

/// Loads and stores of two registers: the opcode without an offset, and the power of two that is the size of each.
macro_rules! pairs {
    ($($does:literal $name:ident $opcode:literal $power:literal;)*) => { $(
        #[doc = concat!($does, ".")]
        ///
        /// # Panics
        /// If the offset does not fit: a multiple of the size, from -64 to 63.
        fn $name(&mut self, first: u8, second: u8, at: Mem) {
            self.word(at.pair($opcode, $power, (first, second)));
        }
    )* };
}

/// Selects one of two registers.
macro_rules! selects {
    ($($does:literal $name:ident $opcode:literal;)*) => { $(
        #[doc = concat!("`rd` = `rn` if the condition holds, otherwise ", $does, ".")]
        fn $name(&mut self, rd: u8, rn: u8, rm: u8, condition: Cond) {
            self.word(three($opcode, rd, rn, rm) | (condition as u32) << 12);
        }
    )* };
}

/// Instructions without operands.
macro_rules! fixed {
    ($($does:literal $name:ident $word:expr;)*) => { $(
        #[doc = $does]
        fn $name(&mut self) {
            self.word($word);
        }
    )* };
}

/// Single instructions, for both ways to write code. Register 31 is the zero register, unless the description says that
/// it is the stack pointer; the base of an access is never the zero register. Operands are in the order of the manual.
pub trait Insns {
    /// Appends an instruction.
    fn word(&mut self, word: u32);

    /// Appends a reference to a label.
    fn reference(&mut self, reference: Refer, to: Label);

    registers! {
        "`rd` = `rn` + `rm`" add add_w 0x0B00_0000;
        "`rd` = `rn` + `rm`; sets the flags" adds adds_w 0x2B00_0000;
        "`rd` = `rn` - `rm`" sub sub_w 0x4B00_0000;
        "`rd` = `rn` - `rm`; sets the flags" subs subs_w 0x6B00_0000;
        "`rd` = `rn` & `rm`" and and_w 0x0A00_0000;
        "`rd` = `rn` & `rm`; sets the flags" ands ands_w 0x6A00_0000;
        "`rd` = `rn` & !`rm`" bic bic_w 0x0A20_0000;
        "`rd` = `rn` & !`rm`; sets the flags" bics bics_w 0x6A20_0000;
        "`rd` = `rn` | `rm`" orr orr_w 0x2A00_0000;
        "`rd` = `rn` | !`rm`" orn orn_w 0x2A20_0000;
        "`rd` = `rn` ^ `rm`" eor eor_w 0x4A00_0000;
        "`rd` = `rn` ^ !`rm`" eon eon_w 0x4A20_0000;
    }

    plain! {
        "`rd` = `rn` + `rm` + the carry" adc adc_w 0x1A00_0000;
        "`rd` = `rn` - `rm` - 1 + the carry" sbc sbc_w 0x5A00_0000;
        "`rd` = `rn` / `rm`, without a sign; 0 if `rm` is 0" udiv udiv_w 0x1AC0_0800;
        "`rd` = `rn` / `rm`, with a sign; 0 if `rm` is 0" sdiv sdiv_w 0x1AC0_0C00;
        "`rd` = `rn` << `rm`, of which the lowest bits count" lsl lsl_w 0x1AC0_2000;
        "`rd` = `rn` >> `rm`, of which the lowest bits count, without a sign" lsr lsr_w 0x1AC0_2400;
        "`rd` = `rn` >> `rm`, of which the lowest bits count, with a sign" asr asr_w 0x1AC0_2800;
        "`rd` = `rn` rotated right by `rm`" ror ror_w 0x1AC0_2C00;
        "`rd` = `rn` × `rm`" mul mul_w 0x1B00_7C00;
    }

    masks! {
        "`rd`, which may be the stack pointer, = `rn` & a number" andi andi_w AND;
        "`rd`, which may be the stack pointer, = `rn` | a number" orri orri_w ORR;
        "`rd`, which may be the stack pointer, = `rn` ^ a number" eori eori_w EOR;
        "`rd` = `rn` & a number; sets the flags" andsi andsi_w ANDS;
    }

    single! {
        "`register` = 8 bytes" ldr 0xF940_0000 3;
        "`register` = 4 bytes" ldr_w 0xB940_0000 2;
        "`register` = 2 bytes" ldrh 0x7940_0000 1;
        "`register` = 1 byte" ldrb 0x3940_0000 0;
        "`register` = 4 bytes with their sign" ldrsw 0xB980_0000 2;
        "`register` = 2 bytes with their sign" ldrsh 0x7980_0000 1;
        "`register` = 1 byte with its sign" ldrsb 0x3980_0000 0;
        "8 bytes = `register`" str 0xF900_0000 3;
        "4 bytes = the lower half of `register`" str_w 0xB900_0000 2;
        "2 bytes = the lowest of `register`" strh 0x7900_0000 1;
        "1 byte = the lowest of `register`" strb 0x3900_0000 0;
        "The vector register = 16 bytes" ldr_q 0x3DC0_0000 4;
        "16 bytes = the vector register" str_q 0x3D80_0000 4;
        "The lower half of the vector register = 8 bytes; the rest becomes 0" ldr_d 0xFD40_0000 3;
        "8 bytes = the lower half of the vector register" str_d 0xFD00_0000 3;
    }

    pairs! {
        "Two registers = 8 bytes each" ldp 0xA840_0000 3;
        "8 bytes each = two registers" stp 0xA800_0000 3;
        "Two registers = 4 bytes each" ldp_w 0x2840_0000 2;
        "4 bytes each = the lower halves of two registers" stp_w 0x2800_0000 2;
        "Two vector registers = 16 bytes each" ldp_q 0xAC40_0000 4;
        "16 bytes each = two vector registers" stp_q 0xAC00_0000 4;
        "The lower halves of two vector registers = 8 bytes each" ldp_d 0x6C40_0000 3;
        "8 bytes each = the lower halves of two vector registers" stp_d 0x6C00_0000 3;
    }

    selects! {
        "`rm`" csel 0x9A80_0000;
        "`rm` + 1" csinc 0x9A80_0400;
        "!`rm`" csinv 0xDA80_0000;
        "-`rm`" csneg 0xDA80_0400;
    }

    fixed! {
        "`nop`" nop hint(0);
        "A hint that this thread waits for another one." yield_ hint(1);
        "Removes the signature from the link register's address." xpaclri hint(7);
        "Signs the link register's address with key A and the stack pointer." paciasp hint(25);
        "Authenticates the link register's address with key A and the stack pointer." autiasp hint(29);
        "Signs the link register's address with key B and the stack pointer." pacibsp hint(27);
        "Authenticates the link register's address with key B and the stack pointer." autibsp hint(31);
        "A target of calls through registers, and of jumps through `x16` and `x17`." bti_c hint(34);
        "A target of jumps through registers." bti_j hint(36);
        "A target of jumps and calls through registers." bti_jc hint(38);
        "Authenticates the link register's address with key A, and returns." retaa 0xD65F_0BFF;
        "Authenticates the link register's address with key B, and returns." retab 0xD65F_0FFF;
        "Gives up what exclusive loads have reserved." clrex 0xD503_3F5F;
        "All accesses before this are performed before those after it." dmb_ish 0xD503_3BBF;
        "Loads before this are performed before accesses after it." dmb_ishld 0xD503_39BF;
        "Stores before this are performed before stores after it." dmb_ishst 0xD503_3ABF;
        "Nothing after this begins before all accesses before it are complete." dsb_ish 0xD503_3B9F;
        "What follows is fetched again, and system registers before it count." isb 0xD503_3FDF;
    }

    /// `rd` = `rn` + `value`. Both may be the stack pointer. The number has 12 bits besides its sign, or they are
    /// followed by 12 zeros; see [`small`](super::small).
    ///
    /// # Panics
    /// If it does not.
    fn addi(&mut self, rd: u8, rn: u8, value: i64) {
        self.word(WIDE | sum((ADD, SUB), rd, rn, value));
    }

    /// The same, of 32 bits.
    ///
    /// # Panics
    /// If the number does not fit.
    fn addi_w(&mut self, rd: u8, rn: u8, value: i64) {
        self.word(sum((ADD, SUB), rd, rn, value));
    }

    /// `rd` = `rn` + `value`, sets the flags. `rn` may be the stack pointer.
    ///
    /// # Panics
    /// If the number does not fit, as in [`addi`](Self::addi).
    fn addsi(&mut self, rd: u8, rn: u8, value: i64) {
        self.word(WIDE | sum((ADDS, SUBS), rd, rn, value));
    }

    /// `rd` = `rn` - `value`, sets the flags. `rn` may be the stack pointer.
    ///
    /// # Panics
    /// If the number does not fit, as in [`addi`](Self::addi).
    fn subsi(&mut self, rd: u8, rn: u8, value: i64) {
        self.word(WIDE | difference(rd, rn, value));
    }

    /// Compares a register, which may be the stack pointer, with a number.
    ///
    /// # Panics
    /// If the number does not fit, as in [`addi`](Self::addi).
    fn cmpi(&mut self, rn: u8, value: i64) {
        self.subsi(ZERO, rn, value);
    }

    /// Compares the lower 32 bits of a register with a number.
    ///
    /// # Panics
    /// If the number does not fit, as in [`addi`](Self::addi).
    fn cmpi_w(&mut self, rn: u8, value: i64) {
        self.word(difference(ZERO, rn, value));
    }

    /// Compares two registers.
    fn cmp(&mut self, rn: u8, rm: impl Into<Rm>) {
        self.subs(ZERO, rn, rm);
    }

    /// Compares the lower 32 bits of two registers.
    fn cmp_w(&mut self, rn: u8, rm: impl Into<Rm>) {
        self.subs_w(ZERO, rn, rm);
    }

    /// Sets the flags by the bits that two registers have in common.
    fn tst(&mut self, rn: u8, rm: impl Into<Rm>) {
        self.ands(ZERO, rn, rm);
    }

    /// Sets the flags by the bits that a register has in common with a bitmask.
    ///
    /// # Panics
    /// If it is none.
    fn tsti(&mut self, rn: u8, mask: u64) {
        self.andsi(ZERO, rn, mask);
    }

    /// Compares two registers if the condition holds; otherwise sets the flags to N, Z, C and V as four bits.
    fn ccmp(&mut self, rn: u8, rm: u8, flags: u8, condition: Cond) {
        let flags = flags & 15;
        self.word(three(0xFA40_0000, flags, rn, rm) | (condition as u32) << 12);
    }

    /// The same with a number below 32 in place of the second register.
    fn ccmpi(&mut self, rn: u8, number: u8, flags: u8, condition: Cond) {
        debug_assert!(number < 32);
        let (number, flags) = (number & 31, flags & 15);
        self.word(three(0xFA40_0800, flags, rn, number) | (condition as u32) << 12);
    }

    /// `rd` = `rn` + the extended `rm` × 2 to a power of at most 4. `rd` and `rn` may be the stack pointer.
    fn add_extended(&mut self, rd: u8, rn: u8, rm: u8, (extend, power): (Extend, u8)) {
        self.word(0x8B20_0000 | extension(rd, rn, rm, extend, power));
    }

    /// `rd` = `rn` - the extended `rm` × 2 to a power of at most 4. `rd` and `rn` may be the stack pointer.
    fn sub_extended(&mut self, rd: u8, rn: u8, rm: u8, (extend, power): (Extend, u8)) {
        self.word(0xCB20_0000 | extension(rd, rn, rm, extend, power));
    }

    /// Compares `rn`, which may be the stack pointer, with the extended `rm` × 2 to a power of at most 4.
    fn cmp_extended(&mut self, rn: u8, rm: u8, (extend, power): (Extend, u8)) {
        self.word(0xEB20_0000 | extension(ZERO, rn, rm, extend, power));
    }

    /// `rd` = `rm`.
    fn mov(&mut self, rd: u8, rm: u8) {
        self.orr(rd, ZERO, rm);
    }

    /// `rd` = the lower 32 bits of `rm`.
    fn mov_w(&mut self, rd: u8, rm: u8) {
        self.orr_w(rd, ZERO, rm);
    }

    /// `rd` = `rn`, of which one is the stack pointer.
    fn mov_sp(&mut self, rd: u8, rn: u8) {
        self.addi(rd, rn, 0);
    }

    /// `rd` = !`rm`.
    fn mvn(&mut self, rd: u8, rm: impl Into<Rm>) {
        self.orn(rd, ZERO, rm);
    }

    /// `rd` = -`rm`.
    fn neg(&mut self, rd: u8, rm: impl Into<Rm>) {
        self.sub(rd, ZERO, rm);
    }

    /// `rd` = 16 bits, shifted left by `part` × 16 bits.
    fn movz(&mut self, rd: u8, bits: u16, part: u32) {
        self.word(WIDE | move_wide(MOVZ, rd, bits, part));
    }

    /// `rd` = the opposite of that.
    fn movn(&mut self, rd: u8, bits: u16, part: u32) {
        self.word(WIDE | move_wide(MOVN, rd, bits, part));
    }

    /// Replaces 16 bits of `rd`.
    fn movk(&mut self, rd: u8, bits: u16, part: u32) {
        self.word(WIDE | move_wide(MOVK, rd, bits, part));
    }

    /// Puts a number into a register, in one to four instructions.
    fn li(&mut self, rd: u8, value: u64) {
        for word in moves(rd, value).words() {
            self.word(*word);
        }
    }

    /// `rd` = `rn` << `by`.
    fn lsli(&mut self, rd: u8, rn: u8, by: u8) {
        self.ubfiz(rd, rn, by, 64 - by);
    }

    /// `rd` = `rn` >> `by`, without a sign.
    fn lsri(&mut self, rd: u8, rn: u8, by: u8) {
        self.ubfx(rd, rn, by, 64 - by);
    }

    /// `rd` = `rn` >> `by`, with a sign.
    fn asri(&mut self, rd: u8, rn: u8, by: u8) {
        self.sbfx(rd, rn, by, 64 - by);
    }

    /// `rd` = `rn` rotated right by `by`.
    fn rori(&mut self, rd: u8, rn: u8, by: u8) {
        self.extr(rd, rn, rn, by);
    }

    /// `rd` = the 32 bits of `rn` << `by`.
    fn lsli_w(&mut self, rd: u8, rn: u8, by: u8) {
        debug_assert!(by < 32);
        self.word(bitfield(UBFM, false, (rd, rn), (32 - by) & 31, 31 - by));
    }

    /// `rd` = the lower 32 bits of `rn` >> `by`, without a sign.
    fn lsri_w(&mut self, rd: u8, rn: u8, by: u8) {
        debug_assert!(by < 32);
        self.word(bitfield(UBFM, false, (rd, rn), by, 31));
    }

    /// `rd` = `count` bits of `rn` from `low` on, without a sign.
    fn ubfx(&mut self, rd: u8, rn: u8, low: u8, count: u8) {
        self.word(bitfield(UBFM, true, (rd, rn), low, last(low, count)));
    }

    /// `rd` = `count` bits of `rn` from `low` on, with a sign.
    fn sbfx(&mut self, rd: u8, rn: u8, low: u8, count: u8) {
        self.word(bitfield(SBFM, true, (rd, rn), low, last(low, count)));
    }

    /// The lowest `count` bits of `rd` = those of `rn` from `low` on; the others stay.
    fn bfxil(&mut self, rd: u8, rn: u8, low: u8, count: u8) {
        self.word(bitfield(BFM, true, (rd, rn), low, last(low, count)));
    }

    /// `rd` = the lowest `count` bits of `rn`, without a sign, << `low`.
    fn ubfiz(&mut self, rd: u8, rn: u8, low: u8, count: u8) {
        let last = last(0, count);
        self.word(bitfield(UBFM, true, (rd, rn), upward(low), last));
    }

    /// `rd` = the lowest `count` bits of `rn`, with a sign, << `low`.
    fn sbfiz(&mut self, rd: u8, rn: u8, low: u8, count: u8) {
        let last = last(0, count);
        self.word(bitfield(SBFM, true, (rd, rn), upward(low), last));
    }

    /// `count` bits of `rd` from `low` on = the lowest bits of `rn`; the others stay.
    fn bfi(&mut self, rd: u8, rn: u8, low: u8, count: u8) {
        let last = last(0, count);
        self.word(bitfield(BFM, true, (rd, rn), upward(low), last));
    }

    /// `rd` = the lowest byte of `rn` with its sign.
    fn sxtb(&mut self, rd: u8, rn: u8) {
        self.sbfx(rd, rn, 0, 8);
    }

    /// `rd` = the lowest 16 bits of `rn` with their sign.
    fn sxth(&mut self, rd: u8, rn: u8) {
        self.sbfx(rd, rn, 0, 16);
    }

    /// `rd` = the lower 32 bits of `rn` with their sign.
    fn sxtw(&mut self, rd: u8, rn: u8) {
        self.sbfx(rd, rn, 0, 32);
    }

    /// `rd` = 64 bits of `rn` and, below it, `rm`, from bit `low` of `rm` on.
    fn extr(&mut self, rd: u8, rn: u8, rm: u8, low: u8) {
        debug_assert!(low < 64);
        self.word(extract(true, (rd, rn, rm), low));
    }

    /// `rd` = `ra` + `rn` × `rm`.
    fn madd(&mut self, rd: u8, rn: u8, rm: u8, ra: u8) {
        self.word(three(0x9B00_0000, rd, rn, rm) | u32::from(ra) << 10);
    }

    /// `rd` = `ra` - `rn` × `rm`.
    fn msub(&mut self, rd: u8, rn: u8, rm: u8, ra: u8) {
        self.word(three(0x9B00_8000, rd, rn, rm) | u32::from(ra) << 10);
    }

    /// `rd` = the upper half of `rn` × `rm`, without a sign.
    fn umulh(&mut self, rd: u8, rn: u8, rm: u8) {
        self.word(three(0x9BC0_7C00, rd, rn, rm));
    }

    /// `rd` = the upper half of `rn` × `rm`, with a sign.
    fn smulh(&mut self, rd: u8, rn: u8, rm: u8) {
        self.word(three(0x9B40_7C00, rd, rn, rm));
    }

    /// `rd` = the number of zeros above the highest set bit of `rn`.
    fn clz(&mut self, rd: u8, rn: u8) {
        self.word(two(0xDAC0_1000, rd, rn));
    }

    /// `rd` = the bits of `rn` in reverse order.
    fn rbit(&mut self, rd: u8, rn: u8) {
        self.word(two(0xDAC0_0000, rd, rn));
    }

    /// `rd` = the bytes of `rn` in reverse order.
    fn rev(&mut self, rd: u8, rn: u8) {
        self.word(two(0xDAC0_0C00, rd, rn));
    }

    /// `rd` = 1 if the condition holds, otherwise 0.
    fn cset(&mut self, rd: u8, condition: Cond) {
        self.csinc(rd, ZERO, ZERO, condition.not());
    }

    /// `rd` = all ones if the condition holds, otherwise 0.
    fn csetm(&mut self, rd: u8, condition: Cond) {
        self.csinv(rd, ZERO, ZERO, condition.not());
    }

    /// `rd` = `rn` + 1 if the condition holds, otherwise `rn`.
    fn cinc(&mut self, rd: u8, rn: u8, condition: Cond) {
        self.csinc(rd, rn, rn, condition.not());
    }

    /// `rd` = the memory at `base`; does something with it and `from`.
    fn rmw(&mut self, what: Rmw, access: impl Into<Access>, from: u8, rd: u8, base: u8) {
        let Access {
            size,
            acquires,
            releases,
        } = access.into();
        let order = u32::from(acquires) << 23 | u32::from(releases) << 22;
        let opcode = 0x3820_0000 | size.bits() | order | (what as u32) << 12;
        self.word(three(opcode, rd, base, from));
    }

    /// `rd` = the memory at `base`; adds `from` to it.
    fn ldadd(&mut self, access: impl Into<Access>, from: u8, rd: u8, base: u8) {
        self.rmw(Rmw::Add, access, from, rd, base);
    }

    /// `rd` = the memory at `base`; sets the bits of `from` in it.
    fn ldset(&mut self, access: impl Into<Access>, from: u8, rd: u8, base: u8) {
        self.rmw(Rmw::Set, access, from, rd, base);
    }

    /// `rd` = the memory at `base`; clears the bits of `from` in it.
    fn ldclr(&mut self, access: impl Into<Access>, from: u8, rd: u8, base: u8) {
        self.rmw(Rmw::Clear, access, from, rd, base);
    }

    /// `rd` = the memory at `base`; stores `from` there.
    fn swp(&mut self, access: impl Into<Access>, from: u8, rd: u8, base: u8) {
        self.rmw(Rmw::Swap, access, from, rd, base);
    }

    /// Stores `from` at `base` if `expected` is there; `expected` = what was there.
    fn cas(&mut self, access: impl Into<Access>, expected: u8, from: u8, base: u8) {
        let Access {
            size,
            acquires,
            releases,
        } = access.into();
        let order = u32::from(acquires) << 22 | u32::from(releases) << 15;
        self.word(three(
            0x08A0_7C00 | size.bits() | order,
            from,
            base,
            expected,
        ));
    }

    /// The same with pairs of whole registers, each the given one and the next; the first is even, and `base` is a
    /// multiple of 16.
    fn casp(&mut self, access: impl Into<Access>, expected: u8, from: u8, base: u8) {
        let Access {
            acquires, releases, ..
        } = access.into();
        debug_assert!(expected & 1 == 0 && from & 1 == 0);
        let order = u32::from(acquires) << 22 | u32::from(releases) << 15;
        self.word(three(0x4820_7C00 | order, from, base, expected));
    }

    /// `rd` = the memory at `base`; reserves it.
    fn ldxr(&mut self, access: impl Into<Access>, rd: u8, base: u8) {
        let access = access.into();
        let order = u32::from(access.acquires) << 15;
        self.word(two(0x085F_7C00 | access.size.bits() | order, rd, base));
    }

    /// Stores `from` at `base` if it is still reserved; `status` = 0 if that was done, otherwise 1.
    fn stxr(&mut self, access: impl Into<Access>, status: u8, from: u8, base: u8) {
        let access = access.into();
        let order = u32::from(access.releases) << 15;
        let opcode = 0x0800_7C00 | access.size.bits() | order;
        self.word(three(opcode, from, base, status));
    }

    /// Two registers = the 16 bytes at `base`; reserves them.
    fn ldxp(&mut self, access: impl Into<Access>, (first, second): (u8, u8), base: u8) {
        let order = u32::from(access.into().acquires) << 15;
        self.word(two(0xC87F_0000 | order, first, base) | u32::from(second) << 10);
    }

    /// Stores two registers at `base` if it is still reserved; `status` = 0 if that was done, otherwise 1.
    fn stxp(&mut self, access: impl Into<Access>, status: u8, (first, second): (u8, u8), base: u8) {
        let order = u32::from(access.into().releases) << 15;
        let opcode = 0xC820_0000 | order | u32::from(second) << 10;
        self.word(three(opcode, first, base, status));
    }

    /// `rd` = the memory at `base`; accesses after it are performed after it.
    fn ldar(&mut self, size: Size, rd: u8, base: u8) {
        self.word(two(0x08DF_FC00 | size.bits(), rd, base));
    }

    /// The memory at `base` = `from`; accesses before it are performed before it.
    fn stlr(&mut self, size: Size, from: u8, base: u8) {
        self.word(two(0x089F_FC00 | size.bits(), from, base));
    }

    /// `rd` = a system register.
    fn mrs(&mut self, rd: u8, from: SystemRegister) {
        self.word(0xD520_0000 | from.0 | u32::from(rd));
    }

    /// A system register = `from`.
    fn msr(&mut self, to: SystemRegister, from: u8) {
        self.word(0xD500_0000 | to.0 | u32::from(from));
    }

    /// `rd` = the time counter. It may be read before earlier instructions are complete.
    fn rdtime(&mut self, rd: u8) {
        self.mrs(rd, CNTVCT_EL0);
    }

    /// Enters the kernel. Linux ignores the number.
    fn svc(&mut self, number: u16) {
        self.word(0xD400_0001 | u32::from(number) << 5);
    }

    /// A breakpoint with a number.
    fn brk(&mut self, number: u16) {
        self.word(0xD420_0000 | u32::from(number) << 5);
    }

    /// A jump to the address in a register.
    fn br(&mut self, register: u8) {
        self.word(jump(register));
    }

    /// A call of the address in a register.
    fn blr(&mut self, register: u8) {
        self.word(call(register));
    }

    /// A return.
    fn ret(&mut self) {
        self.ret_by(LINK);
    }

    /// A return to the address in a register.
    fn ret_by(&mut self, register: u8) {
        self.word(two(0xD65F_0000, 0, register));
    }

    /// Stores before this become visible before stores after it.
    fn fence_stores(&mut self) {
        self.dmb_ishst();
    }

    /// Loads before this are performed before loads after it.
    fn fence_loads(&mut self) {
        self.dmb_ishld();
    }

    /// The scalable vector register = memory, whose offset counts such registers.
    ///
    /// # Panics
    /// If the offset does not fit: from -256 to 255.
    fn ldr_z(&mut self, register: u8, at: Mem) {
        self.word(at.vector(0x8580_4000, register));
    }

    /// Memory = the scalable vector register. The offset counts such registers.
    ///
    /// # Panics
    /// If the offset does not fit: from -256 to 255.
    fn str_z(&mut self, register: u8, at: Mem) {
        self.word(at.vector(0xE580_4000, register));
    }

    /// The predicate register = memory, whose offset counts such registers.
    ///
    /// # Panics
    /// If the offset does not fit: from -256 to 255.
    fn ldr_p(&mut self, register: u8, at: Mem) {
        self.word(at.vector(0x8580_0000, register & 15));
    }

    /// Memory = the predicate register. The offset counts such registers.
    ///
    /// # Panics
    /// If the offset does not fit: from -256 to 255.
    fn str_p(&mut self, register: u8, at: Mem) {
        self.word(at.vector(0xE580_0000, register & 15));
    }

    /// `rd` = the bytes of this many scalable vector registers, from -32 to 31.
    fn rdvl(&mut self, rd: u8, count: i8) {
        self.word(0x04BF_5000 | scalable(rd, 0, count));
    }

    /// `rd` = `rn` + the bytes of this many scalable vector registers, from -32 to 31. Both may be the stack pointer.
    fn addvl(&mut self, rd: u8, rn: u8, count: i8) {
        self.word(0x0420_5000 | scalable(rd, rn, count));
    }

    /// `rd` = `rn` + the bytes of this many predicate registers, from -32 to 31. Both may be the stack pointer.
    fn addpl(&mut self, rd: u8, rn: u8, count: i8) {
        self.word(0x0460_5000 | scalable(rd, rn, count));
    }

    /// The predicate register = the first-fault register.
    fn rdffr(&mut self, predicate: u8) {
        self.word(0x2519_F000 | u32::from(predicate & 15));
    }

    /// The first-fault register = the predicate register.
    fn wrffr(&mut self, predicate: u8) {
        self.word(0x2528_9000 | u32::from(predicate & 15) << 5);
    }

    /// A jump to a label within 128 MiB.
    fn b(&mut self, to: Label) {
        self.reference(Refer::Jump(ZERO), to);
    }

    /// A call of a label within 128 MiB.
    fn bl(&mut self, to: Label) {
        self.reference(Refer::Jump(LINK), to);
    }

    /// A branch to a label if the flags satisfy a condition.
    fn b_if(&mut self, condition: Cond, to: Label) {
        self.reference(Refer::Branch(Test::Flags(condition)), to);
    }

    /// A branch to a label if a register is 0.
    fn cbz(&mut self, register: u8, to: Label) {
        let wide = true;
        self.reference(Refer::Branch(Test::Zero { wide, register }), to);
    }

    /// A branch to a label if a register is not 0.
    fn cbnz(&mut self, register: u8, to: Label) {
        let wide = true;
        self.reference(Refer::Branch(Test::NotZero { wide, register }), to);
    }

    /// A branch to a label if the lower 32 bits of a register are 0.
    fn cbz_w(&mut self, register: u8, to: Label) {
        let wide = false;
        self.reference(Refer::Branch(Test::Zero { wide, register }), to);
    }

    /// A branch to a label if the lower 32 bits of a register are not 0.
    fn cbnz_w(&mut self, register: u8, to: Label) {
        let wide = false;
        self.reference(Refer::Branch(Test::NotZero { wide, register }), to);
    }

    /// A branch to a label if a bit of a register is clear.
    fn tbz(&mut self, register: u8, bit: u8, to: Label) {
        self.reference(Refer::Branch(Test::Clear(register, bit)), to);
    }

    /// A branch to a label if a bit of a register is set.
    fn tbnz(&mut self, register: u8, bit: u8, to: Label) {
        self.reference(Refer::Branch(Test::Set(register, bit)), to);
    }

    /// A branch to a label that compares two registers. The flags change, unless a register is compared with the zero
    /// register for being equal or not.
    fn branch(&mut self, condition: If, left: u8, right: u8, to: Label) {
        match (condition, right) {
            (If::Equal, ZERO) => return self.cbz(left, to),
            (If::NotEqual, ZERO) => return self.cbnz(left, to),
            _ => self.cmp(left, right),
        }
        self.b_if(condition.flags(), to);
    }

    /// `rd` = the address of a label.
    fn adr(&mut self, rd: u8, of: Label) {
        self.reference(Refer::Near(rd), of);
    }

    /// `rd` = the 8 bytes at a label within 1 MiB.
    fn ldr_label(&mut self, rd: u8, at: Label) {
        self.reference(Refer::Literal(rd), at);
    }
}

fn with_shift(opcode: u32, rd: u8, rn: u8, rm: Rm) -> u32 {
    debug_assert!(rm.by < 64 && (opcode & 1 << 24 == 0 || rm.shift != Shift::Rotated));
    three(opcode, rd, rn, rm.register) | (rm.shift as u32) << 22 | u32::from(rm.by) << 10
}

fn extension(rd: u8, rn: u8, rm: u8, extend: Extend, power: u8) -> u32 {
    debug_assert!(power <= 4);
    three(0, rd, rn, rm) | (extend as u32) << 13 | u32::from(power) << 10
}

/// The number and its shift in instructions that add one.
pub(super) const fn twelve(magnitude: u64) -> Option<(u32, bool)> {
    match magnitude {
        0..0x1000 => Some((magnitude as u32, false)),
        0x1000..0x100_0000 if magnitude & 0xFFF == 0 => Some((magnitude as u32 >> 12, true)),
        _ => None,
    }
}

/// Adds a number, by the first opcode, or by the second if it is negative.
fn sum((add, sub): (u32, u32), rd: u8, rn: u8, value: i64) -> u32 {
    let opcode = if value < 0 { sub } else { add };
    let (number, shifted) = twelve(value.unsigned_abs()).expect("a number that fits");
    add_immediate(opcode, rd, rn, number, shifted)
}

/// Subtracts a number, and sets the flags. Subtracting 0 and adding 0 set different ones.
fn difference(rd: u8, rn: u8, value: i64) -> u32 {
    let opcode = if value < 0 { ADDS } else { SUBS };
    let (number, shifted) = twelve(value.unsigned_abs()).expect("a number that fits");
    add_immediate(opcode, rd, rn, number, shifted)
}

/// The last bit of a field.
fn last(low: u8, count: u8) -> u8 {
    debug_assert!(count > 0 && low + count <= 64);
    low + count - 1
}

/// How far a field is rotated right that is moved up.
fn upward(low: u8) -> u8 {
    (64 - low) & 63
}

fn scalable(rd: u8, rn: u8, count: i8) -> u32 {
    debug_assert!((-32..32).contains(&count));
    three(0, rd, 0, rn) | (u32::from(count.cast_unsigned()) & 0x3F) << 5
}
