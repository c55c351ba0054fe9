//! The steps of detours in instructions.

use alloc::string::{String, ToString};

use super::super::stub::return_point;
use crate::detour::{Arithmetic, Bits, Comparison, Place, Register};
use crate::linked::asm::Assembler;
use crate::reserve::scratch::Preference;
use crate::riscv64::masm::{Asm, If, Insns as _, Label, Op, OutOfRange, small};
use crate::stub::Layout;
use hodo_isa::buffer::Laid;
use hodo_isa::linked::Relocated;
use hodo_isa::riscv64::asm::{Refer, SYSTEM_CALL, SYSTEM_CALL_NOP};
use hodo_isa::riscv64::isa::options;
use hodo_isa::riscv64::regs::{A7, RA, SP, T0, TP, ZERO};
use hodo_isa::riscv64::relocate::{self, relocate_apart};
use hodo_isa::riscv64::steps::FIXED;
use hodo_isa::{Signing, Via};

fn operation(how: Arithmetic, signed: bool) -> Op {
    match (how, signed) {
        (Arithmetic::Or, _) => Op::OR,
        (Arithmetic::Xor, _) => Op::XOR,
        (Arithmetic::And, _) => Op::AND,
        (Arithmetic::Add, _) => Op::ADD,
        (Arithmetic::Subtract, _) => Op::SUB,
        (Arithmetic::Multiply, _) => Op::MUL,
        (Arithmetic::ShiftLeft, _) => Op::SLL,
        (Arithmetic::ShiftRight, true) => Op::SRA,
        (Arithmetic::ShiftRight, false) => Op::SRL,
        (Arithmetic::Divide, true) => Op::DIV,
        (Arithmetic::Divide, false) => Op::DIVU,
        (Arithmetic::Remainder, true) => Op::REM,
        (Arithmetic::Remainder, false) => Op::REMU,
    }
}

impl Assembler for Asm {
    type Refer = Refer;

    const STACK: Register = SP;
    const ZERO: Register = ZERO;
    const LINK: Register = RA;
    const RESULT: Register = 10;
    const RUNTIME_LINK: Register = T0;
    /// Without the registers that functions preserve: the agent finds what detours tell it only in those that it
    /// stores.
    const PREFERENCE: Preference = Preference {
        // First those that short instructions can name.
        free: &[10, 11, 12, 13, 14, 15, 16, 17, 6, 7, 28, 29, 30, 31, 5, RA],
        // First those that events seldom contain.
        saved: &[6, 7, 28, 29, 30, 31, 5, 17, 16, 15, 14, 13, 12, 11, 10, RA],
    };
    const FIXED: u32 = FIXED;
    const FLAGS: bool = false;
    const SYSTEM_CALL: [u8; 4] = SYSTEM_CALL;
    const SYSTEM_CALL_NOP: [u8; 4] = SYSTEM_CALL_NOP;
    const EXIT: u64 = relocate::EXIT;

    fn counts(_: &Layout) -> usize {
        2
    }

    fn lay(self, start: u64) -> Result<Laid, OutOfRange> {
        Asm::lay(self, start)
    }

    fn moved(
        place: &Place<'_>,
        code: &[u8],
        to: u64,
        gaps: &[(usize, usize)],
    ) -> Result<Relocated, String> {
        let options = options(place.dead, place.pads);
        relocate_apart(code, place.from, to, &options, gaps).map_err(|error| error.to_string())
    }

    fn leave(&mut self, to: u64, back: Via) -> Result<(), String> {
        match back {
            Via::Nothing => Err("no register is free for the jump back".to_string()),
            Via::Free(register) | Via::Kept(register) => {
                self.far(to, register, ZERO);
                Ok(())
            }
        }
    }

    fn branch(&mut self, condition: If, left: Register, right: Register, to: Label) {
        Asm::branch(self, condition, left, right, to);
    }

    fn jump(&mut self, to: Label) {
        Asm::jump(self, to);
    }

    fn call(&mut self, to: Label) {
        Asm::call(self, RA, to);
    }

    fn ret(&mut self) {
        Asm::ret(self);
    }

    fn address(&mut self, rd: Register, of: Label) {
        Asm::address(self, rd, of);
    }

    fn call_far(&mut self, to: u64) {
        self.far(to, RA, RA);
    }

