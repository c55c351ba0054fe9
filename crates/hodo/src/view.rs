//! The commands that read a recording.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use hodo_record::RecordOptions;
use hodo_view::{
    DumpFormat, DumpOptions, EventFormat, EventOptions, GraphOptions, InfoOptions, LiveOptions,
    Match, ReplayOptions, ReportFormat, ReportOptions, SourceOptions, Style, TailCalls,
};

use crate::args::{
    DEFAULT_DATA, Data, DemangleArg, DumpArgs, DumpFormatArg, EventFormatArg, FormatArg, GraphArgs,
    InfoArgs, LiveArgs, MatchArg, Order, ProbeArgs, Reading, Recorded, ReplayArgs, ReplayStyle,
    ReportArgs, TailCallsArg,
};
use crate::live::{Printer, named_output, stream};
use crate::output::{colors, with_output};

/// Returns the trace directory to read. Inside a trace directory, `--data` may be left out.
fn found(place: &Data) -> PathBuf {
    let here = Path::new(".");
    let is_trace = |dir: &Path| dir.join("info.json").is_file() && dir.join("events").is_file();
    if place.data == Path::new(DEFAULT_DATA) && !place.data.exists() && is_trace(here) {
        here.to_owned()
    } else {
        place.data.clone()
    }
}

fn source(reading: &Reading, order: &Order) -> SourceOptions {
    let common = &reading.common;
    SourceOptions {
        data: found(&common.place),
        filter: common.filter.clone(),
        notrace: common.notrace.clone(),
        order: order.filter.clone(),
        hide: reading.hide.clone(),
        depth: common.depth,
        time_filter: common.time_filter,
        size_filter: common.size_filter,
        pattern: common.pattern.map(|pattern| match pattern {
            MatchArg::Regex => Match::Regex,
            MatchArg::Glob => Match::Glob,
        }),
        no_libcall: common.no_libcall,
        libname: common.libname,
        demangle: match reading.demangle {
            DemangleArg::Simple => Style::Simple,
            DemangleArg::Full => Style::Full,
            DemangleArg::No => Style::Raw,
        },
        sysroot: reading.sysroot.clone(),
        tids: reading.tid.clone(),
        range: reading.time_range,
        tail_calls: match reading.tail_calls {
            TailCallsArg::Nested => TailCalls::Nested,
            TailCallsArg::Flat => TailCalls::Flat,
        },
        raw_times: reading.raw_times,
        color: colors(common.screen.color),
    }
}

fn replay_options(reading: &Reading, style: &ReplayStyle, order: &Order) -> ReplayOptions {
    ReplayOptions {
        source: source(reading, order),
        fields: style.fields.clone(),
        flat: style.flat,
        comments: !style.no_comment,
        merge: !style.no_merge,
        column_view: style.column_view,
        column_offset: style.column_offset,
        task_newline: style.task_newline,
    }
}

/// Warns if a trace is not of the program named on the command line.
///
/// # Errors
/// If the words are not the name of a program: several, or a trace directory, which only `--data` names.
fn compare(recorded: &Recorded, data: &Path) -> Result<()> {
    let is_trace = |word: &OsString| Path::new(word).join("info.json").is_file();
    if let Some(trace) = recorded.program.iter().find(|word| is_trace(word)) {
        let trace = trace.display();
        bail!("{trace} is a trace directory: -d {trace} reads it, one in each command");
    }
    if let [_, extra, ..] = &recorded.program[..] {
        bail!(
            "{}: this is one word too many, for there is one program",
            extra.display()
        );
    }
    let Some(program) = recorded.program.first().map(Path::new) else {
        return Ok(());
    };
    // The view reports what cannot be read.
    let info = std::fs::read(data.join("info.json")).ok();
    let info = info.and_then(|text| serde_json::from_slice::<serde_json::Value>(&text).ok());
    let exe = info.as_ref().and_then(|info| info["exe"].as_str());
    if let Some(exe) = exe
        && Path::new(exe).file_name() != program.file_name()
    {
        let (data, program) = (data.display(), program.display());
        warn_user!("hodo: {data} is a trace of {exe}, not of {program}");
    }
    Ok(())
}

