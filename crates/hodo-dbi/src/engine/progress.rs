//! Whether a thread comes further between signals.

use rustc_hash::FxHashMap;

/// Whether a thread comes further between signals.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Where each signal found it last: the next instruction, and its registers.
    pub(super) found: FxHashMap<i32, (u64, Vec<u64>)>,
    /// It runs for a while, and signals wait: its own mask.
    pub(super) held: Option<u64>,
}
