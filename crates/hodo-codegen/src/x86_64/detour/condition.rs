//! Conditions as machine code: 64-bit numbers with the operators of C, in `rax`, `rcx` and `rdx`.
//!
//! A value in memory is fetched where it is needed for the first time, and kept in the frame. What cannot be fetched, and a
//! division by zero, make the whole condition false.

use alloc::vec::Vec;

use super::event::emit_word;
use super::frame::Saved;
use super::{Arithmetic, Bits, Comparison, Fetch, Test};
use crate::detour::kept_at;
use crate::x86_64::masm::*;

/// A place that comes later.
#[derive(Debug)]
pub(super) struct Goal {
    /// If anything leads there.
    label: Option<Label>,
    /// What has been fetched on every way there.
    fetched: u64,
}

impl Goal {
    pub(super) fn new() -> Self {
        Self {
            label: None,
            fetched: u64::MAX,
        }
    }

    fn label(&mut self, code: &mut Masm<'_>) -> Label {
        *self.label.get_or_insert_with(|| code.label())
    }
}

/// What a condition needs of the stack.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Needs {
    /// `rcx` and `rdx`.
    pub(super) registers: bool,
    /// Values that are kept.
    pub(super) kept: u64,
    /// Words for intermediate results.
    pub(super) scratch: usize,
}

impl Needs {
    /// Words of the frame.
    pub(super) fn words(&self) -> usize {
        self.kept.count_ones() as usize + self.scratch
    }
}

/// Writes a condition.
pub(super) struct Writer<'a, 'c> {
    pub(super) code: &'a mut Masm<'c>,
    pub(super) saved: &'a Saved,
    /// Address of the probed instruction.
    pub(super) here: u64,
    pub(super) values: &'a [Fetch],
    /// Values that have a place in the frame, and that frame.
    pub(super) keeps: u64,
    pub(super) frame: usize,
    /// Offset of the control block's address of the file.
    pub(super) needs: Needs,
    /// Words for intermediate results that are in use.
    pub(super) scratch: usize,
    /// Values that have been fetched.
    pub(super) fetched: u64,
    /// Loads that may fault: the condition is false then.
    pub(super) loads: Vec<u64>,
    /// Where it goes on if the condition is false.
    pub(super) out: Goal,
}

impl Comparison {
    /// The condition code of the processor.
    fn code(self, signed: bool) -> Cond {
        match (self, signed) {
            (Self::Equal, _) => Cond::E,
            (Self::NotEqual, _) => Cond::NE,
            (Self::Less, true) => Cond::L,
            (Self::Less, false) => Cond::B,
            (Self::LessEqual, true) => Cond::LE,
            (Self::LessEqual, false) => Cond::BE,
            (Self::Greater, true) => Cond::G,
            (Self::Greater, false) => Cond::A,
            (Self::GreaterEqual, true) => Cond::GE,
            (Self::GreaterEqual, false) => Cond::AE,
        }
    }
}

/// A number that an instruction can have in it.
fn short(test: &Test) -> Option<u32> {
    let Test::Number(number) = test else {
        return None;
    };
    i32::try_from(number.cast_signed())
        .ok()
        .map(i32::cast_unsigned)
}

impl Writer<'_, '_> {
    /// Jumps to a place if the condition of the last comparison holds.
    pub(super) fn jump_if(&mut self, condition: Cond, to: &mut Goal) {
        let label = to.label(self.code);
        self.code.jcc(condition, label);
        to.fetched &= self.fetched;
    }

    pub(super) fn jump_to(&mut self, to: &mut Goal) {
        let label = to.label(self.code);
        self.code.jmp(label);
        to.fetched &= self.fetched;
        // Nothing comes here but by another label.
        self.fetched = u64::MAX;
    }

    pub(super) fn bind(&mut self, goal: Goal) {
        if let Some(label) = goal.label {
            self.code.bind(label);
        }
        self.fetched &= goal.fetched;
    }

    /// Where a kept value is, from the stack pointer.
    fn slot(&self, value: usize) -> Option<Mem> {
        let number = kept_at(self.keeps, value)?;
        Some(self.saved.word(self.frame, number))
    }

