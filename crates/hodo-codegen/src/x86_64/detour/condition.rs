//! Computes numbers: the value is in `rax`, the other operand in `rcx`; `rdx` is free as long as these are in use.

use super::{Arithmetic, Bits, Comparison, Probing};
use crate::lower::{Operator, Target};
use crate::x86_64::masm::*;

impl Probing<'_, '_> {
    /// Compares the operands. Returns the condition to test then.
    fn compared(&mut self, (how, signed): (Comparison, bool), right: Option<u32>) -> Cond {
        match right {
            Some(number) => self.code.cmp_ri(RAX, number),
            None => self.code.cmp_rr(RAX, RCX),
        }
        match (how, signed) {
            (Comparison::Equal, _) => Cond::E,
            (Comparison::NotEqual, _) => Cond::NE,
            (Comparison::Less, true) => Cond::L,
            (Comparison::Less, false) => Cond::B,
            (Comparison::LessEqual, true) => Cond::LE,
            (Comparison::LessEqual, false) => Cond::BE,
            (Comparison::Greater, true) => Cond::G,
            (Comparison::Greater, false) => Cond::A,
            (Comparison::GreaterEqual, true) => Cond::GE,
            (Comparison::GreaterEqual, false) => Cond::AE,
        }
    }

    fn by_number(&mut self, how: Arithmetic, signed: bool, number: u32) {
        match (how, signed) {
            (Arithmetic::ShiftLeft, _) => self.code.shl_ri(RAX, number as u8),
            (Arithmetic::ShiftRight, true) => self.code.sar_ri(RAX, number as u8),
            (Arithmetic::ShiftRight, false) => self.code.shr_ri(RAX, number as u8),
            (Arithmetic::Or, _) => self.code.or_ri(RAX, number),
            (Arithmetic::Xor, _) => self.code.xor_ri(RAX, number),
            (Arithmetic::And, _) => self.code.and_ri(RAX, number),
            (Arithmetic::Add, _) => self.code.add_ri(RAX, number),
            (Arithmetic::Subtract, _) => self.code.sub_ri(RAX, number),
            _ => self.code.imul_rri(RAX, RAX, number),
        }
    }

    /// Divides `rax` by `rcx`, which is not 0.
    fn divide(&mut self, how: Arithmetic, signed: bool) {
        let remainder = how == Arithmetic::Remainder;
        let end = self.code.label();
        if signed {
            // Dividing the smallest number by -1 would raise an exception; the result wraps.
            let usual = self.code.label();
            self.code.cmp_ri8(RCX, -1);
            self.code.jcc(Cond::NE, usual);
            if remainder {
                self.code.xor_rr(EAX, EAX);
            } else {
                self.code.neg_r(RAX);
            }
            self.code.jmp(end);
            self.code.bind(usual);
            self.code.cqo();
            self.code.idiv_r(RCX);
        } else {
            self.code.xor_rr(EDX, EDX);
            self.code.div_r(RCX);
        }
        if remainder {
            self.code.mov_rr(RAX, RDX);
        }
        self.code.bind(end);
    }
}

impl Target for Probing<'_, '_> {
    /// A number, or `None` for the operand in `rcx`.
    type Pair = Option<u32>;

    fn label(&mut self) -> Label {
        self.code.label()
    }

    fn bind(&mut self, label: Label) {
        self.code.bind(label);
    }

    fn jump(&mut self, to: Label) {
        self.code.jmp(to);
    }

    fn jump_if(&mut self, when: bool, to: Label) {
        self.code.test_rr(RAX, RAX);
        self.code.jcc(if when { Cond::NE } else { Cond::E }, to);
    }

    fn number(&mut self, number: u64) {
        match u32::try_from(number) {
            Ok(0) => self.code.xor_rr(EAX, EAX),
            Ok(number) => self.code.mov_ri(EAX, number),
            Err(_) => self.code.movabs_ri(RAX, number),
        }
    }

    fn thread(&mut self, at: u32) {
        self.code.mov_rm(EAX, gs(at));
    }

