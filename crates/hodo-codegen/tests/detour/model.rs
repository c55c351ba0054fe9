//! What detours compute, computed otherwise; and random things to compute.

use hodo_codegen::detour::{
    Arithmetic, Atom, Bits, Comparison, Event, Fetch, Part, STRING, Source, Test, Text, fault_words,
};

use super::{BLOCK, DATA, HOME, Random, State, head};
use crate::isa;
use crate::machine::{ARENA, ARENA_SIZE};

/// The word at an address of the arena.
pub fn get(state: &State, at: u64) -> u64 {
    state.memory[((at - ARENA) / 8) as usize]
}

pub fn set(state: &mut State, at: u64, value: u64) {
    state.memory[((at - ARENA) / 8) as usize] = value;
}

pub fn add(state: &mut State, at: u64, value: u64) {
    let sum = get(state, at).wrapping_add(value);
    set(state, at, sum);
}

/// Writes a text with its end.
pub fn put(state: &mut State, at: u64, text: &[u8]) {
    put_exactly(state, at, text);
    put_exactly(state, at + text.len() as u64, &[0]);
}

pub fn put_exactly(state: &mut State, at: u64, bytes: &[u8]) {
    for (at, &byte) in (at..).zip(bytes) {
        let shift = at % 8 * 8;
        let word = get(state, at & !7) & !(0xFF << shift) | u64::from(byte) << shift;
        set(state, at & !7, word);
    }
}

/// What is at an address, if it can be read.
fn byte(state: &State, at: u64) -> Option<u8> {
    (ARENA..ARENA + ARENA_SIZE)
        .contains(&at)
        .then(|| (get(state, at & !7) >> (at % 8 * 8)) as u8)
}

fn load(state: &State, at: u64, size: u8) -> Option<u64> {
    let mut value = 0;
    for index in 0..u64::from(size) {
        value |= u64::from(byte(state, at.wrapping_add(index))?) << (8 * index);
    }
    Some(value)
}

/// A state, and the values of a probe.
pub struct Model<'a> {
    state: &'a State,
    values: &'a [Fetch],
}

impl<'a> Model<'a> {
    pub fn new(state: &'a State, values: &'a [Fetch]) -> Self {
        Self { state, values }
    }

    fn source(&self, source: &Source) -> Option<u64> {
        Some(match source {
            Source::Register(register) => isa::register(self.state, *register),
            Source::Number(number) => *number,
            Source::Here => HOME,
            Source::Near(distance) => HOME.wrapping_add_signed(*distance),
            Source::Memory(base, offset) => {
                let at = self.source(base)?.wrapping_add_signed((*offset).into());
                load(self.state, at, 8)?
            }
            Source::Plus(base, number) => self.source(base)?.wrapping_add_signed(*number),
            Source::ThreadPointer => isa::thread_pointer(),
            Source::Caller(_) | Source::Flags | Source::Segment(_) => panic!("not asked for"),
        })
    }

    /// A value of one word; of texts the address.
    fn fetch(&self, fetch: &Fetch) -> Option<u64> {
        match fetch {
            Fetch::Word(source) => self.source(source),
            Fetch::Load(source, offset, size) => {
                let at = self.source(source)?.wrapping_add_signed((*offset).into());
                load(self.state, at, *size)
            }
            Fetch::Text(source, offset) | Fetch::Bytes(source, offset, _) => {
                Some(self.source(source)?.wrapping_add_signed((*offset).into()))
            }
            Fetch::Thread(at, _) => load(self.state, BLOCK + u64::from(*at), 8),
            Fetch::Stack => unreachable!("not on this machine"),
        }
    }

    /// The bytes of a text with its end, if that is within reach, and whether all could be read.
    fn bytes(&self, at: u64, most: usize, is_text: bool) -> (Vec<u8>, bool) {
        let mut bytes = Vec::new();
        for at in (at..=u64::MAX).take(most) {
            match byte(self.state, at) {
                Some(byte) => bytes.push(byte),
                None => return (bytes, false),
            }
            if is_text && bytes.last() == Some(&0) {
                break;
            }
        }
        (bytes, true)
    }

