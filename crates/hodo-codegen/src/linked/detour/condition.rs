//! Computes numbers: the value is in `v`, the other operand in `t`; `x` is for temporary values.

use super::{Arithmetic, Bits, Comparison, NO_PROCESSOR, Probing, Register};
use crate::linked::asm::Assembler;
use crate::lower::{Operator, Target};
use hodo_isa::buffer::Label;
use hodo_isa::linked::If;

/// The two operands.
#[derive(Debug, Clone, Copy)]
pub(super) enum Pair {
    Registers(Register, Register),
    /// `v`, and a number in the instruction.
    Number(i64),
}

impl Pair {
    /// Both in registers, for operators that have no form with an immediate.
    fn registers(self) -> (Register, Register) {
        match self {
            Self::Registers(left, right) => (left, right),
            Self::Number(_) => unreachable!("only of operators that can have one"),
        }
    }
}

/// The number for an instruction, if one has it.
fn in_instruction<A: Assembler>(operator: Operator, number: i64) -> Option<i64> {
    match operator {
        Operator::Combine(how) => A::in_instruction(how, number),
        Operator::Compare(_) => None,
    }
}

impl<A: Assembler> Target for Probing<'_, A> {
    type Pair = Pair;

    fn label(&mut self) -> Label {
        self.asm.label()
    }

    fn bind(&mut self, label: Label) {
        self.asm.bind(label);
    }

    fn jump(&mut self, to: Label) {
        self.asm.jump(to);
    }

    fn jump_if(&mut self, when: bool, to: Label) {
        let how = if when { If::NotEqual } else { If::Equal };
        self.asm.branch(how, self.frame.regs.v, A::ZERO, to);
    }

    fn number(&mut self, number: u64) {
        self.asm.li(self.frame.regs.v, number);
    }

    fn thread(&mut self, at: u32) {
        let regs = self.frame.regs;
        self.asm.load(4, regs.v, regs.block, at.into());
    }

    fn processor(&mut self, _: bool) {
        // No instruction returns it.
        self.number(NO_PROCESSOR.into());
    }

    fn load(&mut self, word: usize) {
        self.asm
            .load(8, self.frame.regs.v, A::STACK, 8 * word as i64);
    }

    fn store(&mut self, word: usize) {
        let regs = self.frame.regs;
        self.asm.store(8, regs.v, A::STACK, 8 * word as i64, regs.x);
    }

    fn cut(&mut self, bits: Bits) {
        self.asm.cut(self.frame.regs.v, bits);
    }

    fn complement(&mut self) {
        let v = self.frame.regs.v;
        self.asm.complement(v);
    }

    fn negate(&mut self) {
        let v = self.frame.regs.v;
        self.asm.op(Arithmetic::Subtract, v, A::ZERO, v);
    }

    fn with_number(&mut self, operator: Operator, number: u64) -> Option<Pair> {
        let regs = self.frame.regs;
        if let Some(number) = in_instruction::<A>(operator, number.cast_signed()) {
            return Some(Pair::Number(number));
        }
        if number == 0 {
            return Some(Pair::Registers(regs.v, A::ZERO));
        }
        self.asm.li(regs.t, number);
        Some(Pair::Registers(regs.v, regs.t))
    }

    fn set_aside(&mut self) {
        let regs = self.frame.regs;
        self.asm.mv(regs.t, regs.v);
    }

    fn with_aside(&mut self) -> Pair {
        let regs = self.frame.regs;
        Pair::Registers(regs.t, regs.v)
    }

    fn with_word(&mut self, word: usize) -> Pair {
        let regs = self.frame.regs;
        self.asm.load(8, regs.t, A::STACK, 8 * word as i64);
        Pair::Registers(regs.t, regs.v)
    }

    fn compare(&mut self, how: Comparison, signed: bool, pair: Pair) {
        let v = self.frame.regs.v;
        self.asm.compare((how, signed), v, pair.registers());
    }

    fn jump_compared(
        &mut self,
        (how, signed): (Comparison, bool),
        pair: Pair,
        when: bool,
        to: Label,
    ) {
        let (left, right) = pair.registers();
        let (less, not_less) = match signed {
            true => (If::Less, If::NotLess),
            false => (If::Below, If::NotBelow),
        };
        let (condition, left, right) = match (how, when) {
            (Comparison::Equal, true) | (Comparison::NotEqual, false) => (If::Equal, left, right),
            (Comparison::Equal, false) | (Comparison::NotEqual, true) => {
                (If::NotEqual, left, right)
            }
            (Comparison::Less, true) | (Comparison::GreaterEqual, false) => (less, left, right),
            (Comparison::Less, false) | (Comparison::GreaterEqual, true) => (not_less, left, right),
            (Comparison::Greater, true) | (Comparison::LessEqual, false) => (less, right, left),
            (Comparison::Greater, false) | (Comparison::LessEqual, true) => (not_less, right, left),
        };
        self.asm.branch(condition, left, right, to);
    }

    fn jump_without_divisor(&mut self, pair: Pair, to: Label) {
        let (_, right) = pair.registers();
        self.asm.branch(If::Equal, right, A::ZERO, to);
    }

    fn combine(&mut self, how: Arithmetic, signed: bool, pair: Pair) {
        let regs = self.frame.regs;
        let (asm, how) = (&mut *self.asm, (how, signed));
        match pair {
            Pair::Registers(left, right) => asm.combine(how, regs.v, (left, right), regs.x),
            Pair::Number(number) => asm.op_number(how, regs.v, regs.v, number),
        }
    }
}
