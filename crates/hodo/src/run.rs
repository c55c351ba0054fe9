//! `record` and `live`.

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::ArgMatches;
use hodo_process::{Clock, Exit, Match, RecordOptions};

use crate::args::{ClockArg, Common, LiveArgs, MatchArg, Recording};
use crate::view;

/// A `-P` (true) or `-U` (false).
pub type Patch = (bool, String);

/// The patterns of `-P` and `-U` in the order in which they were given.
pub fn patch_order(matches: &ArgMatches) -> Vec<Patch> {
    let mut all = Vec::new();
    for (name, trace) in [("patch", true), ("unpatch", false)] {
        // Commands that record nothing have no such option.
        let values = matches.try_get_many::<String>(name).ok().flatten();
        if let (Some(indices), Some(values)) = (
            values.is_some().then(|| matches.indices_of(name)).flatten(),
            values,
        ) {
            all.extend(
                indices
                    .zip(values)
                    .map(|(at, value)| (at, trace, value.clone())),
            );
        }
    }
    all.sort();
    all.into_iter()
        .map(|(_, trace, value)| (trace, value))
        .collect()
}

fn options(common: &Common, recording: &Recording, order: &[Patch]) -> RecordOptions {
    RecordOptions {
        command: recording.command.clone(),
        data: common.data.clone(),
        filter: common.filter.clone(),
        notrace: common.notrace.clone(),
        depth: common.depth,
        time_filter: common.time_filter,
        patch: order.to_vec(),
        size_filter: common.size_filter,
        nest_libcall: recording.nest_libcall,
        no_libcall: common.no_libcall,
        pattern: match common.pattern {
            Some(MatchArg::Glob) => Match::Glob,
            _ => Match::Regex,
        },
        clock: match recording.clock {
            ClockArg::Mono => Clock::Mono,
            ClockArg::MonoRaw => Clock::MonoRaw,
            ClockArg::Boot => Clock::Boot,
        },
        no_time: recording.no_time,
        no_follow: recording.no_follow,
        keep_pid: recording.keep_pid,
        check_frames: recording.check_frames,
        verbose: common.verbose,
        cmdline: std::env::args_os()
            .map(|word| word.to_string_lossy().into_owned())
            .collect(),
    }
}

/// Ends as the program did: with its status, or by its signal.
fn end(exit: Exit) -> ExitCode {
    match exit {
        Exit::Code(code) => ExitCode::from(code as u8),
        Exit::Signal(signal) => {
            let none = libc::rlimit {
                rlim_cur: 0,
                rlim_max: 0,
            };
            // SAFETY: none of these touches our memory but to read `none`; the signal ends this process, without a
            // core file, which would only overwrite the program's own.
            unsafe {
                libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
                libc::signal(signal, libc::SIG_DFL);
                libc::raise(signal);
            }
            // A signal that does not end a process.
            ExitCode::from(128 + signal as u8)
        }
    }
}

/// `hodo record`.
pub fn record(common: &Common, recording: &Recording, order: &[Patch]) -> Result<ExitCode> {
    hodo_process::record(&options(common, recording, order)).map(end)
}

/// `hodo live`: a recording that is not kept.
pub fn live(args: &LiveArgs, order: &[Patch]) -> Result<ExitCode> {
    let directory = tempfile::Builder::new()
        .prefix("hodo-live-")
        .tempdir()
        .context("making a temporary directory")?;
    let data = directory.path().join("hodo.data");
    let mut options = options(&args.reading.common, &args.recording, order);
    options.data.clone_from(&data);
    let exit = hodo_process::record(&options)?;
    let shown = view::after_recording(args, data);
    // The program's end is what counts, and the directory must be gone before a signal ends this process.
    drop(directory);
    if let Err(error) = shown
        && !crate::output::is_broken_pipe(&error)
    {
        eprintln!("hodo: {error:#}");
    }
    Ok(end(exit))
}
