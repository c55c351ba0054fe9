//! A C program's own way of writing code.

use core::ffi::{c_int, c_void};
use std::boxed::Box;

use super::{WRONG, keep};
use crate::text::{self, Errno, Text};

/// `struct hodo_keys_text`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CText {
    begin: Option<unsafe extern "C" fn(*mut c_void) -> c_int>,
    write: Option<unsafe extern "C" fn(*mut c_void, *mut c_void, *const c_void, usize) -> c_int>,
    writes_words: Option<unsafe extern "C" fn(*mut c_void) -> c_int>,
    sync: Option<unsafe extern "C" fn(*mut c_void)>,
    end: Option<unsafe extern "C" fn(*mut c_void)>,
    data: *mut c_void,
}

// SAFETY: the functions are called under the lock; what they do with their data is the program's affair.
unsafe impl Sync for CText {}

fn errno(result: c_int) -> Result<(), Errno> {
    if result == 0 { Ok(()) } else { Err(result) }
}

// SAFETY: `hodo_keys_set_text` asks of the program what `Text` does.
unsafe impl Text for CText {
    fn begin(&self) -> Result<(), Errno> {
        // SAFETY: it is the program's function for its data, here and below.
        self.begin
            .map_or(Ok(()), |begin| errno(unsafe { begin(self.data) }))
    }

    unsafe fn write(&self, at: usize, bytes: &[u8]) -> Result<(), Errno> {
        let write = self.write.ok_or(text::ENOSYS)?;
        let (at, from) = (at as *mut c_void, bytes.as_ptr().cast());
        // SAFETY: as the caller promises.
        errno(unsafe { write(self.data, at, from, bytes.len()) })
    }

    fn writes_words(&self) -> bool {
        // SAFETY: see `begin`.
        self.writes_words
            .is_some_and(|words| unsafe { words(self.data) } != 0)
    }

    fn sync(&self) {
        if let Some(sync) = self.sync {
            // SAFETY: see `begin`.
            unsafe { sync(self.data) };
        }
    }

    fn end(&self) {
        if let Some(end) = self.end {
            // SAFETY: see `begin`.
            unsafe { end(self.data) };
        }
    }
}

/// Replaces the built-in way of writing code.
///
/// # Safety
/// The functions do what the header asks of them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hodo_keys_set_text(new: &CText) -> c_int {
    if new.write.is_none() || new.sync.is_none() {
        keep("struct hodo_keys_text has no write or no sync: both are needed");
        return WRONG;
    }
    // It is never freed: a thread may be using it when it is replaced.
    let text: &'static dyn Text = Box::leak(Box::new(*new));
    text::set(Box::leak(Box::new(text)));
    0
}
