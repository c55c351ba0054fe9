//! Histograms: their tables, and their contents at the end.

use std::cell::OnceCell;
use std::cmp::Ordering;
use std::collections::BTreeMap;

use anyhow::{Result, bail};
use hodo_codegen::native::detour::{Histogram, Key, Part, STRING};
use hodo_probe_syntax::{Action, Bucket, Definition, Expr, HistSort, Scalar, SortBy, Type};
use hodo_trace::format::counters;
use serde_json::{Value, json};

use super::conditions::Arguments;

/// Bytes of all tables, at most.
const MOST: u64 = 1 << 32;

/// The histograms of all definitions.
#[derive(Debug, Default)]
pub(super) struct Histograms {
    tables: Vec<Table>,
    /// Bytes of all tables, whole pages.
    size: u64,
}

#[derive(Debug)]
struct Table {
    definition: usize,
    /// Which of its actions.
    action: usize,
    /// From the beginning of the tables.
    at: u64,
    /// What is in it. Of variables, the first place of the definition tells.
    shape: OnceCell<Shape>,
}

/// What is in a table.
#[derive(Debug, Clone)]
struct Shape {
    histogram: Histogram,
    /// Of each key and each sum.
    shown: (Vec<Shown>, Vec<Shown>),
}

/// How a number is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Shown {
    name: String,
    signed: bool,
    /// `text`, `log2`, `linear`, or the type.
    kind: &'static str,
    width: u64,
}

impl Histograms {
    /// Adds the histograms of a definition. What variables are is not known yet: those have no `arguments`.
    ///
    /// # Errors
    /// If they are too large.
    pub(super) fn add(
        &mut self,
        index: usize,
        definition: &Definition,
        arguments: Option<&Arguments<'_>>,
    ) -> Result<()> {
        for (action, what) in definition.actions.iter().enumerate() {
            let Action::Hist(wanted) = what else {
                continue;
            };
            let shape = OnceCell::new();
            let bytes = match arguments {
                Some(arguments) => {
                    let made = Shape::new(definition, wanted, arguments)?;
                    shape.get_or_init(|| made).histogram.bytes()
                }
                // A variable may be a text.
                None => Histogram::most_bytes(wanted.size, wanted.keys.len(), wanted.values.len()),
            };
            let at = self.size;
            self.size = at.saturating_add(bytes).next_multiple_of(4096);
            if self.size > MOST {
                bail!(
                    "the histograms need more than {} GiB; give them a smaller size=",
                    MOST >> 30
                );
            }
            self.tables.push(Table {
                definition: index,
                action,
                at,
                shape,
            });
        }
        Ok(())
    }

    /// Looks at what the variables are at one place: `definition` has registers and memory in place of them.
    ///
    /// # Errors
    /// If they cannot be keys or sums, or are of other types than at the places before.
    pub(super) fn look(
        &self,
        index: usize,
        definition: &Definition,
        arguments: &Arguments<'_>,
    ) -> Result<()> {
        for table in self.tables.iter().filter(|t| t.definition == index) {
            if let Action::Hist(wanted) = &definition.actions[table.action] {
                let here = Shape::new(definition, wanted, arguments)?;
                let before = table.shape.get_or_init(|| here.clone());
                let words = |shape: &Shape| shape.histogram.words().slot();
                if before.shown != here.shown || words(before) != words(&here) {
                    bail!("the values of its histogram have different types here and elsewhere");
                }
            }
        }
        Ok(())
    }

    /// Bytes of all tables; they end where the counters begin.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// The histogram of an action of a definition, where its arguments are these.
    ///
    /// # Errors
    /// If they cannot be keys or sums.
    pub(super) fn get(
        &self,
        index: usize,
        action: usize,
        definition: &Definition,
        arguments: &Arguments<'_>,
    ) -> Result<Option<Histogram>> {
        let mut tables = self.tables.iter();
        let table = tables.find(|t| (t.definition, t.action) == (index, action));
        let (Some(table), Action::Hist(wanted)) = (table, &definition.actions[action]) else {
            return Ok(None);
        };
        let below = counters::SIZE + self.size;
        let mut histogram = Shape::new(definition, wanted, arguments)?.histogram;
        histogram.table = table.at.cast_signed() - below.cast_signed();
        Ok(Some(histogram))
    }

