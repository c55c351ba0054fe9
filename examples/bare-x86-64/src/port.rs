//! Ports, and what is reached through them: the serial line, and the end.

use core::arch::asm;

/// Writes a byte to a port.
fn write(port: u16, byte: u8) {
    // SAFETY: the ports below only have the effects that are meant.
    unsafe {
        asm!("out dx, al", in("dx") port, in("al") byte, options(nomem, nostack, preserves_flags))
    };
}

fn read(port: u16) -> u8 {
    let byte;
    // SAFETY: as above.
    unsafe {
        asm!("in al, dx", in("dx") port, out("al") byte, options(nomem, nostack, preserves_flags));
    }
    byte
}

/// The first serial line: a 16550.
const SERIAL: u16 = 0x3F8;

/// Prepares the serial line: 115,200 bits a second, eight bits, no parity; no interrupts.
pub fn prepare_serial() {
    const SPEED_FOLLOWS: u8 = 0x80;
    const EIGHT_BITS: u8 = 3;
    for (register, value) in [
        (1, 0),
        (3, SPEED_FOLLOWS),
        (0, 1),
        (1, 0),
        (3, EIGHT_BITS),
        // Its queues are on, and empty.
        (2, 7),
    ] {
        write(SERIAL + register, value);
    }
}

/// Writes a byte to the console.
pub fn put(byte: u8) {
    const IS_READY: u8 = 0x20;
    while read(SERIAL + 5) & IS_READY == 0 {
        core::hint::spin_loop();
    }
    write(SERIAL, byte);
}

/// Silences the old interrupt controllers: interrupts come from the processors' own.
pub fn silence_old_interrupts() {
    write(0x21, 0xFF);
    write(0xA1, 0xFF);
}

/// Waits for about that many microseconds: a write to this port takes one on the bus of old machines, and emulators are
/// slower.
pub fn wait(microseconds: usize) {
    (0..microseconds).for_each(|_| write(0x80, 0));
}

/// Ends qemu by its device `isa-debug-exit`. Its exit code is twice the number and one: 33 if all went well.
pub fn power_off(is_well: bool) -> ! {
    write(0xF4, if is_well { 16 } else { 17 });
    loop {
        // SAFETY: it waits for an interrupt.
        unsafe { asm!("hlt") };
    }
}
