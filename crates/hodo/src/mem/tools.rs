//! Tools that count: operations, blocks, reuse distances, working sets, shared lines.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Result;
use hodo_dbi::{Client, Observe};
use hodo_mem::executions::Executions;
use hodo_mem::hot::Hot;
use hodo_mem::lines::{Sharing, WorkingSet};
use hodo_mem::report::{sharing, tables};
use hodo_mem::reuse::Reuse;
use serde_json::Value;

use super::{counts, observed, output};
use crate::args::{
    CommonArgs, CountArgs, HotArgs, LineArgs, MemFormat, ShareArgs, SourceArgs, WorkingSetArgs,
};

/// Observes, and reports what a client has found: as JSON, or as lines of text.
fn tool<C: Client + 'static>(
    common: &CommonArgs,
    (observe, client): (Observe, C),
    as_json: impl FnOnce(&C) -> Value + 'static,
    as_text: impl FnOnce(&C) -> Vec<String> + 'static,
) -> Result<ExitCode> {
    let mut out = output(common.output.as_ref(), &common.source)?;
    let format = common.format;
    observed(&common.source, observe, client, move |client, missing| {
        match format {
            MemFormat::Json => writeln!(out, "{}", missing.note(as_json(&client)))?,
            MemFormat::Text => {
                for line in as_text(&client) {
                    writeln!(out, "{line}")?;
                }
            }
        }
        Ok(out.flush()?)
    })
}

/// What to observe to count executions, and the client that does.
fn counting(source: &SourceArgs) -> (Observe, Executions) {
    let observe = counts(source);
    (observe, Executions::new(observe))
}

/// Counts operations.
pub fn opcodes(args: &CountArgs) -> Result<ExitCode> {
    let top = args.top;
    tool(
        &args.common,
        counting(&args.common.source),
        tables::operations_as_json,
        move |executions| tables::operations_as_text(executions, top),
    )
}

/// Counts the executions of blocks.
pub fn bbcount(args: &CountArgs) -> Result<ExitCode> {
    let top = args.top;
    tool(
        &args.common,
        counting(&args.common.source),
        tables::blocks_as_json,
        move |executions| tables::blocks_as_text(executions, top),
    )
}

/// Shows reuse distances.
pub fn reuse(args: &LineArgs) -> Result<ExitCode> {
    tool(
        &args.common,
        (Observe::Accesses, Reuse::new(args.line)),
        tables::distances_as_json,
        tables::distances_as_text,
    )
}

/// Shows working sets.
pub fn working_set(args: &WorkingSetArgs) -> Result<ExitCode> {
    let line = u64::from(args.line);
    tool(
        &args.common,
        (Observe::Accesses, WorkingSet::new(args.line, args.window)),
        move |set| tables::working_sets_as_json(set, line),
        move |set| tables::working_sets_as_text(set, line),
    )
}

/// Shows which memory is accessed most.
pub fn hot(args: &HotArgs) -> Result<ExitCode> {
    let &HotArgs { top, callers, .. } = args;
    tool(
        &args.common,
        (Observe::Accesses, Hot::default()),
        move |hot| tables::hot_as_json(hot, callers),
        move |hot| tables::hot_as_text(hot, callers, top),
    )
}

/// Shows lines that threads share.
pub fn share(args: &ShareArgs) -> Result<ExitCode> {
    let &ShareArgs { top, callers, .. } = args;
    tool(
        &args.common,
        (Observe::Accesses, Sharing::new(args.line)),
        move |sharing| sharing::as_json(&sharing.shared(usize::MAX, callers)),
        move |sharing| sharing::as_text(&sharing.shared(top, callers)),
    )
}
