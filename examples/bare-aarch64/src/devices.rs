//! Devices of qemu's machine `virt`: the console, the interrupt controller; and the end of qemu.

use core::arch::asm;
use core::ops::Range;

/// Where they are: the parts of the interrupt controller (GICv2) for all processors and for each, and the console
/// (PL011).
const DISTRIBUTOR: usize = 0x0800_0000;
const INTERFACE: usize = 0x0801_0000;
const CONSOLE: usize = 0x0900_0000;

/// What has to be mapped for them.
pub const PLACES: [Range<usize>; 3] = [
    DISTRIBUTOR..DISTRIBUTOR + 0x1000,
    INTERFACE..INTERFACE + 0x2000,
    CONSOLE..CONSOLE + 0x1000,
];

/// The interrupt by which processors ask something of each other, and that of the virtual timer.
pub const OTHER_INTERRUPT: u32 = 0;
pub const TIMER_INTERRUPT: u32 = 27;

fn write(address: usize, value: u32) {
    // SAFETY: the registers named below only have the effects that are meant.
    unsafe { (address as *mut u32).write_volatile(value) };
}

fn read(address: usize) -> u32 {
    // SAFETY: as above.
    unsafe { (address as *const u32).read_volatile() }
}

/// Writes a byte to the console.
pub fn put(byte: u8) {
    const FLAGS: usize = 0x18;
    const IS_FULL: u32 = 1 << 5;
    while read(CONSOLE + FLAGS) & IS_FULL != 0 {
        core::hint::spin_loop();
    }
    write(CONSOLE, u32::from(byte));
}

/// Prepares the part of the interrupt controller for all processors. The first one calls it.
pub fn prepare_interrupts() {
    write(DISTRIBUTOR, 1);
}

/// Lets this processor have both interrupts (GICv2 architecture, chapter 4).
pub fn turn_on_interrupts() {
    const ENABLE: usize = 0x100;
    const LOWEST_PRIORITY: usize = 4;
    write(
        DISTRIBUTOR + ENABLE,
        1 << OTHER_INTERRUPT | 1 << TIMER_INTERRUPT,
    );
    write(INTERFACE + LOWEST_PRIORITY, 0xF0);
    write(INTERFACE, 1);
}

/// Takes an interrupt: its number with that of the processor from which it comes. [`end_interrupt`] wants the same.
pub fn take_interrupt() -> u32 {
    const ACKNOWLEDGE: usize = 0xC;
    read(INTERFACE + ACKNOWLEDGE)
}

/// The number of an interrupt.
pub fn number(taken: u32) -> u32 {
    taken & 0x3FF
}

/// Lets an interrupt come again.
pub fn end_interrupt(taken: u32) {
    const END: usize = 0x10;
    write(INTERFACE + END, taken);
}

/// Interrupts another processor.
pub fn interrupt(index: usize) {
    const SEND: usize = 0xF00;
    // What was written before must be seen by then.
    // SAFETY: it is a barrier.
    unsafe { asm!("dsb ish", options(nostack, preserves_flags)) };
    write(DISTRIBUTOR + SEND, 1 << (16 + index) | OTHER_INTERRUPT);
}

/// Ends qemu with an exit code (Semihosting for AArch32 and AArch64, `SYS_EXIT`).
pub fn power_off(code: usize) -> ! {
    const SYS_EXIT: usize = 0x18;
    const APPLICATION_EXIT: usize = 0x20026;
    let block = [APPLICATION_EXIT, code];
    // SAFETY: qemu reads the block, and does not come back.
    unsafe { asm!("hlt #0xf000", in("x0") SYS_EXIT, in("x1") &raw const block) };
    loop {
        // SAFETY: it waits for an interrupt.
        unsafe { asm!("wfi") };
    }
}