    fn text(&self, text: &Text) -> Option<Vec<u8>> {
        let at = match text {
            Text::Fixed(text) => return Some(text[..text.len().min(STRING)].to_vec()),
            Text::Value(value) => self.fetch(&self.values[*value])?,
            Text::Thread(at) => BLOCK + u64::from(*at),
        };
        let (mut bytes, all) = self.bytes(at, STRING, true);
        if bytes.last() == Some(&0) {
            bytes.pop();
        }
        all.then_some(bytes)
    }

    /// The words of a value that is a text.
    pub fn text_words(&self, value: usize) -> Vec<u64> {
        let at = self.fetch(&self.values[value]).unwrap_or_default();
        words(self.bytes(at, STRING, true).0, STRING)
    }

    /// What a condition or number is; nothing if it cannot be computed.
    pub fn number(&self, test: &Test) -> Option<u64> {
        Some(match test {
            Test::Number(number) => *number,
            Test::Value(value, bits) => bits.of(self.fetch(&self.values[*value])?),
            Test::Thread(at) => load(self.state, BLOCK + u64::from(*at), 4)?,
            Test::Processor(_) => u32::MAX.into(),
            Test::Not(inner) => u64::from(self.number(inner)? == 0),
            Test::Complement(inner) => !self.number(inner)?,
            Test::Negate(inner) => self.number(inner)?.wrapping_neg(),
            Test::And(left, right) => {
                u64::from(self.number(left)? != 0 && self.number(right)? != 0)
            }
            Test::Or(left, right) => u64::from(self.number(left)? != 0 || self.number(right)? != 0),
            Test::Compare(how, signed, left, right) => {
                let (left, right) = (self.number(left)?, self.number(right)?);
                let order = match signed {
                    true => left.cast_signed().cmp(&right.cast_signed()),
                    false => left.cmp(&right),
                };
                u64::from(match how {
                    Comparison::Equal => order.is_eq(),
                    Comparison::NotEqual => order.is_ne(),
                    Comparison::Less => order.is_lt(),
                    Comparison::LessEqual => order.is_le(),
                    Comparison::Greater => order.is_gt(),
                    Comparison::GreaterEqual => order.is_ge(),
                })
            }
            Test::Combine(how, signed, left, right) => {
                let (left, right) = (self.number(left)?, self.number(right)?);
                let (a, b) = (left.cast_signed(), right.cast_signed());
                match (how, signed) {
                    (Arithmetic::Or, _) => left | right,
                    (Arithmetic::Xor, _) => left ^ right,
                    (Arithmetic::And, _) => left & right,
                    (Arithmetic::Add, _) => left.wrapping_add(right),
                    (Arithmetic::Subtract, _) => left.wrapping_sub(right),
                    (Arithmetic::Multiply, _) => left.wrapping_mul(right),
                    (Arithmetic::ShiftLeft, _) => left << (right & 63),
                    (Arithmetic::ShiftRight, true) => (a >> (right & 63)).cast_unsigned(),
                    (Arithmetic::ShiftRight, false) => left >> (right & 63),
                    (_, _) if right == 0 => return None,
                    (Arithmetic::Divide, true) => a.wrapping_div(b).cast_unsigned(),
                    (Arithmetic::Divide, false) => left / right,
                    (Arithmetic::Remainder, true) => a.wrapping_rem(b).cast_unsigned(),
                    (Arithmetic::Remainder, false) => left % right,
                }
            }
            // A longer one is no text in memory.
            Test::Same(Text::Fixed(long), _) if long.len() > STRING => 0,
            Test::Same(left, right) => u64::from(self.text(left)? == self.text(right)?),
            Test::Fits(text, pattern) => u64::from(Atom::fit(pattern, &self.text(text)?)),
        })
    }

