//! `hodo syscalls`.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use hodo_abi::Isa;
use hodo_probe_compile::SyscallOptions;
use hodo_record::{Clock, RecordOptions};
use hodo_view::{LiveOptions, SourceOptions, Stamp, SyscallsFormat, SyscallsOptions, Times};

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

/// Refuses what strace has and hodo does not.
///
/// # Errors
/// If it is asked for.
fn check(args: &SyscallsArgs) -> Result<()> {
    if args.follow > 1 {
        bail!(
            "-ff: hodo writes no file for each thread; with -o FILE, each line begins with the thread's id"
        );
    }
    if args.names > 1 {
        bail!("-yy: hodo shows no addresses of sockets; -y shows what descriptors refer to");
    }
    let command = args.output.as_deref().filter(|path| {
        let name = path.as_os_str().as_bytes();
        name.starts_with(b"|") || name.starts_with(b"!")
    });
    match command {
        Some(path) => bail!(
            "-o '{0}': hodo starts no command for its output; -o - writes to stdout, and ./{0} is a file",
            path.display()
        ),
        None => Ok(()),
    }
}

/// Creates the output file; `-` is standard output.
///
/// # Errors
/// If it cannot be created.
fn opened(path: &Path) -> Result<File> {
    match path.as_os_str() == "-" {
        true => stream(&std::io::stdout()),
        false => File::create(path).with_context(|| format!("writing {}", path.display())),
    }
}

/// # Errors
/// If the arguments are wrong, or the output file cannot be created.
fn record(args: &SyscallsArgs, named: bool) -> Result<ExitCode> {
    let front = match run::divide(args.attach.pid) {
        Ok(front) => front,
        Err(code) => return Ok(code),
    };
    let only = hodo_view::chosen_syscalls(&args.events)?;
    let output = args.output.as_deref().map(opened).transpose()?;
    let mut options = RecordOptions {
        command: args.command.clone(),
        data: args.place.data.clone(),
        no_follow: args.no_follow,
        no_optimize: args.no_jumps.no_optimize,
        syscalls: Some(SyscallOptions {
            only: recorded(only.as_deref(), args.names > 0),
            bare: args.summary,
            buffer: usize::from(args.string_limit),
        }),
        verbose: args.screen.verbose,
        cmdline: run::command_line(),
        attach: args.attach.pid,
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
    let shown = shown(args, options.data.clone(), output.is_some(), only);
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
    Ok(run::show(
        &ended,
        args.attach.pid.is_some(),
        temporary,
        || match (printer, table) {
            (Some(printer), _) => printer.finish(),
            (None, Some((shown, output))) => {
                let mut out = BufWriter::with_capacity(1 << 16, output);
                hodo_view::syscalls(&shown, &mut out)?;
                out.flush().context("writing the output")
            }
            (None, None) => Ok(()),
        },
    ))
}

/// Returns the calls to record: those that are shown, and those needed to follow descriptors. `None` means all.
fn recorded(only: Option<&[u64]>, names: bool) -> Option<Vec<u64>> {
    let mut numbers = only?.to_vec();
    if names {
        numbers.extend(hodo_view::followed_syscalls(Isa::NATIVE));
    }
    Some(numbers)
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
        names: args.names > 0,
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
