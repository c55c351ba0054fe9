//! A library that is loaded at run time, with tracepoints. With `--cfg shared` the program's copy of hodo-keys knows
//! them.

#[cfg(not(shared))]
use hodo_keys as keys;
#[cfg(shared)]
use shared::hodo_keys as keys;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Hits two tracepoints; with its own copy, one.
#[unsafe(no_mangle)]
pub extern "C" fn plugin_hit() {
    keys::tracepoint!(plugin, hit, text = "from the library");
    #[cfg(shared)]
    shared::generic(5_u16);
}

/// Registers a function of its own, and counts its hits.
#[unsafe(no_mangle)]
pub extern "C" fn plugin_count() -> u32 {
    let count = Arc::new(AtomicU32::new(0));
    let registration = keys::tracepoint::register("*", {
        let count = Arc::clone(&count);
        move |_| {
            count.fetch_add(1, Ordering::Relaxed);
            // Is not counted.
            plugin_hit();
        }
    })
    .expect("registered");
    plugin_hit();
    registration.remove().expect("removed");
    plugin_hit();
    count.load(Ordering::Relaxed)
}