    /// The words of an event without time.
    pub fn event(&self, event: &Event) -> Vec<u64> {
        let mut all = Vec::new();
        let mut failed = Vec::new();
        for value in &event.values {
            match value {
                Fetch::Word(_) | Fetch::Load(..) => {
                    let word = self.fetch(value);
                    failed.push(word.is_none());
                    all.push(word.unwrap_or_default());
                }
                Fetch::Text(..) => {
                    let at = self.fetch(value);
                    let read = at.map(|at| self.bytes(at, STRING, true));
                    let (bytes, whole) = read.unwrap_or_default();
                    failed.push(!whole);
                    all.extend(words(bytes, STRING));
                }
                Fetch::Bytes(_, _, most) => {
                    let at = self.fetch(value);
                    let read = at.map(|at| self.bytes(at, *most as usize, false));
                    let (bytes, whole) = read.unwrap_or_default();
                    // In memory, pages end at multiples of eight.
                    assert!(whole || bytes.is_empty());
                    failed.push(false);
                    all.push(bytes.len() as u64);
                    all.extend(words(bytes, most.next_multiple_of(8) as usize));
                }
                Fetch::Stack => unreachable!("not on this machine"),
                Fetch::Thread(from, count) => {
                    failed.push(false);
                    let at = BLOCK + u64::from(*from);
                    all.extend((0..u64::from(*count)).map(|word| get(self.state, at + 8 * word)));
                }
            }
        }
        let bits = |from: usize, count: usize| {
            let bits = failed.iter().skip(from).take(count).enumerate();
            bits.fold(0u64, |bits, (index, failed)| {
                bits | u64::from(*failed) << index
            })
        };
        let more = fault_words(event.values.len());
        let mut words = head(all.len(), bits(0, 32) as u32, more);
        words.extend((0..more).map(|word| bits(32 + 64 * word, 64)));
        words.extend(all);
        words
    }
}

fn words(mut bytes: Vec<u8>, length: usize) -> Vec<u64> {
    bytes.resize(length, 0);
    let eight = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight"));
    bytes.chunks_exact(8).map(eight).collect()
}

/// What a number is counted as.
pub fn part(number: u64, part: Part) -> u64 {
    match part {
        Part::Each => number,
        Part::Log2 => u64::from(64 - number.leading_zeros()),
        Part::Linear(width, true) => {
            let width = width as i64;
            let number = number.cast_signed();
            number
                .wrapping_sub(number.rem_euclid(width))
                .cast_unsigned()
        }
        Part::Linear(width, false) => number - number % width,
    }
}

fn pick<T: Copy>(random: &mut Random, from: &[T]) -> T {
    from[random.below(from.len() as u64) as usize]
}

/// What may lead to memory of the program, and to none that probes change.
fn pointer(random: &mut Random) -> Source {
    match random.below(8) {
        0 => Source::Number(DATA + random.below(64)),
        1 => {
            let at = Source::Register(5 + random.below(isa::POINTERS) as u8);
            Source::Plus(Box::new(at), random.below(32).cast_signed() - 16)
        }
        _ => Source::Register(5 + random.below(isa::POINTERS) as u8),
    }
}

fn source(random: &mut Random, depth: u32) -> Source {
    let register = |random: &mut Random| Source::Register(random.below(32) as u8);
    match random.below(if depth == 0 { 6 } else { 9 }) {
        0 => Source::Number(random.next() >> random.below(64)),
        1 => Source::Here,
        2 => Source::Near(random.next() as i32 as i64),
        3 => Source::ThreadPointer,
        4 | 5 => register(random),
        6 => Source::Plus(
            Box::new(source(random, depth - 1)),
            random.next().cast_signed() >> random.below(64),
        ),
        _ => {
            let far = random.below(4) == 0;
            let offset = random.below(64) as i32 - 32 + if far { 0x10000 } else { 0 };
            Source::Memory(Box::new(pointer(random)), offset)
        }
    }
}

