//! System calls, as strace shows them.

mod args;
mod errors;
mod filter;
mod json;
mod lines;
mod names;
mod pointed;
mod read;
mod result;
mod signals;
mod structs;
mod summary;
mod text;
mod words;

use std::io::Write;

use anyhow::{Context, Result};

use crate::source::{Source, SourceOptions};
pub use filter::chosen_syscalls;

/// How system calls are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SyscallsFormat {
    /// Lines as strace has them.
    #[default]
    Text,
    /// An object for each call, one in a line.
    Json,
}

/// What of a trace.
#[derive(Debug, Clone, Default)]
pub struct SyscallsOptions {
    /// Which trace, and what of it: `tids` counts.
    pub source: SourceOptions,
    /// The form.
    pub format: SyscallsFormat,
    /// A table instead of the calls.
    pub summary: bool,
    /// Each line begins with a thread id, and not only while there are more threads than one.
    pub numbered: bool,
    /// The numbers that are recorded; `None`: all. It says whether the program's own start is shown.
    pub only: Option<Vec<u64>>,
}

/// Shows the system calls of a trace.
///
/// # Errors
/// If the trace cannot be read, is of an instruction set whose system calls are not known, or `out` cannot be written.
pub fn syscalls(options: &SyscallsOptions, out: &mut dyn Write) -> Result<()> {
    let source = Source::open(&options.source)?;
    let info = &source.trace.info;
    let unknown = || format!("the system calls of {:?} are not known", info.arch);
    let machine = info.machine().with_context(unknown)?;
    let execve = hodo_trace::syscalls::number(machine, "execve");
    let first = match (&options.only, execve) {
        (Some(only), Some(execve)) => only.contains(&execve),
        _ => true,
    };
    match (options.summary, options.format) {
        (true, format) => summary::summary((&source, machine), format, first, out),
        (false, SyscallsFormat::Json) => json::json((&source, machine), out),
        (false, SyscallsFormat::Text) => {
            lines::lines((&source, machine), options.numbered, first, out)
        }
    }
}
