//! `hodo mem coverage`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use hodo_mem::counted::Missing;
use hodo_mem::coverage::Coverage;
use hodo_mem::executions::Executions;
use hodo_mem::report::{coverage as report, drcov, lcov};

use super::selected::Selection;
use super::{counts, observed, output};
use crate::args::{CoverageArgs, CoverageFormat};

/// Shows what was executed.
pub fn coverage(args: &CoverageArgs) -> Result<ExitCode> {
    let (common, top) = (&args.common, args.top);
    let format = common.format;
    let merges_only = common.source.is_none();
    if merges_only && !common.source.is_usual() {
        bail!(
            "nothing is observed, only files are merged: leave out the options about a run (--only, --from, …), or give \
             a program, a process or a recording"
        );
    }
    // If one is damaged, the program need not run for that.
    let before = merged(format, &args.merge)?;
    let selection = Selection::new(&common.source.functions)?;
    let mut out = output(common.output.as_ref(), &common.source)?;
    if merges_only {
        write(&mut out, &before, format, (top, Missing::default()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let observe = counts(&common.source);
    observed(
        &common.source,
        observe,
        Executions::new(observe),
        move |executions, missing| {
            let chosen = |path: &Path, offset| selection.selects_at(path, offset);
            let mut coverage = Coverage::of(&executions, &chosen);
            coverage.add(before);
            write(&mut out, &coverage, format, (top, missing))
        },
    )
}

/// Earlier results, added to each other.
fn merged(format: CoverageFormat, files: &[PathBuf]) -> Result<Coverage> {
    let mut coverage = Coverage::default();
    for file in files {
        let content = std::fs::read(file);
        let content = content.with_context(|| format!("cannot read {}", file.display()))?;
        let added = match format {
            CoverageFormat::Drcov => drcov::merge(&mut coverage, &content),
            CoverageFormat::Lcov => String::from_utf8(content)
                .context("it is no text, but --format lcov")
                .and_then(|content| lcov::merge(&mut coverage, &content)),
            CoverageFormat::Text | CoverageFormat::Json => {
                bail!("--merge adds files of lcov or drcov: write --format lcov or --format drcov")
            }
        };
        added.with_context(|| format!("cannot merge {}", file.display()))?;
    }
    Ok(coverage)
}

fn write(
    out: &mut dyn Write,
    coverage: &Coverage,
    format: CoverageFormat,
    (top, missing): (usize, Missing),
) -> Result<()> {
    match format {
        CoverageFormat::Lcov => lcov::write(out, coverage)?,
        CoverageFormat::Drcov => drcov::write(out, coverage)?,
        CoverageFormat::Json => writeln!(out, "{}", missing.note(report::as_json(coverage)))?,
        CoverageFormat::Text => {
            for line in report::as_text(coverage, top) {
                writeln!(out, "{line}")?;
            }
        }
    }
    Ok(out.flush()?)
}
