//! The commands that record: `record`, `live` and `probe`.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use hodo_record::{Changes, Clock, Ended, Exit, Front, Match, RecordOptions, TraceDir};

use crate::args::{ClockArg, Common, LiveArgs, MatchArg, Order, ProbeArgs, Recording, SwitchArg};
use crate::end::end;
use crate::progress::Progress;
use crate::temporary::Temporary;
use crate::{interrupt, output, view};

fn options(common: &Common, recording: &Recording, order: &Order) -> RecordOptions {
    RecordOptions {
        command: recording.command.clone(),
        data: common.place.data.clone(),
        filter: common.filter.clone(),
        notrace: common.notrace.clone(),
        depth: common.depth,
        time_filter: common.time_filter,
        order: order.filter.clone(),
        patch: order.patch.clone(),
        size_filter: common.size_filter,
        nest_libcall: recording.nest_libcall,
        no_libcall: common.no_libcall,
        pattern: match common.pattern {
            Some(MatchArg::Glob) => Match::Glob,
            _ => Match::Regex,
        },
        clock: clock(recording.clock),
        no_time: recording.no_time,
        no_follow: recording.no_follow,
        runtime: recording.c_runtime,
        keep_pid: recording.keep_pid,
        check_frames: recording.check_frames,
        verbose: common.screen.verbose,
        cmdline: command_line(),
        probes: recording.probes.clone(),
        events: recording.events.events.clone(),
        threads: recording.events.threads.clone(),
        no_optimize: recording.no_jumps.no_optimize,
        calls: true,
        syscalls: None,
        off: recording.control.disable || recording.control.trace == Some(SwitchArg::Off),
        agent: recording.control.agent,
        attach: recording.attach.pids(),
        duration: recording.attach.span,
    }
}

/// Changes the recording of the process named on the command line. Returns `None` if no process is named, or no hodo
/// records it.
fn change(common: &Common, recording: &Recording, order: &Order) -> Option<ExitCode> {
    let pids = recording.attach.pids();
    let pid = *pids.first()?;
    let changes = Changes {
        clear: recording.control.clear,
        filter: common.filter.clone(),
        notrace: common.notrace.clone(),
        order: order.filter.clone(),
        patch: order.patch.clone(),
        depth: common.depth,
        time_filter: common.time_filter,
        trace: (recording.control.trace).map(|trace| trace == SwitchArg::On),
        pattern: common.pattern.map(|pattern| match pattern {
            MatchArg::Glob => Match::Glob,
            MatchArg::Regex => Match::Regex,
        }),
    };
    let asked = match pids.len() {
        1 => hodo_record::change(pid, &changes),
        // Those that a hodo records already are refused when this one attaches.
        _ => Ok(None),
    };
    let done = match asked {
        Ok(None) if pids.len() > 1 && (changes.clear || changes.trace == Some(true)) => {
            Err(anyhow::anyhow!(
                "the recordings of several processes are changed one by one: name one process"
            ))
        }
        Ok(None) if changes.clear || changes.trace == Some(true) => Err(anyhow::anyhow!(
            "no hodo records process {pid}: there is nothing to change"
        )),
        Ok(None) => return None,
        Ok(Some(text)) => writeln!(crate::output::stdout(), "{text}").map_err(Into::into),
        Err(error) => Err(error),
    };
    Some(match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::complain(&error);
            ExitCode::from(125)
        }
    })
}

fn clock(arg: ClockArg) -> Clock {
    match arg {
        ClockArg::Mono => Clock::Mono,
        ClockArg::MonoRaw => Clock::MonoRaw,
        ClockArg::Boot => Clock::Boot,
    }
}

pub fn command_line() -> Vec<String> {
    std::env::args_os()
        .map(|word| word.to_string_lossy().into_owned())
        .collect()
}

