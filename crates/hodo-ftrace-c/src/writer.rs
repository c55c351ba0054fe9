//! What a thread needs to record calls.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};

/// What a thread has. All zeros is one that has not recorded anything.
#[repr(C)]
pub struct Writer {
    /// Where the next record is.
    pub next: AtomicUsize,
    /// The end of the chunk.
    pub end: AtomicUsize,
    /// The upper half of the time.
    pub epoch: AtomicU32,
    /// 0 while it has none.
    pub task: AtomicU32,
    /// The number of its chunks.
    pub seq: AtomicU32,
    /// A record is being written: what a signal handler calls now is lost.
    pub busy: AtomicBool,
    /// Where its window of stack pointers begins.
    pub window: AtomicUsize,
    /// Records that are lost.
    pub lost: AtomicU64,
}
