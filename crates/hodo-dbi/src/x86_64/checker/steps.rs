//! What a fragment must do, by its items: what can be seen of it, in order.

use std::collections::HashMap;

use iced_x86::{Register, UsedMemory};

use super::super::facts::general;
use crate::fragment::{Instruction, Item};
use crate::inserted::{Bytes, Compare, Compute, Mark, Part, Scratch, Step, Value};

/// The base of the program's `fs`.
pub(super) const THREAD: u64 = 0x1234_5678_9ABC_DEF0;

/// A number that no other part of the walk has by chance (SplitMix64).
pub(super) fn made_up(kind: u64, number: u64) -> u64 {
    let mut z = (kind << 40 ^ number).wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Kinds of such numbers.
pub(super) const REGISTER: u64 = 1;
pub(super) const FLAG: u64 = 2;
pub(super) const WORD: u64 = 3;
pub(super) const LOADED: u64 = 4;

/// What can be seen of inserted code. `None`: it depends on what is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    Load(Option<u64>, u8),
    Store(Option<u64>, u8, Option<u64>),
    /// Sets a word.
    Word(u32, Option<u64>),
    Record(u32, Option<u64>),
    Skip(Compare, Option<u64>, Option<u64>),
}

impl Effect {
    /// Whether this is seen where something must be, which is not always known.
    pub(super) fn is(self, expected: Self) -> bool {
        let fits = |seen, expected: Option<u64>| expected.is_none() || seen == expected;
        match (self, expected) {
            (Self::Load(at, bytes), Self::Load(to, count)) => fits(at, to) && bytes == count,
            (Self::Store(at, bytes, value), Self::Store(to, count, stored)) => {
                fits(at, to) && bytes == count && fits(value, stored)
            }
            (Self::Word(word, value), Self::Word(other, expected))
            | (Self::Record(word, value), Self::Record(other, expected)) => {
                word == other && fits(value, expected)
            }
            (Self::Skip(compare, left, right), Self::Skip(other, first, second)) => {
                compare == other && fits(left, first) && fits(right, second)
            }
            _ => false,
        }
    }
}

/// The low bytes of a number.
pub(super) fn low(value: u64, bytes: u8) -> u64 {
    match bytes {
        8 => value,
        bytes => value & ((1 << (8 * bytes)) - 1),
    }
}

/// What a load finds that is the n-th effect.
pub(super) fn loaded(effects: u64, bytes: u8) -> u64 {
    low(made_up(LOADED, effects), bytes)
}

/// What is computed.
pub(super) fn computed(compute: Compute, left: u64, right: u64) -> u64 {
    match compute {
        Compute::Add => left.wrapping_add(right),
        Compute::Subtract => left.wrapping_sub(right),
        Compute::And => left & right,
        Compute::Or => left | right,
        Compute::Xor => left ^ right,
    }
}

/// Values of words: each write makes the next one.
#[derive(Debug, Clone, Default)]
pub(super) struct Words(HashMap<u32, u64>);

impl Words {
    pub(super) fn read(&self, word: u32) -> u64 {
        let version = self.0.get(&word).copied().unwrap_or(0);
        made_up(WORD, u64::from(word) << 20 | version)
    }

    pub(super) fn written(&mut self, word: u32) {
        *self.0.entry(word).or_insert(0) += 1;
    }
}

type Scratches = HashMap<Scratch, Option<u64>>;

/// Executes the items.
pub(super) struct Steps<'s> {
    items: &'s [Item],
    /// The item that comes next.
    next: usize,
    /// The program's registers and flags.
    pub(super) registers: [u64; 16],
    pub(super) flags: [u64; 6],
    scratch: Scratches,
    words: Words,
    /// What scratch registers have where code is skipped up to a mark.
    skipped: HashMap<Mark, Vec<Scratches>>,
    effects: u64,
}

