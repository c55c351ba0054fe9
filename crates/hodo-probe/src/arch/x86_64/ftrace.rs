//! What is at hand where a call site calls, and how the library with call sites is found.

use core::arch::asm;
use core::ffi::{c_char, c_void};

use super::Registers;

/// `struct hodo_ftrace_registers`.
#[repr(C)]
pub(crate) struct AtSite {
    r15: u64,
    r14: u64,
    r13: u64,
    r12: u64,
    rbp: u64,
    rbx: u64,
    r11: u64,
    r10: u64,
    r9: u64,
    r8: u64,
    rax: u64,
    rcx: u64,
    rdx: u64,
    rsi: u64,
    rdi: u64,
    ip: u64,
    flags: u64,
    rsp: u64,
}

impl AtSite {
    /// Does something with the registers. `next` is the address after the site.
    pub(crate) fn with(&mut self, next: u64, action: impl FnOnce(&mut Registers)) {
        let mut r = Registers {
            rax: self.rax,
            rcx: self.rcx,
            rdx: self.rdx,
            rbx: self.rbx,
            rsp: self.rsp,
            rbp: self.rbp,
            rsi: self.rsi,
            rdi: self.rdi,
            r8: self.r8,
            r9: self.r9,
            r10: self.r10,
            r11: self.r11,
            r12: self.r12,
            r13: self.r13,
            r14: self.r14,
            r15: self.r15,
            flags: self.flags,
            pc: next,
        };
        action(&mut r);
        (self.rax, self.rcx, self.rdx, self.rbx) = (r.rax, r.rcx, r.rdx, r.rbx);
        (self.rsp, self.rbp, self.rsi, self.rdi) = (r.rsp, r.rbp, r.rsi, r.rdi);
        (self.r8, self.r9, self.r10, self.r11) = (r.r8, r.r9, r.r10, r.r11);
        (self.r12, self.r13, self.r14, self.r15) = (r.r12, r.r13, r.r14, r.r15);
        self.flags = r.flags;
        // Another tracer may have changed it before.
        if r.pc != next {
            self.ip = r.pc;
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
        "mov {}, qword ptr [rip + hodo_ftrace_probing@GOTPCREL]",
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
        "mov {}, qword ptr [rip + dlsym@GOTPCREL]",
        out(reg) place, options(pure, readonly, nostack))
    };
    // SAFETY: it is null, or the address of that function.
    unsafe { core::mem::transmute::<*const c_void, Option<Dlsym>>(place) }
}
