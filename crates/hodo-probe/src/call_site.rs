//! What the engine asks of a function tracer that switches call sites in the code (`hodo-ftrace`).

use alloc::string::String;
use core::ops::Range;

/// A place at the entry of a function whose code a function tracer switches at any time, between a call and something
/// that does nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallSite {
    /// Its code.
    pub code: Range<u64>,
    /// The tracer can be given the registers there.
    pub has_registers: bool,
    /// The function has done nothing yet.
    pub is_first: bool,
}

/// A function tracer. The engine writes nothing into its call sites: a probe at one is called by the tracer.
///
/// # Safety
/// * A range of code in which nothing was found has no call site later, except in code that is loaded later.
/// * While a site is set, each execution of it calls [`traps::called`](crate::traps::called), whoever else is added to
///   it or taken away.
pub unsafe trait CallSites: Sync {
    /// Looks at code that was loaded since the last time. It is called before probes are registered.
    fn update(&self) {}

    /// The first call site that has bytes in a range of code.
    fn find(&self, code: Range<u64>) -> Option<CallSite>;

    /// Sets sites, or no longer: all or none.
    ///
    /// # Errors
    /// Why that is not possible.
    fn set(&self, sites: &[u64], on: bool) -> Result<(), String>;
}
