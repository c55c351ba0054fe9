//! Computes numbers: the value is in `v`, the other operand in `t`; `x` is for temporary values.

use super::{Arithmetic, Bits, Comparison, NO_PROCESSOR, Probing, Register};
use crate::lower::{Operator, Target};
use crate::riscv64::masm::{If, Insns as _, Label, Op, small};
use hodo_isa::riscv64::regs::{SP, ZERO};

/// The two operands.
#[derive(Debug, Clone, Copy)]
pub(super) enum Pair {
    Registers(Register, Register),
    /// `v`, and an immediate.
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

/// The immediate for an instruction, if there is one.
fn in_instruction(operator: Operator, number: i64) -> Option<i64> {
    let Operator::Combine(how) = operator else {
        return None;
    };
    let number = match how {
        Arithmetic::ShiftLeft | Arithmetic::ShiftRight => number & 63,
        // The instruction adds it.
        Arithmetic::Subtract => number.wrapping_neg(),
        Arithmetic::Or | Arithmetic::Xor | Arithmetic::And | Arithmetic::Add => number,
        Arithmetic::Multiply | Arithmetic::Divide | Arithmetic::Remainder => return None,
    };
    small(number).then_some(number)
}

impl Target for Probing<'_> {
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
        self.asm.branch(how, self.frame.regs.v, ZERO, to);
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
        self.asm.ld(self.frame.regs.v, 8 * word as i64, SP);
    }

    fn store(&mut self, word: usize) {
        let regs = self.frame.regs;
        self.asm.store(8, regs.v, SP, 8 * word as i64, regs.x);
    }

    fn cut(&mut self, bits: Bits) {
        let v = self.frame.regs.v;
        let asm = &mut *self.asm;
        match (bits.shift, bits.width, bits.signed) {
            (0, 64, _) => {}
            (0, 32, true) => asm.sext_w(v, v),
            (0, width @ ..=10, false) => asm.op_imm(Op::AND, v, v, (1 << width) - 1),
            (shift, width, signed) => {
                let back = if signed { Op::SRA } else { Op::SRL };
                let up = 64 - shift - width;
                if up > 0 {
                    asm.op_imm(Op::SLL, v, v, up.into());
                }
                if width < 64 {
                    asm.op_imm(back, v, v, i64::from(64 - width));
                }
            }
        }
    }

    fn complement(&mut self) {
        let v = self.frame.regs.v;
        self.asm.op_imm(Op::XOR, v, v, -1);
    }

    fn negate(&mut self) {
        let v = self.frame.regs.v;
        self.asm.op(Op::SUB, v, ZERO, v);
    }

    fn with_number(&mut self, operator: Operator, number: u64) -> Option<Pair> {
        let regs = self.frame.regs;
        if let Some(number) = in_instruction(operator, number.cast_signed()) {
            return Some(Pair::Number(number));
        }
        if number == 0 {
            return Some(Pair::Registers(regs.v, ZERO));
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
        self.asm.ld(regs.t, 8 * word as i64, SP);
        Pair::Registers(regs.t, regs.v)
    }

    fn compare(&mut self, how: Comparison, signed: bool, pair: Pair) {
        let (left, right) = pair.registers();
        let v = self.frame.regs.v;
        let less = if signed { Op::SLT } else { Op::SLTU };
        let asm = &mut *self.asm;
        match how {
            Comparison::Equal | Comparison::NotEqual => asm.op(Op::SUB, v, left, right),
            Comparison::Less | Comparison::GreaterEqual => asm.op(less, v, left, right),
            Comparison::Greater | Comparison::LessEqual => asm.op(less, v, right, left),
        }
        match how {
            Comparison::Equal => asm.op_imm(Op::SLTU, v, v, 1),
            Comparison::NotEqual => asm.op(Op::SLTU, v, ZERO, v),
            Comparison::GreaterEqual | Comparison::LessEqual => {
                asm.op_imm(Op::XOR, v, v, 1);
            }
            Comparison::Less | Comparison::Greater => {}
        }
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
        self.asm.branch(If::Equal, right, ZERO, to);
    }

    fn combine(&mut self, how: Arithmetic, signed: bool, pair: Pair) {
        let v = self.frame.regs.v;
        match (pair, how) {
            (Pair::Registers(left, right), _) => {
                self.asm.op(operation(how, signed), v, left, right);
            }
            (Pair::Number(number), Arithmetic::Subtract) => {
                self.asm.op_imm(Op::ADD, v, v, number);
            }
            (Pair::Number(number), _) => self.asm.op_imm(operation(how, signed), v, v, number),
        }
    }
}