    fn call_runtime(&mut self, to: u64) {
        self.far(to, T0, T0);
    }

    fn authenticate(&mut self, _: Signing) {}

    fn sign(&mut self, _: Signing) {}

    fn return_point(&mut self, layout: &Layout) {
        self.raw(&return_point(layout, RA).to_le_bytes());
    }

    fn if_return_point(
        &mut self,
        layout: &Layout,
        (found, mark): (Register, Register),
        to: Label,
    ) -> Label {
        let load = self.load_signed_half(found, RA, 2);
        let half = return_point(layout, ZERO).cast_signed() >> 16;
        Asm::li(self, mark, i64::from(half).cast_unsigned());
        Asm::branch(self, If::Equal, found, mark, to);
        load
    }

    fn li(&mut self, rd: Register, number: u64) {
        Asm::li(self, rd, number);
    }

    fn mv(&mut self, rd: Register, rs: Register) {
        Asm::mv(self, rd, rs);
    }

    fn add(&mut self, rd: Register, left: Register, number: i64) {
        Asm::add(self, rd, left, number);
    }

    fn add_to(&mut self, rd: Register, number: i64, scratch: Register) {
        Asm::add_to(self, rd, number, scratch);
    }

    fn add_stack(&mut self, rd: Register, rs: Register) {
        Asm::op(self, Op::ADD, rd, rs, SP);
    }

    fn stack(&mut self, by: i64, scratch: Register) {
        if small(by) {
            return Asm::stack(self, by);
        }
        Asm::li(self, scratch, by.cast_unsigned());
        Asm::op(self, Op::ADD, SP, SP, scratch);
    }

    fn small(number: i64) -> bool {
        small(number)
    }

    fn near(_: u8, distance: i64) -> bool {
        small(distance)
    }

    fn load(&mut self, size: u8, rd: Register, base: Register, offset: i64) -> Label {
        Asm::load(self, size, rd, base, offset)
    }

    fn store(&mut self, size: u8, from: Register, base: Register, offset: i64, scratch: Register) {
        Asm::store(self, size, from, base, offset, scratch);
    }

    fn fence_stores(&mut self) {
        Asm::fence_stores(self);
    }

    fn fence_loads(&mut self) {
        Asm::fence_loads(self);
    }

    fn fetch_add(
        &mut self,
        _: &Layout,
        number: i64,
        (old, _): (Register, Register),
        base: Register,
    ) {
        Asm::li(self, old, number.cast_unsigned());
        self.amoadd_d(old, old, base);
    }

    fn add_at(
        &mut self,
        _: &Layout,
        number: i64,
        (scratch, _): (Register, Register),
        base: Register,
    ) {
        Asm::li(self, scratch, number.cast_unsigned());
        self.amoadd_d(ZERO, scratch, base);
    }

    fn add_word_at(
        &mut self,
        _: &Layout,
        word: i64,
        (scratch, _): (Register, Register),
        base: Register,
    ) {
        Asm::ld(self, scratch, word, SP);
        self.amoadd_d(ZERO, scratch, base);
    }

    fn take(
        &mut self,
        layout: &Layout,
        size: u32,
        (at, end): (Register, Register),
        (block, spare): (Register, Register),
    ) {
        let cursor = match layout.cursor {
            0 => block,
            offset => {
                Asm::add(self, spare, block, offset.into());
                spare
            }
        };
        Asm::li(self, end, size.into());
        self.amoadd_d(at, end, cursor);
        Asm::op(self, Op::ADD, end, end, at);
    }

    fn claim(&mut self, base: Register, new: Register, found: Register, to: Label) {
        let again = self.here();
        self.lr_d_aq(found, base);
        Asm::branch(self, If::NotEqual, found, ZERO, to);
        self.sc_d(found, new, base);
        Asm::branch(self, If::NotEqual, found, ZERO, again);
    }

    fn block(&mut self, rd: Register, layout: &Layout) {
        Asm::ld(self, rd, layout.block.into(), TP);
    }

    fn block_again(&mut self, _: Register, _: &Layout) {}

    fn thread_pointer(&mut self, rd: Register) {
        Asm::mv(self, rd, TP);
    }

    fn rdtime(&mut self, rd: Register) {
        hodo_isa::riscv64::asm::ops::Insns::rdtime(self, rd);
    }

