//! Timer interrupts: those of the virtual timer, which each processor has.

use core::arch::asm;

use crate::hart;

unsafe extern "C" {
    /// In `traced.c`.
    fn timer_tick(ticks: *mut u64);
}

/// Makes an interrupt come in a millisecond. It was none until then, and then is one until this is called again.
pub fn start() {
    // SAFETY: the interrupt has a handler.
    unsafe {
        asm!(
            "mrs {interval}, cntfrq_el0",
            "udiv {interval}, {interval}, {thousand}",
            "msr cntv_tval_el0, {interval}",
            "msr cntv_ctl_el0, {on}",
            "isb",
            interval = out(reg) _,
            thousand = in(reg) 1000_u64,
            on = in(reg) 1_u64,
            options(nostack),
        );
    }
}

/// Handles an interrupt.
pub fn interrupt() {
    start();
    // SAFETY: this processor's own word.
    unsafe { timer_tick(hart::current().ticks.get()) };
}

/// How many interrupts there were in this processor.
pub fn ticks() -> u64 {
    // SAFETY: this processor's own word, which changes only while the processor is interrupted.
    unsafe { hart::current().ticks.get().read_volatile() }
}

/// Waits for some more interrupts.
pub fn wait(count: u64) {
    let until = ticks() + count;
    while ticks() < until {
        // SAFETY: it waits for an interrupt.
        unsafe { asm!("wfi") };
    }
}
