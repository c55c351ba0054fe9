//! Timer interrupts.

use core::arch::asm;

use crate::{apic, hart};

/// Between two interrupts: a millisecond of qemu's clock for them, which counts nanoseconds.
const INTERVAL: u32 = 1_000_000;

unsafe extern "C" {
    /// In `traced.c`.
    fn timer_tick(ticks: *mut u64);
}

/// Makes interrupts come.
pub fn start() {
    apic::start_timer(INTERVAL);
}

/// Handles an interrupt.
pub fn interrupt() {
    // SAFETY: this processor's own word.
    unsafe { timer_tick(hart::current().ticks.get()) };
}

/// How many interrupts there were in this processor.
pub fn ticks() -> u64 {
    // SAFETY: this processor's own word, which changes only while it is interrupted.
    unsafe { hart::current().ticks.get().read_volatile() }
}

/// Waits for some more interrupts.
pub fn wait(count: u64) {
    let until = ticks() + count;
    while ticks() < until {
        // SAFETY: it waits for an interrupt.
        unsafe { asm!("hlt") };
    }
}
