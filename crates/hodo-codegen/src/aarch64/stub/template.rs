//! Stubs that are copied from others of their kind. Functions that are recorded in the same way, with the same
//! registers for the stub to work with, have stubs that differ in few words: the function's numbers, and distances to
//! the agent.
//!
//! A template is a stub with placeholders for the numbers. The words that hold them are found by what they hold, the
//! distances by where they lead.

use alloc::vec::Vec;

use super::scratch::CANDIDATES;
use super::{Body, Emitted, Layout, Records, Registers, Runtime, add_row, emit_body, emit_halves};
use crate::detour::Register;
use hodo_isa::Via;
use hodo_isa::aarch64::asm::{Code, Halves};
use hodo_isa::aarch64::encode::{MOVK, MOVZ, WIDE};
use hodo_isa::cfa::Row;

/// The most templates. Functions of other kinds get stubs that are not copied.
const MOST: usize = 256;

/// Stubs never choose among more free registers.
const REGISTERS: usize = 8;

/// A function's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Number {
    Entry,
    Exit,
    Tail,
    Check,
}

impl Number {
    const ALL: [Self; 4] = [Self::Entry, Self::Exit, Self::Tail, Self::Check];

    /// Stands for the number in templates. Neither half is part of anything else in a stub.
    const fn placeholder(self) -> u32 {
        0x3A51_3C1D + 0x1_0010 * self as u32
    }

    /// The placeholder that is put into a register as the number is. Only entries and exits are put there.
    fn like(self, number: u32) -> Option<u32> {
        match Halves::of(number) {
            Halves::Lower => Some(self.placeholder() & 0xFFFF),
            Halves::Both => Some(self.placeholder()),
            Halves::Other => None,
        }
    }

    fn of(self, records: &Records) -> Option<u32> {
        match self {
            Self::Entry => Some(records.entry),
            Self::Exit => records.exit,
            Self::Tail => Some(records.tail),
            Self::Check => records.check,
        }
    }
}

/// A word that differs from stub to stub.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    /// It is the number.
    Whole(Number),
    /// An instruction has the lower half.
    Lower(Number),
    /// An instruction has the upper half.
    Upper(Number),
    /// It leads to an address.
    Jump(u64),
    /// It forms the address of a page.
    Page(u64),
}

/// Where a half of a number is in an instruction.
const HALF: u32 = 0xFFFF << 5;
/// The lowest bits of an instruction that puts a half somewhere tell which register it is.
const REGISTER: u32 = 0x1F;

/// `b` and `bl` without their distance, in words.
const DISTANCE: u32 = (1 << 26) - 1;
const B: u32 = 0x1400_0000;
const BL: u32 = 0x9400_0000;

/// `adrp` without its distance, in pages.
const PAGE_DISTANCE: u32 = 3 << 29 | 0x7_FFFF << 5;
const ADRP: u32 = 0x9000_0000;

const PAGE: u64 = 4096;

/// A number with a sign in the lowest bits of a word.
fn signed(bits: u32, count: u32) -> i64 {
    let unused = 32 - count;
    ((bits << unused).cast_signed() >> unused).into()
}

/// A number in the lowest bits of a word, if it fits into this many.
fn fit(number: i64, count: u32) -> Option<u32> {
    let bits = number as u32 & ((1 << count) - 1);
    (signed(bits, count) == number).then_some(bits)
}

impl Field {
    /// What in a word at an address of a stub, which is somewhere within `stub`, is its own.
    fn of(
        word: u32,
        at: u64,
        stub: &core::ops::RangeInclusive<u64>,
        records: &Records,
    ) -> Option<Self> {
        let half = |opcode, part: u32| {
            let bits = opcode | WIDE | part << 21;
            (word & !(HALF | REGISTER) == bits).then_some((word & HALF) >> 5)
        };
        for number in Number::ALL {
            let Some(held) = number.of(records) else {
                continue;
            };
            if word == held {
                return Some(Self::Whole(number));
            }
            let lower = half(MOVZ, 0).or_else(|| half(MOVK, 0));
            if lower == Some(held & 0xFFFF) {
                return Some(Self::Lower(number));
            }
            if held >> 16 != 0 && half(MOVZ, 1) == Some(held >> 16) {
                return Some(Self::Upper(number));
            }
        }
        match word & !DISTANCE {
            B | BL => {
                let to = at.wrapping_add_signed(signed(word & DISTANCE, 26) * 4);
                (!stub.contains(&to)).then_some(Self::Jump(to))
            }
            _ if word & !(PAGE_DISTANCE | REGISTER) == ADRP => {
                let bits = (word >> 5 & 0x7_FFFF) << 2 | word >> 29 & 3;
                let pages = signed(bits, 21) * PAGE.cast_signed();
                Some(Self::Page((at & !(PAGE - 1)).wrapping_add_signed(pages)))
            }
            _ => None,
        }
    }

