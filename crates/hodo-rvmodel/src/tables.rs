//! The tables of `docs/riscv-proposals.md`.

use std::fmt::Write as _;

use anyhow::Result;

use crate::entries::{self, Solution};
use crate::params::POINTS;

/// A table: the name by which the page marks it, and its text.
pub struct Table {
    /// The name.
    pub name: &'static str,
    /// Lines of Markdown.
    pub text: String,
}

/// Writes a row.
fn row(text: &mut String, cells: &[&str]) {
    for cell in cells {
        let _ = write!(text, "| {cell} ");
    }
    text.push_str("|\n");
}

fn head(cells: &[&str]) -> String {
    let mut text = String::new();
    row(&mut text, cells);
    text.push_str(&"|---".repeat(cells.len()));
    text.push_str("|\n");
    text
}

fn points() -> Table {
    let mut text = head(&[
        "open point",
        "default",
        "also in the model",
        "reason for the default",
    ]);
    for point in POINTS {
        let other = if point.other.is_empty() {
            "–"
        } else {
            point.other
        };
        row(&mut text, &[point.what, point.default, other, point.reason]);
    }
    Table {
        name: "points",
        text,
    }
}

fn entries() -> Result<Table> {
    let mut text = head(&[
        "entry",
        "nops, bytes",
        "written",
        "own stub, bytes",
        "off: instructions",
        "on: instructions",
        "loads and stores",
        "fetches",
        "mispredicted",
        "registers lost",
        "below sp",
        "known by",
        "reach",
    ]);
    for solution in Solution::ALL {
        let cost = entries::cost(solution)?;
        let lost = match cost.lost.is_empty() {
            true => "none".to_owned(),
            false => format!("`{}`", cost.lost.join("`, `")),
        };
        let number = |number: u64| number.to_string();
        row(
            &mut text,
            &[
                solution.name(),
                &cost.pad.to_string(),
                &cost.written.to_string(),
                &cost.stub.to_string(),
                &number(cost.off.instructions),
                &number(cost.on.instructions),
                &number(cost.on.accesses),
                &number(cost.on.fetches),
                &number(cost.on.mispredictions),
                &lost,
                if cost.on.exposed > 0 {
                    "written"
                } else {
                    "–"
                },
                solution.knows(),
                solution.reach(),
            ],
        );
    }
    Ok(Table {
        name: "entries",
        text,
    })
}

/// The tables that need no other file.
///
/// # Errors
/// If something does not run on the model as it must.
pub fn fixed() -> Result<Vec<Table>> {
    Ok(vec![points(), entries()?])
}
