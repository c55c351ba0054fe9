//! `syscalls`.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, ValueHint};
use hodo_process::{RecordOptions, SyscallOptions};
use hodo_view::{SourceOptions, SyscallsFormat, SyscallsOptions};

use crate::args::{Attach, Data, FormatArg, Screen};
use crate::output::complain;
use crate::run;

/// `syscalls`.
#[derive(Debug, Args)]
pub struct SyscallsArgs {
    #[command(flatten)]
    pub place: Data,
    #[command(flatten)]
    pub screen: Screen,
    #[command(flatten)]
    pub attach: Attach,
    /// A table of the calls, their times and errors
    #[arg(short = 'c', long)]
    pub summary: bool,
    /// Which calls: NAME,NAME,…, !NAME,… for all others, file, network, process, memory, desc, signal for groups
    ///
    /// `trace=` may stand before it, as strace has it. Others are not recorded and cost next to nothing.
    #[arg(short = 'e', long, value_name = "FILTER")]
    pub events: Vec<String>,
    /// Follow child processes; this is so without it
    #[arg(short = 'f', long)]
    pub follow: bool,
    /// Do not follow child processes
    #[arg(long, conflicts_with = "follow")]
    pub no_follow: bool,
    /// How calls are written
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub format: FormatArg,
    /// Where to write
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: Option<PathBuf>,
    /// The program and its arguments
    #[arg(
        required_unless_present = "pid",
        trailing_var_arg = true,
        value_name = "PROGRAM",
        help_heading = "Arguments",
        value_hint = ValueHint::CommandWithArguments
    )]
    pub command: Vec<OsString>,
}

/// `hodo syscalls`: a recording of system calls only. `named`: there is a place for it.
pub fn syscalls(args: &SyscallsArgs, named: bool) -> ExitCode {
    record(args, named).unwrap_or_else(|error| {
        complain(&error);
        ExitCode::from(125)
    })
}

/// # Errors
/// If the arguments are wrong, or the output file cannot be made.
fn record(args: &SyscallsArgs, named: bool) -> Result<ExitCode> {
    let front = match run::divide(args.attach.pid) {
        Ok(front) => front,
        Err(code) => return Ok(code),
    };
    let only = hodo_view::chosen_syscalls(&args.events)?;
    let output = args
        .output
        .as_ref()
        .map(|path| File::create(path).with_context(|| format!("writing {}", path.display())));
    let output = output.transpose()?;
    let mut options = RecordOptions {
        command: args.command.clone(),
        data: args.place.data.clone(),
        no_follow: args.no_follow,
        syscalls: Some(SyscallOptions {
            only: only.clone(),
            bare: args.summary,
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
    let exit = match run::run(&mut options, front) {
        Ok(exit) => exit,
        Err(error) => {
            drop(temporary);
            return Ok(run::failed(&error, &args.command));
        }
    };
    Ok(run::show(
        exit,
        args.attach.pid.is_some(),
        temporary,
        || view(args, options.data.clone(), output, only),
    ))
}

fn view(
    args: &SyscallsArgs,
    data: PathBuf,
    output: Option<File>,
    only: Option<Vec<u64>>,
) -> Result<()> {
    let options = SyscallsOptions {
        source: SourceOptions {
            data,
            ..SourceOptions::default()
        },
        format: match args.format {
            FormatArg::Text => SyscallsFormat::Text,
            FormatArg::Json => SyscallsFormat::Json,
        },
        summary: args.summary,
        numbered: output.is_some() && !args.no_follow,
        only,
    };
    let out: Box<dyn Write> = match output {
        Some(file) => Box::new(file),
        None => Box::new(std::io::stderr().lock()),
    };
    let mut out = BufWriter::with_capacity(1 << 16, out);
    hodo_view::syscalls(&options, &mut out)?;
    out.flush().context("writing the output")
}
