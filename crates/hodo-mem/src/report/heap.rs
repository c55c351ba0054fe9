//! What a program allocates, for people and for scripts.

use serde_json::{Value, json};

use super::objects::{function, located, location};
use crate::allocations::{Amount, Row, Sums};

/// By what calls are sorted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// Bytes at the peak.
    Peak,
    /// Bytes that were never freed.
    Leaked,
    /// All bytes that were allocated.
    Bytes,
    /// Allocations.
    Allocations,
    /// Temporary allocations.
    Temporary,
}

impl By {
    fn of(self, sums: &Sums) -> u64 {
        match self {
            Self::Peak => sums.peak.bytes,
            Self::Leaked => sums.leaked.bytes,
            Self::Bytes => sums.all.bytes,
            Self::Allocations => sums.all.allocations,
            Self::Temporary => sums.temporary,
        }
    }

    /// What it counts.
    #[must_use]
    pub fn unit(self) -> &'static str {
        match self {
            Self::Peak | Self::Leaked | Self::Bytes => "bytes",
            Self::Allocations | Self::Temporary => "allocations",
        }
    }
}

/// Those of which most is, first, without those of which nothing is.
fn sorted(rows: &[Row], by: By) -> Vec<&Row> {
    let mut rows: Vec<&Row> = rows.iter().filter(|row| by.of(&row.sums) > 0).collect();
    rows.sort_by(|a, b| {
        let order = by.of(&b.sums).cmp(&by.of(&a.sums));
        order.then_with(|| a.calls.cmp(&b.calls))
    });
    rows
}

fn amount(amount: Amount) -> Value {
    json!({"allocations": amount.allocations, "bytes": amount.bytes})
}

fn sums(sums: &Sums) -> Value {
    json!({
        "peak": amount(sums.peak),
        "leaked": amount(sums.leaked),
        "all": amount(sums.all),
        "temporary": sums.temporary,
    })
}

/// Allocations as JSON. `at`: how many instructions had been executed at the peak.
#[must_use]
pub fn as_json(rows: &[Row], total: &Sums, at: u64, by: By) -> Value {
    let rows = sorted(rows, by).into_iter().map(|row| {
        let mut value = sums(&row.sums);
        let calls = row.calls.iter().map(|call| located(Some(call.clone())));
        value["calls"] = calls.collect();
        value
    });
    let rows: Vec<Value> = rows.collect();
    let mut value = sums(total);
    value["peak"]["instructions"] = at.into();
    value["stacks"] = rows.into();
    value
}

/// Allocations as lines of text, with those of which most is.
#[must_use]
pub fn as_text(rows: &[Row], total: &Sums, (at, by): (u64, By), top: usize) -> Vec<String> {
    let line = |Amount { allocations, bytes }: Amount, what: &str| {
        format!("{bytes:>16} bytes in {allocations} allocations {what}")
    };
    let mut text = vec![
        line(total.peak, &format!("at the peak, after {at} instructions")),
        line(total.all, "in all"),
        line(total.leaked, "were never freed"),
        format!("{:>16} allocations were temporary", total.temporary),
    ];
    let rows = sorted(rows, by);
    if rows.is_empty() {
        return text;
    }
    text.extend([
        String::new(),
        "   bytes at peak     never freed    bytes in all  allocations  temporary  allocated by"
            .to_owned(),
    ]);
    text.extend(rows.into_iter().take(top).map(|row| {
        let mut calls = row.calls.iter();
        let unknown = || "unknown code".to_owned();
        let first = calls.next().map_or_else(unknown, location);
        let callers = calls.map(|call| format!(" < {}", function(Some(call))));
        format!(
            "{:>16} {:>15} {:>15} {:>12} {:>10}  {first}{}",
            row.sums.peak.bytes,
            row.sums.leaked.bytes,
            row.sums.all.bytes,
            row.sums.all.allocations,
            row.sums.temporary,
            callers.collect::<String>()
        )
    }));
    text
}

/// Functions with semicolons between them, the outermost first, and how much they have allocated.
#[must_use]
pub fn folded(rows: &[Row], by: By) -> Vec<String> {
    let lines = sorted(rows, by).into_iter().map(|row| {
        // Semicolons separate functions.
        let names = row.calls.iter().rev();
        let names = names.map(|call| function(Some(call)).replace(';', ":"));
        let names: Vec<String> = names.collect();
        format!("{} {}", names.join(";"), by.of(&row.sums))
    });
    lines.collect()
}
