//! The function tracer of Linux programs: `libhodo_ftrace`, if the program has it. `hodo-ftrace.h` describes the
//! interface, which is found by the name of a variable: linked, or through the C library's `dlsym`. Neither needs to be
//! there.

use alloc::string::String;
use core::ffi::{CStr, c_char, c_int, c_ulong, c_void};
use core::ops::Range;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use super::arch::ftrace::{AtSite, dlsym, linked};
use super::call_site::{CallSite, CallSites};
use super::site::Site;
use super::trap;
use hodo_sys::lock;

/// `struct hodo_ftrace_probing`.
#[repr(C)]
struct Probing {
    version: c_ulong,
    lock: &'static AtomicU64,
    update: extern "C" fn() -> c_int,
    reserved: extern "C" fn(c_ulong, c_ulong, &mut Code) -> c_int,
    set_sites: unsafe extern "C" fn(&'static Ops, *const c_ulong, c_ulong, c_int) -> c_int,
    error: extern "C" fn() -> *const c_char,
}

/// The version of the interface that is understood here.
const VERSION: c_ulong = 1;
const NAME: &CStr = c"hodo_ftrace_probing";

/// `struct hodo_ftrace_reserved_code`.
#[repr(C)]
#[derive(Default)]
struct Code {
    start: c_ulong,
    end: c_ulong,
    flags: c_ulong,
}

const HAS_REGISTERS: c_ulong = 1;
const IS_FIRST: c_ulong = 2;

/// `struct hodo_ftrace_ops`.
#[repr(C)]
struct Ops {
    func: extern "C" fn(c_ulong, c_ulong, &Ops, Option<&mut AtSite>),
    flags: c_ulong,
    data: usize,
}

// Its flags.
const VECTORS: c_ulong = 1;
const SAVE_REGISTERS: c_ulong = 2;
const EVERY_CALL: c_ulong = 16;

static OPS: Ops = Ops {
    func: called,
    flags: VECTORS | SAVE_REGISTERS | EVERY_CALL,
    data: 0,
};

extern "C" fn called(ip: c_ulong, _: c_ulong, _: &Ops, registers: Option<&mut AtSite>) {
    if let (Some(at_site), Some(site)) = (registers, Site::at(ip)) {
        at_site.with(site.next(), |registers| trap::called(ip, registers));
    }
}

/// The library, once it was found.
static FOUND: AtomicPtr<Probing> = AtomicPtr::new(null_mut());

fn found() -> Option<&'static Probing> {
    // SAFETY: a library with thread-local variables that are read without a call is never unloaded.
    unsafe { FOUND.load(Ordering::Acquire).as_ref() }
}

/// Looks for the library.
fn find() -> Option<&'static Probing> {
    let default: *mut c_void = null_mut();
    let place = match (linked(), dlsym()) {
        // SAFETY: it is the C library's function, with the handle for all that is loaded.
        (place, Some(dlsym)) if place.is_null() => unsafe { dlsym(default, NAME.as_ptr()) },
        (place, _) => place.cast_mut(),
    };
    let place = place.cast::<Probing>();
    // SAFETY: whatever has this name begins with a version.
    if place.is_null() || unsafe { (*place).version } != VERSION {
        return None;
    }
    // SAFETY: as above.
    let probing = unsafe { &*place };
    // From here on, neither changes code while the other one does.
    lock::share(probing.lock).ok()?;
    FOUND.store(place, Ordering::Release);
    Some(probing)
}

/// What the engine knows of it.
pub(super) struct Ftrace;
pub(super) static FTRACE: Ftrace = Ftrace;

// SAFETY: (1) all code that is loaded is looked at before; (2) the tracer has the flag by which it misses no call.
unsafe impl CallSites for Ftrace {
    fn update(&self) {
        if let Some(probing) = found().or_else(find) {
            // What could not be written belongs to others.
            (probing.update)();
        }
    }

    fn find(&self, code: Range<u64>) -> Option<CallSite> {
        let mut site = Code::default();
        let is_there = (found()?.reserved)(code.start, code.end, &mut site) == 1;
        is_there.then_some(CallSite {
            code: site.start..site.end,
            has_registers: site.flags & HAS_REGISTERS != 0,
            is_first: site.flags & IS_FIRST != 0,
        })
    }

    fn set(&self, sites: &[u64], on: bool) -> Result<(), String> {
        let Some(probing) = found() else {
            return Err("libhodo_ftrace is gone".into());
        };
        let count = sites.len() as c_ulong;
        // SAFETY: the structure stays, and these are the addresses.
        match unsafe { (probing.set_sites)(&OPS, sites.as_ptr(), count, c_int::from(on)) } {
            0 => Ok(()),
            // SAFETY: it is a text that ends with a zero, of this thread.
            _ => Err(unsafe { CStr::from_ptr((probing.error)()) }
                .to_string_lossy()
                .into_owned()),
        }
    }
}
