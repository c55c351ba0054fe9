//! Calls and returns keep flags in programs that need that.

use anyhow::Result;

use crate::process::{EVERYWHERE, Process};

/// The flags of the program, at calls and returns.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Flags {
    /// They are kept.
    keeps: bool,
    /// Code was translated that needs that.
    loses: bool,
}

impl Flags {
    /// Whether they are kept.
    pub(super) fn are_kept(self) -> bool {
        self.keeps
    }

    /// Code was translated, and whether it needs that.
    pub(super) fn note(&mut self, loses: bool) {
        self.loses |= loses;
    }
}

impl Process {
    /// If code was translated that passes flags through calls or returns, forgets all translations, and keeps flags in
    /// those that are made from now on. Threads may go on in the former ones up to a call that needs flags: none of
    /// these has been made. Returns whether this was so.
    pub(crate) fn keep_flags(&mut self) -> Result<bool> {
        if self.flags.keeps || !self.flags.loses {
            return Ok(false);
        }
        self.flags.keeps = true;
        self.end_changing()?;
        self.forget(EVERYWHERE)?;
        self.files.forget_translations();
        Ok(true)
    }
}
