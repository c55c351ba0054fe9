//! Prints the tables of `docs/riscv-proposals.md`.
#![forbid(unsafe_code)]

use std::io::{ErrorKind, Write as _};
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use hodo_rvmodel::coverage;
use hodo_rvmodel::tables::{self, Table};

const USAGE: &str = "usage: hodo-rvmodel tables
       hodo-rvmodel coverage LOG FILE@ADDRESS…

LOG was written by `qemu-riscv64 -d in_asm -D LOG PROGRAM`; ADDRESS, in hexadecimal, is where FILE was mapped in that run.";

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["tables"] => print(&tables::fixed()?),
        ["coverage", log, files @ ..] if !files.is_empty() => coverage(log, files),
        ["-h" | "--help"] => {
            println!("{USAGE}");
            Ok(())
        }
        _ => bail!("{USAGE}"),
    }
}

fn print(tables: &[Table]) -> Result<()> {
    let mut out = std::io::stdout().lock();
    for table in tables {
        match writeln!(out, "<!-- table: {} -->\n{}", table.name, table.text) {
            // Nobody reads any more.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => break,
            written => written.context("standard output cannot be written")?,
        }
    }
    Ok(())
}

/// Prints what can be done with the executed instructions of files.
fn coverage(log: &str, files: &[&str]) -> Result<()> {
    let text = std::fs::read_to_string(log).with_context(|| format!("{log} cannot be read"))?;
    let mut all = Vec::new();
    for file in files {
        let (path, base) = file
            .rsplit_once('@')
            .with_context(|| format!("{file}: it must be FILE@ADDRESS"))?;
        let base = u64::from_str_radix(base.trim_start_matches("0x"), 16)
            .with_context(|| format!("{file}: {base} is no hexadecimal address"))?;
        let path = Path::new(path);
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        all.push((name.into_owned(), coverage::cover(path, &text, base)?));
    }
    print(&tables::coverage(&all))?;
    let wrong = all
        .iter()
        .flat_map(|(name, found)| found.wrong.iter().map(move |line| (name, line)));
    for (name, line) in wrong.clone().take(20) {
        eprintln!("{name}: {line}");
    }
    ensure!(wrong.count() == 0, "probes changed what the program does");
    Ok(())
}
