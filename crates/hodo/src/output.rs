//! Where output goes. On a terminal, it goes through a pager.

use std::fmt::Display;
use std::io::{self, BufWriter, IsTerminal, Stdout, StdoutLock, Write};
use std::process::{Child, ChildStdin, Command, Stdio};

use anyhow::{Context, Result};

use crate::args::ColorArg;
use crate::interrupt;
use crate::progress::Progress;

/// Formats an error with its causes, without repeating any.
fn with_causes(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        // Some errors already include their cause.
        if !text.ends_with(&cause) {
            if !text.is_empty() {
                text.push_str(": ");
            }
            text.push_str(&cause);
        }
    }
    text
}

/// Reports an error on stderr.
pub fn complain(error: &anyhow::Error) {
    warn_user!("hodo: {}", with_causes(error));
}

/// Returns whether the error only says that the reader of our output has gone.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let io = cause.downcast_ref::<io::Error>().map(io::Error::kind);
        let json = cause
            .downcast_ref::<serde_json::Error>()
            .and_then(serde_json::Error::io_error_kind);
        io.or(json) == Some(io::ErrorKind::BrokenPipe)
    })
}

/// Returns whether to write escape sequences for colors.
pub fn colors(choice: ColorArg) -> bool {
    match choice {
        ColorArg::Yes => true,
        ColorArg::No => false,
        ColorArg::Auto => io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none(),
    }
}

fn pager() -> Option<Child> {
    let command = std::env::var("PAGER").unwrap_or_else(|_| "less".to_owned());
    let mut words = command.split_whitespace();
    let program = words.next().filter(|&program| program != "cat")?;
    let mut pager = Command::new(program);
    pager.args(words).stdin(Stdio::piped());
    if std::env::var_os("LESS").is_none() {
        // Exit if the text fits on one screen; keep colors; do not clear the screen.
        pager.env("LESS", "FRX");
    }
    // Without a pager, the output goes directly to the terminal.
    pager.spawn().ok()
}

/// Somewhere to write to, which errors name.
pub struct Named<W> {
    name: String,
    out: W,
}

impl<W> Named<W> {
    pub fn new(name: impl Display, out: W) -> Self {
        let name = name.to_string();
        Self { name, out }
    }

    fn explain(&self, error: &io::Error) -> io::Error {
        io::Error::new(error.kind(), format!("cannot write {}: {error}", self.name))
    }
}

impl<W: Write> Write for Named<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes);
        written.map_err(|error| self.explain(&error))
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.out.flush();
        flushed.map_err(|error| self.explain(&error))
    }
}

/// What errors call standard output.
const OUTPUT: &str = "the output";

/// Standard output.
pub fn stdout() -> Named<Stdout> {
    Named::new(OUTPUT, io::stdout())
}

/// Standard output, or a pager that is started with the first byte.
struct Output {
    wants_pager: bool,
    pager: Option<(Child, ChildStdin)>,
    stdout: Named<StdoutLock<'static>>,
    progress: Option<Progress>,
}

impl Output {
    fn new(no_pager: bool) -> Self {
        Self {
            wants_pager: !no_pager && io::stdout().is_terminal(),
            pager: None,
            stdout: Named::new(OUTPUT, io::stdout().lock()),
            progress: Progress::reading(),
        }
    }

    fn begin(&mut self) {
        if io::stdout().is_terminal() {
            self.progress = None;
        }
        if std::mem::take(&mut self.wants_pager)
            && let Some(mut pager) = pager()
            && let Some(stdin) = pager.stdin.take()
        {
            interrupt::before_pager(&pager, &stdin);
            self.pager = Some((pager, stdin));
        }
    }

    fn finish(self) -> Result<()> {
        if let Some((mut pager, stdin)) = self.pager {
            drop(stdin);
            pager.wait().context("waiting for the pager")?;
            interrupt::after_pager();
        }
        Ok(())
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if interrupt::signal().is_some() {
            return Err(io::Error::other("interrupted"));
        }
        self.begin();
        match &mut self.pager {
            Some((_, stdin)) => stdin.write(bytes),
            None => self.stdout.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.pager {
            Some((_, stdin)) => stdin.flush(),
            None => self.stdout.flush(),
        }
    }
}

/// Runs `write` with stdout, or with a pager.
pub fn with_output(no_pager: bool, write: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<()> {
    let mut out = BufWriter::with_capacity(1 << 16, Output::new(no_pager));
    let written = write(&mut out).and_then(|()| Ok(out.flush()?));
    // Output that could not be written is not tried again.
    let (output, _) = out.into_parts();
    let finished = output.finish();
    written.and(finished)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A writer that fails in this way.
    struct Fails(io::ErrorKind);

    impl Write for Fails {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Err(self.0.into())
        }
    }

    #[test]
    fn errors_say_what_could_not_be_written() {
        let fails = |kind| {
            let mut out = BufWriter::new(Named::new("here", Fails(kind)));
            let written = out.write_all(b"text").and_then(|()| out.flush());
            let _ = out.into_parts();
            anyhow::Error::from(written.expect_err("it fails"))
        };
        let full = fails(io::ErrorKind::StorageFull);
        assert_eq!(with_causes(&full), "cannot write here: no storage space");
        assert!(!is_broken_pipe(&full));
        assert!(is_broken_pipe(&fails(io::ErrorKind::BrokenPipe)));
    }

    #[test]
    fn a_cause_is_printed_once() {
        let error = anyhow::anyhow!("no such page")
            .context("the book: no such page")
            .context("cannot read");
        assert_eq!(with_causes(&error), "cannot read: the book: no such page");
    }
}
