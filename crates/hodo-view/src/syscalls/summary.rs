//! How often each system call was made, how long the calls took, and how often they failed.

use std::collections::HashMap;
use std::io::Write;

use anyhow::Result;
use hodo_abi::Isa;
use hodo_trace::syscalls::{NUMBERS, by_number};
use serde_json::json;

use super::SyscallsFormat;
use super::lines::{Open, Pending, executed_by};
use super::read::{Event, Events, Exit};
use crate::source::Source;

/// The sum of the calls with one number.
#[derive(Debug, Default, Clone, Copy)]
struct Sum {
    calls: u64,
    errors: u64,
    /// The time between the beginning and the end of calls, in nanoseconds.
    ns: u64,
}

impl Sum {
    /// Adds a call. Its end is not known if a handler left it by a jump before hodo saw the signal.
    fn add(&mut self, pending: &Pending, exit: Option<&Exit>) {
        self.calls += 1;
        let Some(exit) = exit else { return };
        self.errors += u64::from(exit.value > 4096u64.wrapping_neg());
        // If a call began before hodo attached, its time is not known.
        let took = match pending.enter.earlier {
            true => 0,
            false => exit.ns.saturating_sub(pending.enter.ns),
        };
        self.ns = self.ns.saturating_add(took);
    }
}

/// Sums by number.
#[derive(Debug, Default)]
struct Sums {
    /// The sums for numbers that the kernel knows.
    known: Vec<Sum>,
    others: HashMap<u64, Sum>,
}

impl Sums {
    fn of(&mut self, number: u64) -> &mut Sum {
        if number >= NUMBERS {
            return self.others.entry(number).or_default();
        }
        self.known.resize(NUMBERS as usize, Sum::default());
        &mut self.known[number as usize]
    }

    /// Returns the sums, those with the longest time first.
    fn rows(self) -> Vec<(u64, Sum)> {
        let known = (0..).zip(self.known).filter(|(_, sum)| sum.calls > 0);
        let mut rows: Vec<(u64, Sum)> = known.chain(self.others).collect();
        rows.sort_by_key(|&(number, sum)| (std::cmp::Reverse(sum.ns), number));
        rows
    }
}

/// Writes the table. `first`: the program's own start is counted.
pub(super) fn summary(
    (source, machine): (&Source, Isa),
    format: SyscallsFormat,
    first: bool,
    out: &mut dyn Write,
) -> Result<()> {
    let rows = sums((source, machine), first).rows();
    let name = |number: u64| match by_number(machine, number) {
        Some(call) => call.name.to_owned(),
        None => format!("syscall_{number:#x}"),
    };
    match format {
        SyscallsFormat::Json => {
            for (number, sum) in rows {
                let line = json!({
                    "syscall": name(number), "number": number, "calls": sum.calls, "errors": sum.errors, "ns": sum.ns,
                });
                writeln!(out, "{line}")?;
            }
            Ok(())
        }
        _ => table(&rows, name, out),
    }
}

/// Sums up the calls of a trace.
fn sums((source, machine): (&Source, Isa), first: bool) -> Sums {
    let mut sums = Sums::default();
    let mut open = Open::default();
    let execve = hodo_trace::syscalls::number(machine, "execve").unwrap_or_default();
    for event in Events::new(source, machine) {
        match event {
            Event::Enter(enter) => {
                if let Some(lost) = open.begin(enter) {
                    sums.of(lost.enter.number)
                        .add(&lost, lost.end_at_signal().as_ref());
                }
            }
            Event::Exit(exit) => {
                let Some(pending) = open.end(exit.task) else {
                    continue;
                };
                sums.of(pending.enter.number).add(&pending, Some(&exit));
            }
            Event::Begin(task) => {
                let start = first && source.task(task).kind == "start";
                let pending = executed_by(source, task).and_then(|before| open.end(before));
                if start || pending.is_some() {
                    sums.of(pending.map_or(execve, |pending| pending.enter.number))
                        .calls += 1;
                }
            }
            Event::Signal(task, signal) => {
                open.interrupt(source, task, &source.trace.signals[signal]);
            }
            Event::End(_) => {}
        }
    }
    for left in open.left() {
        sums.of(left.enter.number)
            .add(&left, left.end_at_signal().as_ref());
    }
    sums
}

/// Writes the table as `strace -c` does.
fn table(rows: &[(u64, Sum)], name: impl Fn(u64) -> String, out: &mut dyn Write) -> Result<()> {
    let all = rows.iter().fold(Sum::default(), |all, (_, sum)| Sum {
        calls: all.calls + sum.calls,
        errors: all.errors + sum.errors,
        ns: all.ns.saturating_add(sum.ns),
    });
    let line = "------ ----------- ----------- --------- --------- ----------------";
    writeln!(
        out,
        "% time     seconds  usecs/call     calls    errors syscall\n{line}"
    )?;
    for &(number, sum) in rows {
        let share = if all.ns == 0 {
            0.0
        } else {
            sum.ns as f64 * 100.0 / all.ns as f64
        };
        row(&format!("{share:6.2}"), sum, &name(number), out)?;
    }
    writeln!(out, "{line}")?;
    row("100.00", all, "total", out)
}

fn row(share: &str, sum: Sum, name: &str, out: &mut dyn Write) -> Result<()> {
    let errors = match sum.errors {
        0 => String::new(),
        errors => errors.to_string(),
    };
    writeln!(
        out,
        "{share} {:>4}.{:06} {:11} {:9} {errors:>9} {name}",
        sum.ns / 1_000_000_000,
        sum.ns / 1000 % 1_000_000,
        sum.ns / 1000 / sum.calls.max(1),
        sum.calls,
    )?;
    Ok(())
}
