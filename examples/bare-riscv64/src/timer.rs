//! Timer interrupts.

use core::arch::asm;

use crate::{hart, sbi};

/// Between two interrupts: a millisecond of the clock of qemu's machine, which counts ten million times a second.
const INTERVAL: u64 = 10_000;

unsafe extern "C" {
    /// In `traced.c`.
    fn timer_tick(ticks: *mut u64);
}

/// The clock.
pub fn now() -> u64 {
    let now;
    // SAFETY: it only reads.
    unsafe { asm!("rdtime {}", out(reg) now, options(nomem, nostack)) };
    now
}

/// Makes interrupts come.
pub fn start() {
    sbi::set_timer(now() + INTERVAL);
}

/// Handles an interrupt.
pub fn interrupt() {
    start();
    // SAFETY: this hart's own word.
    unsafe { timer_tick(hart::current().ticks.get()) };
}

/// How many interrupts there were in this hart.
pub fn ticks() -> u64 {
    // SAFETY: this hart's own word, which changes only while the hart is interrupted.
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
