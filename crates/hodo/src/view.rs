//! The commands that read a recording.

use std::fs::File;
use std::io::{BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use hodo_view::{
    DumpFormat, DumpOptions, EventFormat, EventOptions, GraphOptions, InfoOptions, Match,
    ReplayOptions, ReportFormat, ReportOptions, SourceOptions, Style, TailCalls,
};

use crate::args::{
    DEFAULT_DATA, Data, DemangleArg, DumpArgs, EventFormatArg, FormatArg, GraphArgs, InfoArgs,
    LiveArgs, MatchArg, ProbeArgs, Reading, ReplayStyle, ReportArgs, TailCallsArg,
};
use crate::output::{colors, with_output};

/// The trace directory that is meant: without `--data` inside of a trace directory, this one.
fn found(place: &Data) -> PathBuf {
    let here = Path::new(".");
    let is_trace = |dir: &Path| dir.join("info.json").is_file() && dir.join("events").is_file();
    if place.data == Path::new(DEFAULT_DATA) && !place.data.exists() && is_trace(here) {
        here.to_owned()
    } else {
        place.data.clone()
    }
}

fn source(reading: &Reading) -> SourceOptions {
    let common = &reading.common;
    SourceOptions {
        data: found(&common.place),
        filter: common.filter.clone(),
        notrace: common.notrace.clone(),
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
        color: colors(common.screen.color),
    }
}

fn replay_options(reading: &Reading, style: &ReplayStyle) -> ReplayOptions {
    ReplayOptions {
        source: source(reading),
        fields: style.fields.clone(),
        flat: style.flat,
        comments: !style.no_comment,
        merge: !style.no_merge,
        column_view: style.column_view,
        column_offset: style.column_offset,
        task_newline: style.task_newline,
    }
}

/// `hodo replay`.
pub fn replay(reading: &Reading, style: &ReplayStyle) -> Result<ExitCode> {
    let options = replay_options(reading, style);
    with_output(reading.common.screen.no_pager, |out| {
        hodo_view::replay(&options, out)
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Whether `hodo live` can show what it is asked for: said before the program runs.
pub fn check_live(args: &LiveArgs) -> Result<()> {
    hodo_view::check_replay(&replay_options(&args.reading, &args.style))
}

/// What `hodo live` shows of the recording in `data`.
pub fn after_recording(args: &LiveArgs, data: PathBuf) -> Result<()> {
    let mut replay = replay_options(&args.reading, &args.style);
    replay.source.data = data;
    // The recording's own filters, which the trace has, are not applied twice.
    replay.source.filter.clear();
    replay.source.notrace.clear();
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

/// What `hodo probe` shows of the recording in `data`: events, and then counts.
pub fn after_probes(args: &ProbeArgs, data: PathBuf) -> Result<()> {
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
        hodo_view::events(&options, out)?;
        hodo_view::counts(&options, out)?;
        hodo_view::histograms(&options, out)
    };
    match &args.written.output {
        None => with_output(args.screen.no_pager, write),
        Some(path) => {
            let writing = || format!("writing {}", path.display());
            let file = File::create(path).with_context(writing)?;
            let mut out = BufWriter::with_capacity(1 << 16, file);
            write(&mut out)
                .and_then(|()| Ok(out.flush()?))
                .with_context(writing)
        }
    }
}

/// `hodo report`.
pub fn report(args: &ReportArgs) -> Result<ExitCode> {
    let options = ReportOptions {
        source: source(&args.reading),
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
    with_output(args.reading.common.screen.no_pager, |out| {
        hodo_view::report(&options, out)
    })?;
    Ok(ExitCode::SUCCESS)
}

/// `hodo graph`.
pub fn graph(args: GraphArgs) -> Result<ExitCode> {
    let options = GraphOptions {
        source: source(&args.reading),
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
pub fn dump(args: &DumpArgs) -> Result<ExitCode> {
    if args.perfetto && std::io::stdout().is_terminal() {
        bail!("this form is binary: write it to a file, as hodo dump --perfetto > hodo.pftrace");
    }
    let options = DumpOptions {
        source: source(&args.reading),
        format: if args.chrome {
            DumpFormat::Chrome
        } else if args.perfetto {
            DumpFormat::Perfetto
        } else if args.flame_graph {
            DumpFormat::FlameGraph
        } else if args.svg {
            DumpFormat::Svg
        } else {
            DumpFormat::Raw
        },
        sample_time: args.sample_time,
    };
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
    with_output(args.screen.no_pager, |out| hodo_view::info(&options, out))?;
    Ok(ExitCode::SUCCESS)
}
