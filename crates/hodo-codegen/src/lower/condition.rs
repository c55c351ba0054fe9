//! Conditions: 64-bit numbers with the operators of C.
//!
//! A value in memory is fetched where it is needed for the first time, and kept in the frame. What cannot be fetched,
//! and a division by zero, make the whole condition false.

use alloc::vec::Vec;
use hodo_isa::buffer::Label;

use super::{Operator, Texts, event};
use crate::detour::{Arithmetic, DetourError, Fetch, Test, kept_at};

/// A place that comes later.
#[derive(Debug, Clone, Copy)]
pub(super) struct Goal {
    pub(super) label: Label,
    /// What has been fetched on every way there.
    fetched: u64,
}

/// What a condition needs of registers and of the stack.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Needs {
    /// Registers for two operands.
    pub(crate) pairs: bool,
    /// Registers for texts.
    pub(crate) texts: bool,
    /// Values that are kept.
    pub(crate) kept: u64,
    /// Words for intermediate results.
    pub(crate) scratch: usize,
}

impl Needs {
    /// Words of the frame, at its lower end.
    pub(crate) fn words(&self) -> usize {
        self.kept.count_ones() as usize + self.scratch
    }
}

/// Writes conditions.
pub(crate) struct Lowering<'w, T: Texts> {
    pub(super) target: &'w mut T,
    pub(super) values: &'w [Fetch],
    /// Values that have a place in the frame.
    keeps: u64,
    /// What was found to be needed.
    pub(crate) needs: Needs,
    /// Words for intermediate results that are in use.
    pub(super) scratch: usize,
    /// Values that have been fetched.
    pub(crate) fetched: u64,
    /// Loads that may fault: nothing is computed then.
    pub(crate) loads: Vec<T::Load>,
    /// Where it goes on if something cannot be computed.
    out: Goal,
    /// The first thing that could not be written.
    error: Option<DetourError>,
}

impl<'w, T: Texts> Lowering<'w, T> {
    /// With a frame that has room for `needs`, and values in it that have been fetched. `out` is where to go if
    /// something cannot be computed.
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

    /// Something goes from here to a place.
    pub(super) fn to(&self, goal: &mut Goal) -> Label {
        goal.fetched &= self.fetched;
        goal.label
    }

    pub(super) fn jump_to(&mut self, goal: &mut Goal) {
        let label = self.to(goal);
        self.target.jump(label);
        // Nothing comes here but by another label.
        self.fetched = u64::MAX;
    }

    pub(super) fn bind(&mut self, goal: Goal) {
        self.target.bind(goal.label);
        self.fetched &= goal.fetched;
    }

    /// The word of the frame for an intermediate result.
    pub(super) fn spare(&self, number: usize) -> usize {
        self.keeps.count_ones() as usize + number
    }

    /// Takes a word for an intermediate result.
    pub(super) fn take(&mut self) -> usize {
        self.scratch += 1;
        self.needs.scratch = self.needs.scratch.max(self.scratch);
        self.scratch - 1
    }

    /// Goes to where it goes on if something cannot be computed unless a condition holds.
    pub(crate) fn unless(&mut self, test: &Test) {
        let mut out = self.out;
        self.jump(test, false, &mut out);
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
                let pair = self.both(Operator::Compare(*how), left, right);
                let label = self.to(to);
                let comparison = (*how, *signed);
                self.target.jump_compared(comparison, pair, when, label);
            }
            Test::Number(number) => {
                if (*number != 0) == when {
                    let fetched = self.fetched;
                    self.jump_to(to);
                    // The code after it is emitted, though nothing gets there.
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

    /// Brings the operands to where an operator finds them.
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

    /// Brings a number into the value.
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

    /// Brings a value of the probe as it was fetched into the value; of a text its address.
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
