//! A library with its own copy of hodo-keys that has threads, and is closed by the program that loaded it.

use std::time::Duration;

use hodo_keys::{Deferred, define_static_key_false, static_branch_unlikely};

define_static_key_false!(PLUGIN; BRIEF);
static USERS: Deferred = Deferred::new(BRIEF.key(), Duration::from_secs(2));

/// Starts both threads.
#[unsafe(no_mangle)]
pub extern "C" fn begin() {
    hodo_keys::try_expose().expect("there is room for another one");
    USERS.inc().expect("switched");
    USERS.dec().expect("there is a user");
}

/// Returns which keys are enabled.
#[unsafe(no_mangle)]
pub extern "C" fn seen() -> u32 {
    u32::from(static_branch_unlikely!(PLUGIN)) | u32::from(static_branch_unlikely!(BRIEF)) << 1
}
