//! Conditions: 64-bit numbers with the operators of C.
//!
//! A value in memory is fetched where it is first needed, and kept in the frame. If a value cannot be fetched, or on a
//! division by zero, the whole condition is false.

use alloc::vec::Vec;
use hodo_isa::buffer::Label;

use super::{Operator, Texts, event};
use crate::detour::{Arithmetic, DetourError, Fetch, Test, kept_at};

/// A place that comes later, with a label.
#[derive(Debug, Clone, Copy)]
pub(super) struct Goal {
    pub(super) label: Label,
    /// The values that have been fetched on every path there.
    fetched: u64,
}

/// Which registers and how much of the stack a condition needs.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Needs {
    /// Registers for two operands.
    pub(crate) pairs: bool,
    /// Registers for texts.
    pub(crate) texts: bool,
    /// The values that are kept in the frame.
    pub(crate) kept: u64,
    /// The number of words for intermediate results.
    pub(crate) scratch: usize,
}

impl Needs {
    /// The number of words in the frame, at its lower end.
    pub(crate) fn words(&self) -> usize {
        self.kept.count_ones() as usize + self.scratch
    }
}

/// Writes conditions.
pub(crate) struct Lowering<'w, T: Texts> {
    pub(super) target: &'w mut T,
    pub(super) values: &'w [Fetch],
    /// The values that have a word in the frame.
    keeps: u64,
    /// What has turned out to be needed.
    pub(crate) needs: Needs,
    /// The number of words for intermediate results that are in use.
    pub(super) scratch: usize,
    /// The values that have been fetched.
    pub(crate) fetched: u64,
    /// Loads that may fault; then nothing is computed.
    pub(crate) loads: Vec<T::Load>,
    /// Where control goes if something cannot be computed.
    out: Goal,
    /// The first error, if something could not be written.
    error: Option<DetourError>,
}

impl<'w, T: Texts> Lowering<'w, T> {
    /// Starts with a frame that has room for `needs` and holds the values that have been fetched. Control goes to `out`
    /// if something cannot be computed.
    pub(crate) fn new(
        target: &'w mut T,
        values: &'w [Fetch],
        needs: Needs,
        fetched: u64,
        out: Label,
    ) -> Self {
        let out = Goal {
            label: out,
            fetched: u64::MAX,
        };
        Self {
            target,
            values,
            keeps: needs.kept,
            needs,
            scratch: 0,
            fetched,
            loads: Vec::new(),
            out,
            error: None,
        }
    }

    /// The loads that may fault.
    ///
    /// # Errors
    /// If something could not be written.
    pub(crate) fn finish(self) -> Result<Vec<T::Load>, DetourError> {
        match self.error {
            Some(error) => Err(error),
            None => Ok(self.loads),
        }
    }

    pub(super) fn goal(&mut self) -> Goal {
        Goal {
            label: self.target.label(),
            fetched: u64::MAX,
        }
    }

    /// The label for a jump from here to a goal.
    pub(super) fn to(&self, goal: &mut Goal) -> Label {
        goal.fetched &= self.fetched;
        goal.label
    }

    pub(super) fn jump_to(&mut self, goal: &mut Goal) {
        let label = self.to(goal);
        self.target.jump(label);
        // Control reaches the following code only through another label.
        self.fetched = u64::MAX;
    }

    pub(super) fn bind(&mut self, goal: Goal) {
        self.target.bind(goal.label);
        self.fetched &= goal.fetched;
    }

    /// The word of the frame that holds an intermediate result.
    pub(super) fn spare(&self, number: usize) -> usize {
        self.keeps.count_ones() as usize + number
    }

    /// Reserves a word for an intermediate result.
    pub(super) fn take(&mut self) -> usize {
        self.scratch += 1;
        self.needs.scratch = self.needs.scratch.max(self.scratch);
        self.scratch - 1
    }

    /// Jumps to where control goes if something cannot be computed, unless a condition holds.
    pub(crate) fn unless(&mut self, test: &Test) {
        let mut out = self.out;
        self.jump(test, false, &mut out);
    }

