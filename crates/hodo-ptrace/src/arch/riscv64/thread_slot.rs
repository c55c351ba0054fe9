//! Which word beside the thread pointer leads to a thread's control block.

/// From where the thread pointer leads to, to the word.
pub(in super::super) const THREAD_WORD: i64 = -8;

/// What a process uses itself if one of its threads has something where its control block goes.
pub const BLOCK_IN_USE: &str = "uses the word below its thread pointer itself (as musl does), which hodo needs to tell threads \
     apart";
