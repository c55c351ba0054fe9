//! What `-finstrument-functions` calls. These are ordinary calls: the compiler saves what it needs around them.

use core::sync::atomic::Ordering;

use crate::environment;
use crate::state::{CygHook, CygOps, state};

fn ops() -> Option<&'static CygOps> {
    // SAFETY: `set_cyg` has it from a reference that is valid for ever.
    unsafe { state().cyg.load(Ordering::Acquire).as_ref() }
}

/// Calls a hook, if it does not run already.
#[cold]
#[inline(never)]
fn call(hook: Option<CygHook>, function: usize, call_site: usize) {
    let Some(hook) = hook else { return };
    let Some(thread) = environment::thread() else {
        return;
    };
    // An address in this frame is above those of all that the hook calls.
    let frame = &raw const hook as usize;
    if thread.start_hook(frame) {
        hook(function, call_site);
        thread.end_hook();
    }
}

/// Called by `-finstrument-functions` when a function is entered.
#[unsafe(no_mangle)]
pub extern "C" fn __cyg_profile_func_enter(function: usize, call_site: usize) {
    if let Some(ops) = ops() {
        call(ops.enter, function, call_site);
    }
}

/// Called by `-finstrument-functions` when a function is left.
#[unsafe(no_mangle)]
pub extern "C" fn __cyg_profile_func_exit(function: usize, call_site: usize) {
    if let Some(ops) = ops() {
        call(ops.exit, function, call_site);
    }
}
