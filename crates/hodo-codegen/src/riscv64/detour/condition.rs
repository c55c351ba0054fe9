//! Conditions as machine code: 64-bit numbers with the operators of C, in `v`, `t` and `x`.
//!
//! A value in memory is fetched where it is needed for the first time, and kept in the frame. What cannot be fetched, and a
//! division by zero, make the whole condition false.

use alloc::vec::Vec;

use super::asm::{If, Label, Op, small};
use super::{
    Arithmetic, Bits, Comparison, DetourError, Fetch, NO_PROCESSOR, Probing, Register, Test,
};
use crate::detour::kept_at;
use hodo_isa::riscv64::regs::{SP, ZERO};

/// A place that comes later.
#[derive(Debug, Clone, Copy)]
pub(super) struct Goal {
    label: Label,
    /// What has been fetched on every way there.
    fetched: u64,
}

/// What a condition needs of the stack.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Needs {
    /// Values that are kept.
    pub(super) kept: u64,
    /// Words for intermediate results.
    pub(super) scratch: usize,
    /// All registers, for texts.
    pub(super) texts: bool,
}

impl Needs {
    /// Words of the frame, at its lower end.
    pub(super) fn words(&self) -> usize {
        self.kept.count_ones() as usize + self.scratch
    }
}

/// Writes conditions.
pub(super) struct Writer<'w, 'a> {
    pub(super) probing: &'w mut Probing<'a>,
    pub(super) values: &'w [Fetch],
    /// Values that have a place in the frame.
    pub(super) keeps: u64,
    pub(super) needs: Needs,
    /// Words for intermediate results that are in use.
    pub(super) scratch: usize,
    /// Values that have been fetched.
    pub(super) fetched: u64,
    /// Loads that may fault: the condition is false then.
    pub(super) loads: Vec<Label>,
    /// Where it goes on if something cannot be computed.
    pub(super) out: Goal,
    /// The first thing that could not be written.
    pub(super) error: Option<DetourError>,
}

impl<'w, 'a> Writer<'w, 'a> {
    pub(super) fn new(
        probing: &'w mut Probing<'a>,
        values: &'w [Fetch],
        needs: Needs,
        fetched: u64,
        out: Label,
    ) -> Self {
        Self {
            probing,
            values,
            keeps: needs.kept,
            needs,
            scratch: 0,
            fetched,
            loads: Vec::new(),
            out: Goal {
                label: out,
                fetched: u64::MAX,
            },
            error: None,
        }
    }

    /// The registers of `v`, `t` and `x`.
    fn three(&self) -> (Register, Register, Register) {
        let regs = self.probing.frame.regs;
        (regs.v, regs.t, regs.x)
    }

    pub(super) fn goal(&mut self) -> Goal {
        Goal {
            label: self.probing.asm.label(),
            fetched: u64::MAX,
        }
    }

    pub(super) fn jump_if(&mut self, how: If, left: Register, right: Register, to: &mut Goal) {
        self.probing.asm.branch(how, left, right, to.label);
        to.fetched &= self.fetched;
    }

    pub(super) fn jump_to(&mut self, to: &mut Goal) {
        self.probing.asm.jump(to.label);
        to.fetched &= self.fetched;
        // Nothing comes here but by another label.
        self.fetched = u64::MAX;
    }

    pub(super) fn bind(&mut self, goal: Goal) {
        self.probing.asm.bind(goal.label);
        self.fetched &= goal.fetched;
    }

    /// Where a kept value is, from the stack pointer.
    fn slot(&self, value: usize) -> Option<i64> {
        let number = kept_at(self.keeps, value)?;
        Some(self.probing.frame.word(number))
    }

    /// Where an intermediate result is, from the stack pointer.
    pub(super) fn spare(&self, number: usize) -> i64 {
        8 * (self.keeps.count_ones() as usize + number) as i64
    }

    /// Takes a word for an intermediate result.
    pub(super) fn take(&mut self) -> usize {
        self.scratch += 1;
        self.needs.scratch = self.needs.scratch.max(self.scratch);
        self.scratch - 1
    }

    /// Goes to `to` if the condition is `when`, else on.
    pub(super) fn jump(&mut self, test: &Test, when: bool, to: &mut Goal) {
        match test {
            Test::Not(inner) => self.jump(inner, !when, to),
            Test::And(first, second) | Test::Or(first, second) => {
                // A result of the first that decides the whole.
                let decides = matches!(test, Test::Or(..));
                if decides == when {
                    self.jump(first, when, to);
                    self.jump(second, when, to);
                } else {
                    let mut decided = self.goal();
                    self.jump(first, decides, &mut decided);
                    self.jump(second, when, to);
                    self.bind(decided);
                }
            }
            Test::Compare(how, signed, left, right) => {
                let (left, right) = self.both(left, right);
                let (less, not_less) = match signed {
                    true => (If::Less, If::NotLess),
                    false => (If::Below, If::NotBelow),
                };
                let (condition, left, right) = match (how, when) {
                    (Comparison::Equal, true) | (Comparison::NotEqual, false) => {
                        (If::Equal, left, right)
                    }
                    (Comparison::Equal, false) | (Comparison::NotEqual, true) => {
                        (If::NotEqual, left, right)
                    }
                    (Comparison::Less, true) | (Comparison::GreaterEqual, false) => {
                        (less, left, right)
                    }
                    (Comparison::Less, false) | (Comparison::GreaterEqual, true) => {
                        (not_less, left, right)
                    }
                    (Comparison::Greater, true) | (Comparison::LessEqual, false) => {
                        (less, right, left)
                    }
                    (Comparison::Greater, false) | (Comparison::LessEqual, true) => {
                        (not_less, right, left)
                    }
                };
                self.jump_if(condition, left, right, to);
            }
            Test::Number(number) => {
                if (*number != 0) == when {
                    let fetched = self.fetched;
                    self.jump_to(to);
                    // The code behind is there, though nothing gets there.
                    self.fetched = fetched;
                }
            }
            Test::Same(left, right) => self.same(left, right, when, to),
            Test::Fits(text, pattern) => self.fits(text, pattern, when, to),
            _ => {
                self.number(test);
                let (v, ..) = self.three();
                let condition = if when { If::NotEqual } else { If::Equal };
                self.jump_if(condition, v, ZERO, to);
            }
        }
    }

