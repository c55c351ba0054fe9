//! Repeatedly loads and unloads a library with branches while another thread switches keys; with `--cfg shared` also
//! keys that the library's branches are on. Arguments: the library, how many times.

#[cfg(not(shared))]
use hodo_keys as keys;
#[cfg(shared)]
use shared::hodo_keys as keys;

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;
use std::{env, fs, panic, process, thread};

use keys::{define_static_key_false, static_branch_likely, static_branch_unlikely};

unsafe extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlclose(library: *mut c_void) -> c_int;
    fn dlerror() -> *const c_char;
}

define_static_key_false!(HOST);

static STOP: AtomicBool = AtomicBool::new(false);
static SWITCHES: AtomicU64 = AtomicU64::new(0);

struct Library(*mut c_void);

impl Library {
    fn open(path: &CStr) -> Self {
        // SAFETY: it is our own library.
        let library = unsafe { dlopen(path.as_ptr(), 2) };
        if library.is_null() {
            // SAFETY: there was an error.
            panic!("{:?}", unsafe { CStr::from_ptr(dlerror()) });
        }
        Self(library)
    }

    fn get(&self, name: &CStr) -> *mut c_void {
        // SAFETY: it is loaded.
        let symbol = unsafe { dlsym(self.0, name.as_ptr()) };
        assert!(!symbol.is_null(), "{name:?}");
        symbol
    }

    fn number(&self, name: &CStr) -> u32 {
        // SAFETY: all functions that are called this way have this type.
        let function: extern "C" fn() -> u32 = unsafe { std::mem::transmute(self.get(name)) };
        function()
    }

    fn see(&self) -> u32 {
        self.number(c"plugin_see")
    }

    fn first(&self) -> u32 {
        self.number(c"plugin_first")
    }

    fn switch(&self, on: bool) {
        // SAFETY: this has this type.
        let function: extern "C" fn(bool) -> bool =
            unsafe { std::mem::transmute(self.get(c"plugin_switch")) };
        assert!(function(on));
    }

    fn close(self) {
        // SAFETY: nothing of it is used afterwards.
        assert_eq!(unsafe { dlclose(self.0) }, 0);
    }
}

fn see() -> [bool; 2] {
    [static_branch_unlikely!(HOST), static_branch_likely!(HOST)]
}

/// The other thread.
fn keep_switching() {
    while !STOP.load(Ordering::Relaxed) {
        HOST.enable().expect("switched");
        assert_eq!(see(), [true; 2]);
        #[cfg(shared)]
        shared::SEVERAL[0].enable().expect("switched");
        HOST.disable().expect("switched");
        assert_eq!(see(), [false; 2]);
        #[cfg(shared)]
        shared::SEVERAL[0].disable().expect("switched");
        SWITCHES.fetch_add(1, Ordering::Relaxed);
    }
}

/// Waits until the other thread has made progress.
fn wait_for_a_switch() {
    let before = SWITCHES.load(Ordering::Relaxed);
    let begin = Instant::now();
    while SWITCHES.load(Ordering::Relaxed) == before {
        assert!(begin.elapsed().as_secs() < 60, "the other thread hangs");
        thread::yield_now();
    }
}

/// The expected values of the library's branches on others' keys.
#[cfg(shared)]
fn expected() -> u32 {
    use shared::{COMMON, SEVERAL, USUAL};
    let both = |key: &keys::Key| if key.is_enabled() { 3 } else { 0 };
    both(&COMMON) << 2 | both(&USUAL) << 4 | both(&SEVERAL[1]) << 6
}

#[cfg(not(shared))]
fn expected() -> u32 {
    0
}

/// Switches the keys that the library branches on, and checks that its own branches follow.
#[cfg(shared)]
fn change(step: &mut u32) {
    use shared::{COMMON, SEVERAL, USUAL};
    assert_eq!(static_branch_unlikely!(COMMON), COMMON.is_enabled());
    let result = match *step % 4 {
        0 => COMMON.enable(),
        1 => keys::switch(&[COMMON.disabling(), USUAL.disabling()]),
        2 => keys::switch(&[SEVERAL[1].enabling(), COMMON.incrementing()]),
        _ => keys::switch(&[
            SEVERAL[1].disabling(),
            USUAL.enabling(),
            COMMON.decrementing(),
        ]),
    };
    result.expect("switched");
    *step += 1;
    assert_eq!(static_branch_unlikely!(COMMON), COMMON.is_enabled());
    assert_eq!(static_branch_likely!(USUAL), USUAL.is_enabled());
}

#[cfg(not(shared))]
fn change(_: &mut u32) {}

fn main() {
    let hook = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        hook(info);
        // The other thread would keep running.
        process::abort();
    }));
    let mut arguments = env::args().skip(1);
    let path = arguments.next().expect("the library");
    let rounds: u32 = arguments
        .next()
        .and_then(|text| text.parse().ok())
        .expect("rounds");
    let name = CString::new(path.clone()).expect("a path");
    thread::scope(|scope| {
        scope.spawn(keep_switching);
        let mut step = 0;
        for round in 0..rounds {
            change(&mut step);
            let library = Library::open(&name);
            assert_eq!(
                library.first(),
                expected(),
                "round {round}, in the constructor"
            );
            assert_eq!(library.see(), expected(), "round {round}, loaded");
            library.switch(true);
            assert_eq!(library.see(), expected() | 3, "round {round}, switched on");
            for _ in 0..4 {
                change(&mut step);
            }
            assert_eq!(library.see(), expected() | 3, "round {round}, changed");
            if round % 3 == 0 {
                library.switch(false);
                assert_eq!(library.see(), expected(), "round {round}, switched off");
            }
            library.close();
            if round % 5 == 0 {
                wait_for_a_switch();
            }
            let maps = fs::read_to_string("/proc/self/maps").expect("there is /proc");
            assert!(!maps.contains(&path), "it was not unloaded");
        }
        STOP.store(true, Ordering::Relaxed);
    });
    // Nothing of it is left.
    let mut branches = 0;
    keys::for_each(|found| branches += found.branches).expect("the list can be read");
    println!("{branches} branches are left");
}
