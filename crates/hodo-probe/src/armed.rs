//! The list of the probes of a process.

use core::fmt;

use super::Execution;

/// What the list has of one probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Armed {
    /// The address of the probed instruction.
    pub addr: u64,
    /// The probe is for the function's return.
    pub returns: bool,
    /// Its handlers are called.
    pub enabled: bool,
    /// How the instruction is executed at present.
    pub execution: Execution,
}

/// A line as in the kernel's `kprobes/list`, without the symbol.
impl fmt::Display for Armed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.returns { "r" } else { "k" };
        write!(f, "{:016x}  {kind}", self.addr)?;
        if !self.enabled {
            f.write_str("  [DISABLED]")?;
        }
        match self.execution {
            Execution::Optimized => f.write_str("  [OPTIMIZED]"),
            Execution::CallSite => f.write_str("  [FTRACE]"),
            _ => Ok(()),
        }
    }
}