    /// Brings the operands into two registers, and tells which has the left one and which the right one.
    fn both(&mut self, left: &Test, right: &Test) -> (Register, Register) {
        let (v, t, _) = self.three();
        self.number(left);
        match right {
            Test::Number(0) => return (v, ZERO),
            Test::Number(number) => {
                self.probing.asm.li(t, *number);
                return (v, t);
            }
            _ if right.is_leaf() => {
                self.probing.asm.mv(t, v);
                self.number(right);
                return (t, v);
            }
            _ => {}
        }
        let spare = self.take();
        let at = self.spare(spare);
        let x = self.three().2;
        self.probing.asm.store(8, v, SP, at, x);
        self.number(right);
        self.probing.asm.ld(t, SP, at);
        self.scratch -= 1;
        (t, v)
    }

    /// Brings a number into `v`.
    pub(super) fn number(&mut self, test: &Test) {
        let (v, ..) = self.three();
        match test {
            Test::Number(number) => self.probing.asm.li(v, *number),
            Test::Value(value, bits) => {
                self.word(*value);
                self.cut(*bits);
            }
            Test::Thread(at) => {
                let block = self.probing.frame.regs.block;
                self.probing.asm.load(4, v, block, (*at).into());
            }
            // No instruction tells it.
            Test::Processor(_) => self.probing.asm.li(v, NO_PROCESSOR.into()),
            Test::Complement(inner) => {
                self.number(inner);
                self.probing.asm.op_imm(Op::XOR, v, v, -1);
            }
            Test::Negate(inner) => {
                self.number(inner);
                self.probing.asm.op(Op::SUB, v, ZERO, v);
            }
            Test::Combine(how, signed, left, right) => self.combine(*how, *signed, left, right),
            Test::Compare(how, signed, left, right) => {
                let (left, right) = self.both(left, right);
                let less = if *signed { Op::SLT } else { Op::SLTU };
                let asm = &mut *self.probing.asm;
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
            Test::Not(_) | Test::And(..) | Test::Or(..) | Test::Same(..) | Test::Fits(..) => {
                let (mut no, mut end) = (self.goal(), self.goal());
                self.jump(test, false, &mut no);
                self.probing.asm.li(v, 1);
                self.jump_to(&mut end);
                self.bind(no);
                self.probing.asm.li(v, 0);
                self.bind(end);
            }
        }
    }

    fn combine(&mut self, how: Arithmetic, signed: bool, left: &Test, right: &Test) {
        let (v, ..) = self.three();
        let op = match (how, signed) {
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
        };
        let constant = match right {
            Test::Number(number) => Some(number.cast_signed()),
            _ => None,
        };
        let immediate = match how {
            Arithmetic::ShiftLeft | Arithmetic::ShiftRight => constant.map(|by| (op, by & 63)),
            Arithmetic::Subtract => constant.map(|number| (Op::ADD, number.wrapping_neg())),
            Arithmetic::Or | Arithmetic::Xor | Arithmetic::And | Arithmetic::Add => {
                constant.map(|number| (op, number))
            }
            _ => None,
        };
        if let Some((op, number)) = immediate.filter(|&(_, number)| small(number)) {
            self.number(left);
            self.probing.asm.op_imm(op, v, v, number);
            return;
        }
        let (left, right) = self.both(left, right);
        if matches!(how, Arithmetic::Divide | Arithmetic::Remainder) {
            let mut out = self.out;
            self.jump_if(If::Equal, right, ZERO, &mut out);
            self.out = out;
        }
        self.probing.asm.op(op, v, left, right);
    }

    /// Brings a value as it was fetched into `v`; of a text its address.
    pub(super) fn word(&mut self, value: usize) {
        let (v, _, x) = self.three();
        let fetch = &self.values[value];
        let slot = self.slot(value);
        if slot.is_none() && fetch.is_kept() && value < 64 {
            self.needs.kept |= 1 << value;
        }
        if let Some(slot) = slot
            && self.fetched >> value & 1 == 1
        {
            self.probing.asm.ld(v, SP, slot);
            return;
        }
        if let Err(error) = self.probing.fetch(fetch, &mut self.loads) {
            self.error.get_or_insert(error);
        }
        if let Some(slot) = slot {
            self.probing.asm.store(8, v, SP, slot, x);
            self.fetched |= 1 << value;
        }
    }

    /// Leaves some bits of `v`.
    fn cut(&mut self, bits: Bits) {
        let (v, ..) = self.three();
        let asm = &mut *self.probing.asm;
        match (bits.shift, bits.width, bits.signed) {
            (0, 64, _) => {}
            (0, 32, true) => asm.extend_word(v),
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
}
