//! Interrupts and exceptions.

use core::arch::{asm, global_asm};
use core::sync::atomic::{AtomicU64, Ordering};

use hodo_probe::Registers;
use hodo_probe::traps::{self, Breakpoint, Cause, Fault};

use crate::boot::{self, CODE, DATA, Pointer};
use crate::{apic, hart, port, timer};

/// Numbers of exceptions (Intel SDM, volume 3, section 6.15).
const BREAKPOINT: usize = 3;
const ILLEGAL: usize = 6;
const DOUBLE_FAULT: usize = 8;
const PAGE_FAULT: usize = 14;

/// Bytes of [`Registers`].
const FRAME: usize = size_of::<Registers>();
const _: () = assert!(FRAME == 144);

// All traps come here, with interrupts off: one piece of 16 bytes for each number. Their frames are on the stack that
// was in use, so that they nest.
//
// The processor has stored five words directly below the stack pointer of the interrupted code, and there is more below
// them. An instruction that is simulated may push to the same place (`call` does). So the words are copied first, and
// others are stored further down for `iretq`.
global_asm!(
    ".pushsection .text.trap, \"ax\"",
    ".balign 16",
    "trap_entries:",
    ".set number, 0",
    ".rept 256",
    ".balign 16",
    // These have an error code already.
    ".if number != 8 && number != 10 && number != 11 && number != 12 && number != 13 && number != 14 && number != 17 && number != 21 && number != 29 && number != 30",
    "push 0",
    ".endif",
    "push number",
    "jmp trap_common",
    ".set number, number + 1",
    ".endr",
    ".balign 16",
    "trap_common:",
    "sub rsp, {frame}",
    "mov [rsp], rax",
    "mov [rsp + 8], rcx",
    "mov [rsp + 16], rdx",
    "mov [rsp + 24], rbx",
    "mov [rsp + 40], rbp",
    "mov [rsp + 48], rsi",
    "mov [rsp + 56], rdi",
    "mov [rsp + 64], r8",
    "mov [rsp + 72], r9",
    "mov [rsp + 80], r10",
    "mov [rsp + 88], r11",
    "mov [rsp + 96], r12",
    "mov [rsp + 104], r13",
    "mov [rsp + 112], r14",
    "mov [rsp + 120], r15",
    "mov rax, [rsp + {frame} + 40]",
    "mov [rsp + 32], rax",
    "mov rax, [rsp + {frame} + 32]",
    "mov [rsp + 128], rax",
    "mov rax, [rsp + {frame} + 16]",
    "mov [rsp + 136], rax",
    "mov rdi, rsp",
    // As the number was sign-extended.
    "movzx esi, byte ptr [rsp + {frame}]",
    "mov rdx, [rsp + {frame} + 8]",
    "mov rbx, rsp",
    // Handlers of interrupts are compiled without these registers, but C functions that they call need not be.
    "sub rsp, 512",
    "and rsp, -16",
    "fxsave64 [rsp]",
    "cld",
    "call {trap}",
    "fxrstor64 [rsp]",
    "lea rsp, [rbx - 40]",
    "mov rax, [rbx + 136]",
    "mov [rsp], rax",
    "mov qword ptr [rsp + 8], {code}",
    "mov rax, [rbx + 128]",
    "mov [rsp + 16], rax",
    "mov rax, [rbx + 32]",
    "mov [rsp + 24], rax",
    "mov qword ptr [rsp + 32], {data}",
    "mov rax, [rbx]",
    "mov rcx, [rbx + 8]",
    "mov rdx, [rbx + 16]",
    "mov rbp, [rbx + 40]",
    "mov rsi, [rbx + 48]",
    "mov rdi, [rbx + 56]",
    "mov r8, [rbx + 64]",
    "mov r9, [rbx + 72]",
    "mov r10, [rbx + 80]",
    "mov r11, [rbx + 88]",
    "mov r12, [rbx + 96]",
    "mov r13, [rbx + 104]",
    "mov r14, [rbx + 112]",
    "mov r15, [rbx + 120]",
    "mov rbx, [rbx + 24]",
    "iretq",
    ".popsection",
    frame = const FRAME,
    code = const CODE,
    data = const DATA,
    trap = sym trap,
);

