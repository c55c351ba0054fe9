//! Loading and unloading modules: the program, and each library with branches.

use crate::lock;
use crate::modules::{self, Module, Table};
use crate::registry;
use crate::tracepoint::{self, Tracepoint};

/// Called by the constructor of each module that has branches.
///
/// # Safety
/// It is the module's record.
pub unsafe extern "C" fn load(module: *mut Module) {
    let guard = lock::wait();
    // SAFETY: it is mapped as long as it is in the list.
    let new: &'static Module = unsafe { &*module };
    if !modules::add(&guard, new) || !registry::was_any_switched() {
        return;
    }
    let settled = new.sort(&guard).and_then(|()| {
        let table = new.table(&guard);
        let tracepoints = table.keys().filter_map(Tracepoint::of);
        tracepoints.for_each(|tracepoint| tracepoint::loaded(tracepoint, &guard));
        registry::finish(|| table.all())
    });
    if settled.is_err() {
        registry::left_unfinished(&guard);
    }
}

/// Called by the destructor of each module that has branches.
///
/// # Safety
/// It is the module's record.
pub unsafe extern "C" fn unload(module: *mut Module) {
    let guard = lock::wait();
    // SAFETY: it is mapped until this returns.
    let Some(module) = modules::remove(&guard, unsafe { &*module }) else {
        return;
    };
    if tracepoint::any_registered() {
        let table = module.table(&guard);
        for tracepoint in table.keys().filter_map(Tracepoint::of) {
            let elsewhere = |table: Table| table.of(tracepoint.key()).next().is_some();
            if !modules::tables(&guard).any(elsewhere) {
                tracepoint::unloaded(tracepoint, &guard);
            }
        }
    }
    module.forget(&guard);
}