    /// `hists.json`.
    pub(super) fn describe(
        &self,
        definitions: &[Definition],
        texts: &[String],
        memory: &dyn Fn(u64, u64) -> Result<Vec<u64>>,
    ) -> Result<Value> {
        let mut all = Vec::new();
        for table in &self.tables {
            let definition = &definitions[table.definition];
            let Some(shape) = table.shape.get() else {
                // It has no place.
                continue;
            };
            let Shape { histogram, shown } = shape;
            let words = memory(table.at, histogram.bytes())?;
            let sort: &[HistSort] = match &definition.actions[table.action] {
                Action::Hist(wanted) => &wanted.sort,
                _ => &[],
            };
            let entries = shape.entries(&words[8..], sort);
            let column = |shown: &Shown| json!({"name": shown.name, "kind": shown.kind, "width": shown.width});
            all.push(json!({
                "group": definition.group, "name": definition.name, "definition": texts[table.definition],
                "size": histogram.size, "lost": words[1], "unread": words[2],
                "keys": shown.0.iter().map(column).collect::<Vec<_>>(),
                "sums": shown.1.iter().map(column).collect::<Vec<_>>(),
                "entries": entries,
            }));
        }
        Ok(all.into())
    }
}

/// An entry: hits and sums.
#[derive(Debug, Clone, Default)]
struct Entry {
    hits: u64,
    sums: Vec<u64>,
}

impl Shape {
    /// What a histogram has, where a definition's arguments are these.
    fn new(
        definition: &Definition,
        wanted: &hodo_probe_syntax::Histogram,
        arguments: &Arguments<'_>,
    ) -> Result<Self> {
        let mut histogram = Histogram {
            table: 0,
            size: wanted.size,
            keys: Vec::new(),
            sums: Vec::new(),
        };
        let mut shown = (Vec::new(), Vec::new());
        for key in &wanted.keys {
            if let Some(text) = arguments.text(&key.value) {
                histogram.keys.push(Key::Text(text));
                shown.0.push(Shown {
                    name: name(definition, &key.value),
                    signed: false,
                    kind: "text",
                    width: 0,
                });
                continue;
            }
            let (test, _) = arguments.number(&key.value)?;
            let mut how = number(definition, &key.value);
            let part = match key.bucket {
                Bucket::Each => Part::Each,
                Bucket::Log2 => {
                    how.kind = "log2";
                    Part::Log2
                }
                Bucket::Linear(width) => {
                    how.kind = "linear";
                    how.width = width;
                    Part::Linear(width, how.signed)
                }
            };
            histogram.keys.push(Key::Number(test, part));
            shown.0.push(how);
        }
        for &value in &wanted.values {
            let value = Expr::Arg(value);
            histogram.sums.push(arguments.number(&value)?.0);
            shown.1.push(number(definition, &value));
        }
        Ok(Self { histogram, shown })
    }

    /// What is in the slots, in order.
    fn entries(&self, slots: &[u64], sort: &[HistSort]) -> Vec<Value> {
        let words = self.histogram.words();
        let mut entries: BTreeMap<&[u64], Entry> = BTreeMap::new();
        for slot in slots.chunks_exact((words.slot() / 8) as usize) {
            // The keys of others are not complete: who was writing them was killed.
            if slot[0] & 3 != 2 || slot[1] == 0 {
                continue;
            }
            let (sums, keys) = slot[2..].split_at(words.sums);
            let entry = entries.entry(keys).or_default();
            entry.hits += slot[1];
            entry.sums.resize(words.sums, 0);
            for (sum, more) in entry.sums.iter_mut().zip(sums) {
                *sum = sum.wrapping_add(*more);
            }
        }
        let mut entries: Vec<_> = entries.into_iter().collect();
        let usual = [HistSort {
            by: SortBy::Hits,
            descending: false,
        }];
        let sort = if sort.is_empty() { &usual } else { sort };
        entries.sort_by(|a, b| {
            let orders = sort.iter().map(|order| {
                let by = match order.by {
                    SortBy::Hits => a.1.hits.cmp(&b.1.hits),
                    SortBy::Key(key) => self.compare_keys(key, a.0, b.0),
                    SortBy::Value(sum) => {
                        let signed = self.shown.1[sum].signed;
                        compare(a.1.sums[sum], b.1.sums[sum], signed)
                    }
                };
                if order.descending { by.reverse() } else { by }
            });
            let keys = (0..self.shown.0.len()).map(|key| self.compare_keys(key, a.0, b.0));
            let mut orders = orders.chain(keys);
            orders
                .find(|order| order.is_ne())
                .unwrap_or(Ordering::Equal)
        });
        let entry = |(keys, entry): (&[u64], Entry)| {
            let keys: Vec<Value> = (0..self.shown.0.len())
                .map(|key| self.show_key(key, keys))
                .collect();
            let sums = entry.sums.iter().zip(&self.shown.1);
            let sums: Vec<Value> = sums.map(|(&sum, how)| show(sum, how.signed)).collect();
            json!({"keys": keys, "hits": entry.hits, "sums": sums})
        };
        entries.into_iter().map(entry).collect()
    }

