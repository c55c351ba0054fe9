//! Stubs made by copying: those of one recording differ in few bytes.
//!
//! The first stub of a kind is emitted with a placeholder as body. For each function, the code before and after the
//! body is then copied, and the fields that depend on the stub's address, on the length of its body, or on its function
//! are overwritten.

use alloc::vec::Vec;

use super::super::masm::{Marked, Masm, distance};
use super::{Body, Emitted, Layout, Records, Registers, Row, Runtime, emit_body, emit_stub};

/// Placeholders for the records of a function. Nothing else in a stub has such an operand.
const ENTRY: u32 = 0xFFFF_FF01;
const EXIT: u32 = 0xFFFF_FF02;
const TAIL: u32 = 0xFFFF_FF03;
const CHECK: u32 = 0xFFFF_FF04;

/// The placeholder for a body.
const STANDS: [u8; 16] = [0xCC; 16];

/// Emits stubs as [`emit_stub`] does, but faster.
#[derive(Debug)]
pub struct Templates {
    layout: Layout,
    all: Vec<Template>,
}

/// What the stubs of one kind have in common.
#[derive(Debug)]
struct Template {
    runtime: Runtime,
    /// The records, with placeholders for what is the function's own.
    records: Records,
    /// The code before the body, and the code after it.
    before: Vec<u8>,
    after: Vec<u8>,
    /// The same for the rows; offsets are relative to the start, and to the end of the body.
    rows_before: Vec<Row>,
    rows_after: Vec<Row>,
    /// The fields of each half, by their offsets in it.
    fields: [Vec<(usize, Value)>; 2],
}

/// What is written into a field.
#[derive(Debug, Clone, Copy)]
enum Value {
    /// The distance to an address.
    To(u64),
    /// This number plus the length of the body.
    Across(u32),
    /// This number minus the length of the body.
    Back(u32),
    Entry,
    Exit,
    Tail,
    Check,
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

    /// Emits a stub, as [`emit_stub`] does.
    ///
    /// # Errors
    /// What `body` returns.
    pub fn emit<E>(
        &mut self,
        code: &mut Masm<'_>,
        runtime: &Runtime,
        records: &Records,
        rows: &mut Vec<Row>,
        body: impl FnOnce(u64) -> Result<Body, E>,
    ) -> Result<Emitted, E> {
        let common = Records {
            entry: ENTRY,
            exit: records.exit.map(|_| EXIT),
            tail: TAIL,
            check: records.check.map(|_| CHECK),
            registers: Registers::default(),
            ..*records
        };
        let is_it = |known: &Template| known.records == common && known.runtime == *runtime;
        let index = self.all.iter().position(is_it).unwrap_or_else(|| {
            let base = code.here();
            self.all
                .push(Template::new(&self.layout, *runtime, common, base));
            self.all.len() - 1
        });
        self.all[index].emit(code, records, rows, body)
    }
}

impl Template {
    fn new(layout: &Layout, runtime: Runtime, records: Records, base: u64) -> Self {
        let (mut bytes, mut rows) = (Vec::new(), Vec::new());
        let mut code = Masm::new(&mut bytes, base);
        code.keep_marks();
        let mut start = 0;
        let body = |at: u64| {
            start = (at - base) as usize;
            Ok::<_, core::convert::Infallible>(Body {
                bytes: STANDS.to_vec(),
                ..Body::default()
            })
        };
        let Ok(_) = emit_stub(&mut code, layout, &runtime, &records, &mut rows, body);
        let marks = code.take_marks();
        let end = start + STANDS.len();
        let mut fields = [Vec::new(), Vec::new()];
        for mark in marks {
            let is_after = mark.at >= end;
            let len = STANDS.len() as u32;
            let now = bytes[mark.at..mark.at + 4].try_into().unwrap_or_default();
            let now = u32::from_le_bytes(now);
            let value = match mark.value {
                Marked::To(to) => match to.wrapping_sub(base) as usize {
                    place if place >= bytes.len() => Value::To(to),
                    place if is_after && place <= start => Value::Back(now.wrapping_add(len)),
                    place if !is_after && place >= end => Value::Across(now.wrapping_sub(len)),
                    _ => continue,
                },
                Marked::Number(ENTRY) => Value::Entry,
                Marked::Number(EXIT) => Value::Exit,
                Marked::Number(TAIL) => Value::Tail,
                Marked::Number(CHECK) => Value::Check,
                Marked::Number(_) | Marked::Label(_) => continue,
            };
            let first = if is_after { end } else { 0 };
            fields[usize::from(is_after)].push((mark.at - first, value));
        }
        let half = rows.partition_point(|row| (row.at as usize) < start);
        // The row at the end of the body is among the body's rows.
        let after = rows.partition_point(|row| row.at as usize <= end);
        let rows_after = moved(&rows[after..], (end as u32).wrapping_neg());
        Self {
            runtime,
            records,
            before: bytes[..start].to_vec(),
            after: bytes[end..].to_vec(),
            rows_after: rows_after.collect(),
            rows_before: rows[..half].to_vec(),
            fields,
        }
    }

