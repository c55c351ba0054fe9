//! The processors' own interrupt controllers (Intel SDM, volume 3, chapter 11).

use crate::hart::without_interrupts;
use crate::paging::{self, BASE, DEVICE, R, W};
use crate::port;

/// Where each processor sees its own; and where the kernel does.
const PHYSICAL: u64 = 0xFEE0_0000;
const REGISTERS: usize = 0xFFFF_FFFF_FEE0_0000;
const _: () = assert!(REGISTERS > BASE as usize);

const END: usize = 0xB0;
const SPURIOUS: usize = 0xF0;
const COMMAND: usize = 0x300;
const COMMAND_TO: usize = 0x310;
const TIMER: usize = 0x320;
const TIMER_START: usize = 0x380;
const TIMER_DIVISOR: usize = 0x3E0;

/// Numbers of interrupts.
pub const TIMER_INTERRUPT: usize = 32;
pub const OTHER_INTERRUPT: usize = 33;
pub const SPURIOUS_INTERRUPT: usize = 255;

/// The second processor. qemu numbers them from 0.
pub const SECOND: u32 = 1;

fn write(register: usize, value: u32) {
    // SAFETY: the registers are mapped there.
    unsafe { ((REGISTERS + register) as *mut u32).write_volatile(value) };
}

fn read(register: usize) -> u32 {
    // SAFETY: as above.
    unsafe { ((REGISTERS + register) as *const u32).read_volatile() }
}

/// Maps its registers.
pub fn map() {
    paging::map_physical(REGISTERS, PHYSICAL, R | W | DEVICE);
}

/// Turns it on in this processor.
pub fn turn_on() {
    const ON: u32 = 1 << 8;
    write(SPURIOUS, ON | SPURIOUS_INTERRUPT as u32);
}

/// Says that an interrupt was handled, so that others can come.
pub fn end_interrupt() {
    write(END, 0);
}

/// Makes the timer of this processor interrupt it again and again.
pub fn start_timer(every: u32) {
    const PERIODIC: u32 = 1 << 17;
    const DIVIDE_BY_ONE: u32 = 0xB;
    write(TIMER_DIVISOR, DIVIDE_BY_ONE);
    write(TIMER, PERIODIC | TIMER_INTERRUPT as u32);
    write(TIMER_START, every);
}

fn send(to: u32, what: u32) {
    const IS_PENDING: u32 = 1 << 12;
    without_interrupts(|| {
        write(COMMAND_TO, to << 24);
        write(COMMAND, what);
        while read(COMMAND) & IS_PENDING != 0 {
            core::hint::spin_loop();
        }
    });
}

/// Interrupts another processor.
pub fn interrupt(other: u32) {
    const ASSERT: u32 = 1 << 14;
    send(other, ASSERT | OTHER_INTERRUPT as u32);
}

/// Starts another processor at a page below one MiB, of which this is the number.
pub fn start(other: u32, page: u8) {
    const ASSERT: u32 = 1 << 14;
    const INIT: u32 = 5 << 8;
    const START: u32 = 6 << 8;
    send(other, ASSERT | INIT);
    port::wait(10_000);
    // The second one has no effect if the first one had.
    for _ in 0..2 {
        send(other, ASSERT | START | u32::from(page));
        port::wait(200);
    }
}
