//! Interrupts and exceptions.

use core::arch::{asm, global_asm};
use core::mem::offset_of;
use core::sync::atomic::Ordering;

use hodo_probe::Registers;
use hodo_probe::traps::{self, Breakpoint, Cause, Fault};

use crate::{devices, hart, timer};

/// What is saved when a trap comes.
#[repr(C)]
struct Frame {
    registers: Registers,
    /// `fpcr` and `fpsr`, and the vector registers. Handlers of interrupts are compiled without them, but C functions
    /// that they call need not be.
    status: [u64; 2],
    vectors: [u128; 32],
}

/// Bytes of it.
const FRAME: usize = size_of::<Frame>();
const _: () = assert!(FRAME == 800 && FRAME.is_multiple_of(16));

/// Classes of exceptions (Arm Architecture Reference Manual, `ESR_EL1`).
const ILLEGAL: usize = 0;
pub const BRANCH_TARGET: usize = 0x0D;
pub const INSTRUCTION_ABORT: usize = 0x21;
pub const DATA_ABORT: usize = 0x25;
const BREAKPOINT: usize = 0x3C;

/// The bits of the processor's state that say which kind of branch came to the instruction. In guarded pages, only an
/// instruction that says so may follow one.
const BRANCH_TYPE: u64 = 0xC00;

// All traps come here, with interrupts off: to one of sixteen pieces of 128 bytes, by kind and origin. Those from EL1
// with its own stack pointer are the fifth to the eighth. Their frames are on the stack that was in use, so that they
// nest.
global_asm!(
    // The rest of the kernel does without these registers.
    ".arch_extension fp",
    ".arch_extension simd",
    ".pushsection .text.trap, \"ax\"",
    ".balign 2048",
    // Another unit of the compilation may name it.
    ".globl trap_entries",
    "trap_entries:",
    ".set number, 0",
    ".rept 16",
    ".balign 128",
    "sub sp, sp, #{frame}",
    "stp x0, x1, [sp]",
    "mov x1, #number",
    "b trap_common",
    ".set number, number + 1",
    ".endr",
    ".balign 128",
    "trap_common:",
    ".irp n,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29",
    "str x\\n, [sp, #8 * \\n]",
    ".endr",
    "add x2, sp, #{frame}",
    "stp x30, x2, [sp, #8 * 30]",
    "mrs x2, elr_el1",
    "mrs x3, spsr_el1",
    "stp x2, x3, [sp, #{pc}]",
    "mrs x2, fpcr",
    "mrs x3, fpsr",
    "stp x2, x3, [sp, #{status}]",
    ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
    "str q\\n, [sp, #{vectors} + 16 * \\n]",
    ".endr",
    "mov x0, sp",
    "mrs x2, esr_el1",
    "mrs x3, far_el1",
    "bl {trap}",
    ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
    "ldr q\\n, [sp, #{vectors} + 16 * \\n]",
    ".endr",
    "ldp x2, x3, [sp, #{status}]",
    "msr fpcr, x2",
    "msr fpsr, x3",
    "ldp x2, x3, [sp, #{pc}]",
    "msr elr_el1, x2",
    "msr spsr_el1, x3",
    // Whatever the stack pointer is to be, nothing is written before the trap ends.
    "mov x0, sp",
    "ldp x30, x1, [x0, #8 * 30]",
    "mov sp, x1",
    ".irp n,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29",
    "ldr x\\n, [x0, #8 * \\n]",
    ".endr",
    "ldp x0, x1, [x0]",
    "eret",
    ".popsection",
    frame = const FRAME,
    pc = const offset_of!(Registers, pc),
    status = const offset_of!(Frame, status),
    vectors = const offset_of!(Frame, vectors),
    trap = sym trap,
);

/// Prepares this processor for traps. Interrupts are still off.
pub fn prepare() {
    unsafe extern "C" {
        static trap_entries: u8;
    }
    // SAFETY: the handler is in place.
    unsafe { asm!("msr vbar_el1, {}", "isb", in(reg) &raw const trap_entries, options(nostack)) };
}

/// Lets interrupts come: those of the timer, and those of other processors.
pub fn turn_on_interrupts() {
    devices::turn_on_interrupts();
    hart::current().online.store(true, Ordering::Release);
    // SAFETY: the handler is in place.
    unsafe { asm!("msr daifclr, #2", options(nostack)) };
}

unsafe extern "C" fn trap(frame: &mut Frame, entry: usize, syndrome: usize, address: usize) {
    const SYNCHRONOUS: usize = 4;
    const INTERRUPT: usize = 5;
    let pc = frame.registers.pc;
    match entry {
        INTERRUPT => interrupt(frame),
        SYNCHRONOUS => exception(frame, syndrome, address),
        _ => die(frame, entry, syndrome, address),
    }
    if frame.registers.pc != pc {
        frame.registers.pstate &= !BRANCH_TYPE;
    }
}

fn interrupt(frame: &Frame) {
    const NONE: u32 = 1020;
    let taken = devices::take_interrupt();
    match devices::number(taken) {
        devices::TIMER_INTERRUPT => {
            timer::interrupt();
            devices::end_interrupt(taken);
        }
        devices::OTHER_INTERRUPT => {
            // Before what is waited for is done: otherwise, a new one might be lost.
            devices::end_interrupt(taken);
            hart::current().answer();
            crate::livepatch::answer(core::ptr::from_ref(frame).addr());
        }
        NONE.. => {}
        other => panic!("interrupt {other} was not asked for"),
    }
}

fn exception(frame: &mut Frame, syndrome: usize, address: usize) {
    let class = syndrome >> 26 & 0x3F;
    let cause = Cause {
        number: class as i32,
        code: (syndrome & 0x1FF_FFFF) as i32,
        addr: address as u64,
    };
    if class == BREAKPOINT {
        match traps::breakpoint(&mut frame.registers) {
            Breakpoint::Handled => {}
            Breakpoint::Foreign | Breakpoint::Faulted(_) => die(frame, 4, syndrome, address),
        }
        return;
    }
    match traps::fault(&mut frame.registers, class == ILLEGAL, &cause) {
        Fault::Handled => {}
        Fault::Moved(origin) => {
            frame.registers.pc = origin.addr;
            die(frame, 4, syndrome, address);
        }
        Fault::Foreign => {
            let hart = hart::current();
            let resume = hart.resume.swap(0, Ordering::Relaxed);
            if resume == 0 {
                die(frame, 4, syndrome, address);
            }
            hart.cause.store(class, Ordering::Relaxed);
            hart.address.store(address, Ordering::Relaxed);
            frame.registers.pc = resume as u64;
        }
    }
}

fn die(frame: &Frame, entry: usize, syndrome: usize, address: usize) -> ! {
    crate::say!(
        "processor {} has trapped: entry {entry}, syndrome {syndrome:#x}, address {address:#x}",
        hart::current().index()
    );
    crate::say!("{:#x?}", frame.registers);
    devices::power_off(1)
}
