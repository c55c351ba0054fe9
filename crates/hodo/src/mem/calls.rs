//! `hodo mem calls`.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Result;
use hodo_dbi::Observe;
use hodo_mem::calls::Calls;
use hodo_mem::report::{callgrind, calls as report};

use super::selected::Selection;
use super::{observed_of, output};
use crate::args::{CallsArgs, CallsFormat};

/// Shows calls.
pub fn calls(args: &CallsArgs) -> Result<ExitCode> {
    let (common, top) = (&args.common, args.top);
    let format = common.format;
    let wanted = Selection::new(&common.source.functions)?;
    let command = common.source.command.clone();
    let mut out = output(common.output.as_ref(), &common.source)?;
    // Calls can only be followed if all functions are observed.
    observed_of(
        &common.source,
        Selection::all(),
        (Observe::Accesses, Calls::default()),
        move |mut calls, missing| {
            let graph = calls.graph();
            let graph = graph
                .only(|function| wanted.selects_function(&function.name, function.file.as_deref()));
            if graph.functions.is_empty() && !wanted.is_all() {
                warn_user!("hodo: nothing was executed that --only and --skip select");
            }
            match format {
                CallsFormat::Callgrind => callgrind::write(&mut out, &graph, &command)?,
                CallsFormat::Json => {
                    writeln!(out, "{}", missing.note(report::as_json(&graph)))?;
                }
                CallsFormat::Text => {
                    for line in report::as_text(&graph, top) {
                        writeln!(out, "{line}")?;
                    }
                }
            }
            Ok(out.flush()?)
        },
    )
}
