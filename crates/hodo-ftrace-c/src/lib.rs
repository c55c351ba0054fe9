//! [`hodo_ftrace`] for Linux programs. `include/hodo-ftrace.h` describes the functions.

#[cfg_attr(target_arch = "x86_64", path = "x86_64/mod.rs")]
#[cfg_attr(target_arch = "riscv64", path = "riscv64/mod.rs")]
#[cfg_attr(target_arch = "aarch64", path = "aarch64/mod.rs")]
mod arch;
mod change;
mod filter;
mod find;
mod frames;
mod hooks;
mod host;
mod jit;
mod kept;
mod known;
mod linux;
mod livepatch;
mod loaded;
mod map;
mod probing;
mod record;
mod start;
mod tracers;
mod writer;

use std::ffi::{CStr, c_char, c_int};

use change::{Error, answer, check_on};
use hooks::hooks;
use known::Who;
use tracers::set_hook;

use hodo_ftrace::{Counts, CygOps, EntryOps, FrameTest, GraphOps, Vectors};

hodo_ftrace::set_environment!(linux::Linux);

/// The library's version, as in `Cargo.toml`.
#[unsafe(no_mangle)]
pub extern "C" fn hodo_ftrace_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => c"",
        };
    VERSION.as_ptr()
}

/// Sets the hook for entries.
///
/// # Safety
/// `ops` is null, or stays as it is as long as the process exists.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hodo_ftrace_set_entry(ops: *const EntryOps) -> c_int {
    // SAFETY: as the caller promises.
    match unsafe { hooks(ops) } {
        Ok(hooks) => {
            let (ops, vectors) = hooks.unzip();
            hodo_ftrace::set_entry_keeping(ops, vectors.unwrap_or(Vectors::None));
            set_hook(Who::Entry, ops.is_some())
        }
        Err(error) => answer(Err(error)) as c_int,
    }
}

/// Sets the hooks for entries and returns.
///
/// # Safety
/// `ops` is null, or stays as it is as long as the process exists.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hodo_ftrace_set_graph(ops: *const GraphOps) -> c_int {
    // SAFETY: as the caller promises.
    match unsafe { hooks(ops) } {
        Ok(hooks) => {
            let (ops, vectors) = hooks.unzip();
            hodo_ftrace::set_graph_keeping(ops, vectors.unwrap_or(Vectors::None));
            set_hook(Who::Graph, ops.is_some())
        }
        Err(error) => answer(Err(error)) as c_int,
    }
}

/// Sets the hooks for `-finstrument-functions`.
///
/// # Safety
/// `ops` is null, or stays as it is as long as the process exists.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hodo_ftrace_set_cyg(ops: *const CygOps) {
    // SAFETY: as the caller promises.
    let ops = unsafe { ops.as_ref() };
    hodo_ftrace::set_cyg(ops.filter(|_| check_on().is_ok()));
}

/// Sets what happens when frame pointers differ. Returns -1 if there is no such test.
#[unsafe(no_mangle)]
pub extern "C" fn hodo_ftrace_set_frame_test(test: c_int) -> c_int {
    let tests = [FrameTest::Off, FrameTest::Report, FrameTest::Abort];
    let test = usize::try_from(test).ok().and_then(|test| tests.get(test));
    let Some(test) = test else {
        let text = "there is no such frame test: 0 is off, 1 reports, 2 aborts".to_owned();
        return answer(Err(Error::Wrong(text))) as c_int;
    };
    hodo_ftrace::set_frame_test(*test);
    0
}

/// What was not seen in the calling thread.
///
/// # Safety
/// `counts` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hodo_ftrace_counts(counts: *mut Counts) {
    // SAFETY: as the caller promises.
    unsafe { counts.write(linux::thread().counts()) };
}

/// The return address that belongs to a stack slot.
///
/// # Safety
/// The slot contains the return address of a function that runs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hodo_ftrace_original_return(slot: *const usize) -> usize {
    // SAFETY: as the caller promises.
    unsafe { hodo_ftrace::original_return(slot) }
}

/// Has the return of a function traced.
///
/// # Safety
/// See [`hodo_ftrace::prepare_ftrace_return`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hodo_ftrace_prepare_return(
    parent: *mut usize,
    selfpc: usize,
    frame_pointer: usize,
) {
    // SAFETY: as the caller promises.
    unsafe { hodo_ftrace::prepare_ftrace_return(parent, selfpc, frame_pointer) };
}
