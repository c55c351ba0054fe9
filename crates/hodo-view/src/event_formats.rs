//! The events of probes in each of their formats.

use std::io::Write;

use anyhow::Result;

use crate::events::{self, EventFormat, EventOptions};
use crate::perfetto;

/// Shows the events of all probes.
///
/// # Errors
/// If the trace cannot be read or `out` cannot be written.
pub fn events(options: &EventOptions, out: &mut dyn Write) -> Result<()> {
    match options.format {
        EventFormat::Perfetto => perfetto::probes(&options.source, out),
        EventFormat::Text | EventFormat::Json => events::lines(options, out),
    }
}