/// Values, some of which cannot be read.
pub fn values(random: &mut Random, long: bool) -> Vec<Fetch> {
    let number = match (long, random.below(8)) {
        (true, 0) => 40,
        _ => 1 + random.below(6),
    };
    let mut texts = 0;
    let mut one = |random: &mut Random| match random.below(if long { 7 } else { 4 }) {
        0 | 1 => Fetch::Word(source(random, 2)),
        2 | 3 => {
            let offset = random.below(64) as i32 - 32;
            let from = match random.below(8) {
                0 => 0x12345,
                _ => 0,
            };
            let size = pick(random, &[1, 2, 4, 8]);
            Fetch::Load(pointer(random), offset + from, size)
        }
        4 => Fetch::Thread(224, 2),
        _ if texts >= 3 => Fetch::Word(Source::Here),
        5 => {
            texts += 1;
            let at = pick(random, &[DATA + 3, DATA + 0x80, 16]);
            Fetch::Text(Source::Number(at), random.below(40) as i32)
        }
        _ => {
            texts += 1;
            let at = pick(random, &[DATA, DATA + 0x80, 16]);
            let offset = random.below(40) as i32;
            Fetch::Bytes(Source::Number(at), offset, random.below(60) as u32)
        }
    };
    (0..number).map(|_| one(random)).collect()
}

/// A condition on values.
pub fn condition(random: &mut Random, values: &[Fetch], depth: u32) -> Test {
    let number = |random: &mut Random| match random.below(4) {
        0 => random.next(),
        1 => random.below(4).wrapping_neg(),
        _ => random.below(70),
    };
    if depth == 0 || random.below(6) == 0 {
        return match random.below(6) {
            0 => Test::Number(number(random)),
            1 => Test::Thread(80),
            _ => {
                let width = pick(random, &[64, 32, 16, 8, 1, 5, 12, 33]);
                let shift = match random.below(2) {
                    0 => 0,
                    _ => random.below(65 - width) as u8,
                };
                let bits = Bits {
                    shift,
                    width: width as u8,
                    signed: random.below(2) == 0,
                };
                Test::Value(random.below(values.len() as u64) as usize, bits)
            }
        };
    }
    let inner = |random: &mut Random| Box::new(condition(random, values, depth - 1));
    match random.below(10) {
        0 => Test::Not(inner(random)),
        1 => Test::Complement(inner(random)),
        2 => Test::Negate(inner(random)),
        3 => Test::And(inner(random), inner(random)),
        4 | 5 => Test::Or(inner(random), inner(random)),
        6 | 7 => {
            let how = pick(
                random,
                &[
                    Comparison::Equal,
                    Comparison::NotEqual,
                    Comparison::Less,
                    Comparison::LessEqual,
                    Comparison::Greater,
                    Comparison::GreaterEqual,
                ],
            );
            Test::Compare(how, random.below(2) == 0, inner(random), inner(random))
        }
        _ => {
            let how = pick(
                random,
                &[
                    Arithmetic::Or,
                    Arithmetic::Xor,
                    Arithmetic::And,
                    Arithmetic::Add,
                    Arithmetic::Subtract,
                    Arithmetic::Multiply,
                    Arithmetic::ShiftLeft,
                    Arithmetic::ShiftRight,
                    Arithmetic::Divide,
                    Arithmetic::Remainder,
                ],
            );
            Test::Combine(how, random.below(2) == 0, inner(random), inner(random))
        }
    }
}

/// A text of few letters.
pub fn text(random: &mut Random) -> Vec<u8> {
    let length = match random.below(6) {
        0 => random.below(160),
        _ => random.below(8),
    };
    let letters = (0..length).map(|_| pick(random, b"abcd")).collect();
    match random.below(4) {
        0 => vec![b'\xFF'; length as usize],
        _ => letters,
    }
}

/// A pattern that may fit a text.
pub fn pattern(random: &mut Random, text: &[u8]) -> Vec<u8> {
    let mut pattern = Vec::new();
    let mut rest = &text[..text.len().min(STRING)];
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        match random.below(6) {
            0 => {
                pattern.push(b'*');
                rest = &rest[random.below(rest.len() as u64 + 1) as usize..];
            }
            1 => pattern.push(b'?'),
            2 => pattern.extend(*b"[a-b]"),
            3 => pattern.extend(*b"[!c]"),
            _ => pattern.push(first),
        }
    }
    if random.below(3) == 0 {
        pattern.push(pick(random, b"*a"));
    }
    pattern
}
