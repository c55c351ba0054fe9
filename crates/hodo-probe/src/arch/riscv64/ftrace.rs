//! What is at hand where a call site calls, and how the library with call sites is found.

use core::arch::asm;
use core::ffi::{c_char, c_void};

use super::Registers;

/// `struct hodo_ftrace_registers`: `pc`, and all 32 registers.
#[repr(C)]
pub(crate) struct AtSite {
    ip: u64,
    x: [u64; 32],
}

impl AtSite {
    /// Does something with the registers. `next` is the address after the site.
    pub(crate) fn with(&mut self, next: u64, action: impl FnOnce(&mut Registers)) {
        let mut registers = Registers::default();
        let words = registers.words_mut();
        words[1..].copy_from_slice(&self.x[1..]);
        words[0] = next;
        action(&mut registers);
        self.x[1..].copy_from_slice(&registers.words()[1..]);
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
        "27: auipc {0}, %got_pcrel_hi(hodo_ftrace_probing)",
        "ld {0}, %pcrel_lo(27b)({0})",
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
        "27: auipc {0}, %got_pcrel_hi(dlsym)",
        "ld {0}, %pcrel_lo(27b)({0})",
        out(reg) place, options(pure, readonly, nostack))
    };
    // SAFETY: it is null, or the address of that function.
    unsafe { core::mem::transmute::<*const c_void, Option<Dlsym>>(place) }
}