    /// The word at another address for another function. `None`: it does not reach.
    fn filled(self, word: u32, at: u64, records: &Records) -> Option<u32> {
        let with = |bits: u32| word & !HALF | bits << 5;
        Some(match self {
            Self::Whole(number) => number.of(records)?,
            Self::Lower(number) => with(number.of(records)? & 0xFFFF),
            Self::Upper(number) => with(number.of(records)? >> 16),
            Self::Jump(to) => {
                let distance = to.wrapping_sub(at).cast_signed();
                word & !DISTANCE | fit(distance / 4, 26)?
            }
            Self::Page(to) => {
                let distance = to.wrapping_sub(at & !(PAGE - 1)).cast_signed();
                let bits = fit(distance / PAGE.cast_signed(), 21)?;
                word & !PAGE_DISTANCE | (bits & 3) << 29 | (bits >> 2) << 5
            }
        })
    }
}

/// What is emitted for functions of one kind in front of their bodies.
#[derive(Debug)]
struct Template {
    runtime: Runtime,
    /// The records, with placeholders for the numbers.
    records: Records,
    code: Vec<u8>,
    /// Offsets are relative to the start.
    rows: Vec<Row>,
    /// The loads that may fault, and where execution continues then, relative to the start.
    faults: Vec<(u64, u64)>,
    /// By their offsets.
    fields: Vec<(usize, Field)>,
}

impl Template {
    fn new(layout: &Layout, runtime: Runtime, records: Records, base: u64) -> Self {
        let (mut bytes, mut rows) = (Vec::new(), Vec::new());
        let mut code = Code::new(&mut bytes, base);
        let faults = emit_halves(&mut code, layout, &runtime, &records, &mut rows);
        let faults = faults
            .into_iter()
            .map(|(load, next)| (load - base, next - base));
        let stub = base..=base + bytes.len() as u64;
        let words = bytes.as_chunks::<4>().0.iter().enumerate();
        let fields = words.filter_map(|(index, word)| {
            let at = index * 4;
            let field = Field::of(u32::from_le_bytes(*word), base + at as u64, &stub, &records);
            field.map(|field| (at, field))
        });
        Self {
            runtime,
            records,
            fields: fields.collect(),
            faults: faults.collect(),
            code: bytes,
            rows,
        }
    }

