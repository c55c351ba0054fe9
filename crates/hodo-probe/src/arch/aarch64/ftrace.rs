//! What is at hand where a call site calls, and how the library with call sites is found.

use core::arch::asm;
use core::ffi::{c_char, c_void};

use super::Registers;

/// `struct hodo_ftrace_registers`.
#[repr(C)]
pub(crate) struct AtSite {
    ip: u64,
    x: [u64; 31],
    sp: u64,
}

impl AtSite {
    /// Does something with the registers. `next` is the address after the site.
    pub(crate) fn with(&mut self, next: u64, action: impl FnOnce(&mut Registers)) {
        let mut registers = Registers {
            x: self.x,
            sp: self.sp,
            pc: next,
            pstate: 0,
        };
        action(&mut registers);
        self.x = registers.x;
        // Another tracer may have changed it before.
        if registers.pc != next {
            self.ip = registers.pc;
        }
    }
}

/// The type of the C library's `dlsym`.
type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// The variable of `libhodo_ftrace`, if the program was linked with it; otherwise null.
pub(crate) fn linked() -> *const c_void {
    let place;
    // SAFETY: the linker has put the address, or 0, there.
    unsafe {
        asm!(
        ".weak hodo_ftrace_probing",
        "adrp {0}, :got:hodo_ftrace_probing",
        "ldr {0}, [{0}, :got_lo12:hodo_ftrace_probing]",
        out(reg) place, options(pure, readonly, nostack))
    };
    place
}

/// The C library's `dlsym`, if the program has one.
pub(crate) fn dlsym() -> Option<Dlsym> {
    let place: *const c_void;
    // SAFETY: as above.
    unsafe {
        asm!(
        ".weak dlsym",
        "adrp {0}, :got:dlsym",
        "ldr {0}, [{0}, :got_lo12:dlsym]",
        out(reg) place, options(pure, readonly, nostack))
    };
    // SAFETY: it is null, or the address of that function.
    unsafe { core::mem::transmute::<*const c_void, Option<Dlsym>>(place) }
}
