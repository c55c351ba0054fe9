//! Loads and unloads a library with tracepoints. With `--cfg shared` its own registrations cover them, too.

#[cfg(not(shared))]
use hodo_keys as keys;
#[cfg(shared)]
use shared::hodo_keys as keys;

use std::env;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use keys::tracepoint::{self, Registration};

unsafe extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlclose(library: *mut c_void) -> c_int;
}

/// How many hits of one call into the library are seen.
const HITS: u32 = if cfg!(shared) { 2 } else { 0 };

struct Library(*mut c_void);

impl Library {
    fn open(path: &CStr) -> Self {
        // SAFETY: it is our own library.
        let library = unsafe { dlopen(path.as_ptr(), 2) };
        assert!(!library.is_null());
        Self(library)
    }

    fn call(&self, name: &CStr) -> u32 {
        // SAFETY: the library is loaded.
        let symbol = unsafe { dlsym(self.0, name.as_ptr()) };
        assert!(!symbol.is_null(), "{name:?}");
        // SAFETY: all have this type, or return nothing.
        let function: extern "C" fn() -> u32 = unsafe { std::mem::transmute(symbol) };
        function()
    }

    fn hit(&self) {
        self.call(c"plugin_hit");
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        // SAFETY: nothing of it is used afterwards.
        assert_eq!(unsafe { dlclose(self.0) }, 0);
    }
}

fn count(pattern: &str) -> (Registration, impl Fn() -> u32 + use<>) {
    let count = Arc::new(AtomicU32::new(0));
    let own = Arc::clone(&count);
    let registration = tracepoint::register(pattern, move |_| {
        own.fetch_add(1, Ordering::Relaxed);
    });
    let registration = registration.expect("registered");
    (registration, move || count.load(Ordering::Relaxed))
}

fn main() {
    let library = env::args().nth(1).expect("the library");
    let path = CString::new(library).expect("a path");
    let open = || Library::open(&path);
    // Registered before it is loaded, and still registered when it is loaded again.
    let (registration, seen) = count("*");
    for round in 0..50 {
        let library = open();
        library.hit();
        assert_eq!(seen(), round * HITS + HITS, "round {round}");
    }
    // With either its own copy or a shared one, the library's own function sees what it hits outside that function.
    assert_eq!(open().call(c"plugin_count"), HITS.max(1));
    registration.remove().expect("removed");
    // It is gone while the library is not loaded, and another one takes its place.
    let before = seen();
    let (other, others) = count("nothing:*");
    let library = open();
    library.hit();
    assert_eq!((seen(), others()), (before, 0));
    other.remove().expect("removed");
    // Registered while it is loaded, and removed while it is not.
    let (registration, seen) = count("*");
    library.hit();
    assert_eq!(seen(), HITS);
    drop(library);
    registration.remove().expect("removed");
    let (other, others) = count("nothing:*");
    let library = open();
    library.hit();
    assert_eq!((seen(), others()), (HITS, 0));
    drop((library, other));
    println!("all is well");
}
