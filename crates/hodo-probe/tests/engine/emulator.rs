//! qemu's user mode emulator does not notice that code was changed through `/proc/self/mem`: it keeps executing what it
//! has translated. It translates again when a page of code becomes writable, so the page is made writable here, for a
//! moment, after each write. This is done if `HODO_EMULATED` is set (by `scripts/cross.sh`).

use std::ffi::{c_int, c_void};

unsafe extern "C" {
    fn mprotect(at: *mut c_void, size: usize, protection: c_int) -> c_int;
}

const READ: c_int = 1;
const WRITE: c_int = 2;
const EXECUTE: c_int = 4;
const PAGE: u64 = 4096;

fn written(at: u64, len: usize) {
    let first = at & !(PAGE - 1);
    let size = (at + len as u64).next_multiple_of(PAGE) - first;
    for protection in [READ | WRITE | EXECUTE, READ | EXECUTE] {
        // SAFETY: these are pages of code, which stay executable all the time.
        let result = unsafe { mprotect(first as *mut c_void, size as usize, protection) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    }
}

/// Returns whether the emulator runs this.
pub fn is_here() -> bool {
    std::env::var_os("HODO_EMULATED").is_some()
}

/// Must be called before code is changed.
pub fn begin() {
    if is_here() {
        hodo_sys::set_written(written);
    }
}
