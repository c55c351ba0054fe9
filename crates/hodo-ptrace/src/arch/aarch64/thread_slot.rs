//! Which word beside the thread pointer leads to a thread's control block.

/// From where the thread pointer leads to, to the word. It leads to two words, of which glibc uses the first one, and
/// leaves the second one zero.
pub(in super::super) const THREAD_WORD: i64 = 8;

/// What a process uses itself if one of its threads has something where its control block goes.
pub const BLOCK_IN_USE: &str =
    "uses the second word at its thread pointer itself, which hodo needs to tell threads apart";
