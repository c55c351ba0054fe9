//! Where output goes: through a pager on a terminal.

use std::io::{self, BufWriter, IsTerminal, Write};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

use crate::args::ColorArg;
use crate::interrupt;

/// Is this the error of a reader that went away?
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let io = cause.downcast_ref::<io::Error>().map(io::Error::kind);
        let json = cause
            .downcast_ref::<serde_json::Error>()
            .and_then(serde_json::Error::io_error_kind);
        io.or(json) == Some(io::ErrorKind::BrokenPipe)
    })
}

/// Whether to write escape sequences.
pub fn colors(choice: ColorArg) -> bool {
    match choice {
        ColorArg::Yes => true,
        ColorArg::No => false,
        ColorArg::Auto => io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none(),
    }
}

fn pager() -> Option<Child> {
    if !io::stdout().is_terminal() {
        return None;
    }
    let command = std::env::var("PAGER").unwrap_or_else(|_| "less".to_owned());
    let mut words = command.split_whitespace();
    let program = words.next().filter(|&program| program != "cat")?;
    let mut pager = Command::new(program);
    pager.args(words).stdin(Stdio::piped());
    if std::env::var_os("LESS").is_none() {
        // End if it fits on one screen; keep colors; leave the screen as it is.
        pager.env("LESS", "FRX");
    }
    // Without a pager, the output comes as it is.
    pager.spawn().ok()
}

/// Ends with an error when a signal asks for it (see [`interrupt`]).
struct Interruptible<W>(W);

impl<W: Write> Write for Interruptible<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if interrupt::signal().is_some() {
            return Err(io::Error::other("interrupted"));
        }
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Runs `write` with stdout, or a pager in front of it.
pub fn with_output(no_pager: bool, write: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<()> {
    let pager = if no_pager { None } else { pager() };
    let Some(mut pager) = pager else {
        let mut out = BufWriter::with_capacity(1 << 16, Interruptible(io::stdout().lock()));
        write(&mut out)?;
        return out.flush().context("writing the output");
    };
    let stdin = pager.stdin.take().context("the pager has no input")?;
    let mut out = BufWriter::with_capacity(1 << 16, Interruptible(stdin));
    let written = write(&mut out).and_then(|()| out.flush().context("writing to the pager"));
    drop(out);
    pager.wait().context("waiting for the pager")?;
    written
}
