//! Instructions are not interpreted: threads make single steps.

use anyhow::Result;

use super::regs::Regs;
use crate::stopped::Stopped;

/// Whether hodo's instructions can be interpreted, except a few.
pub const INTERPRETS: bool = false;

/// Would have a stopped thread do what its next instructions do, without executing them. It never can.
///
/// # Errors
/// Never, here.
pub fn run_ahead(
    _thread: Stopped,
    _regs: &Regs,
    _is_done: impl FnMut(&Regs) -> bool,
) -> Result<Option<Regs>> {
    Ok(None)
}
