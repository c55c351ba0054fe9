//! Switching keys under qemu's user mode emulator, which does not notice that code was changed through
//! `/proc/self/mem`: it keeps executing what it has translated. It translates again when a page of code becomes
//! writable, so the page is made writable here, for a moment, after the change. This works around the emulator; the
//! library never does it.
//!
//! The system emulator needs none of this, but it needs `-accel tcg,thread=single`: with one thread per processor (7.2,
//! seldom 10.0) it may keep a translation of bytes that were overwritten at the same moment, whatever fences are
//! executed.
//!
//! A test program only has to contain this module (as the library's own tests do): if `HODO_EMULATED` is set (by
//! `scripts/cross.sh`), a constructor activates it. Everything else is the library's own code: the order of writes, the
//! steps, the entries. With the value `words`, branches on AArch64 are written at once.

use std::collections::BTreeSet;
use std::ffi::{c_int, c_void};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;

use hodo_keys::{Errno, Text};

unsafe extern "C" {
    fn mprotect(at: *mut c_void, size: usize, protection: c_int) -> c_int;
}

const READ: c_int = 1;
const WRITE: c_int = 2;
const EXECUTE: c_int = 4;
const PAGE: usize = 4096;
const EIO: Errno = 5;

/// Pages that were written since the last synchronization.
struct Emulated(Mutex<BTreeSet<usize>>);

fn errno(error: &std::io::Error) -> Errno {
    error.raw_os_error().unwrap_or(EIO)
}

// SAFETY: `sync` makes the emulator translate again what was written.
unsafe impl Text for Emulated {
    unsafe fn write(&self, at: usize, bytes: &[u8]) -> Result<(), Errno> {
        let memory = File::options()
            .write(true)
            .open("/proc/self/mem")
            .map_err(|error| errno(&error))?;
        memory
            .write_all_at(bytes, at as u64)
            .map_err(|error| errno(&error))?;
        let mut pages = self.0.lock().expect("nobody panics with it");
        pages.extend([at / PAGE, (at + bytes.len() - 1) / PAGE]);
        Ok(())
    }

    fn writes_words(&self) -> bool {
        std::env::var_os("HODO_EMULATED").is_some_and(|value| value == "words")
    }

    fn sync(&self) {
        let pages = std::mem::take(&mut *self.0.lock().expect("nobody panics with it"));
        for page in pages {
            for protection in [READ | WRITE | EXECUTE, READ | EXECUTE] {
                let at = (page * PAGE) as *mut c_void;
                // SAFETY: it is a page of code, which stays executable all the time.
                let result = unsafe { mprotect(at, PAGE, protection) };
                assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
            }
        }
    }
}

static EMULATED: Emulated = Emulated(Mutex::new(BTreeSet::new()));
static TEXT: &dyn Text = &EMULATED;

/// The way of writing code under the emulator, for tests that have their own way; `None` elsewhere.
#[allow(dead_code, reason = "most tests have none of their own")]
pub fn text() -> Option<&'static dyn Text> {
    is_here().then_some(TEXT)
}

/// Returns whether the emulator runs this.
pub fn is_here() -> bool {
    std::env::var_os("HODO_EMULATED").is_some()
}

/// Returns whether this runs under the emulator, where children of fork end or hang if the process has had several
/// threads or they start one.
#[allow(dead_code, reason = "few tests have children")]
pub fn lacks_children() -> bool {
    if is_here() {
        std::println!("skipped: children of processes with threads fail in the emulator");
    }
    is_here()
}

extern "C" fn begin() {
    if is_here() {
        hodo_keys::set_text(&TEXT);
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;
