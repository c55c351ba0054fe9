//! `hodo mem`: runs programs under the instrumentation engine.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use hodo_dbi::{Client, End, Observe, Ran};
use hodo_mem::stat::Stat;
use hodo_record::Exit;
use serde_json::json;

use crate::args::{MemArgs, MemFormat, MemTool, StatArgs};
use crate::end::end;

/// Runs the tool.
pub fn mem(args: &MemArgs) -> Result<ExitCode> {
    match &args.tool {
        MemTool::None(none) => run(&none.command, |program| {
            let ran = hodo_dbi::run(program, &none.command)?;
            Ok((ran, None))
        }),
        MemTool::Stat(args) => stat(args),
    }
}

/// What is printed after a program has ended.
type Report = Box<dyn FnOnce() -> Result<()>>;

/// Runs a program by `start`, and reports.
fn run(
    command: &[OsString],
    start: impl FnOnce(&Path) -> Result<(Ran, Option<Report>)>,
) -> Result<ExitCode> {
    let no_name = OsString::new();
    let name = command.first().unwrap_or(&no_name);
    let program = match hodo_dbi::find_program(name) {
        Ok(program) => program,
        Err(error) => {
            crate::output::complain(&error);
            return Ok(ExitCode::from(127));
        }
    };
    let (ran, report) = match start(&program) {
        Ok(ran) => ran,
        Err(error) => {
            crate::output::complain(&error);
            return Ok(ExitCode::from(125));
        }
    };
    if let Some(error) = ran.failure {
        warn_user!("hodo: cannot run {}: {error}", program.display());
        return Ok(ExitCode::from(126));
    }
    if let Some(report) = report
        && let Err(error) = report()
    {
        crate::output::complain(&error);
        return Ok(ExitCode::from(125));
    }
    Ok(end(match ran.end {
        End::Code(code) => Exit::Code(code),
        End::Signal(signal) => Exit::Signal(signal),
        End::Core(signal) => Exit::Core(signal),
    }))
}

/// Runs a program with a client.
fn observed<C: Client + 'static>(
    command: &[OsString],
    observe: Observe,
    client: C,
    report: impl FnOnce(C) -> Result<()> + 'static,
) -> Result<ExitCode> {
    run(command, |program| {
        let (ran, client) = hodo_dbi::observe(program, command, observe, client)?;
        let report: Report = Box::new(move || report(client));
        Ok((ran, Some(report)))
    })
}

/// Where results go: a file, or the standard error output, which keeps them apart from the program's output.
fn output(path: Option<&PathBuf>) -> Result<Box<dyn Write>> {
    Ok(match path {
        Some(path) => {
            let file = File::create(path);
            Box::new(file.with_context(|| format!("cannot create {}", path.display()))?)
        }
        None => Box::new(io::stderr()),
    })
}

fn stat(args: &StatArgs) -> Result<ExitCode> {
    let mut out = output(args.output.as_ref())?;
    let format = args.format;
    observed(
        &args.command,
        Observe::Counts,
        Stat::default(),
        move |stat| {
            match format {
                MemFormat::Json => {
                    let value = json!({
                        "instructions": stat.instructions,
                        "loads": stat.loads,
                        "stores": stat.stores,
                        "load_bytes": stat.load_bytes,
                        "store_bytes": stat.store_bytes,
                        "threads": stat.threads,
                    });
                    writeln!(out, "{value}")?;
                }
                MemFormat::Text => {
                    writeln!(out, "{:>16} instructions", stat.instructions)?;
                    writeln!(out, "{:>16} loads of {} bytes", stat.loads, stat.load_bytes)?;
                    writeln!(
                        out,
                        "{:>16} stores of {} bytes",
                        stat.stores, stat.store_bytes
                    )?;
                    writeln!(out, "{:>16} threads", stat.threads)?;
                }
            }
            Ok(out.flush()?)
        },
    )
}
