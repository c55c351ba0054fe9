//! `hodo mem`: runs programs under the instrumentation engine.

mod cache;
mod calls;
mod coverage;
mod heap;
mod selected;
mod tools;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use hodo_dbi::{Client, Decode, Observe, Period, Ran, Target};
use hodo_mem::counted::{Counted, Missing, Watched, Weighed};
use hodo_mem::drmemtrace;
use hodo_mem::stat::Counter;
use hodo_mem::trace::{self, Writer};
use hodo_mem::view::{Names, View, Wanted};
use serde_json::json;

use crate::args::{
    MemArgs, MemFormat, MemTool, Part, RecordFormat, RecordMemArgs, SourceArgs, StatArgs,
    ViewFormat, ViewMemArgs, WatchArgs,
};
use crate::end::end;
use crate::output::Named;
use crate::progress::Progress;
use selected::{Selected, Selection};

/// Runs the tool.
pub fn mem(args: &MemArgs) -> Result<ExitCode> {
    match &args.tool {
        MemTool::None(none) => run(&none.part, &none.command, |target| {
            Ok((hodo_dbi::run(target)?, None))
        }),
        MemTool::Record(args) => record(args),
        MemTool::View(args) => view(args),
        MemTool::Stat(args) => stat(args),
        MemTool::Cache(args) => cache::cache(args),
        MemTool::Tlb(args) => cache::tlb(args),
        MemTool::Opcodes(args) => tools::opcodes(args),
        MemTool::Bbcount(args) => tools::bbcount(args),
        MemTool::Coverage(args) => coverage::coverage(args),
        MemTool::Calls(args) => calls::calls(args),
        MemTool::Reuse(args) => tools::reuse(args),
        MemTool::WorkingSet(args) => tools::working_set(args),
        MemTool::Heap(args) => heap::heap(args),
        MemTool::Hot(args) => tools::hot(args),
        MemTool::Share(args) => tools::share(args),
    }
}

/// What is printed after a program has ended.
type Report = Box<dyn FnOnce() -> Result<()>>;

/// Runs a program by `start`, or attaches to a process, and reports.
fn run(
    part: &Part,
    command: &[OsString],
    start: impl FnOnce(&Target<'_>) -> Result<(Ran, Option<Report>)>,
) -> Result<ExitCode> {
    if let Err(error) = hodo_dbi::check_machine() {
        crate::output::complain(&error);
        return Ok(ExitCode::from(125));
    }
    let no_name = OsString::new();
    let name = command.first().unwrap_or(&no_name);
    let program;
    let follows = !part.no_follow;
    let target = match part.pid {
        Some(pid) => {
            let front = match crate::run::divide(true) {
                Ok(front) => front,
                Err(code) => return Ok(code),
            };
            let may_attach =
                hodo_record::may_stop(pid, front).and_then(|()| hodo_record::own_memory(pid));
            if let Err(error) = may_attach {
                crate::output::complain(&error);
                return Ok(ExitCode::from(125));
            }
            Target::Process {
                pid,
                length: part.length,
                every: part.every,
                marked: part.marked,
                follows,
            }
        }
        None => {
            program = match hodo_dbi::find_program(name) {
                Ok(program) => program,
                Err(error) => {
                    crate::output::complain(&error);
                    return Ok(ExitCode::from(127));
                }
            };
            let is_whole = part.from.is_none() && part.length.is_none();
            Target::Program {
                path: &program,
                command,
                period: (!is_whole).then_some(Period {
                    from: part.from,
                    length: part.length,
                    every: part.every,
                }),
                marked: part.marked,
                follows,
            }
        }
    };
    // What was observed is still to be written.
    hodo_dbi::stay_blocked();
    let (ran, report) = match start(&target) {
        Ok(ran) => ran,
        Err(error) => {
            crate::output::complain(&error);
            return Ok(ExitCode::from(125));
        }
    };
    if let Some(error) = ran.failure {
        let why = match &target {
            Target::Program { path, .. } => hodo_dbi::why_not(path, &error),
            Target::Process { .. } => error.to_string(),
        };
        warn_user!("hodo: cannot run {}: {why}", name.display());
        return Ok(ExitCode::from(126));
    }
    if let Some(report) = report
        && let Err(error) = report()
    {
        crate::output::complain(&error);
        return Ok(ExitCode::from(125));
    }
    Ok(match (ran.broken, ran.end) {
        (true, _) => ExitCode::from(125),
        // How a process ends that is another's child is nothing to hodo.
        (false, Some(exit)) if part.pid.is_none() => end(exit),
        (false, _) => ExitCode::SUCCESS,
    })
}

/// Where a recording is in its directory.
const FILE: &str = "accesses.hodomem";

/// Where results go that are not written to a file. What a program is run for goes to the standard error output, which
/// keeps it apart from the program's output.
fn output(path: Option<&PathBuf>, source: &SourceArgs) -> Result<Box<dyn Write + Send>> {
    Ok(match path {
        Some(path) => {
            let file = File::create(path);
            let file = file.with_context(|| format!("cannot create {}", path.display()))?;
            Box::new(BufWriter::new(Named::new(path.display(), file)))
        }
        None if source.command.is_empty() => Box::new(BufWriter::new(crate::output::stdout())),
        None => Box::new(BufWriter::new(io::stderr())),
    })
}

/// How a program is observed.
fn watched(args: &WatchArgs) -> Watched {
    Watched {
        lossy: args.lossy,
        expand: args.expand,
        allocators: args.allocators.clone(),
    }
}

/// Says how much was lost, if something was.
fn warn_of_loss(missing: Missing) {
    let instructions = missing.instructions();
    if instructions > 0 {
        warn_user!(
            "hodo: {instructions} instructions are missing: the program did not wait for hodo (--lossy)"
        );
    }
}

/// What is to be observed for clients that count executions. Of a part of a recording, or one in DynamoRIO's format,
/// the order has to be known.
fn counts(source: &SourceArgs) -> Observe {
    let Part { from, length, .. } = &source.part;
    match &source.directory {
        Some(directory)
            if from.is_some() || length.is_some() || drmemtrace::is_trace(directory) =>
        {
            Observe::Accesses
        }
        _ => Observe::Counts,
    }
}

/// Tells a client what selected functions do in a recording, or in a program that is run.
fn observed<C: Client + 'static>(
    source: &SourceArgs,
    observe: Observe,
    client: C,
    report: impl FnOnce(C, Missing) -> Result<()> + 'static,
) -> Result<ExitCode> {
    let selection = Selection::new(&source.functions)?;
    observed_of(source, selection, (observe, client), report)
}