    /// Emits what is in front of a body. If it does not reach the agent from there, nothing is emitted.
    fn emit(
        &self,
        code: &mut Code<'_>,
        records: &Records,
        rows: &mut Vec<Row>,
    ) -> Option<Vec<(u64, u64)>> {
        let (start, base) = (code.offset(), code.here());
        let mut words = [0; MOST_FIELDS];
        let words = words.get_mut(..self.fields.len())?;
        for (filled, &(at, field)) in words.iter_mut().zip(&self.fields) {
            let word = self.code[at..]
                .first_chunk()
                .copied()
                .map(u32::from_le_bytes)?;
            *filled = field.filled(word, base + at as u64, records)?;
        }
        code.raw(&self.code);
        let bytes = code.from_mut(start);
        for (word, (at, _)) in words.iter().zip(&self.fields) {
            bytes[*at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
        let mut own = self.rows.iter().map(|row| Row {
            at: start + row.at,
            rule: row.rule,
        });
        if let Some(first) = own.next() {
            add_row(rows, first);
        }
        rows.extend(own);
        let faults = self.faults.iter();
        Some(
            faults
                .map(|&(load, next)| (base + load, base + next))
                .collect(),
        )
    }
}

/// The most words of a stub that differ.
const MOST_FIELDS: usize = 32;

/// Emits stubs as [`emit_stub`](super::emit_stub) does, but faster: most of each stub is copied.
#[derive(Debug)]
pub struct Templates {
    layout: Layout,
    all: Vec<Template>,
}

/// What the functions of one kind have in common; `None`: the stub has numbers that might be taken for the function's.
fn common(records: &Records) -> Option<Records> {
    let Records {
        shortest,
        switch,
        depth,
        registers,
        ..
    } = *records;
    if shortest.is_some() || switch.is_some() || depth.is_some() {
        return None;
    }
    Some(Records {
        entry: Number::Entry.like(records.entry)?,
        exit: match records.exit {
            Some(exit) => Some(Number::Exit.like(exit)?),
            None => None,
        },
        tail: Number::Tail.placeholder(),
        check: records.check.map(|_| Number::Check.placeholder()),
        registers: Registers {
            free: first(registers.free),
            free_after: first(registers.free_after),
            via: Via::default(),
            signing: registers.signing,
        },
        ..*records
    })
}

/// The registers of a set that a stub may choose.
fn first(set: u32) -> u32 {
    let all = CANDIDATES.iter().map(|&register: &Register| 1 << register);
    all.filter(|bit| set & bit != 0).take(REGISTERS).sum()
}

impl Templates {
    /// Starts without templates. All stubs will have this layout.
    #[must_use]
    pub fn new(layout: Layout) -> Self {
        Self {
            layout,
            all: Vec::new(),
        }
    }

    /// Emits a stub, as [`emit_stub`](super::emit_stub) does.
    ///
    /// # Errors
    /// What `body` returns.
    pub fn emit<E>(
        &mut self,
        code: &mut Code<'_>,
        runtime: &Runtime,
        records: &Records,
        rows: &mut Vec<Row>,
        body: impl FnOnce(u64) -> Result<Body, E>,
    ) -> Result<Emitted, E> {
        let copied = self.template(code.here(), runtime, records);
        let copied = copied.and_then(|template| template.emit(code, records, rows));
        let faults =
            copied.unwrap_or_else(|| emit_halves(code, &self.layout, runtime, records, rows));
        let body = emit_body(code, rows, body)?;
        Ok(Emitted { body, faults })
    }

    /// The template for a stub, if it can be copied.
    fn template(&mut self, base: u64, runtime: &Runtime, records: &Records) -> Option<&Template> {
        let common = common(records)?;
        let is_it = |known: &Template| known.records == common && known.runtime == *runtime;
        if let Some(index) = self.all.iter().position(is_it) {
            return self.all.get(index);
        }
        if self.all.len() == MOST {
            return None;
        }
        let new = Template::new(&self.layout, *runtime, common, base);
        self.all.push(new);
        self.all.last()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{AGENT, BASE, layout, runtime, variants};
    use super::super::{Rule, emit_stub};
    use super::*;

    fn body() -> Body {
        Body {
            bytes: vec![0x1F, 0x20, 0x03, 0xD5, 0xC0, 0x03, 0x5F, 0xD6],
            rows: vec![Row {
                at: 4,
                rule: Rule::Unknown,
            }],
            ..Body::default()
        }
    }

    /// Emits both ways at the same place, and compares. Returns the length.
    fn compare(
        templates: &mut Templates,
        records: &Records,
        runtime: &Runtime,
        start: usize,
    ) -> usize {
        let mut copied = (
            vec![0; start],
            vec![Row {
                at: 0,
                rule: Rule::Stub,
            }],
        );
        let mut emitted = copied.clone();
        let mut code = Code::new(&mut copied.0, BASE);
        let one = templates.emit(&mut code, runtime, records, &mut copied.1, |_| {
            Ok::<_, ()>(body())
        });
        let mut code = Code::new(&mut emitted.0, BASE);
        let layout = templates.layout;
        let other = emit_stub(&mut code, &layout, runtime, records, &mut emitted.1, |_| {
            Ok(body())
        });
        assert_eq!(one, other, "{records:?}");
        assert!(copied.0 == emitted.0, "{records:?}");
        assert_eq!(copied.1, emitted.1, "{records:?}");
        copied.0.len()
    }

    #[test]
    fn a_copied_stub_is_what_would_be_emitted() {
        let mut templates = Templates::new(layout());
        let mut copied = 0;
        for (count, records) in variants().enumerate() {
            // In each of the ways in which numbers get into registers.
            for id in [0, 7, 0x2345, 0xFFFF, 0x1_0000, 0x4_5678, 0xF_0F0F] {
                let of = |kind: u32| kind | id;
                let records = Records {
                    entry: of(0),
                    exit: records.exit.map(|_| of(0x10_0000)),
                    tail: of(0x20_0000),
                    check: records.check.map(|_| id),
                    ..records
                };
                copied += usize::from(common(&records).is_some());
                compare(
                    &mut templates,
                    &records,
                    &runtime(AGENT),
                    (count % 97) * 4 + 4,
                );
            }
        }
        assert!(copied > 1000, "{copied}");
        assert!(templates.all.len() <= MOST);
    }

    #[test]
    fn an_agent_that_is_far_away_is_called_from_copies_too() {
        let mut templates = Templates::new(layout());
        let records: Vec<_> = variants()
            .filter(|records| common(records).is_some())
            .collect();
        for records in records.iter().step_by(41) {
            for agent in [BASE - (1 << 30) + 0x124, AGENT] {
                let mut start = 4;
                for _ in 0..3 {
                    let end = compare(&mut templates, records, &runtime(agent), start);
                    // Onto the next page.
                    start = end + 4096;
                }
            }
        }
        // One after whose first place the agent is out of reach.
        let edge = runtime(BASE - (1 << 27) + 0x400);
        for start in [4, 0x1000] {
            compare(&mut templates, &records[0], &edge, start);
        }
    }

    #[test]
    fn what_a_body_refuses_is_handed_on() {
        let mut templates = Templates::new(layout());
        let records = variants().next().expect("one");
        for _ in 0..2 {
            let (mut bytes, mut rows) = (Vec::new(), Vec::new());
            let mut code = Code::new(&mut bytes, BASE);
            let refused = templates.emit(&mut code, &runtime(AGENT), &records, &mut rows, |_| {
                Err("no")
            });
            assert_eq!(refused, Err("no"));
        }
    }
}
