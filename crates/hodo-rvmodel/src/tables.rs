//! The tables of `docs/riscv-proposals.md`.

use std::fmt::Write as _;

use anyhow::Result;

use crate::coverage::Coverage;
use crate::entries::{self, Solution};
use crate::params::{Interrupts, POINTS, Proposals, Saved};
use crate::probes::{Mechanism, Refused};
use crate::samples;

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

/// What a hit costs, for instructions of several kinds, when temporaries are free.
fn kinds() -> Result<Table> {
    let samples = samples::kinds();
    let names = samples.iter().map(|sample| sample.name);
    let first: Vec<&str> = ["way to probe an instruction"]
        .into_iter()
        .chain(names)
        .collect();
    let mut text = head(&first);
    for mechanism in Mechanism::ALL {
        let mut cells = vec![mechanism.name().to_owned()];
        for sample in &samples {
            cells.push(match sample.hit(mechanism)? {
                Ok(cost) => cost.warm[0].to_string(),
                Err(_) => "–".to_owned(),
            });
        }
        let cells: Vec<&str> = cells.iter().map(String::as_str).collect();
        row(&mut text, &cells);
    }
    Ok(Table {
        name: "kinds",
        text,
    })
}

/// All that is counted, with and without free registers.
fn registers() -> Result<Table> {
    let mut text = head(&[
        "way to probe `addiw`",
        "free registers",
        "bytes at the site",
        "bytes elsewhere",
        "instructions",
        "fetches",
        "mispredicted, cold",
        "warm",
        "traps",
    ]);
    for sample in samples::registers() {
        for mechanism in Mechanism::ALL {
            let Ok(cost) = sample.hit(mechanism)? else {
                row(
                    &mut text,
                    &[
                        mechanism.name(),
                        sample.name,
                        "–",
                        "–",
                        "–",
                        "–",
                        "–",
                        "–",
                        "–",
                    ],
                );
                continue;
            };
            let [instructions, _, fetches, mispredictions, traps] =
                cost.warm.map(|sum| sum.to_string());
            row(
                &mut text,
                &[
                    mechanism.name(),
                    sample.name,
                    &cost.patched.to_string(),
                    &cost.elsewhere.to_string(),
                    &instructions,
                    &fetches,
                    &cost.cold.1.to_string(),
                    &mispredictions,
                    &traps,
                ],
            );
        }
    }
    Ok(Table {
        name: "registers",
        text,
    })
}

/// Where interrupted detours go on.
fn traps() -> Result<Table> {
    let default = Proposals::default();
    let kept = |saved| Proposals { saved, ..default };
    let held = Proposals {
        interrupts: Interrupts::Held,
        ..default
    };
    let mut text = head(&["what a trap keeps", "interrupts", "went on correctly"]);
    for (what, proposals) in [
        ("real pc and shadow pc", kept(Saved::Both)),
        ("the shadow pc", kept(Saved::Shadow)),
        ("the real pc", kept(Saved::Real)),
        ("both, and interrupts wait for the end of the mode", held),
    ] {
        let (taken, right) = samples::interrupts(proposals)?;
        row(&mut text, &[what, &taken.to_string(), &right.to_string()]);
    }
    Ok(Table {
        name: "traps",
        text,
    })
}

/// The tables that need no other file.
///
/// # Errors
/// If something does not run on the model as it must.
pub fn fixed() -> Result<Vec<Table>> {
    Ok(vec![points(), entries()?, kinds()?, registers()?, traps()?])
}

/// A share in percent.
fn share(part: usize, all: usize) -> String {
    format!("{:.2} %", 100.0 * part as f64 / all.max(1) as f64)
}

/// A mean with one decimal.
fn mean(sum: i64, count: u64) -> String {
    let mean = sum as f64 / count.max(1) as f64;
    // Adding zero takes the sign from a negative zero.
    format!("{:.1}", (mean * 10.0).round() / 10.0 + 0.0)
}

/// The tables of what can be done with the executed instructions of some files.
#[must_use]
pub fn coverage(files: &[(String, Coverage)]) -> Vec<Table> {
    let names = files.iter().map(|(name, _)| name.as_str());
    let first: Vec<&str> = ["way to probe an instruction"]
        .into_iter()
        .chain(names.clone())
        .collect();
    let mut shares = head(&first);
    let mut line = |what: &str, of: &dyn Fn(&Coverage) -> String| {
        let cells: Vec<String> = files.iter().map(|(_, found)| of(found)).collect();
        let cells: Vec<&str> = [what]
            .into_iter()
            .chain(cells.iter().map(String::as_str))
            .collect();
        row(&mut shares, &cells);
    };
    line("executed instructions", &|found| found.executed.to_string());
    for (index, mechanism) in Mechanism::ALL.into_iter().enumerate() {
        line(mechanism.name(), &|found| {
            share(found.covered[index], found.executed)
        });
        if index == 0 {
            line("– of these, simulated", &|found| {
                share(found.simulated, found.executed)
            });
        }
    }
    for (index, what) in [
        (0, "Shadow PC, any way without `c.jall`"),
        (1, "Shadow PC, any way"),
    ] {
        line(what, &|found| share(found.shadow[index], found.executed));
    }
    let shares = Table {
        name: "shares",
        text: shares,
    };
    let mut tables = vec![shares, reasons(files)];
    tables.extend(files.iter().map(|(name, found)| hits(name, found)));
    tables
}

/// Why instructions are not probed, and what those need that are.
fn reasons(files: &[(String, Coverage)]) -> Table {
    let mut text = head(&["file", "way", "why not, or what it needs", "instructions"]);
    for (name, found) in files {
        let mut add = |way: &str, why: &str, count: usize| {
            row(&mut text, &[name, way, why, &count.to_string()]);
        };
        for (reason, &count) in &found.reasons {
            add("planner", reason, count);
        }
        for (need, &count) in &found.needs {
            add("today's detour", &format!("needs {need}"), count);
        }
        for (mechanism, refused) in Mechanism::ALL.iter().zip(&found.refused) {
            for (why, &count) in refused.iter().filter(|(why, _)| **why != Refused::Planner) {
                add(mechanism.name(), &why.to_string(), count);
            }
        }
    }
    Table {
        name: "reasons",
        text,
    }
}

/// What hits cost in a file.
fn hits(name: &str, found: &Coverage) -> Table {
    let mut text = format!(
        "{name}: {} instructions that all ways can probe; {} probes run and compared, {} of which changed something.\n\
         Not run: {} in regions that set the thread pointer, call the kernel, or have an instruction that the model lacks; \
         {} that no tried registers reach.\n\n",
        found.costs.iter().map(|cost| cost.sites).max().unwrap_or(0),
        found.compared,
        found.wrong.len(),
        found.foreign,
        found.unreached,
    );
    text.push_str(&head(&[
        "way",
        "bytes at the site",
        "bytes elsewhere",
        "instructions",
        "fetches",
        "mispredicted, cold",
        "warm",
        "traps",
    ]));
    for (mechanism, cost) in Mechanism::ALL.iter().zip(&found.costs) {
        let [instructions, _, fetches, mispredictions, traps] =
            cost.warm.map(|sum| mean(sum, cost.hits));
        row(
            &mut text,
            &[
                mechanism.name(),
                &mean(cost.patched as i64, cost.sites),
                &mean(cost.elsewhere as i64, cost.sites),
                &instructions,
                &fetches,
                &mean(cost.cold.1, cost.cold.0),
                &mispredictions,
                &traps,
            ],
        );
    }
    Table { name: "hits", text }
}
