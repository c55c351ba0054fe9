//! Replacements for the few functions of an unwinder that must know of islands: see `linked::hooks`.

use super::stub::Layout;
pub use crate::hooks::{AskedCall, IslandLayout, LimitCall, Raise};
use crate::linked::hooks::Hooks;
pub use crate::linked::hooks::{ASKED, action, ask, backtrace, find_object, iterate_phdr, limits};
use hodo_isa::aarch64::asm::operand::{TPIDR_EL0, mem};
use hodo_isa::aarch64::asm::ops::Insns;
use hodo_isa::aarch64::asm::{BREAKPOINT, Code, Reach};
use hodo_isa::aarch64::regs::{BETWEEN, LINK, SP, ZERO};
use hodo_isa::buffer::Label;
use hodo_isa::linked::If;

impl Hooks for Code<'_> {
    const TEMP_0: u8 = 9;
    const ANSWER: u8 = BETWEEN[0];
    const ASK: u8 = BETWEEN[1];
    const TEMP_1: u8 = 10;
    const TEMP_2: u8 = 11;
    const ARG_0: u8 = 0;
    const ARG_1: u8 = 1;
    const ARG_2: u8 = 2;
    const ARG_3: u8 = 3;
    const ZERO: u8 = ZERO;
    const STACK: u8 = SP;
    const LINK: u8 = LINK;

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
        Insns::branch(self, condition, left, right, to);
    }

    fn jump(&mut self, to: Label) {
        self.b(to);
    }

    fn call(&mut self, to: Label) {
        self.bl(to);
    }

    fn jump_through(&mut self, register: u8) {
        self.br(register);
    }

    fn call_through(&mut self, register: u8) {
        Code::call(self, register);
    }

    fn call_far(&mut self, to: u64) {
        if self.jump_and_link(to, Reach::Page, LINK, LINK).is_err() {
            let far = self.jump_and_link(to, Reach::Any, LINK, LINK);
            assert!(far.is_ok(), "not the address of a function");
        }
    }

    fn ret(&mut self) {
        Insns::ret(self);
    }

    fn breakpoint(&mut self) {
        self.breakpoints(BREAKPOINT.len());
    }

    fn address(&mut self, rd: u8, of: u64) {
        let near = Code::address(self, rd, of, Reach::Page);
        debug_assert!(near.is_ok());
    }

    fn number(&mut self, rd: u8, value: u64) {
        self.li(rd, value);
    }

    fn block(&mut self, rd: u8, layout: &Layout) {
        self.mrs(rd, TPIDR_EL0);
        self.ldr(rd, mem(rd, layout.block.into()));
    }

    fn load(&mut self, rd: u8, base: u8, offset: i64) {
        self.ldr(rd, mem(base, offset));
    }

    fn store(&mut self, from: u8, base: u8, offset: i64) {
        self.str(from, mem(base, offset));
    }

    fn load_half(&mut self, rd: u8, base: u8, offset: i64) {
        self.ldr_w(rd, mem(base, offset));
    }

    fn store_half(&mut self, from: u8, base: u8, offset: i64) {
        self.str_w(from, mem(base, offset));
    }

    fn load_byte(&mut self, rd: u8, base: u8, offset: i64) {
        self.ldrb(rd, mem(base, offset));
    }

    fn add_number(&mut self, rd: u8, rs: u8, number: i64) {
        self.addi(rd, rs, number);
    }

    fn extend(&mut self, rd: u8) {
        self.sxtw(rd, rd);
    }

    fn add(&mut self, rd: u8, left: u8, right: u8) {
        Insns::add(self, rd, left, right);
    }

    fn sub(&mut self, rd: u8, left: u8, right: u8) {
        Insns::sub(self, rd, left, right);
    }

    fn or(&mut self, rd: u8, left: u8, right: u8) {
        Insns::orr(self, rd, left, right);
    }

    fn and_bit(&mut self, rd: u8, rs: u8, bit: u64) {
        self.andi(rd, rs, bit);
    }

    fn or_bit(&mut self, rd: u8, rs: u8, bit: u64) {
        self.orri(rd, rs, bit);
    }
}
