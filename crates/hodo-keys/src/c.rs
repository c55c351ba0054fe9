//! The interface for C. `hodo-keys.h` describes the functions; the crate `hodo-keys-c` makes them a library of its own.
//!
//! Branches of C code have the same table, but a record of their own in each file (`modules.rs`), whose constructor
//! calls [`hodo_keys_load_1`]. The number in that name is the version of what the header's macros put into programs:
//! programs with another version cannot be linked.

mod deferred;
mod text;

use core::ffi::{CStr, c_char, c_int, c_void};
use std::cell::RefCell;
use std::fmt::{Display, Write};
use std::slice;
use std::vec::Vec;

use crate::error::Error;
use crate::key::{Change, Key};
use crate::modules::Module;
use crate::{control, loading, registry};

/// Called by the constructor of each file that has branches of C code.
///
/// # Safety
/// It is the file's record.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hodo_keys_load_1(module: *mut Module) {
    // SAFETY: as the caller promises.
    unsafe { loading::load(module) };
}

/// Called by the destructor of each file that has branches of C code.
///
/// # Safety
/// It is the file's record.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hodo_keys_unload_1(module: *mut Module) {
    // SAFETY: as the caller promises.
    unsafe { loading::unload(module) };
}

/// `enum hodo_keys_status`, without 0 for success.
fn status(error: &Error) -> c_int {
    match error {
        Error::Text(_) => 1,
        Error::Foreign { .. } => 2,
        Error::NoUser { .. } => 3,
        Error::TooManyUsers { .. } => 4,
        Error::Busy => 5,
        // Errors of tracepoints, which C programs do not have.
        Error::Pattern | Error::TooManyFunctions => WRONG,
    }
}

/// `HODO_KEYS_WRONG`.
const WRONG: c_int = 6;
/// `HODO_KEYS_SYSTEM`.
const SYSTEM: c_int = 7;

/// The text of a failure, with a zero byte after it.
struct Message {
    bytes: [u8; 256],
    length: usize,
}

impl Write for Message {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        let room = self.bytes.len() - 1 - self.length;
        let taken = text.floor_char_boundary(room.min(text.len()));
        self.bytes[self.length..self.length + taken].copy_from_slice(&text.as_bytes()[..taken]);
        self.length += taken;
        self.bytes[self.length] = 0;
        Ok(())
    }
}

std::thread_local! {
    // It has no destructor, so it can be used until the thread ends.
    static MESSAGE: RefCell<Message> = const { RefCell::new(Message { bytes: [0; 256], length: 0 }) };
}

/// Keeps the text of a failure for [`hodo_keys_message`].
fn keep(error: impl Display) {
    MESSAGE.with(|message| {
        // A signal handler may have interrupted this function.
        if let Ok(mut message) = message.try_borrow_mut() {
            message.length = 0;
            let _ = write!(message, "{error}");
        }
    });
}

fn answer(result: Result<(), Error>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(error) => {
            keep(error);
            status(&error)
        }
    }
}

/// The library's version, as in `Cargo.toml`.
#[unsafe(no_mangle)]
pub extern "C" fn hodo_keys_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => c"",
        };
    VERSION.as_ptr()
}

/// What the last failed call of this thread has met.
#[unsafe(no_mangle)]
pub extern "C" fn hodo_keys_message() -> *const c_char {
    MESSAGE.with(|message| {
        // SAFETY: it is only read, and not written before the next failure of this thread.
        unsafe { (*message.as_ptr()).bytes.as_ptr().cast() }
    })
}

/// Switches a key on.
#[unsafe(no_mangle)]
pub extern "C" fn hodo_key_enable(key: &'static Key) -> c_int {
    answer(key.enable())
}

/// Switches a key off.
#[unsafe(no_mangle)]
pub extern "C" fn hodo_key_disable(key: &'static Key) -> c_int {
    answer(key.disable())
}

/// Adds a user.
#[unsafe(no_mangle)]
pub extern "C" fn hodo_key_inc(key: &'static Key) -> c_int {
    answer(key.inc())
}

/// Removes a user.
#[unsafe(no_mangle)]
pub extern "C" fn hodo_key_dec(key: &'static Key) -> c_int {
    answer(key.dec())
}

/// `struct hodo_key_change`.
#[repr(C)]
#[derive(Debug)]
pub struct CChange {
    key: *const Key,
    /// `enum hodo_key_operation`.
    operation: c_int,
}

impl CChange {
    /// # Safety
    /// The key is null, or a key.
    unsafe fn change(&self) -> Option<Change> {
        // SAFETY: as the caller promises.
        let key: &'static Key = unsafe { self.key.as_ref() }?;
        match self.operation {
            0 => Some(key.disabling()),
            1 => Some(key.enabling()),
            2 => Some(key.incrementing()),
            3 => Some(key.decrementing()),
            _ => None,
        }
    }
}

/// Makes all changes.
///
/// # Safety
/// There are `count` changes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hodo_keys_switch(changes: *const CChange, count: usize) -> c_int {
    let given = match count {
        0 => &[],
        // SAFETY: as the caller promises.
        _ => unsafe { slice::from_raw_parts(changes, count) },
    };
    let mut changes = Vec::with_capacity(count);
    for (index, change) in given.iter().enumerate() {
        // SAFETY: as the caller promises.
        match unsafe { change.change() } {
            Some(change) => changes.push(change),
            None => {
                keep(format_args!(
                    "change {index} of {count} has no key, or its operation {} is none of enum hodo_key_operation",
                    change.operation
                ));
                return WRONG;
            }
        }
    }
    answer(registry::switch(&changes))
}

/// Calls a function for each key that has branches.
///
/// # Safety
/// The function may be called with `data`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hodo_keys_for_each(
    found: unsafe extern "C" fn(&'static Key, usize, *mut c_void),
    data: *mut c_void,
) -> c_int {
    // SAFETY: as the caller promises.
    answer(registry::for_each(|key| unsafe {
        found(key.key, key.branches, data);
    }))
}

/// Lets others switch keys.
#[unsafe(no_mangle)]
pub extern "C" fn hodo_keys_expose() -> c_int {
    match control::try_expose() {
        Ok(()) => 0,
        Err(error) => {
            keep(format_args!(
                "keys cannot be switched from outside: there is no socket or no thread for it: {error}"
            ));
            SYSTEM
        }
    }
}

/// Does what `HODO_KEYS` says.
#[unsafe(no_mangle)]
pub extern "C" fn hodo_keys_apply_environment() {
    control::apply_environment();
}