fn bytes_of(bytes: Bytes) -> u8 {
    match bytes {
        Bytes::One => 1,
        Bytes::Two => 2,
        Bytes::Four => 4,
        Bytes::Eight => 8,
    }
}

fn of_program(item: &Item) -> Option<&Instruction> {
    match item {
        Item::Instruction(instruction) if instruction.part.is_none() => Some(instruction),
        _ => None,
    }
}

impl<'s> Steps<'s> {
    pub(super) fn new(items: &'s [Item]) -> Self {
        Self {
            items,
            next: 0,
            registers: std::array::from_fn(|number| made_up(REGISTER, number as u64)),
            flags: std::array::from_fn(|number| made_up(FLAG, number as u64)),
            scratch: Scratches::new(),
            words: Words::default(),
            skipped: HashMap::new(),
            effects: 0,
        }
    }

    /// The instructions of the program that are not executed yet, without those whose lanes are accesses of their own.
    pub(super) fn rest(&self) -> impl Iterator<Item = &'s Instruction> {
        self.items[self.next..].iter().filter_map(of_program)
    }

    /// Instructions whose registers are somewhere else while their lanes are accessed.
    pub(super) fn heads(&self) -> impl Iterator<Item = &'s Instruction> {
        let instructions = self.items.iter().filter_map(|item| match item {
            Item::Instruction(instruction) => Some(instruction),
            Item::Inserted(_) => None,
        });
        instructions.filter(|instruction| matches!(instruction.part, Some(Part::Head(_))))
    }

    /// Executes the next instruction of the program, which changes these registers and flags.
    ///
    /// # Errors
    /// If inserted code before it was not seen.
    pub(super) fn program(&mut self, registers: u16, flags: u8) -> Result<(), String> {
        if let Some(missing) = self.effect() {
            return Err(format!("{missing:x?} is missing"));
        }
        self.next += 1;
        self.effects += 1;
        for (number, register) in self.registers.iter_mut().enumerate() {
            if registers >> number & 1 == 1 {
                *register = made_up(REGISTER, self.effects << 8 | number as u64);
            }
        }
        for (number, flag) in self.flags.iter_mut().enumerate() {
            if flags >> number & 1 == 1 {
                *flag = made_up(FLAG, self.effects << 8 | number as u64);
            }
        }
        Ok(())
    }

    /// How many effects there were.
    pub(super) fn effects(&self) -> u64 {
        self.effects
    }

    /// Whether inserted code does something that can be seen before the next instruction of the program.
    pub(super) fn has_effects(&self) -> bool {
        let items = self.items[self.next..].iter();
        let mut before = items.take_while(|item| of_program(item).is_none());
        before.any(|item| {
            matches!(
                item,
                Item::Inserted(
                    Step::Load(..)
                        | Step::Store(..)
                        | Step::Write(..)
                        | Step::Count(..)
                        | Step::Record(..)
                        | Step::SkipUnless(..)
                )
            )
        })
    }

    /// Executes inserted code up to what can be seen of it. `None`: an instruction of the program comes first, or the
    /// end.
    pub(super) fn effect(&mut self) -> Option<Effect> {
        while let Some(item) = self.items.get(self.next) {
            let effect = match item {
                Item::Inserted(step) => self.step(*step),
                Item::Instruction(instruction) if instruction.part.is_some() => None,
                Item::Instruction(_) => return None,
            };
            self.next += 1;
            if effect.is_some() {
                self.effects += 1;
                return effect;
            }
        }
        None
    }

    fn get(&self, scratch: Scratch) -> Option<u64> {
        self.scratch.get(&scratch).copied().flatten()
    }

    fn value(&self, value: Value) -> Option<u64> {
        match value {
            Value::Scratch(scratch) => self.get(scratch),
            Value::Number(number) => Some(i64::from(number).cast_unsigned()),
        }
    }

    fn step(&mut self, step: Step) -> Option<Effect> {
        match step {
            Step::Reserve(scratch) => self.set(scratch, None),
            Step::Release(scratch) => drop(self.scratch.remove(&scratch)),
            Step::Set(to, number) => self.set(to, Some(number)),
            Step::Copy(to, from) => self.set(to, self.get(from)),
            Step::Register(to, number) => {
                self.set(to, Some(self.registers[usize::from(number)]));
            }
            Step::Address(to, operand) => self.set(to, self.address(operand)),
            Step::Load(to, bytes, base, displacement) => {
                let bytes = bytes_of(bytes);
                let at = self.sum(base, displacement);
                self.set(to, Some(loaded(self.effects, bytes)));
                return Some(Effect::Load(at, bytes));
            }
            Step::Store(bytes, base, displacement, from) => {
                let bytes = bytes_of(bytes);
                let value = self.get(from).map(|value| low(value, bytes));
                return Some(Effect::Store(self.sum(base, displacement), bytes, value));
            }
            Step::Read(to, word) => self.set(to, Some(self.words.read(word.0))),
            Step::Write(word, from) => {
                self.words.written(word.0);
                return Some(Effect::Word(word.0, self.get(from)));
            }
            Step::Count(word, number) => {
                let value = self.words.read(word.0).wrapping_add_signed(number.into());
                self.words.written(word.0);
                return Some(Effect::Word(word.0, Some(value)));
            }
            Step::Compute(compute, to, value) => {
                let result = self.get(to).zip(self.value(value));
                self.set(
                    to,
                    result.map(|(left, right)| computed(compute, left, right)),
                );
            }
            Step::ShiftLeft(to, bits) => self.set(to, self.get(to).map(|value| value << bits)),
            Step::ShiftRight(to, bits) => self.set(to, self.get(to).map(|value| value >> bits)),
            Step::Record(number, value, other) => {
                self.set(other, None);
                return Some(Effect::Record(number, self.get(value)));
            }
            Step::SkipUnless(compare, left, right, mark) => {
                self.skip(mark);
                let (left, right) = (self.get(left), self.value(right));
                return Some(Effect::Skip(compare, left, right));
            }
            Step::SkipInactive(_, _, mark) => self.skip(mark),
            Step::Mark(mark) => self.mark(mark),
            _ => {}
        }
        None
    }

    fn set(&mut self, scratch: Scratch, value: Option<u64>) {
        self.scratch.insert(scratch, value);
    }

    fn sum(&self, base: Scratch, displacement: i32) -> Option<u64> {
        Some(self.get(base)?.wrapping_add_signed(displacement.into()))
    }

    fn skip(&mut self, mark: Mark) {
        let scratch = self.scratch.clone();
        self.skipped.entry(mark).or_default().push(scratch);
    }

    /// What is not the same on both ways is not known.
    fn mark(&mut self, mark: Mark) {
        for skipped in self.skipped.remove(&mark).unwrap_or_default() {
            for (scratch, value) in &mut self.scratch {
                if skipped.get(scratch) != Some(value) {
                    *value = None;
                }
            }
        }
    }

    /// The address of an operand of the instruction that comes next. That of a lane is not known.
    fn address(&self, operand: u8) -> Option<u64> {
        let next = self.items[self.next..].iter().find_map(|item| match item {
            Item::Instruction(instruction) => Some(instruction),
            Item::Inserted(_) => None,
        })?;
        if next.part.is_some() {
            return None;
        }
        let memory: &UsedMemory = &next.facts.memory[usize::from(operand)];
        let of = |register| general(register).map_or(0, |number| self.registers[number]);
        let thread = match memory.segment() {
            Register::FS => THREAD,
            _ => 0,
        };
        let index = of(memory.index()).wrapping_mul(memory.scale().into());
        let sum = memory.displacement().wrapping_add(thread);
        Some(sum.wrapping_add(of(memory.base())).wrapping_add(index))
    }
}
