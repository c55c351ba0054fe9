//! A library that is loaded at run time, with a key of its own and one of the program's.

use hodo_keys::{Key, define_static_key_false, static_branch_likely, static_branch_unlikely};

define_static_key_false!(OWN);

/// What its branches say: bits 0 and 1 of its own key.
#[unsafe(no_mangle)]
pub extern "C" fn plugin_see() -> u32 {
    let mut bits = 0;
    if static_branch_unlikely!(OWN) {
        bits |= 1;
    }
    if static_branch_likely!(OWN) {
        bits |= 2;
    }
    bits
}

/// Switches its key.
#[unsafe(no_mangle)]
pub extern "C" fn plugin_switch(on: bool) -> bool {
    let key: &'static Key = &OWN;
    if on { key.enable() } else { key.disable() }.is_ok()
}
