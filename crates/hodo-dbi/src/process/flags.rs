//! Calls and returns keep flags in programs that need that.

use anyhow::Result;

use crate::process::{EVERYWHERE, Process};
use crate::unloaded::Unloaded;

impl Process {
    /// If code was translated that passes flags through calls or returns, forgets all translations, and keeps flags in
    /// those that are made from now on. Threads may go on in the former ones up to a call that needs flags: none of
    /// these has been made. Returns whether this was so.
    pub(crate) fn keep_flags(&mut self) -> Result<bool> {
        if self.keeps_flags || !self.loses_flags {
            return Ok(false);
        }
        self.keeps_flags = true;
        self.end_changing()?;
        self.forget(EVERYWHERE)?;
        self.prepared.clear();
        self.unloaded = Unloaded::default();
        Ok(true)
    }
}