/// `hodo replay`.
pub fn replay(args: &ReplayArgs, order: &Order) -> Result<ExitCode> {
    let options = replay_options(&args.reading, &args.style, order);
    compare(&args.recorded, &options.source.data)?;
    with_output(args.reading.common.screen.no_pager, |out| {
        hodo_view::replay(&options, out)
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Checks that `hodo live` can show what was requested, before the program runs.
pub fn check_live(args: &LiveArgs, order: &Order) -> Result<()> {
    hodo_view::check_replay(&replay_options(&args.reading, &args.style, order))
}

/// Shows the recording in `data` for `hodo live`.
pub fn after_recording(args: &LiveArgs, order: &Order, data: PathBuf) -> Result<()> {
    let mut replay = replay_options(&args.reading, &args.style, order);
    replay.source.data = data;
    // The trace has the recording's own filters, which must not be applied twice.
    replay.source.filter.clear();
    replay.source.notrace.clear();
    replay.source.order.clear();
    with_output(args.reading.common.screen.no_pager, |out| {
        if args.report {
            let options = ReportOptions {
                source: replay.source.clone(),
                ..ReportOptions::default()
            };
            hodo_view::report(&options, out)
        } else {
            hodo_view::replay(&replay, out)
        }
    })
}

/// Starts showing the events of probes as they come. Returns `None` if they are shown after the end: because the format
/// needs the whole recording, or because lines would mix with those of a program that writes into the same pipe or
/// file.
///
/// # Errors
/// If the output cannot be written.
pub fn live_probes(args: &ProbeArgs, options: &RecordOptions) -> Result<Option<Printer>> {
    let format = match args.written.format {
        EventFormatArg::Text => EventFormat::Text,
        EventFormatArg::Json => EventFormat::Json,
        EventFormatArg::Perfetto => return Ok(None),
    };
    let out = match &args.written.output {
        None if !args.attach.attaches() && !std::io::stdout().is_terminal() => return Ok(None),
        None => stream(&std::io::stdout())?,
        Some(path) => File::create(path).with_context(|| format!("writing {}", path.display()))?,
    };
    let format = LiveOptions::Events(format);
    let name = named_output(args.written.output.as_deref());
    Ok(Some(Printer::start(
        &options.data,
        format,
        options.clock,
        (out, name),
    )))
}

/// Shows the recording in `data` for `hodo probe`: its events, unless they have been shown already, and then its
/// counts.
pub fn after_probes(args: &ProbeArgs, data: PathBuf, printer: Option<Printer>) -> Result<()> {
    let is_live = printer.is_some();
    let mut output = None;
    if let Some(mut printer) = printer {
        output = printer.output.take();
        printer.finish()?;
    }
    let format = match args.written.format {
        EventFormatArg::Text => EventFormat::Text,
        EventFormatArg::Json => EventFormat::Json,
        EventFormatArg::Perfetto => EventFormat::Perfetto,
    };
    let options = EventOptions {
        source: SourceOptions {
            data,
            ..SourceOptions::default()
        },
        format,
    };
    let write = |out: &mut dyn Write| {
        if !is_live {
            hodo_view::events(&options, out)?;
        }
        hodo_view::counts(&options, out)?;
        hodo_view::histograms(&options, out)
    };
    match &args.written.output {
        // When lines are on the screen already, a pager makes no sense.
        None => with_output(args.screen.no_pager || is_live, write),
        Some(path) => {
            let writing = || format!("writing {}", path.display());
            // The file already contains what was shown so far.
            let file = output.map_or_else(|| File::create(path), Ok);
            let mut out = BufWriter::with_capacity(1 << 16, file.with_context(writing)?);
            write(&mut out)
                .and_then(|()| Ok(out.flush()?))
                .with_context(writing)
        }
    }
}

/// `hodo report`.
pub fn report(args: &ReportArgs, order: &Order) -> Result<ExitCode> {
    let options = ReportOptions {
        source: source(&args.reading, order),
        sort: args.sort.clone(),
        task: args.task,
        avg_total: args.avg_total,
        avg_self: args.avg_self,
        fields: args.fields.clone(),
        format: match args.format {
            FormatArg::Text => ReportFormat::Text,
            FormatArg::Json => ReportFormat::Json,
        },
    };
    compare(&args.recorded, &options.source.data)?;
    with_output(args.reading.common.screen.no_pager, |out| {
        hodo_view::report(&options, out)
    })?;
    Ok(ExitCode::SUCCESS)
}

/// `hodo graph`.
pub fn graph(args: GraphArgs, order: &Order) -> Result<ExitCode> {
    let options = GraphOptions {
        source: source(&args.reading, order),
        function: args.function,
        fields: args.fields,
        task: args.task,
    };
    with_output(args.reading.common.screen.no_pager, |out| {
        hodo_view::graph(&options, out)
    })?;
    Ok(ExitCode::SUCCESS)
}

/// `hodo dump`.
pub fn dump(args: &DumpArgs, order: &Order) -> Result<ExitCode> {
    let format = match args.format {
        _ if args.chrome => DumpFormat::Chrome,
        _ if args.perfetto => DumpFormat::Perfetto,
        _ if args.flame_graph => DumpFormat::FlameGraph,
        _ if args.svg => DumpFormat::Svg,
        Some(DumpFormatArg::Chrome) => DumpFormat::Chrome,
        Some(DumpFormatArg::Perfetto) => DumpFormat::Perfetto,
        Some(DumpFormatArg::FlameGraph) => DumpFormat::FlameGraph,
        Some(DumpFormatArg::Svg) => DumpFormat::Svg,
        Some(DumpFormatArg::Text) | None => DumpFormat::Raw,
    };
    if format == DumpFormat::Perfetto && std::io::stdout().is_terminal() {
        bail!("this form is binary: write it to a file, as hodo dump --perfetto > hodo.pftrace");
    }
    let options = DumpOptions {
        source: source(&args.reading, order),
        format,
        sample_time: args.sample_time,
    };
    compare(&args.recorded, &options.source.data)?;
    with_output(args.reading.common.screen.no_pager, |out| {
        hodo_view::dump(&options, out)
    })?;
    Ok(ExitCode::SUCCESS)
}

/// `hodo info`.
pub fn info(args: InfoArgs) -> Result<ExitCode> {
    let options = InfoOptions {
        source: SourceOptions {
            data: found(&args.place),
            ..SourceOptions::default()
        },
        json: args.json,
        task: args.task,
        symbols: args.symbols,
    };
    compare(&args.recorded, &options.source.data)?;
    with_output(args.screen.no_pager, |out| hodo_view::info(&options, out))?;
    Ok(ExitCode::SUCCESS)
}
