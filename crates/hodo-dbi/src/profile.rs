//! What is executed often.

use rustc_hash::FxHashMap;

/// How often blocks were executed of late, by the addresses of their first instructions.
pub(crate) type Profile = FxHashMap<u64, u32>;
