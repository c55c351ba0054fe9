//! Shows what of a program was executed: as a file of drcov (version 2), which Lighthouse and other viewers read, and
//! as one of lcov, from which `genhtml` makes pages.
//!
//!     cargo run --release -p hodo-mem --example coverage -- OUT.drcov OUT.info PROGRAM ARGUMENTS…

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use hodo_dbi::{Observe, Target};
use hodo_mem::executions::Executions;
use hodo_mem::places::{InFile, places};

/// A part of a file that was executed: its address in the file's own terms, and bytes.
type Part = (u64, u16);

/// The content of a file of drcov.
fn drcov(modules: &BTreeMap<PathBuf, Vec<Part>>) -> Vec<u8> {
    let mut text = String::from("DRCOV VERSION: 2\nDRCOV FLAVOR: hodo\n");
    let mut table = Vec::new();
    let mut lines = String::new();
    for (id, (file, parts)) in modules.iter().enumerate() {
        let end = parts.iter().map(|(at, size)| at + u64::from(*size)).max();
        let end = end.unwrap_or(0);
        let file = file.display();
        let _ = writeln!(lines, "{id:3}, 0x0, {end:#x}, 0x0, {file}");
        for (at, size) in parts {
            table.extend((*at as u32).to_le_bytes());
            table.extend(size.to_le_bytes());
            table.extend((id as u16).to_le_bytes());
        }
    }
    let _ = writeln!(text, "Module Table: version 2, count {}", modules.len());
    let _ = writeln!(text, "Columns: id, base, end, entry, path");
    let _ = writeln!(text, "{lines}BB Table: {} bbs", table.len() / 8);
    let mut content = text.into_bytes();
    content.extend(table);
    content
}

/// The content of a file of lcov: how often lines were executed.
fn lcov(lines: &BTreeMap<(String, u32), u64>) -> String {
    let mut text = String::from("TN:\n");
    let mut open: Option<&String> = None;
    for ((file, line), count) in lines {
        if open != Some(file) {
            text.push_str(if open.is_some() {
                "end_of_record\n"
            } else {
                ""
            });
            let _ = writeln!(text, "SF:{file}");
            open = Some(file);
        }
        let _ = writeln!(text, "DA:{line},{count}");
    }
    text.push_str(if open.is_some() {
        "end_of_record\n"
    } else {
        ""
    });
    text
}

/// Runs a program, and writes both files.
pub fn cover(command: &[OsString], drcov_file: &Path, lcov_file: &Path) -> Result<()> {
    let program = hodo_dbi::find_program(command.first().context("no program is given")?)?;
    let executions = Executions::new(Observe::Counts);
    let (_, executions) = hodo_dbi::observe(
        &Target::program(&program, command),
        Observe::Counts,
        executions,
    )?;
    // An instruction may be in several blocks.
    let mut counts: HashMap<InFile, u64> = HashMap::new();
    for (block, executed) in executions.blocks() {
        for (insn, count) in executed.into_iter().enumerate() {
            if let Some(place) = InFile::of(block, insn).filter(|_| count > 0) {
                *counts.entry(place).or_default() += count;
            }
        }
    }
    let found = places(counts.keys());
    let mut lines: BTreeMap<(String, u32), u64> = BTreeMap::new();
    for (place, count) in &counts {
        if let Some(line) = found.get(place).and_then(|found| found.line.clone()) {
            // A line is executed as often as the instruction of it that is executed most often.
            let most = lines.entry(line).or_default();
            *most = (*most).max(*count);
        }
    }
    let mut modules: BTreeMap<PathBuf, Vec<Part>> = BTreeMap::new();
    for part in executions.basic_blocks() {
        let insns = &part.block.insns[part.first..part.first + part.instructions];
        let size: u16 = insns.iter().map(|insn| u16::from(insn.len)).sum();
        let place = InFile::of(&part.block, part.first);
        if let Some(place) = place
            && let Some(address) = found.get(&place).and_then(|found| found.address)
        {
            modules.entry(place.file).or_default().push((address, size));
        }
    }
    std::fs::write(drcov_file, drcov(&modules)).context("writing the file of drcov")?;
    std::fs::write(lcov_file, lcov(&lines)).context("writing the file of lcov")
}

fn main() -> Result<()> {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let [drcov_file, lcov_file, command @ ..] = &words[..] else {
        anyhow::bail!("usage: coverage OUT.drcov OUT.info PROGRAM ARGUMENTS…");
    };
    cover(command, drcov_file.as_ref(), lcov_file.as_ref())
}