/// Returns the resource limit that prevented the recording, if that was the cause. The program has not run then.
fn limit_of(error: &anyhow::Error) -> Option<&'static str> {
    let causes = error.chain();
    let codes = causes.filter_map(|cause| cause.downcast_ref::<std::io::Error>()?.raw_os_error());
    codes.last().and_then(|code| match code {
        libc::EFBIG => Some("the limit on the size of files (ulimit -f)"),
        libc::EMFILE => Some("the limit on open files (ulimit -n)"),
        libc::EAGAIN => Some("the limit on processes (ulimit -u)"),
        libc::ENOMEM => Some("the limit on memory (ulimit -v)"),
        _ => None,
    })
}

/// Returns how the program ended. If all is well except that a probe was never placed, the status is 1.
fn unless_unplaced(ended: &Ended) -> Exit {
    match ended.exit {
        Exit::Code(0) if !ended.unplaced.is_empty() => Exit::Code(1),
        exit => exit,
    }
}

/// Returns the files that a program's name may mean.
pub fn candidates(program: &OsStr) -> Vec<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return vec![PathBuf::from(program)];
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain([PathBuf::from(".")])
        .map(|dir| dir.join(program))
        .collect()
}

/// Reports why there was no recording. Returns the exit status, as `env` and `timeout` do.
pub fn failed(error: &anyhow::Error, command: &[OsString]) -> ExitCode {
    let limit = limit_of(error);
    match (limit, command.first()) {
        (Some(limit), Some(program)) => {
            warn_user!(
                "hodo: {error:#}: {limit} leaves no room for a recording; {} runs untraced",
                program.display()
            );
            output::complain(&hodo_record::execute(command));
        }
        _ => output::complain(error),
    }
    let Some(program) = command.first() else {
        // The command line names a process to attach to.
        return ExitCode::from(125);
    };
    let candidates = candidates(program);
    let runs = |path: &Path| {
        path.metadata()
            .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    ExitCode::from(if candidates.iter().any(|path| runs(path)) {
        125
    } else if candidates.iter().any(|path| path.exists()) {
        126
    } else {
        127
    })
}

/// Records, and shows the progress. Afterwards the options name the trace directory.
pub fn run(options: &mut RecordOptions, front: Option<i32>) -> anyhow::Result<Ended> {
    let place = claim(options)?;
    run_in(options, place, front)
}

/// Chooses the trace directory. Afterwards the options name it.
pub fn claim(options: &mut RecordOptions) -> anyhow::Result<TraceDir> {
    TraceDir::create(&mut options.data)
}

/// Records into the chosen directory, and shows the progress.
pub fn run_in(
    options: &RecordOptions,
    place: TraceDir,
    front: Option<i32>,
) -> anyhow::Result<Ended> {
    let _progress = Progress::recording(&options.data);
    match &options.attach[..] {
        [] => hodo_record::record(options, place),
        pids => hodo_record::attach(options, place, pids, front),
    }
}

/// When attaching, divides hodo into two processes. `Err` is returned in the front, which only waits, with its exit
/// status.
pub fn divide(attaches: bool) -> Result<Option<i32>, ExitCode> {
    if !attaches {
        return Ok(None);
    }
    match hodo_record::front() {
        Ok(Front::Monitor(front)) => Ok(Some(front)),
        Ok(Front::Ended(exit)) => Err(end(exit)),
        Err(error) => {
            output::complain(&error);
            Err(ExitCode::from(125))
        }
    }
}

/// `hodo record`.
pub fn record(common: &Common, recording: &Recording, order: &Order) -> ExitCode {
    let front = match divide(recording.attach.attaches()) {
        Ok(front) => front,
        Err(code) => return code,
    };
    match run(&mut options(common, recording, order), front) {
        Ok(ended) => {
            for text in &ended.unplaced {
                warn_user!("hodo: {text}");
            }
            end(unless_unplaced(&ended))
        }
        Err(error) => failed(&error, &recording.command),
    }
}

/// `hodo live`: a recording that is kept only if the command line names (`named`) a directory for it.
pub fn live(args: &LiveArgs, order: &Order, named: bool) -> ExitCode {
    if let Some(code) = change(&args.reading.common, &args.recording, order) {
        return code;
    }
    if let Err(error) = view::check_live(args, order) {
        output::complain(&error);
        return ExitCode::from(125);
    }
    let front = match divide(args.recording.attach.attaches()) {
        Ok(front) => front,
        Err(code) => return code,
    };
    let mut options = options(&args.reading.common, &args.recording, order);
    let temporary = match place(&mut options, named) {
        Ok(temporary) => temporary,
        Err(code) => return code,
    };
    let ended = match run(&mut options, front) {
        Ok(ended) => ended,
        Err(error) => {
            drop(temporary);
            return failed(&error, &args.recording.command);
        }
    };
    let attached = args.recording.attach.attaches();
    show(&ended, attached, temporary, || {
        view::after_recording(args, order, options.data.clone())
    })
}

/// Gives a recording a temporary directory, unless the command line names one (`named`).
pub fn place(options: &mut RecordOptions, named: bool) -> Result<Option<Temporary>, ExitCode> {
    if named {
        return Ok(None);
    }
    match Temporary::make() {
        Ok(directory) => {
            options.data = directory.path().join(crate::args::DEFAULT_DATA);
            Ok(Some(directory))
        }
        Err(error) => {
            let place = std::env::temp_dir();
            warn_user!(
                "hodo: making a temporary directory in {}: {error}; name another place in TMPDIR",
                place.display()
            );
            Err(ExitCode::from(125))
        }
    }
}

/// Shows a recording, then ends as the program did.
pub fn show(
    ended: &Ended,
    attached: bool,
    temporary: Option<Temporary>,
    view: impl FnOnce() -> anyhow::Result<()>,
) -> ExitCode {
    // From here on, Ctrl-C is for hodo. It must not leave a temporary directory.
    interrupt::watch(attached);
    let shown = view();
    // The exit status is the program's. The directory must be removed before a signal ends this process.
    if let Some(Err(error)) = temporary.map(Temporary::close) {
        warn_user!("hodo: removing the temporary directory: {error}");
    }
    if let Some(signal) = interrupt::signal() {
        return end(Exit::Signal(signal));
    }
    if let Err(error) = shown
        && !output::is_broken_pipe(&error)
    {
        output::complain(&error);
        if matches!(ended.exit, Exit::Code(_)) {
            return ExitCode::from(125);
        }
    }
    end(unless_unplaced(ended))
}

/// `hodo probe`: a recording of probes only.
pub fn probe(args: &ProbeArgs, named: bool) -> ExitCode {
    let front = match divide(args.attach.attaches()) {
        Ok(front) => front,
        Err(code) => return code,
    };
    // Report this before the program runs, not when its events are lost.
    if let Some(path) = &args.written.output
        && let Err(error) = std::fs::File::create(path)
    {
        warn_user!("hodo: writing {}: {error}", path.display());
        return ExitCode::from(125);
    }
    let mut options = RecordOptions {
        command: args.command.clone(),
        data: args.place.data.clone(),
        clock: clock(args.clock),
        no_time: args.no_time,
        no_follow: args.no_follow,
        probes: args.probes.clone(),
        events: args.events.events.clone(),
        threads: args.events.threads.clone(),
        no_optimize: args.no_jumps.no_optimize,
        verbose: args.screen.verbose,
        cmdline: command_line(),
        attach: args.attach.pids(),
        duration: args.attach.span,
        ..RecordOptions::default()
    };
    let temporary = match place(&mut options, named) {
        Ok(temporary) => temporary,
        Err(code) => return code,
    };
    let claimed = match claim(&mut options) {
        Ok(claimed) => claimed,
        Err(error) => {
            drop(temporary);
            return failed(&error, &args.command);
        }
    };
    let printer = match view::live_probes(args, &options) {
        Ok(printer) => printer,
        Err(error) => {
            output::complain(&error);
            return ExitCode::from(125);
        }
    };
    let ended = match run_in(&options, claimed, front) {
        Ok(ended) => ended,
        Err(error) => {
            drop(temporary);
            return failed(&error, &args.command);
        }
    };
    show(&ended, args.attach.attaches(), temporary, || {
        view::after_probes(args, options.data.clone(), printer)
    })
}
