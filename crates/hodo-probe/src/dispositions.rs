//! The program's own dispositions of the signals that the engine handles, and how to act on them.

use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, Ordering};

use super::arch::Context;
use super::sys::{self, Action};

/// The start of `siginfo_t` of a fault.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Info {
    signal: i32,
    error: i32,
    pub(super) code: i32,
    pad: i32,
    pub(super) addr: u64,
    rest: [u64; 13],
}

impl Info {
    /// Describes a fault that our handler took in the program's place.
    pub(super) fn new(signal: i32, code: i32, addr: u64) -> Self {
        Self {
            signal,
            error: 0,
            code,
            pad: 0,
            addr,
            rest: [0; 13],
        }
    }
}

/// What the program wants done with a signal.
struct Earlier {
    action: UnsafeCell<Action>,
    /// Whether a handler that should be called only once has been called.
    used: AtomicBool,
}

// SAFETY: it is written before the engine's handler is installed, and then read only by that handler.
unsafe impl Sync for Earlier {}

static EARLIER: [Earlier; 32] = [const {
    Earlier {
        action: UnsafeCell::new(Action {
            handler: 0,
            flags: 0,
            mask: 0,
        }),
        used: AtomicBool::new(false),
    }
}; 32];
/// Remembers what the program has set for a signal.
///
/// # Safety
/// The engine's handler for this signal must not be installed yet, and only the thread that holds the engine's lock may
/// call this.
pub(super) unsafe fn keep(signal: i32, action: Action) {
    // SAFETY: by the caller's promise, nobody reads it yet and nobody else writes it.
    unsafe { *EARLIER[signal as usize].action.get() = action };
}

/// Returns whether the program has no handler for a signal.
pub(super) fn is_default(signal: i32) -> bool {
    let earlier = &EARLIER[signal as usize];
    // SAFETY: it is no longer written.
    let handler = unsafe { (*earlier.action.get()).handler };
    handler <= 1 || earlier.used.load(Ordering::Relaxed)
}

/// Gives a signal its default action.
pub(super) fn reset(signal: i32) {
    // SAFETY: the default action has no handler.
    let _ = unsafe { sys::sigaction(signal, Some(&Action::default())) };
}

/// Does with a signal what the program would have had done with it.
pub(super) fn chain(signal: i32, info: &mut Info, context: &mut Context) {
    let earlier = &EARLIER[signal as usize];
    if is_default(signal) {
        reset(signal);
        // A fault happens again by itself. A signal that somebody sent, or one after an instruction, does not.
        if info.code <= 0 || signal == sys::SIGTRAP {
            let _ = sys::signal_thread(sys::thread(), signal);
        }
        return;
    }
    // SAFETY: it is no longer written.
    let action = unsafe { *earlier.action.get() };
    if action.flags & sys::SA_RESETHAND != 0 {
        earlier.used.store(true, Ordering::Relaxed);
    }
    let own = match action.flags & sys::SA_NODEFER {
        0 => 1 << (signal - 1),
        _ => 0,
    };
    sys::set_mask(context.mask() | action.mask | own);
    // SAFETY: (1) this is the handler that the program has given to the kernel; (2) the arguments are the kernel's.
    unsafe {
        if action.flags & sys::SA_SIGINFO != 0 {
            let handler: extern "C" fn(i32, *mut Info, *mut c_void) =
                core::mem::transmute(action.handler);
            handler(signal, info, (&raw mut *context).cast());
        } else {
            let handler: extern "C" fn(i32) = core::mem::transmute(action.handler);
            handler(signal);
        }
    }
}
