//! System calls, as strace shows them.

mod filter;
mod read;

use std::io::Write;

use anyhow::Result;
use hodo_trace::syscalls::by_number;

use crate::source::{Source, SourceOptions};
pub use filter::chosen_syscalls;
use read::{Event, Events};

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
    /// Which trace, and what of it: `tids` and `range` count.
    pub source: SourceOptions,
    /// The form.
    pub format: SyscallsFormat,
    /// A table instead of the calls.
    pub summary: bool,
}

/// Shows the system calls of a trace.
///
/// # Errors
/// If the trace cannot be read or `out` cannot be written.
pub fn syscalls(options: &SyscallsOptions, out: &mut dyn Write) -> Result<()> {
    let source = Source::open(&options.source)?;
    for event in Events::new(&source) {
        match event {
            Event::Enter(call) => {
                let name = by_number(call.number).map_or("?", |c| c.name);
                writeln!(
                    out,
                    "{} {name}({:x?}) {:?}",
                    call.task, call.args, call.pieces
                )?;
            }
            Event::Exit(result) => writeln!(
                out,
                "{} = {:#x} {:?}",
                result.task, result.value, result.pieces
            )?,
        }
    }
    Ok(())
}
