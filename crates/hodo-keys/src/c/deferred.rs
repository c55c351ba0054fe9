//! Deferred keys of C programs.

use core::ffi::{c_char, c_int, c_void};
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;

use super::answer;
use crate::deferred::Deferred;

/// `struct hodo_key_deferred`.
#[repr(C)]
#[derive(Debug)]
pub struct CDeferred {
    deferred: Deferred,
    /// Whether its file stays mapped.
    kept: AtomicU32,
}

const _: () = assert!(size_of::<CDeferred>() == 56 && align_of::<CDeferred>() == 8);

/// `Dl_info`.
#[repr(C)]
struct Info {
    name: *const c_char,
    base: *mut c_void,
    symbol: *const c_char,
    address: *mut c_void,
}

type Dladdr = unsafe extern "C" fn(*const c_void, *mut Info) -> c_int;
type Dlopen = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;

/// The two functions, if the program has them.
#[repr(C)]
struct Dl {
    dladdr: Option<Dladdr>,
    dlopen: Option<Dlopen>,
}

const RTLD_LAZY: c_int = 1;
const RTLD_NOLOAD: c_int = 4;
const RTLD_NODELETE: c_int = 0x1000;

// Static programs have no libraries to keep. Weak references to these functions do not bring the dynamic linker into
// them.
core::arch::global_asm!(
    ".weak dladdr",
    ".weak dlopen",
    ".pushsection .data.rel.ro.hodo_keys_dl,\"aw\",@progbits",
    ".balign 8",
    ".globl __hodo_keys_dl",
    ".hidden __hodo_keys_dl",
    ".type __hodo_keys_dl, @object",
    "__hodo_keys_dl:",
    ".8byte dladdr, dlopen",
    ".size __hodo_keys_dl, 16",
    ".popsection",
);

unsafe extern "C" {
    #[link_name = "__hodo_keys_dl"]
    static DL: Dl;
}

impl CDeferred {
    /// Has the file with this structure stay mapped: the thread that watches delays may look at it at any time.
    fn keep(&'static self) {
        if self.kept.swap(1, Ordering::Relaxed) != 0 {
            return;
        }
        // SAFETY: these are the functions of that name, or nothing.
        let (Some(dladdr), Some(dlopen)) = (unsafe { (DL.dladdr, DL.dlopen) }) else {
            return;
        };
        let mut info = Info {
            name: core::ptr::null(),
            base: core::ptr::null_mut(),
            symbol: core::ptr::null(),
            address: core::ptr::null_mut(),
        };
        // SAFETY: the functions are called as documented. The handle is not closed, which keeps the file as well.
        unsafe {
            if dladdr(core::ptr::from_ref(self).cast(), &raw mut info) != 0 && !info.name.is_null()
            {
                dlopen(info.name, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
            }
        }
    }
}

/// Adds a user.
#[unsafe(no_mangle)]
pub extern "C" fn hodo_key_deferred_inc(deferred: &'static CDeferred) -> c_int {
    deferred.keep();
    answer(deferred.deferred.inc())
}

/// Removes a user.
#[unsafe(no_mangle)]
pub extern "C" fn hodo_key_deferred_dec(deferred: &'static CDeferred) -> c_int {
    deferred.keep();
    answer(deferred.deferred.dec())
}

/// Releases the key now, if it has no user.
#[unsafe(no_mangle)]
pub extern "C" fn hodo_key_deferred_flush(deferred: &'static CDeferred) -> c_int {
    answer(deferred.deferred.flush())
}

/// Changes the delay.
#[unsafe(no_mangle)]
pub extern "C" fn hodo_key_deferred_set_delay(deferred: &CDeferred, nanoseconds: u64) {
    let delay = Duration::from_nanos(nanoseconds);
    deferred.deferred.set_delay(delay);
}

/// How many users there are.
#[unsafe(no_mangle)]
pub extern "C" fn hodo_key_deferred_users(deferred: &CDeferred) -> u32 {
    deferred.deferred.users()
}

/// Whether the key is held without a user.
#[unsafe(no_mangle)]
pub extern "C" fn hodo_key_deferred_is_lingering(deferred: &CDeferred) -> c_int {
    deferred.deferred.is_lingering().into()
}