    fn processor(&mut self, rdpid: bool) {
        if rdpid {
            self.code.rdpid(RAX);
        } else {
            // The limit of this segment also holds the number; the kernel's vDSO reads it this way.
            self.code.mov_ri(EAX, 0x7B);
            self.code.lsl_rr(EAX, EAX);
        }
        self.code.and_ri(EAX, 0xFFF);
    }

    fn load(&mut self, word: usize) {
        self.code.mov_rm(RAX, self.word(word));
    }

    fn store(&mut self, word: usize) {
        self.code.mov_mr(self.word(word), RAX);
    }

    fn cut(&mut self, bits: Bits) {
        let (shift, width) = (bits.shift, bits.width);
        match (shift, width, bits.signed) {
            (0, 64, _) => {}
            (0, 8, true) => self.code.movsx_rr(RAX, AL),
            (0, 16, true) => self.code.movsx_rr(RAX, AX),
            (0, 32, true) => self.code.cdqe(),
            (0, 8, false) => self.code.movzx_rr(EAX, AL),
            (0, 16, false) => self.code.movzx_rr(EAX, AX),
            (0, 32, false) => self.code.mov_rr(EAX, EAX),
            (_, _, signed) => {
                self.code.shl_ri(RAX, 64 - shift - width);
                match signed {
                    true => self.code.sar_ri(RAX, 64 - width),
                    false => self.code.shr_ri(RAX, 64 - width),
                }
            }
        }
    }

    fn complement(&mut self) {
        self.code.not_r(RAX);
    }

    fn negate(&mut self) {
        self.code.neg_r(RAX);
    }

    fn with_number(&mut self, operator: Operator, number: u64) -> Option<Option<u32>> {
        let short = i32::try_from(number.cast_signed()).ok();
        match operator {
            Operator::Combine(Arithmetic::ShiftLeft | Arithmetic::ShiftRight) => {
                Some(Some((number & 63) as u32))
            }
            Operator::Combine(Arithmetic::Divide | Arithmetic::Remainder) => None,
            _ => short.map(|number| Some(number.cast_unsigned())),
        }
    }

    fn set_aside(&mut self) {
        self.code.mov_rr(RCX, RAX);
    }

    fn with_aside(&mut self) -> Option<u32> {
        self.code.xchg_rax(RCX);
        None
    }

    fn with_word(&mut self, word: usize) -> Option<u32> {
        self.code.mov_rr(RCX, RAX);
        self.load(word);
        None
    }

    fn compare(&mut self, how: Comparison, signed: bool, right: Option<u32>) {
        let condition = self.compared((how, signed), right);
        self.code.setcc(condition, AL);
        self.code.movzx_rr(EAX, AL);
    }

    fn jump_compared(
        &mut self,
        comparison: (Comparison, bool),
        right: Option<u32>,
        when: bool,
        to: Label,
    ) {
        let condition = self.compared(comparison, right);
        let condition = if when { condition } else { condition.not() };
        self.code.jcc(condition, to);
    }

    fn jump_without_divisor(&mut self, _: Option<u32>, to: Label) {
        self.code.test_rr(RCX, RCX);
        self.code.jcc(Cond::E, to);
    }

    fn combine(&mut self, how: Arithmetic, signed: bool, right: Option<u32>) {
        if let Some(number) = right {
            return self.by_number(how, signed, number);
        }
        match (how, signed) {
            (Arithmetic::ShiftLeft, _) => self.code.shl_rcl(RAX),
            (Arithmetic::ShiftRight, true) => self.code.sar_rcl(RAX),
            (Arithmetic::ShiftRight, false) => self.code.shr_rcl(RAX),
            (Arithmetic::Or, _) => self.code.or_rr(RAX, RCX),
            (Arithmetic::Xor, _) => self.code.xor_rr(RAX, RCX),
            (Arithmetic::And, _) => self.code.and_rr(RAX, RCX),
            (Arithmetic::Add, _) => self.code.add_rr(RAX, RCX),
            (Arithmetic::Subtract, _) => self.code.sub_rr(RAX, RCX),
            (Arithmetic::Multiply, _) => self.code.imul_rr(RAX, RCX),
            (Arithmetic::Divide | Arithmetic::Remainder, _) => self.divide(how, signed),
        }
    }
}
