//! Calls of the firmware (RISC-V Supervisor Binary Interface Specification 1.0).

use core::arch::asm;

/// Makes a call. The result is the error, 0 if there is none.
fn call(extension: usize, function: usize, args: [usize; 3]) -> isize {
    let error;
    // SAFETY: the firmware changes no other register (chapter 3), and no memory of the kernel.
    unsafe {
        asm!(
            "ecall",
            inlateout("a0") args[0] => error,
            inlateout("a1") args[1] => _,
            in("a2") args[2],
            in("a6") function,
            in("a7") extension,
        );
    }
    error
}

/// Writes a byte to the console.
pub fn put(byte: u8) {
    call(1, 0, [usize::from(byte), 0, 0]);
}

/// Has an interrupt raised in this hart when the clock reaches `time`.
pub fn set_timer(time: u64) {
    call(0x5449_4D45, 0, [time as usize, 0, 0]);
}

/// Raises an interrupt in another hart. Returns whether that was possible.
pub fn interrupt(hart: usize) -> bool {
    call(0x73_5049, 0, [1, hart, 0]) == 0
}

/// Starts a hart at an address. It gets its number in `a0`, and `word` in `a1`.
pub fn start_hart(hart: usize, address: usize, word: usize) -> isize {
    call(0x48_534D, 0, [hart, address, word])
}

/// Turns the machine off.
pub fn power_off() -> ! {
    call(0x5352_5354, 0, [0, 0, 0]);
    loop {
        // SAFETY: it waits for an interrupt.
        unsafe { asm!("wfi") };
    }
}