    fn key<'a>(&self, key: usize, keys: &'a [u64]) -> &'a [u64] {
        let before: usize = self.histogram.keys[..key].iter().map(Key::words).sum();
        &keys[before..before + self.histogram.keys[key].words()]
    }

    fn compare_keys(&self, key: usize, a: &[u64], b: &[u64]) -> Ordering {
        let (a, b) = (self.key(key, a), self.key(key, b));
        match &self.histogram.keys[key] {
            Key::Text(_) => text(a).cmp(&text(b)),
            Key::Number(_, Part::Log2) => a.cmp(b),
            Key::Number(..) => compare(a[0], b[0], self.shown.0[key].signed),
        }
    }

    fn show_key(&self, key: usize, keys: &[u64]) -> Value {
        let words = self.key(key, keys);
        match &self.histogram.keys[key] {
            Key::Text(_) => shown_text(text(words)).into(),
            Key::Number(_, Part::Log2) => match words[0] {
                0 => 0.into(),
                bit => (1u64 << (bit - 1).min(63)).into(),
            },
            Key::Number(..) => show(words[0], self.shown.0[key].signed),
        }
    }
}

fn text(words: &[u64]) -> Vec<u8> {
    let bytes = words.iter().flat_map(|word| word.to_le_bytes());
    bytes.take_while(|&byte| byte != 0).collect()
}

/// A text of a key. If its end is not in the key, it is cut, and has a mark for what is missing.
fn shown_text(mut bytes: Vec<u8>) -> String {
    let is_cut = bytes.len() == STRING;
    if is_cut {
        bytes.pop();
    }
    let mut text = String::from_utf8_lossy(&bytes).into_owned();
    if is_cut {
        text.push('…');
    }
    text
}

fn compare(a: u64, b: u64, signed: bool) -> Ordering {
    match signed {
        true => a.cast_signed().cmp(&b.cast_signed()),
        false => a.cmp(&b),
    }
}

fn show(number: u64, signed: bool) -> Value {
    match signed {
        true => number.cast_signed().into(),
        false => number.into(),
    }
}

fn name(definition: &Definition, value: &Expr) -> String {
    match value {
        Expr::Arg(index) => definition.args[*index].name.clone(),
        Expr::Pid => "pid".to_owned(),
        Expr::Tid => "tid".to_owned(),
        Expr::Cpu => "cpu".to_owned(),
        _ => "comm".to_owned(),
    }
}

fn number(definition: &Definition, value: &Expr) -> Shown {
    let ty = match value {
        Expr::Arg(index) => definition.args[*index].effective_type(),
        _ => Some(Type::Scalar(Scalar::U(32))),
    };
    let scalar = match ty {
        Some(Type::Scalar(scalar)) => scalar,
        Some(_) => Scalar::U(64),
        None => Scalar::X(64),
    };
    Shown {
        name: name(definition, value),
        signed: matches!(scalar, Scalar::S(_)),
        kind: match scalar {
            Scalar::X(_) => "hex",
            Scalar::Char => "char",
            Scalar::Symbol => "symbol",
            _ => "number",
        },
        width: 0,
    }
}
