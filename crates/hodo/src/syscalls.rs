//! `hodo syscalls`.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::thread::JoinHandle;

use anyhow::{Context, Result, bail};
use hodo_abi::Isa;
use hodo_probe_compile::SyscallOptions;
use hodo_record::{Clock, RecordOptions, sockets};
use hodo_view::{
    DescriptorNames, LiveOptions, SocketQueries, SourceOptions, Stamp, SyscallsFormat,
    SyscallsOptions, Times,
};

use crate::args::{FormatArg, SyscallsArgs};
use crate::live::{Printer, named_output, stream};
use crate::output::complain;
use crate::run;

/// `hodo syscalls`: records system calls only. `named`: the command line names the trace directory.
pub fn syscalls(args: &SyscallsArgs, named: bool) -> ExitCode {
    if let Err(error) = check(args) {
        complain(&error);
        return ExitCode::from(2);
    }
    record(args, named).unwrap_or_else(|error| {
        complain(&error);
        ExitCode::from(125)
    })
}

/// Refuses what contradicts itself, and what strace has and hodo does not.
///
/// # Errors
/// If it is asked for.
fn check(args: &SyscallsArgs) -> Result<()> {
    let is_stream = args
        .output
        .as_deref()
        .is_some_and(|path| command_of(path).is_some() || path.as_os_str() == "-");
    if args.summary {
        let of_lines = [
            (args.times > 0, "-t"),
            (args.relative, "-r"),
            (args.spent, "-T"),
            (args.names > 0, "-y"),
            (args.no_abbrev, "--no-abbrev"),
        ];
        if let Some((_, option)) = of_lines.iter().find(|(given, _)| *given) {
            bail!("{option} is about the lines of calls, and -c shows none: leave one of them out");
        }
    }
    if args.follow > 1 && args.output.is_some() {
        if args.summary {
            bail!(
                "-ff writes the calls of each thread to its own file, and -c shows none: leave one of them out"
            );
        }
        if is_stream {
            bail!(
                "-ff writes the calls of each thread to its own file: -o must name a file, as -ff -o FILE"
            );
        }
    }
    Ok(())
}

/// The command that gets the output: `|COMMAND` or `!COMMAND`, as with strace.
fn command_of(path: &Path) -> Option<&OsStr> {
    let name = path.as_os_str().as_bytes();
    let command = name.strip_prefix(b"|").or_else(|| name.strip_prefix(b"!"));
    command.map(OsStr::from_bytes)
}

/// A command that reads the output, and the thread that waits for its end.
struct Reader {
    thread: JoinHandle<io::Result<ExitStatus>>,
    command: OsString,
}

impl Reader {
    /// Starts a command of the shell. Returns the file that it reads.
    ///
    /// # Errors
    /// If it cannot be started.
    fn start(command: &OsStr) -> Result<(File, Self)> {
        let command = command.to_owned();
        let theirs = command.clone();
        let (send, input) = std::sync::mpsc::channel();
        // The children of this thread are those that are recorded: the command is the child of another one, which must
        // live as long as it.
        let thread = std::thread::Builder::new().spawn(move || {
            let mut child = Command::new("/bin/sh")
                .arg("-c")
                .arg(&theirs)
                .stdin(Stdio::piped())
                .spawn()?;
            let taken = child.stdin.take();
            // Who waits for it knows if there is none.
            let _ = send.send(taken);
            child.wait()
        })?;
        let reader = Self { thread, command };
        match input.recv().ok().flatten() {
            Some(input) => Ok((OwnedFd::from(input).into(), reader)),
            None => {
                reader.finish()?;
                bail!("the shell takes no input");
            }
        }
    }

    /// Waits for its end, when all of the output is written and closed. Says so if it fails.
    ///
    /// # Errors
    /// If it could not be started.
    fn finish(self) -> Result<()> {
        let name = self.command.display();
        match self.thread.join() {
            Ok(Ok(status)) if status.success() => {}
            Ok(Ok(status)) => warn_user!("hodo: the command of -o, {name}, has failed: {status}"),
            Ok(Err(error)) => return Err(error).with_context(|| format!("starting {name}")),
            Err(_) => bail!("the thread that waits for {name} has panicked"),
        }
        Ok(())
    }
}

/// Creates the output file; `-` is standard output, and what begins with `|` is a command.
///
/// # Errors
/// If it cannot be created.
fn opened(path: &Path) -> Result<(File, Option<Reader>)> {
    if let Some(command) = command_of(path) {
        let (file, reader) = Reader::start(command)?;
        return Ok((file, Some(reader)));
    }
    let file = match path.as_os_str() == "-" {
        true => stream(&std::io::stdout()),
        false => File::create(path).with_context(|| format!("writing {}", path.display())),
    };
    Ok((file?, None))
}

/// The files of threads can be made beside this one.
///
/// # Errors
/// If its directory does not exist.
fn check_directory(path: &Path) -> Result<()> {
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    std::fs::read_dir(parent).with_context(|| format!("writing {}.TID", path.display()))?;
    Ok(())
}