    /// Where an intermediate result is, from the stack pointer.
    pub(super) fn spare(&self, number: usize) -> Mem {
        let number = self.keeps.count_ones() as usize + number;
        self.saved.word(self.frame, number)
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
                    let mut decided = Goal::new();
                    self.jump(first, decides, &mut decided);
                    self.jump(second, when, to);
                    self.bind(decided);
                }
            }
            Test::Compare(how, signed, left, right) => {
                self.compare(left, right);
                let condition = how.code(*signed);
                self.jump_if(if when { condition } else { condition.not() }, to);
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
                self.code.test_rr(RAX, RAX);
                self.jump_if(if when { Cond::NE } else { Cond::E }, to);
            }
        }
    }

    fn compare(&mut self, left: &Test, right: &Test) {
        if let Some(number) = short(right) {
            self.number(left);
            self.code.cmp_ri(RAX, number);
        } else {
            self.both(left, right);
            self.code.cmp_rr(RAX, RCX);
        }
    }

    /// The left operand into `rax`, the right into `rcx`.
    fn both(&mut self, left: &Test, right: &Test) {
        self.needs.registers = true;
        self.number(left);
        if right.is_leaf() {
            self.code.mov_rr(RCX, RAX);
            self.number(right);
            self.code.xchg_rax(RCX); // xchg rax, rcx
            return;
        }
        let spare = self.take();
        self.code.mov_mr(self.spare(spare), RAX);
        self.number(right);
        self.code.mov_rr(RCX, RAX);
        self.code.mov_rm(RAX, self.spare(spare));
        self.scratch -= 1;
    }

    /// Brings a number into `rax`.
    pub(super) fn number(&mut self, test: &Test) {
        match test {
            Test::Number(0) => self.code.xor_rr(EAX, EAX), // xor eax, eax
            Test::Number(number) => match u32::try_from(*number) {
                Ok(number) => self.code.mov_ri(EAX, number), // mov eax, number
                Err(_) => self.code.movabs_ri(RAX, *number), // mov rax, number
            },
            Test::Value(value, bits) => {
                self.word(*value);
                self.cut(*bits);
            }
            Test::Thread(at) => self.code.mov_rm(EAX, gs(*at)), // mov eax, gs:[at]
            Test::Processor(rdpid) => {
                if *rdpid {
                    self.code.rdpid(RAX);
                } else {
                    // The limit of this segment tells it, too, as the kernel's vDSO reads it.
                    self.code.mov_ri(EAX, 0x7B);
                    self.code.lsl_rr(EAX, EAX);
                }
                self.code.and_ri(EAX, 0xFFF);
            }
            Test::Complement(inner) => {
                self.number(inner);
                self.code.not_r(RAX);
            }
            Test::Negate(inner) => {
                self.number(inner);
                self.code.neg_r(RAX);
            }
            Test::Combine(how, signed, left, right) => self.combine(*how, *signed, left, right),
            Test::Compare(how, signed, left, right) => {
                self.compare(left, right);
                self.code.setcc(how.code(*signed), AL);
                self.code.movzx_rr(EAX, AL);
            }
            Test::Not(_) | Test::And(..) | Test::Or(..) | Test::Same(..) | Test::Fits(..) => {
                let (mut no, mut end) = (Goal::new(), Goal::new());
                self.jump(test, false, &mut no);
                self.code.mov_ri(EAX, 1);
                self.jump_to(&mut end);
                self.bind(no);
                self.code.xor_rr(EAX, EAX);
                self.bind(end);
            }
        }
    }

    fn combine(&mut self, how: Arithmetic, signed: bool, left: &Test, right: &Test) {
        let shifts = matches!(how, Arithmetic::ShiftLeft | Arithmetic::ShiftRight);
        if let (true, Test::Number(by)) = (shifts, right) {
            self.number(left);
            let by = (by & 63) as u8;
            match (how, signed) {
                (Arithmetic::ShiftLeft, _) => self.code.shl_ri(RAX, by),
                (_, true) => self.code.sar_ri(RAX, by),
                (_, false) => self.code.shr_ri(RAX, by),
            }
            return;
        }
        let divides = matches!(how, Arithmetic::Divide | Arithmetic::Remainder);
        if let (false, Some(number)) = (divides, short(right)) {
            self.number(left);
            match how {
                Arithmetic::Or => self.code.or_ri(RAX, number),
                Arithmetic::Xor => self.code.xor_ri(RAX, number),
                Arithmetic::And => self.code.and_ri(RAX, number),
                Arithmetic::Add => self.code.add_ri(RAX, number),
                Arithmetic::Subtract => self.code.sub_ri(RAX, number),
                _ => self.code.imul_rri(RAX, RAX, number),
            }
            return;
        }
        self.both(left, right);
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

    /// `rax` by `rcx`.
    fn divide(&mut self, how: Arithmetic, signed: bool) {
        let mut out = core::mem::replace(&mut self.out, Goal::new());
        self.code.test_rr(RCX, RCX);
        self.jump_if(Cond::E, &mut out);
        self.out = out;
        let remainder = how == Arithmetic::Remainder;
        let mut end = Goal::new();
        if signed {
            // The smallest number by -1 would be an exception; the result wraps.
            let mut usual = Goal::new();
            self.code.cmp_ri8(RCX, -1);
            self.jump_if(Cond::NE, &mut usual);
            if remainder {
                self.code.xor_rr(EAX, EAX);
            } else {
                self.code.neg_r(RAX);
            }
            self.jump_to(&mut end);
            self.bind(usual);
            self.code.cqo();
            self.code.idiv_r(RCX);
        } else {
            self.code.xor_rr(EDX, EDX);
            self.code.div_r(RCX);
        }
        if remainder {
            self.code.mov_rr(RAX, RDX);
        }
        self.bind(end);
    }

    /// Brings a value as it was fetched into `rax`; of a text its address.
    pub(super) fn word(&mut self, value: usize) {
        let fetch = &self.values[value];
        let Some(slot) = self.slot(value) else {
            let at = (self.saved, self.here);
            if fetch.is_kept() && value < 64 {
                self.needs.kept |= 1 << value;
            }
            emit_word(self.code, at, fetch, &mut self.loads);
            return;
        };
        if self.fetched >> value & 1 == 1 {
            self.code.mov_rm(RAX, slot);
            return;
        }
        emit_word(self.code, (self.saved, self.here), fetch, &mut self.loads);
        self.code.mov_mr(slot, RAX);
        self.fetched |= 1 << value;
    }

    /// Leaves some bits of `rax`.
    fn cut(&mut self, bits: Bits) {
        let Bits {
            shift,
            width,
            signed,
        } = bits;
        match (shift, width, signed) {
            (0, 64, _) => {}
            (0, 8, true) => self.code.movsx_rr(RAX, AL),
            (0, 16, true) => self.code.movsx_rr(RAX, AX),
            (0, 32, true) => self.code.cdqe(),
            (0, 8, false) => self.code.movzx_rr(EAX, AL),
            (0, 16, false) => self.code.movzx_rr(EAX, AX),
            (0, 32, false) => self.code.mov_rr(EAX, EAX),
            _ => {
                self.code.shl_ri(RAX, 64 - shift - width);
                match signed {
                    true => self.code.sar_ri(RAX, 64 - width),
                    false => self.code.shr_ri(RAX, 64 - width),
                }
            }
        }
    }
}
