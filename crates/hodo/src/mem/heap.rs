//! `hodo mem heap`.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Result;
use hodo_dbi::Observe;
use hodo_mem::allocations::{Allocations, rows};
use hodo_mem::places::InFile;
use hodo_mem::report::heap::{self as report, By};

use super::cache::{OutFile, flame_graph, title};
use super::selected::Selection;
use super::{observed_of, output};
use crate::args::{AllocationsBy, HeapArgs, MemFormat};

/// Shows what a program allocates.
pub fn heap(args: &HeapArgs) -> Result<ExitCode> {
    let common = &args.common;
    let wanted = Selection::new(&common.source.functions)?;
    let by = match args.by {
        AllocationsBy::Peak => By::Peak,
        AllocationsBy::Leaked => By::Leaked,
        AllocationsBy::Bytes => By::Bytes,
        AllocationsBy::Allocations => By::Allocations,
        AllocationsBy::Temporary => By::Temporary,
    };
    let &HeapArgs { top, callers, .. } = args;
    let title = title(&common.source);
    let format = common.format;
    let graph = args.flame_graph.as_deref();
    let mut out = output(common.output.as_ref(), &common.source)?;
    // If it cannot be written, the program need not run for that.
    let graph = graph.map(OutFile::create).transpose()?;
    // Calls can only be followed if all functions are observed.
    observed_of(
        &common.source,
        Selection::all(),
        (
            Observe::Accesses,
            Allocations::of_thread(common.source.thread),
        ),
        move |allocations, missing| {
            let stacks = allocations.stacks();
            let at = allocations.peak_at();
            let chosen = |place: &InFile| match place.file.as_os_str().is_empty() {
                true => wanted.selects_function("", None),
                false => wanted.selects_at(&place.file, place.offset),
            };
            let (found, total) = rows(&stacks, callers, &chosen);
            match format {
                MemFormat::Json => {
                    let value = report::as_json(&found, &total, at, by);
                    writeln!(out, "{}", missing.note(value))?;
                }
                MemFormat::Text => {
                    for line in report::as_text(&found, &total, (at, by), top) {
                        writeln!(out, "{line}")?;
                    }
                }
            }
            out.flush()?;
            let Some(file) = graph else {
                return Ok(());
            };
            let (all, _) = rows(&stacks, usize::MAX, &chosen);
            let lines = report::folded(&all, by);
            let path = file.path().to_owned();
            file.write(|out| {
                let nothing = "nothing was allocated that --by counts";
                flame_graph(out, &path, (title, by.unit()), (lines, nothing))
            })
        },
    )
}
