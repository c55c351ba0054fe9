//! Calls of the firmware (Arm Power State Coordination Interface, DEN0022). qemu's machine answers them itself.

use core::arch::asm;

/// Starts a processor at an address, with `word` in `x0`. Returns the error, 0 if there is none.
pub fn start(processor: usize, address: usize, word: usize) -> isize {
    const CPU_ON: usize = 0xC400_0003;
    let error;
    // SAFETY: the firmware changes no other register than these (SMC Calling Convention, section 2.6), and no memory of
    // the kernel.
    unsafe {
        asm!(
            "hvc #0",
            inlateout("x0") CPU_ON => error,
            inlateout("x1") processor => _,
            inlateout("x2") address => _,
            inlateout("x3") word => _,
            lateout("x4") _, lateout("x5") _, lateout("x6") _, lateout("x7") _, lateout("x8") _,
            lateout("x9") _, lateout("x10") _, lateout("x11") _, lateout("x12") _, lateout("x13") _,
            lateout("x14") _, lateout("x15") _, lateout("x16") _, lateout("x17") _,
            options(nostack),
        );
    }
    error
}
