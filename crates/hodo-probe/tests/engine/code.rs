//! Functions of known instructions, and handlers.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hodo_probe::engine::{Engine, Probe, Refusal, Registers, Request};

/// Defines a function in assembly, with frame information; `NAME_at` gives the address of its label 1.
#[macro_export]
macro_rules! function {
    ($name:ident: $($line:literal)*) => {
        core::arch::global_asm!(
            ".text",
            ".p2align 4",
            concat!(".globl test_", stringify!($name)),
            concat!(".type test_", stringify!($name), ",@function"),
            concat!("test_", stringify!($name), ":"),
            ".cfi_startproc",
            $($line,)*
            ".cfi_endproc",
            concat!(".size test_", stringify!($name), ", . - test_", stringify!($name)),
            ".p2align 4",
        );
    };
}

/// The tests of one process take turns: they probe the same functions.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn engine() -> Engine {
    Engine::new().expect("the engine starts")
}

pub fn request(addr: u64) -> Request {
    Request::at(addr)
}

/// Registers a probe of the test's own.
pub fn register(request: &Request) -> Result<Probe, Refusal> {
    // SAFETY: the handlers of the tests are sound where the tests put them, and their data are statics.
    unsafe { engine().register(request) }
}

/// A handler that counts.
pub extern "C" fn count(_: &mut Registers, data: *mut c_void) {
    // SAFETY: the tests give counters.
    unsafe { (*data.cast::<AtomicU64>()).fetch_add(1, Ordering::Relaxed) };
}

/// A request for `count` before the instruction.
pub fn counting(addr: u64, counter: &'static AtomicU64) -> Request {
    request(addr)
        .before(count)
        .data(std::ptr::from_ref(counter).cast_mut().cast())
}

/// A counter that stays.
pub fn counter() -> &'static AtomicU64 {
    Box::leak(Box::new(AtomicU64::new(0)))
}

pub fn of(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}