    fn emit<E>(
        &self,
        code: &mut Masm<'_>,
        records: &Records,
        rows: &mut Vec<Row>,
        body: impl FnOnce(u64) -> Result<Body, E>,
    ) -> Result<Emitted, E> {
        let start = code.offset();
        let base = code.here() - u64::from(start);
        rows.extend(moved(&self.rows_before, start));
        code.raw(&self.before);
        let range = emit_body(code, rows, body)?;
        let end = code.offset();
        rows.extend(moved(&self.rows_after, end));
        code.raw(&self.after);
        let len = (range.end - range.start) as u32;
        for (fields, first) in self.fields.iter().zip([start, end]) {
            for &(at, value) in fields {
                let at = first as usize + at;
                let value = match value {
                    Value::To(to) => distance(base + at as u64 + 4, to),
                    Value::Across(least) => least.wrapping_add(len),
                    Value::Back(least) => least.wrapping_sub(len),
                    Value::Entry => records.entry,
                    Value::Exit => records.exit.unwrap_or_default(),
                    Value::Tail => records.tail,
                    Value::Check => records.check.unwrap_or_default(),
                };
                code.set(at, value);
            }
        }
        Ok(range.into())
    }
}

/// Rows, shifted by a number of bytes.
fn moved(rows: &[Row], by: u32) -> impl Iterator<Item = Row> {
    rows.iter().map(move |row| Row {
        at: row.at.wrapping_add(by),
        rule: row.rule,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stub::Scope;
    use hodo_isa::x86_64::cfa::pushed;

    fn layout() -> Layout {
        Layout {
            limit: 8,
            epoch: 16,
            window: 24,
            window_size: 1 << 14,
            islands: [(32, 40), (48, 56)],
            inside: 64,
            depth: 72,
            frames: 80,
            shadow_distance: 1 << 44,
            record_size: 8,
            sp_shift: 18,
            sp_mask: 0xFFC0_0000,
            base: 200,
            ..Layout::default()
        }
    }

    /// All kinds of stubs, with the records of two functions each.
    fn kinds() -> Vec<[Records; 2]> {
        let mut kinds = Vec::new();
        for bits in 0..64 {
            let is = |bit: u32| bits >> bit & 1 == 1;
            for scope in [Scope::Any, Scope::Inside, Scope::Filter] {
                let of = |id: u32| Records {
                    entry: id,
                    exit: is(0).then_some(id | 1 << 20),
                    tail: id | 2 << 20,
                    timed: is(1),
                    scope,
                    depth: is(2).then_some(5),
                    check: is(3).then_some(id),
                    shortest: is(4).then_some(1000),
                    switch: is(5).then_some(300),
                    placed: is(3),
                    hands_on: is(4),
                    registers: Registers::default(),
                };
                kinds.push([of(7), of(0x1_2345)]);
            }
        }
        kinds
    }

    /// A body of this length.
    fn body(length: usize, resume: Option<u64>) -> Body {
        Body {
            bytes: (0..length).map(|index| index as u8).collect(),
            resume,
            rows: vec![
                Row {
                    at: 0,
                    rule: pushed(0),
                },
                Row {
                    at: length as u32 / 2,
                    rule: pushed(8),
                },
            ],
            returns: false,
        }
    }

    #[test]
    fn a_copied_stub_is_what_would_be_emitted() {
        const BASE: u64 = 0x7000_0000_0000;
        let runtime = Runtime {
            epoch: BASE + 16,
            chunk: BASE + 32,
            shadow: BASE + 48,
            window: BASE + 64,
            record: BASE + 80,
            frame: BASE + 96,
            tails: BASE + 112,
            tail: BASE + 128,
            ..Runtime::default()
        };
        let other = Runtime {
            epoch: BASE + 24,
            ..runtime
        };
        let layout = layout();
        let mut templates = Templates::new(layout);
        let (mut bytes, mut rows) = (vec![0x90; 256], Vec::new());
        let mut compared = 0;
        for records in kinds().into_iter().flatten() {
            for (length, resume) in [(1, None), (5, Some(BASE + (1 << 30))), (300, None)] {
                for runtime in [runtime, other] {
                    let (mut alone, mut rows_alone) = (bytes.clone(), rows.clone());
                    let mut code = Masm::new(&mut alone, BASE);
                    let emitted = emit_stub(
                        &mut code,
                        &layout,
                        &runtime,
                        &records,
                        &mut rows_alone,
                        |_| Ok::<_, ()>(body(length, resume)),
                    );
                    let mut code = Masm::new(&mut bytes, BASE);
                    let copied = templates.emit(&mut code, &runtime, &records, &mut rows, |_| {
                        Ok::<_, ()>(body(length, resume))
                    });
                    assert_eq!(copied, emitted, "{records:?}");
                    assert!(bytes == alone, "{records:?}");
                    assert_eq!(rows, rows_alone, "{records:?}");
                    // The next one is at another address.
                    bytes = alone.split_off(alone.len() - 64);
                    bytes.resize(256 + compared % 64, 0x90);
                    rows.clear();
                    compared += 1;
                }
            }
        }
        assert_eq!(compared, 64 * 3 * 2 * 3 * 2);
        // Stubs of two functions with three body lengths share a template.
        assert!(templates.all.len() <= 64 * 3 * 2);
    }

    #[test]
    fn what_a_body_refuses_is_handed_on() {
        let mut templates = Templates::new(layout());
        let mut bytes = Vec::new();
        let mut code = Masm::new(&mut bytes, 0x1_0000);
        let records = kinds()[1][0];
        let mut rows = Vec::new();
        let refused = templates.emit(&mut code, &Runtime::default(), &records, &mut rows, |_| {
            Err("no")
        });
        assert_eq!(refused, Err("no"));
    }
}