/// # Errors
/// If the arguments are wrong, or the output file cannot be created.
fn record(args: &SyscallsArgs, named: bool) -> Result<ExitCode> {
    let front = match run::divide(args.attach.attaches()) {
        Ok(front) => front,
        Err(code) => return Ok(code),
    };
    let only = hodo_view::chosen_syscalls(&args.events)?;
    let apart = args.output.clone().filter(|_| args.follow > 1);
    if let Some(path) = &apart {
        check_directory(path)?;
    }
    let output = args.output.as_deref().filter(|_| apart.is_none());
    let (output, reader) = match output.map(opened).transpose()? {
        Some((file, reader)) => (Some(file), reader),
        None => (None, None),
    };
    let mut options = RecordOptions {
        command: args.command.clone(),
        data: args.place.data.clone(),
        no_follow: args.no_follow,
        no_optimize: args.no_jumps.no_optimize,
        syscalls: Some(SyscallOptions {
            only: recorded(only.as_deref(), names(args)),
            bare: args.summary,
            buffer: usize::from(args.string_limit),
            whole: is_whole(args),
        }),
        verbose: args.screen.verbose,
        cmdline: run::command_line(),
        attach: args.attach.pids(),
        duration: args.attach.span,
        ..RecordOptions::default()
    };
    let temporary = match run::place(&mut options, named) {
        Ok(temporary) => temporary,
        Err(code) => return Ok(code),
    };
    let claimed = match run::claim(&mut options) {
        Ok(claimed) => claimed,
        Err(error) => {
            drop(temporary);
            return Ok(run::failed(&error, &args.command));
        }
    };
    let mut shown = shown(args, options.data.clone(), output.is_some(), only);
    shown.apart = apart;
    let name = named_output(args.output.as_deref());
    let output = match output {
        Some(file) => file,
        None => stream(&std::io::stderr())?,
    };
    // A table needs the whole recording.
    let (printer, table) = match args.summary {
        true => (None, Some((shown, output))),
        false => {
            let shown = LiveOptions::Syscalls(Box::new(shown));
            let printer = Printer::start(&options.data, shown, Clock::Mono, (output, name));
            (Some(printer), None)
        }
    };
    let ended = match run::run_in(&options, claimed, front) {
        Ok(ended) => ended,
        Err(error) => {
            drop(temporary);
            return Ok(run::failed(&error, &args.command));
        }
    };
    Ok(run::show(&ended, args.attach.attaches(), temporary, || {
        let written = match (printer, table) {
            (Some(printer), _) => printer.finish(),
            (None, Some((shown, output))) => {
                let mut out = BufWriter::with_capacity(1 << 16, output);
                hodo_view::syscalls(&shown, &mut out)
                    .and_then(|()| out.flush().context("writing the output"))
            }
            (None, None) => Ok(()),
        };
        // The output is closed, also if the command did not read all of it.
        reader.map_or(Ok(()), Reader::finish).and(written)
    }))
}

/// Returns the calls to record: those that are shown, and those needed to follow descriptors. `None` means all.
fn recorded(only: Option<&[u64]>, names: DescriptorNames) -> Option<Vec<u64>> {
    let mut numbers = only?.to_vec();
    numbers.extend(hodo_view::followed_syscalls(Isa::NATIVE, names));
    Some(numbers)
}

/// Whether structures, arguments and environments are shown whole.
fn is_whole(args: &SyscallsArgs) -> bool {
    args.no_abbrev || args.screen.verbose > 0
}

/// What is shown of descriptors.
fn names(args: &SyscallsArgs) -> DescriptorNames {
    match args.names {
        0 => DescriptorNames::None,
        1 => DescriptorNames::Files,
        _ => DescriptorNames::Protocols,
    }
}

/// Shows the recording in `data`. `to_file`: the output goes to a file, where each line names its thread.
fn shown(
    args: &SyscallsArgs,
    data: PathBuf,
    to_file: bool,
    only: Option<Vec<u64>>,
) -> SyscallsOptions {
    SyscallsOptions {
        source: SourceOptions {
            data,
            ..SourceOptions::default()
        },
        format: match args.format {
            FormatArg::Text => SyscallsFormat::Text,
            FormatArg::Json => SyscallsFormat::Json,
        },
        summary: args.summary,
        numbered: to_file && !args.no_follow,
        only,
        names: names(args),
        queries: Some(SocketQueries {
            unix_peer: sockets::unix_peer,
            protocol: sockets::protocol,
        }),
        times: Times {
            stamp: match args.times {
                0 => None,
                1 => Some(Stamp::Seconds),
                2 => Some(Stamp::Microseconds),
                _ => Some(Stamp::Unix),
            },
            relative: args.relative,
            spent: args.spent,
            utc_offset: utc_offset(),
        },
        limit: Some(usize::from(args.string_limit)),
        environment: is_whole(args).then(|| {
            let variables = std::env::vars_os();
            let joined = |(mut name, value): (OsString, OsString)| {
                name.push("=");
                name.push(value);
                name
            };
            variables.map(joined).collect()
        }),
        apart: None,
    }
}

/// Returns the difference in seconds between local time and UTC.
fn utc_offset() -> i64 {
    // SAFETY: all-zero is a valid tm; time and localtime_r write only what they are given. No other thread changes the
    // environment.
    unsafe {
        let now = libc::time(std::ptr::null_mut());
        let mut local: libc::tm = std::mem::zeroed();
        match libc::localtime_r(&raw const now, &raw mut local).is_null() {
            true => 0,
            false => local.tm_gmtoff,
        }
    }
}
