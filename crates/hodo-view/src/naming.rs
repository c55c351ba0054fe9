//! The displayed names of functions.

use std::sync::OnceLock;

use hodo_symbols::{Style, demangle};
use hodo_trace::Trace;

use crate::format::printable;

/// The names of a trace's functions, by id. A name is made when it is first asked for: large programs have hundreds of
/// thousands of functions, and few of them are shown.
#[derive(Debug, Default)]
pub struct Names {
    style: Style,
    known: Vec<OnceLock<String>>,
}

impl Names {
    /// Creates names in this style.
    pub fn new(trace: &Trace, style: Style) -> Self {
        let known = trace.functions.iter().map(|_| OnceLock::new()).collect();
        Self { style, known }
    }

    /// Returns the name of a function of the same trace.
    pub fn of(&self, trace: &Trace, id: u32) -> Option<&str> {
        let name =
            self.known
                .get(id as usize)?
                .get_or_init(|| match trace.functions.get(id as usize) {
                    Some(Some(function)) => printable(demangle(&function.name, self.style)),
                    _ => format!("<{id}>"),
                });
        Some(name)
    }
}