/// Tells a client what a selection of functions does.
fn observed_of<C: Client + 'static>(
    source: &SourceArgs,
    selection: Selection,
    (observe, client): (Observe, C),
    report: impl FnOnce(C, Missing) -> Result<()> + 'static,
) -> Result<ExitCode> {
    let counts = Arc::default();
    let client = Selected::new(client, selection).of_thread(source.thread);
    let mut client = Counted::new(client, observe, watched(&source.watch), &counts);
    if source.directory.is_some() {
        client.choose(source.part.from, source.part.length)?;
    }
    let report = move |client: Counted<Selected<C>>| {
        let (selected, missing) = client.into_client();
        warn_of_loss(missing);
        selected.warn_if_useless();
        report(selected.into_client(), missing)
    };
    let runs = source.directory.is_none() && source.part.pid.is_none();
    let start = move || Progress::observing(runs, move |seconds| counts.text(seconds));
    if let Some(directory) = &source.directory
        && drmemtrace::is_trace(directory)
    {
        let progress = start();
        drmemtrace::read(directory, &mut client)?;
        drop(progress);
        report(client)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(directory) = &source.directory {
        let mut decode = match observe {
            Observe::Counts => Decode::counting(client),
            _ => Decode::new(client),
        };
        let progress = start();
        let damage = trace::read(&directory.join(FILE), &mut decode)?;
        drop(progress);
        report(decode.into_client())?;
        return Ok(match damage {
            Some(damage) => {
                warn_user!("hodo: {}: {damage}", directory.join(FILE).display());
                ExitCode::FAILURE
            }
            None => ExitCode::SUCCESS,
        });
    }
    run(&source.part, &source.command, |target| {
        let progress = start();
        let (ran, client) = hodo_dbi::observe(target, observe, client)?;
        drop(progress);
        let report: Report = Box::new(move || report(client));
        Ok((ran, Some(report)))
    })
}

fn record(args: &RecordMemArgs) -> Result<ExitCode> {
    // Nothing is created, and no older recording is lost, if there is no such program.
    let create = || -> Result<&Path> {
        let directory = &args.directory;
        let cannot = || format!("cannot create {}", directory.display());
        std::fs::create_dir_all(directory).with_context(cannot)?;
        Ok(directory)
    };
    let runs = args.part.pid.is_none();
    let selection = Selection::new(&args.functions)?;
    if args.format == RecordFormat::Drmemtrace {
        let name = args.command.first().map(PathBuf::from).unwrap_or_default();
        let name = name.file_name().unwrap_or_default().to_string_lossy();
        return run(&args.part, &args.command, |target| {
            let writer = drmemtrace::Writer::create(create()?, &name, !selection.is_all())?;
            let counts = Arc::default();
            let writer = Selected::new(writer, selection);
            let writer = Counted::new(writer, Observe::Accesses, watched(&args.watch), &counts);
            let _progress = Progress::observing(runs, move |seconds| counts.text(seconds));
            let (ran, writer) = hodo_dbi::observe(target, Observe::Accesses, writer)?;
            let (writer, missing) = writer.into_client();
            warn_of_loss(missing);
            writer.warn_if_useless();
            Ok((ran, None))
        });
    }
    run(&args.part, &args.command, |target| {
        let writer = Writer::create(&create()?.join(FILE))?;
        let counts = Arc::default();
        let writer = Selected::new(writer, selection);
        let writer = Weighed::new(writer, watched(&args.watch), &counts);
        let _progress = Progress::observing(runs, move |seconds| counts.text(seconds));
        let (ran, writer) = hodo_dbi::listen(target, Observe::Accesses, writer)?;
        let (writer, missing) = writer.into_listener();
        warn_of_loss(missing);
        writer.warn_if_useless();
        Ok((ran, None))
    })
}

fn view(args: &ViewMemArgs) -> Result<ExitCode> {
    let out = output(args.output.as_ref(), &args.source)?;
    let wanted = Wanted {
        thread: args.source.thread,
        limit: args.limit,
    };
    let names = Names {
        call: hodo_view::plain_call,
        result: hodo_view::plain_result,
        signal: hodo_view::signal_name,
    };
    let view = View::new(
        out,
        (args.format == ViewFormat::Text).then_some(names),
        wanted,
    );
    observed(&args.source, Observe::Accesses, view, |_, _| Ok(()))
}

fn stat(args: &StatArgs) -> Result<ExitCode> {
    let mut out = output(args.common.output.as_ref(), &args.common.source)?;
    let format = args.common.format;
    let observe = counts(&args.common.source);
    let only = args.common.source.thread.is_some();
    observed(
        &args.common.source,
        observe,
        Counter::new(observe),
        move |counter, missing| {
            let mut stat = counter.stat();
            if only {
                stat.threads = u64::from(stat.instructions > 0);
            }
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
                    writeln!(out, "{}", missing.note(value))?;
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
