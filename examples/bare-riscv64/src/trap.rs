//! Interrupts and exceptions.

use core::arch::{asm, naked_asm};
use core::sync::atomic::Ordering;

use hodo_probe::Registers;
use hodo_probe::traps::{self, Breakpoint, Cause, Fault};

use crate::{hart, sbi, timer};

/// What is saved when a trap comes. Handlers of probes are given the registers: `x1` to `x31` in the place of their
/// numbers, and in that of `x0` the program counter.
#[repr(C)]
pub struct Frame {
    pub registers: Registers,
    status: u64,
    /// Floating-point registers and `fcsr`. A kernel that never uses them need not save them.
    float: [u64; 33],
}

const _: () = assert!(size_of::<Frame>() == 528 && size_of::<Frame>().is_multiple_of(16));

/// Interrupts, in `scause`.
const SOFTWARE: usize = 1 << 63 | 1;
const TIMER: usize = 1 << 63 | 5;
/// Exceptions, in `scause`.
const ILLEGAL: usize = 2;
const BREAKPOINT: usize = 3;

macro_rules! for_all {
    ($operation:literal) => {
        concat!(
            ".irp n,1,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31\n",
            $operation,
            "\n.endr"
        )
    };
}

macro_rules! for_float {
    ($operation:literal) => {
        concat!(
            ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31\n",
            $operation,
            "\n.endr"
        )
    };
}

/// All traps come here, with interrupts off. Their frames are on the stack that was in use, so that they nest.
#[unsafe(naked)]
#[unsafe(link_section = ".text.trap")]
unsafe extern "C" fn entry() {
    naked_asm!(
        ".option push",
        ".option arch, +d",
        ".balign 4",
        "addi sp, sp, -528",
        for_all!("sd x\\n, 8 * \\n(sp)"),
        "addi t0, sp, 528",
        "sd t0, 16(sp)",
        "csrr t0, sepc",
        "sd t0, 0(sp)",
        "csrr t0, sstatus",
        "sd t0, 256(sp)",
        for_float!("fsd f\\n, 264 + 8 * \\n(sp)"),
        "frcsr t0",
        "sd t0, 520(sp)",
        "mv a0, sp",
        "csrr a1, scause",
        "csrr a2, stval",
        "call {trap}",
        "ld t0, 520(sp)",
        "fscsr t0",
        for_float!("fld f\\n, 264 + 8 * \\n(sp)"),
        "ld t0, 0(sp)",
        "csrw sepc, t0",
        "ld t0, 256(sp)",
        "csrw sstatus, t0",
        for_all!("ld x\\n, 8 * \\n(sp)"),
        "ld sp, 16(sp)",
        "sret",
        ".option pop",
        trap = sym trap,
    )
}

/// Prepares this hart for traps. Interrupts are still off.
pub fn prepare() {
    /// The floating-point registers may be used: `FS` of `sstatus` is "Initial".
    const FLOAT: usize = 1 << 13;
    // SAFETY: the handler is in place.
    unsafe {
        asm!(
            "csrw stvec, {entry}",
            "csrs sstatus, {float}",
            entry = in(reg) entry as *const (),
            float = in(reg) FLOAT,
        );
    }
}

/// Lets interrupts come: those of the timer, and those of other harts.
pub fn turn_on_interrupts() {
    hart::current().online.store(true, Ordering::Release);
    // SAFETY: the handler is in place.
    unsafe { asm!("csrs sie, {}", "csrsi sstatus, 2", in(reg) (1 << 1) | (1 << 5)) };
}

unsafe extern "C" fn trap(frame: &mut Frame, cause: usize, address: usize) {
    let hart = hart::current();
    let passed = Cause {
        number: cause as i32,
        code: 0,
        addr: address as u64,
    };
    match cause {
        SOFTWARE => {
            // SAFETY: it says that this interrupt was taken. It does so before what is waited for is done: otherwise, a
            // new one might be lost.
            unsafe { asm!("csrci sip, 2") };
            hart.answer();
            crate::livepatch::answer(core::ptr::from_mut(frame).addr());
        }
        TIMER => timer::interrupt(),
        BREAKPOINT => match traps::breakpoint(&mut frame.registers) {
            Breakpoint::Handled => {}
            Breakpoint::Foreign | Breakpoint::Faulted(_) => die(frame, cause, address),
        },
        _ => match traps::fault(&mut frame.registers, cause == ILLEGAL, &passed) {
            Fault::Handled => {}
            Fault::Moved(origin) => {
                frame.registers.pc = origin.addr;
                die(frame, cause, address);
            }
            Fault::Foreign => {
                let resume = hart.resume.swap(0, Ordering::Relaxed);
                if resume == 0 {
                    die(frame, cause, address);
                }
                hart.cause.store(cause, Ordering::Relaxed);
                hart.address.store(address, Ordering::Relaxed);
                frame.registers.pc = resume as u64;
            }
        },
    }
}

fn die(frame: &Frame, cause: usize, address: usize) -> ! {
    let hart = hart::current();
    crate::say!(
        "hart {} has trapped: cause {cause}, value {address:#x}",
        hart.index()
    );
    crate::say!("{:#x?}", frame.registers);
    sbi::power_off()
}