    fn upper_half(&mut self, rd: Register, number: u32, scratch: Register) {
        self.op_imm(Op::SLL, rd, rd, 32);
        self.op_imm(Op::SRL, rd, rd, 32);
        Asm::li(self, scratch, number.into());
        self.op_imm(Op::SLL, scratch, scratch, 32);
        Asm::op(self, Op::OR, rd, rd, scratch);
    }

    fn keep_flags(&mut self, _: Register, _: i64) {}

    fn restore_flags(&mut self, _: Register, _: i64) {}

    fn unless_call(&mut self, number: u32, scratch: Register, to: Label) {
        Asm::li(self, scratch, number.into());
        Asm::branch(self, If::NotEqual, scratch, A7, to);
    }

    fn in_instruction(how: Arithmetic, number: i64) -> Option<i64> {
        let number = match how {
            Arithmetic::ShiftLeft | Arithmetic::ShiftRight => number & 63,
            Arithmetic::Subtract => number.wrapping_neg(),
            Arithmetic::Or | Arithmetic::Xor | Arithmetic::And | Arithmetic::Add => number,
            Arithmetic::Multiply | Arithmetic::Divide | Arithmetic::Remainder => return None,
        };
        small(number).then_some(number)
    }

    fn op_number(
        &mut self,
        (how, signed): (Arithmetic, bool),
        rd: Register,
        rs: Register,
        number: i64,
    ) {
        let op = match how {
            Arithmetic::Subtract => Op::ADD,
            how => operation(how, signed),
        };
        self.op_imm(op, rd, rs, number);
    }

    fn op(&mut self, how: Arithmetic, rd: Register, left: Register, right: Register) {
        Asm::op(self, operation(how, false), rd, left, right);
    }

    fn combine(
        &mut self,
        (how, signed): (Arithmetic, bool),
        rd: Register,
        (left, right): (Register, Register),
        _: Register,
    ) {
        Asm::op(self, operation(how, signed), rd, left, right);
    }

    fn compare(
        &mut self,
        (how, signed): (Comparison, bool),
        rd: Register,
        (left, right): (Register, Register),
    ) {
        let less = if signed { Op::SLT } else { Op::SLTU };
        match how {
            Comparison::Equal | Comparison::NotEqual => {
                Asm::op(self, Op::SUB, rd, left, right);
            }
            Comparison::Less | Comparison::GreaterEqual => Asm::op(self, less, rd, left, right),
            Comparison::Greater | Comparison::LessEqual => Asm::op(self, less, rd, right, left),
        }
        match how {
            Comparison::Equal => self.op_imm(Op::SLTU, rd, rd, 1),
            Comparison::NotEqual => Asm::op(self, Op::SLTU, rd, ZERO, rd),
            Comparison::GreaterEqual | Comparison::LessEqual => self.op_imm(Op::XOR, rd, rd, 1),
            Comparison::Less | Comparison::Greater => {}
        }
    }

    fn cut(&mut self, rd: Register, bits: Bits) {
        match (bits.shift, bits.width, bits.signed) {
            (0, 64, _) => {}
            (0, 32, true) => self.sext_w(rd, rd),
            (0, width @ ..=10, false) => self.op_imm(Op::AND, rd, rd, (1 << width) - 1),
            (shift, width, signed) => {
                let back = if signed { Op::SRA } else { Op::SRL };
                let up = 64 - shift - width;
                if up > 0 {
                    self.op_imm(Op::SLL, rd, rd, up.into());
                }
                if width < 64 {
                    self.op_imm(back, rd, rd, i64::from(64 - width));
                }
            }
        }
    }

    fn complement(&mut self, rd: Register) {
        self.op_imm(Op::XOR, rd, rd, -1);
    }

    /// By bisection. At the end, `rd` is 0 or 1.
    fn count_bits(&mut self, rd: Register, (sum, half): (Register, Register)) {
        Asm::li(self, sum, 0);
        for bits in [32, 16, 8, 4, 2, 1] {
            let none = self.label();
            self.op_imm(Op::SRL, half, rd, bits);
            Asm::branch(self, If::Equal, half, ZERO, none);
            Asm::mv(self, rd, half);
            Asm::add(self, sum, sum, bits);
            self.bind(none);
        }
        Asm::op(self, Op::ADD, rd, rd, sum);
    }
}