/// Where interrupts go: two words for each number.
static TABLE: [[AtomicU64; 2]; 256] = [const { [const { AtomicU64::new(0) }; 2] }; 256];

/// Makes the table. Interrupts are off when one of its entries is used.
pub fn prepare_table() {
    /// A present interrupt gate (Intel SDM, volume 3, section 6.14.1).
    const GATE: u64 = 0x8E << 40;
    /// The first stack of the task state.
    const FIRST_STACK: u64 = 1 << 32;
    unsafe extern "C" {
        static trap_entries: u8;
    }
    let entries = (&raw const trap_entries).addr();
    for (number, [low, high]) in TABLE.iter().enumerate() {
        let to = (entries + 16 * number) as u64;
        let stack = if number == DOUBLE_FAULT {
            FIRST_STACK
        } else {
            0
        };
        let word = to & 0xFFFF | (CODE as u64) << 16 | stack | GATE | (to >> 16 & 0xFFFF) << 48;
        low.store(word, Ordering::Relaxed);
        high.store(to >> 32, Ordering::Relaxed);
    }
}

/// Prepares this processor for traps. Interrupts are still off.
pub fn prepare() {
    let pointer = Pointer::to(&TABLE);
    // SAFETY: the table is in place.
    unsafe { asm!("lidt [{}]", in(reg) &raw const pointer, options(nostack, preserves_flags)) };
    boot::load_segments();
    boot::load_task(hart::current());
}

/// Lets interrupts come: those of the timer, and those of other processors.
pub fn turn_on_interrupts() {
    apic::turn_on();
    hart::current().online.store(true, Ordering::Release);
    // SAFETY: the handlers are in place.
    unsafe { asm!("sti") };
}

/// The address whose access was a page fault.
fn fault_address() -> usize {
    let address;
    // SAFETY: it only reads.
    unsafe { asm!("mov {}, cr2", out(reg) address, options(nomem, nostack, preserves_flags)) };
    address
}

unsafe extern "C" fn trap(registers: &mut Registers, number: usize, code: usize) {
    match number {
        apic::TIMER_INTERRUPT => {
            apic::end_interrupt();
            timer::interrupt();
        }
        apic::OTHER_INTERRUPT => {
            // Before what is waited for is done: otherwise, a new one might be lost.
            apic::end_interrupt();
            hart::current().answer();
            crate::livepatch::answer(core::ptr::from_mut(registers).addr());
        }
        apic::SPURIOUS_INTERRUPT => {}
        BREAKPOINT => match traps::breakpoint(registers) {
            Breakpoint::Handled => {}
            Breakpoint::Faulted(cause) => resume(
                registers,
                cause.number as usize,
                cause.code as usize,
                cause.addr as usize,
            ),
            Breakpoint::Foreign => die(registers, number, code, 0),
        },
        DOUBLE_FAULT => die(registers, number, code, 0),
        _ => {
            let address = if number == PAGE_FAULT {
                fault_address()
            } else {
                0
            };
            let cause = Cause {
                number: number as i32,
                code: code as i32,
                addr: address as u64,
            };
            match traps::fault(registers, number == ILLEGAL, &cause) {
                Fault::Handled => {}
                Fault::Moved(origin) => {
                    registers.pc = origin.addr;
                    registers.rsp = registers.rsp.wrapping_add_signed(origin.pushed);
                    resume(registers, number, code, address);
                }
                Fault::Foreign => resume(registers, number, code, address),
            }
        }
    }
}

/// Goes on elsewhere after a fault, if the code that has faulted expects that.
fn resume(registers: &mut Registers, number: usize, code: usize, address: usize) {
    let hart = hart::current();
    let to = hart.resume.swap(0, Ordering::Relaxed);
    if to == 0 {
        die(registers, number, code, address);
    }
    hart.cause.store(number, Ordering::Relaxed);
    hart.code.store(code, Ordering::Relaxed);
    hart.address.store(address, Ordering::Relaxed);
    registers.pc = to as u64;
}

fn die(registers: &Registers, number: usize, code: usize, address: usize) -> ! {
    let hart = hart::current();
    crate::say!(
        "processor {} has trapped: exception {number}, error code {code:#x}, address {address:#x}",
        hart.index()
    );
    crate::say!("{registers:#x?}");
    port::power_off(false)
}