    /// Jumps to `to` if the condition is `when`; otherwise control continues.
    pub(super) fn jump(&mut self, test: &Test, when: bool, to: &mut Goal) {
        match test {
            Test::Not(inner) => self.jump(inner, !when, to),
            Test::And(first, second) | Test::Or(first, second) => {
                // The result of the first operand that decides the whole.
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
                let pair = self.both(Operator::Compare(*how), left, right);
                let label = self.to(to);
                let comparison = (*how, *signed);
                self.target.jump_compared(comparison, pair, when, label);
            }
            Test::Number(number) => {
                if (*number != 0) == when {
                    let fetched = self.fetched;
                    self.jump_to(to);
                    // The code after the jump is emitted, though control never gets there.
                    self.fetched = fetched;
                }
            }
            Test::Same(left, right) => self.same(left, right, when, to),
            Test::Fits(text, pattern) => self.fits(text, pattern, when, to),
            _ => {
                self.number(test);
                let label = self.to(to);
                self.target.jump_if(when, label);
            }
        }
    }

    /// Puts the operands where an operator expects them.
    fn both(&mut self, operator: Operator, left: &Test, right: &Test) -> T::Pair {
        self.number(left);
        if let Test::Number(number) = right
            && let Some(pair) = self.target.with_number(operator, *number)
        {
            return pair;
        }
        self.needs.pairs = true;
        if right.is_leaf() {
            self.target.set_aside();
            self.number(right);
            return self.target.with_aside();
        }
        let spare = self.take();
        let word = self.spare(spare);
        self.target.store(word);
        self.number(right);
        self.scratch -= 1;
        self.target.with_word(word)
    }

    /// The value becomes a number that a condition computes.
    pub(crate) fn number(&mut self, test: &Test) {
        match test {
            Test::Number(number) => self.target.number(*number),
            Test::Value(value, bits) => {
                self.word(*value);
                self.target.cut(*bits);
            }
            Test::Thread(at) => self.target.thread(*at),
            Test::Processor(rdpid) => self.target.processor(*rdpid),
            Test::Complement(inner) => {
                self.number(inner);
                self.target.complement();
            }
            Test::Negate(inner) => {
                self.number(inner);
                self.target.negate();
            }
            Test::Combine(how, signed, left, right) => {
                let pair = self.both(Operator::Combine(*how), left, right);
                if matches!(how, Arithmetic::Divide | Arithmetic::Remainder) {
                    let mut out = self.out;
                    let label = self.to(&mut out);
                    self.out = out;
                    self.target.jump_without_divisor(pair, label);
                }
                self.target.combine(*how, *signed, pair);
            }
            Test::Compare(how, signed, left, right) => {
                let pair = self.both(Operator::Compare(*how), left, right);
                self.target.compare(*how, *signed, pair);
            }
            Test::Not(_) | Test::And(..) | Test::Or(..) | Test::Same(..) | Test::Fits(..) => {
                let (mut no, mut end) = (self.goal(), self.goal());
                self.jump(test, false, &mut no);
                self.target.number(1);
                self.jump_to(&mut end);
                self.bind(no);
                self.target.number(0);
                self.bind(end);
            }
        }
    }

    /// The value becomes one of the probe's values as it was fetched, or a text's address.
    pub(crate) fn word(&mut self, value: usize) {
        let fetch = &self.values[value];
        let word = kept_at(self.keeps, value);
        if let Some(word) = word
            && self.fetched >> value & 1 == 1
        {
            self.target.load(word);
            return;
        }
        if let Err(error) = event::fetch(self.target, fetch, &mut self.loads) {
            self.error.get_or_insert(error);
        }
        match word {
            Some(word) => {
                self.target.store(word);
                self.fetched |= 1 << value;
            }
            None if fetch.is_kept() && value < 64 => self.needs.kept |= 1 << value,
            None => {}
        }
    }
}
