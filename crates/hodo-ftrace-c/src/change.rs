//! Changing what is called: one change at a time, in this process.

use std::cell::{Cell, RefCell, UnsafeCell};
use std::ffi::{CString, c_char};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use hodo_ftrace::dynamic;
use hodo_sys::lock;

use crate::host::{Host, is_emulated};
use crate::known::All;
use crate::loaded::with_loaded;

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A signal handler has interrupted a change, or a hook was called in one.
    #[error(
        "another change is going on in this thread: hooks and signal handlers cannot change anything"
    )]
    Busy,
    /// The user wants none.
    #[error("call sites are left alone, because {OFF} is set")]
    Off,
    /// A hook has called.
    #[error("hooks cannot change anything, except with hodo_ftrace_set_thread")]
    InHook,
    /// The process's code cannot be written.
    #[error("the process's memory cannot be written: {0} (is /proc mounted?)")]
    Memory(std::io::Error),
    /// What was asked for makes no sense, or is not there.
    #[error("{0}")]
    Wrong(String),
}

/// The variable that has the library leave everything alone.
const OFF: &str = "HODO_FTRACE_OFF";

/// Returns an error if the library is to leave everything alone.
pub fn check_on() -> Result<(), Error> {
    static IS_OFF: OnceLock<bool> = OnceLock::new();
    let is_off = IS_OFF.get_or_init(|| std::env::var_os(OFF).is_some_and(|value| value != "0"));
    if *is_off { Err(Error::Off) } else { Ok(()) }
}

struct Shared(UnsafeCell<Option<All>>);

// SAFETY: it is used by whoever holds the lock.
unsafe impl Sync for Shared {}

static ALL: Shared = Shared(UnsafeCell::new(None));

/// Looks at what is loaded now, makes a change, and writes what has changed. `new` is an address in a file whose code
/// has not run yet.
pub fn change<T>(
    new: Option<usize>,
    make: impl FnOnce(&mut All) -> Result<T, Error>,
) -> Result<T, Error> {
    check_on()?;
    if hodo_ftrace::is_in_hook() {
        return Err(Error::InHook);
    }
    let _guard = lock::take().map_err(|lock::Busy| Error::Busy)?;
    let memory = |error| Error::Memory(std::io::Error::from_raw_os_error(error));
    let host = Host::new().map_err(memory)?;
    let threads = std::fs::read_dir("/proc/self/task").map(Iterator::count);
    // qemu's user mode emulator has a thread of its own.
    let others = usize::from(is_emulated());
    let alone = threads.is_ok_and(|count| count <= 1 + others);
    let done = with_loaded(|loaded| {
        // SAFETY: this thread holds the lock, and nothing here calls this function.
        let all = unsafe { &mut *ALL.0.get() }.get_or_insert_default();
        all.update(&loaded, &host, alone, new);
        let made = make(all);
        match dynamic::apply(&host) {
            (_, None) => made,
            (_, Some(failure)) => made.and(Err(Error::Wrong(all.explain(failure)))),
        }
    });
    // There is always an executable.
    done.unwrap_or(Err(Error::Busy))
}

/// Keeps a message for the calling thread, and returns what C functions return.
pub fn answer(result: Result<usize, Error>) -> i64 {
    match result {
        Ok(value) => i64::try_from(value).unwrap_or(i64::MAX),
        Err(error) => {
            let text = CString::new(error.to_string()).unwrap_or_default();
            LAST.set(text);
            -1
        }
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
    static FORKING: Cell<bool> = const { Cell::new(false) };
}

/// What the last error of the calling thread was.
pub fn last_error() -> *const c_char {
    LAST.with_borrow(|text| text.as_ptr())
}

/// Before a fork: no change is half done, so the child can make others.
pub extern "C" fn before_fork() {
    if let Ok(guard) = lock::take() {
        std::mem::forget(guard);
        FORKING.set(true);
    }
}

/// After a fork, in parent and child.
pub extern "C" fn after_fork() {
    if FORKING.replace(false) {
        lock::OWNER.store(0, Ordering::Release);
    }
}
