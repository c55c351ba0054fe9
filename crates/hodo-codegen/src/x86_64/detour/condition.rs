//! Conditions as machine code: 64-bit numbers with the operators of C, in `rax`, `rcx` and `rdx`.
//!
//! A value in memory is fetched where it is needed for the first time, and kept in the frame. What cannot be fetched, and a
//! division by zero, make the whole condition false.

use alloc::vec::Vec;

use super::event::emit_word;
use super::frame::Saved;
use super::{Arithmetic, Bits, Comparison, Fetch, Test};
use crate::detour::kept_at;
use crate::x86_64::emit::{Code, Pending};

/// Jumps to a place that comes later.
#[derive(Debug)]
pub(super) struct Label {
    pending: Vec<Pending>,
    /// What has been fetched on every way there.
    fetched: u64,
}

impl Label {
    pub(super) fn new() -> Self {
        Self {
            pending: Vec::new(),
            fetched: u64::MAX,
        }
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
    pub(super) code: &'a mut Code<'c>,
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
    pub(super) out: Label,
}

pub(super) const JE: u8 = 0x84;
pub(super) const JNE: u8 = 0x85;
pub(super) const JB: u8 = 0x82;
pub(super) const JA: u8 = 0x87;

impl Comparison {
    /// The condition code of the processor.
    fn code(self, signed: bool) -> u8 {
        match (self, signed) {
            (Self::Equal, _) => 0x4,
            (Self::NotEqual, _) => 0x5,
            (Self::Less, true) => 0xC,
            (Self::Less, false) => 0x2,
            (Self::LessEqual, true) => 0xE,
            (Self::LessEqual, false) => 0x6,
            (Self::Greater, true) => 0xF,
            (Self::Greater, false) => 0x7,
            (Self::GreaterEqual, true) => 0xD,
            (Self::GreaterEqual, false) => 0x3,
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
    pub(super) fn jump_if(&mut self, condition: u8, to: &mut Label) {
        to.pending.push(self.code.forward(&[0x0F, condition]));
        to.fetched &= self.fetched;
    }

    pub(super) fn jump_to(&mut self, to: &mut Label) {
        to.pending.push(self.code.forward(&[0xE9]));
        to.fetched &= self.fetched;
        // Nothing comes here but by another label.
        self.fetched = u64::MAX;
    }

    pub(super) fn bind(&mut self, label: Label) {
        for pending in label.pending {
            self.code.bind(pending);
        }
        self.fetched &= label.fetched;
    }

    /// Where a kept value is, from the stack pointer.
    fn slot(&self, value: usize) -> Option<u32> {
        let number = kept_at(self.keeps, value)?;
        Some(self.saved.word(self.frame, number))
    }

    /// Where an intermediate result is, from the stack pointer.
    pub(super) fn spare(&self, number: usize) -> u32 {
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
    pub(super) fn jump(&mut self, test: &Test, when: bool, to: &mut Label) {
        match test {
            Test::Not(inner) => self.jump(inner, !when, to),
            Test::And(first, second) | Test::Or(first, second) => {
                // A result of the first that decides the whole.
                let decides = matches!(test, Test::Or(..));
                if decides == when {
                    self.jump(first, when, to);
                    self.jump(second, when, to);
                } else {
                    let mut decided = Label::new();
                    self.jump(first, decides, &mut decided);
                    self.jump(second, when, to);
                    self.bind(decided);
                }
            }
            Test::Compare(how, signed, left, right) => {
                self.compare(left, right);
                let code = how.code(*signed) ^ u8::from(!when);
                self.jump_if(0x80 | code, to);
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
                self.code.raw(&[0x48, 0x85, 0xC0]); // test rax, rax
                self.jump_if(if when { JNE } else { JE }, to);
            }
        }
    }

    fn compare(&mut self, left: &Test, right: &Test) {
        if let Some(number) = short(right) {
            self.number(left);
            self.code.op32(&[0x48, 0x3D], number); // cmp rax, number
        } else {
            self.both(left, right);
            self.code.raw(&[0x48, 0x39, 0xC8]); // cmp rax, rcx
        }
    }

    /// The left operand into `rax`, the right into `rcx`.
    fn both(&mut self, left: &Test, right: &Test) {
        self.needs.registers = true;
        self.number(left);
        if right.is_leaf() {
            self.code.raw(&[0x48, 0x89, 0xC1]); // mov rcx, rax
            self.number(right);
            self.code.raw(&[0x48, 0x91]); // xchg rax, rcx
            return;
        }
        let spare = self.take();
        self.code.op32(&[0x48, 0x89, 0x84, 0x24], self.spare(spare)); // mov [rsp+spare], rax
        self.number(right);
        self.code.raw(&[0x48, 0x89, 0xC1]); // mov rcx, rax
        self.code.op32(&[0x48, 0x8B, 0x84, 0x24], self.spare(spare)); // mov rax, [rsp+spare]
        self.scratch -= 1;
    }

    /// Brings a number into `rax`.
    pub(super) fn number(&mut self, test: &Test) {
        match test {
            Test::Number(0) => self.code.raw(&[0x31, 0xC0]), // xor eax, eax
            Test::Number(number) => match u32::try_from(*number) {
                Ok(number) => self.code.op32(&[0xB8], number), // mov eax, number
                Err(_) => self.code.op64(&[0x48, 0xB8], *number), // mov rax, number
            },
            Test::Value(value, bits) => {
                self.word(*value);
                self.cut(*bits);
            }
            Test::Thread(at) => self.code.op32(&[0x65, 0x8B, 0x04, 0x25], *at), // mov eax, gs:[at]
            Test::Processor(rdpid) => {
                if *rdpid {
                    self.code.raw(&[0xF3, 0x0F, 0xC7, 0xF8]); // rdpid rax
                } else {
                    // The limit of this segment tells it, too, as the kernel's vDSO reads it.
                    self.code.op32(&[0xB8], 0x7B); // mov eax, 0x7b
                    self.code.raw(&[0x0F, 0x03, 0xC0]); // lsl eax, ax
                }
                self.code.op32(&[0x25], 0xFFF); // and eax, 0xfff
            }
            Test::Complement(inner) => {
                self.number(inner);
                self.code.raw(&[0x48, 0xF7, 0xD0]); // not rax
            }
            Test::Negate(inner) => {
                self.number(inner);
                self.code.raw(&[0x48, 0xF7, 0xD8]); // neg rax
            }
            Test::Combine(how, signed, left, right) => self.combine(*how, *signed, left, right),
            Test::Compare(how, signed, left, right) => {
                self.compare(left, right);
                self.code.raw(&[0x0F, 0x90 | how.code(*signed), 0xC0]); // setcc al
                self.code.raw(&[0x0F, 0xB6, 0xC0]); // movzx eax, al
            }
            Test::Not(_) | Test::And(..) | Test::Or(..) | Test::Same(..) | Test::Fits(..) => {
                let (mut no, mut end) = (Label::new(), Label::new());
                self.jump(test, false, &mut no);
                self.code.op32(&[0xB8], 1); // mov eax, 1
                self.jump_to(&mut end);
                self.bind(no);
                self.code.raw(&[0x31, 0xC0]); // xor eax, eax
                self.bind(end);
            }
        }
    }

    fn combine(&mut self, how: Arithmetic, signed: bool, left: &Test, right: &Test) {
        let shift = match how {
            Arithmetic::ShiftLeft => Some(0xE0),
            Arithmetic::ShiftRight if signed => Some(0xF8),
            Arithmetic::ShiftRight => Some(0xE8),
            _ => None,
        };
        if let (Some(shift), Test::Number(by)) = (shift, right) {
            self.number(left);
            self.code.raw(&[0x48, 0xC1, shift, (by & 63) as u8]); // shl, sar, shr rax, by
            return;
        }
        let divides = matches!(how, Arithmetic::Divide | Arithmetic::Remainder);
        if let (false, Some(number)) = (divides, short(right)) {
            self.number(left);
            let opcode: &[u8] = match how {
                Arithmetic::Or => &[0x48, 0x0D],
                Arithmetic::Xor => &[0x48, 0x35],
                Arithmetic::And => &[0x48, 0x25],
                Arithmetic::Add => &[0x48, 0x05],
                Arithmetic::Subtract => &[0x48, 0x2D],
                _ => &[0x48, 0x69, 0xC0], // imul rax, rax, number
            };
            self.code.op32(opcode, number);
            return;
        }
        self.both(left, right);
        if let Some(shift) = shift {
            self.code.raw(&[0x48, 0xD3, shift]); // shl, sar, shr rax, cl
            return;
        }
        match how {
            Arithmetic::Or => self.code.raw(&[0x48, 0x09, 0xC8]),
            Arithmetic::Xor => self.code.raw(&[0x48, 0x31, 0xC8]),
            Arithmetic::And => self.code.raw(&[0x48, 0x21, 0xC8]),
            Arithmetic::Add => self.code.raw(&[0x48, 0x01, 0xC8]),
            Arithmetic::Subtract => self.code.raw(&[0x48, 0x29, 0xC8]),
            Arithmetic::Divide | Arithmetic::Remainder => self.divide(how, signed),
            _ => self.code.raw(&[0x48, 0x0F, 0xAF, 0xC1]), // imul rax, rcx
        }
    }

    /// `rax` by `rcx`.
    fn divide(&mut self, how: Arithmetic, signed: bool) {
        let mut out = core::mem::replace(&mut self.out, Label::new());
        self.code.raw(&[0x48, 0x85, 0xC9]); // test rcx, rcx
        self.jump_if(JE, &mut out);
        self.out = out;
        let remainder = how == Arithmetic::Remainder;
        let mut end = Label::new();
        if signed {
            // The smallest number by -1 would be an exception; the result wraps.
            let mut usual = Label::new();
            self.code.raw(&[0x48, 0x83, 0xF9, 0xFF]); // cmp rcx, -1
            self.jump_if(JNE, &mut usual);
            if remainder {
                self.code.raw(&[0x31, 0xC0]); // xor eax, eax
            } else {
                self.code.raw(&[0x48, 0xF7, 0xD8]); // neg rax
            }
            self.jump_to(&mut end);
            self.bind(usual);
            self.code.raw(&[0x48, 0x99, 0x48, 0xF7, 0xF9]); // cqo; idiv rcx
        } else {
            self.code.raw(&[0x31, 0xD2, 0x48, 0xF7, 0xF1]); // xor edx, edx; div rcx
        }
        if remainder {
            self.code.raw(&[0x48, 0x89, 0xD0]); // mov rax, rdx
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
            self.code.op32(&[0x48, 0x8B, 0x84, 0x24], slot); // mov rax, [rsp+slot]
            return;
        }
        emit_word(self.code, (self.saved, self.here), fetch, &mut self.loads);
        self.code.op32(&[0x48, 0x89, 0x84, 0x24], slot); // mov [rsp+slot], rax
        self.fetched |= 1 << value;
    }

    /// Leaves some bits of `rax`.
    fn cut(&mut self, bits: Bits) {
        let Bits {
            shift,
            width,
            signed,
        } = bits;
        let code: &[u8] = match (shift, width, signed) {
            (0, 64, _) => &[],
            (0, 8, true) => &[0x48, 0x0F, 0xBE, 0xC0], // movsx rax, al
            (0, 16, true) => &[0x48, 0x0F, 0xBF, 0xC0], // movsx rax, ax
            (0, 32, true) => &[0x48, 0x98],            // cdqe
            (0, 8, false) => &[0x0F, 0xB6, 0xC0],      // movzx eax, al
            (0, 16, false) => &[0x0F, 0xB7, 0xC0],     // movzx eax, ax
            (0, 32, false) => &[0x89, 0xC0],           // mov eax, eax
            _ => {
                let back = if signed { 0xF8 } else { 0xE8 };
                self.code.raw(&[0x48, 0xC1, 0xE0, 64 - shift - width]); // shl rax, …
                self.code.raw(&[0x48, 0xC1, back, 64 - width]); // sar or shr rax, …
                return;
            }
        };
        self.code.raw(code);
    }
}
