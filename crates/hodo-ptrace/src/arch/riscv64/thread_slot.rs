//! What is in a thread's word for its control block otherwise.

/// What a process uses itself if one of its threads has something where its control block goes.
pub const BLOCK_IN_USE: &str = "uses the word below its thread pointer itself (as musl does), which hodo needs to tell threads \
     apart";
