//! A library that is loaded at run time, with its own key; with `--cfg shared` it also has branches on keys of another
//! library.

#[cfg(not(shared))]
use hodo_keys as keys;
#[cfg(shared)]
use shared::hodo_keys as keys;

use std::sync::atomic::{AtomicU32, Ordering};

use keys::{define_static_key_false, static_branch_likely, static_branch_unlikely};

define_static_key_false!(OWN);

/// What a constructor saw.
static FIRST: AtomicU32 = AtomicU32::new(u32::MAX);

#[used]
#[unsafe(link_section = ".init_array.00101")]
static CONSTRUCTOR: extern "C" fn() = {
    extern "C" fn construct() {
        FIRST.store(plugin_see(), Ordering::Relaxed);
    }
    construct
};

/// The values of its branches: bits 0 and 1 for its own key, then two each for `COMMON`, `USUAL`, `SEVERAL[1]`.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn plugin_see() -> u32 {
    let mut bits = 0;
    bits |= u32::from(static_branch_unlikely!(OWN));
    bits |= u32::from(static_branch_likely!(OWN)) << 1;
    #[cfg(shared)]
    {
        bits |= u32::from(static_branch_unlikely!(shared::COMMON)) << 2;
        bits |= u32::from(static_branch_likely!(shared::COMMON)) << 3;
        bits |= u32::from(static_branch_unlikely!(shared::USUAL)) << 4;
        bits |= u32::from(static_branch_likely!(shared::USUAL)) << 5;
        bits |= u32::from(static_branch_unlikely!(shared::SEVERAL[1])) << 6;
        bits |= u32::from(static_branch_likely!(shared::SEVERAL[1])) << 7;
    }
    bits
}

/// Their values when the library's first constructor ran.
#[unsafe(no_mangle)]
pub extern "C" fn plugin_first() -> u32 {
    FIRST.load(Ordering::Relaxed)
}

/// Switches its key.
#[unsafe(no_mangle)]
pub extern "C" fn plugin_switch(on: bool) -> bool {
    if on { OWN.enable() } else { OWN.disable() }.is_ok()
}
