//! Replacements for the few functions of an unwinder that must know of islands: see `linked::hooks`.

use super::stub::Layout;
pub use crate::hooks::{AskedCall, IslandLayout, LimitCall, Raise};
use crate::linked::hooks::Hooks;
pub use crate::linked::hooks::{ASKED, action, ask, backtrace, find_object, iterate_phdr, limits};
use hodo_isa::buffer::Label;
use hodo_isa::linked::If;
use hodo_isa::riscv64::asm::ops::Insns;
use hodo_isa::riscv64::asm::{BREAKPOINT, Code, Reach};
use hodo_isa::riscv64::regs::{RA, SP, TP, ZERO};

impl Hooks for Code<'_> {
    const TEMP_0: u8 = 5;
    const ANSWER: u8 = 6;
    const ASK: u8 = 7;
    const TEMP_1: u8 = 28;
    const TEMP_2: u8 = 29;
    const ARG_0: u8 = 10;
    const ARG_1: u8 = 11;
    const ARG_2: u8 = 12;
    const ARG_3: u8 = 13;
    const ZERO: u8 = ZERO;
    const STACK: u8 = SP;
    const LINK: u8 = RA;

    fn label(&mut self) -> Label {
        (**self).label()
    }

    fn bind(&mut self, label: Label) {
        (**self).bind(label);
    }

    fn here(&self) -> u64 {
        (**self).here()
    }

    fn branch(&mut self, condition: If, left: u8, right: u8, to: Label) {
        Code::branch(self, condition, left, right, to);
    }

    fn jump(&mut self, to: Label) {
        self.jal(ZERO, to);
    }

    fn call(&mut self, to: Label) {
        self.jal(RA, to);
    }

    fn jump_through(&mut self, register: u8) {
        self.jr(register);
    }

    fn call_through(&mut self, register: u8) {
        Code::call(self, register);
    }

    fn call_far(&mut self, to: u64) {
        let near = self.jump_and_link(to, Reach::Pair, RA, RA);
        assert!(near.is_ok(), "a function that is too far away");
    }

    fn ret(&mut self) {
        self.jr(RA);
    }

    fn breakpoint(&mut self) {
        self.breakpoints(BREAKPOINT.len());
    }

    fn address(&mut self, rd: u8, of: u64) {
        let near = Code::address(self, rd, of, Reach::Pair);
        debug_assert!(near.is_ok());
    }

    fn number(&mut self, rd: u8, value: u64) {
        number(self, rd, value);
    }

    fn block(&mut self, rd: u8, layout: &Layout) {
        self.ld(rd, layout.block.into(), TP);
    }

    fn load(&mut self, rd: u8, base: u8, offset: i64) {
        self.ld(rd, offset, base);
    }

    fn store(&mut self, from: u8, base: u8, offset: i64) {
        self.sd(from, offset, base);
    }

    fn load_half(&mut self, rd: u8, base: u8, offset: i64) {
        self.lw(rd, offset, base);
    }

    fn store_half(&mut self, from: u8, base: u8, offset: i64) {
        self.sw(from, offset, base);
    }

    fn load_byte(&mut self, rd: u8, base: u8, offset: i64) {
        self.lbu(rd, offset, base);
    }

    fn add_number(&mut self, rd: u8, rs: u8, number: i64) {
        self.addi(rd, rs, number);
    }

    /// The convention has them extended.
    fn extend(&mut self, _: u8) {}

    fn add(&mut self, rd: u8, left: u8, right: u8) {
        Insns::add(self, rd, left, right);
    }

    fn sub(&mut self, rd: u8, left: u8, right: u8) {
        Insns::sub(self, rd, left, right);
    }

    fn or(&mut self, rd: u8, left: u8, right: u8) {
        Insns::or(self, rd, left, right);
    }

    fn and_bit(&mut self, rd: u8, rs: u8, bit: u64) {
        self.andi(rd, rs, bit.cast_signed());
    }

    fn or_bit(&mut self, rd: u8, rs: u8, bit: u64) {
        self.ori(rd, rs, bit.cast_signed());
    }
}

/// `rd` = a number.
fn number(code: &mut Code<'_>, rd: u8, value: u64) {
    if let Ok(value) = i32::try_from(value.cast_signed()) {
        return code.li(rd, value);
    }
    // Eleven bits at a time: no part is negative.
    let mut shift = 55;
    code.li(rd, (value >> shift) as i32);
    while shift > 0 {
        shift -= 11;
        code.slli(rd, rd, 11);
        code.addi(rd, rd, (value >> shift & 0x7FF) as i64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hodo_isa::riscv64::text;
    use std::string::ToString;

    #[test]
    fn numbers_have_all_bits() {
        for value in [1 << 31, 1 << 40, 1 << 63, 0x0123_4567_89AB_CDEF] {
            let mut bytes = alloc::vec::Vec::new();
            number(&mut Code::new(&mut bytes, 0), Code::TEMP_0, value);
            let mut result = 0u64;
            for word in bytes.chunks(4) {
                let text = text(word, 0).to_string();
                if text == "slli t0, t0, 0xb" {
                    result <<= 11;
                } else {
                    let digits = text.rsplit(' ').next().expect("a number");
                    result += digits.parse::<u64>().expect("a number");
                }
            }
            assert_eq!(result, value);
        }
    }
}
