//! Accesses the program's memory when an instruction is simulated. A fault there is reported as the program's own, not
//! the engine's.

use core::arch::global_asm;
use core::sync::atomic::Ordering;

use hodo_isa::native::simulate::{Fault, Memory};

use super::{Registers, common};
use crate::cause::Cause;
use crate::layout::Thread;

// Copies rdx bytes from rsi to rdi. Returns 1 if that faulted.
global_asm!(
    r#"
    .pushsection .text.hodo_engine_copy,"ax",@progbits
    .hidden hodo_engine_copy
    .globl hodo_engine_copy
    .hidden hodo_engine_copy_faulted
    .globl hodo_engine_copy_faulted
    .type hodo_engine_copy,@function
hodo_engine_copy:
    mov rcx, rdx
    cmp rcx, 8
    jne 2f
    mov rax, [rsi]
    mov [rdi], rax
    xor eax, eax
    ret
2:  rep movsb
    xor eax, eax
    ret
hodo_engine_copy_faulted:
    mov eax, 1
    ret
    .size hodo_engine_copy, . - hodo_engine_copy
    .popsection
    "#
);

unsafe extern "C" {
    fn hodo_engine_copy(to: u64, from: u64, size: usize) -> u32;
    fn hodo_engine_copy_faulted();
}

/// Returns whether a fault came from the copy above, and if so makes the copy return.
pub(crate) fn faulted(cause: &Cause, registers: &mut Registers) -> bool {
    if !is_copy(registers.pc) {
        return false;
    }
    // SAFETY: the pointer is null or points into the table.
    let thread: Option<&Thread> = unsafe { common::thread_pointer().as_ref() };
    if let Some(thread) = thread {
        let values = [cause.number as u64, cause.code as u64, cause.addr];
        for (place, value) in thread.fault.iter().zip(values) {
            place.store(value, Ordering::Relaxed);
        }
    }
    registers.pc = hodo_engine_copy_faulted as *const () as u64;
    true
}

/// Returns whether an address is in that copy.
pub(super) fn is_copy(addr: u64) -> bool {
    let range = hodo_engine_copy as *const () as u64..hodo_engine_copy_faulted as *const () as u64;
    range.contains(&addr)
}

/// The program's memory.
pub(super) struct Own;

impl Memory for Own {
    fn read(&mut self, addr: u64, into: &mut [u8]) -> Result<(), Fault> {
        // SAFETY: the target is ours; reading the program's memory changes nothing, and faults are caught.
        match unsafe { hodo_engine_copy(into.as_mut_ptr() as u64, addr, into.len()) } {
            0 => Ok(()),
            _ => Err(Fault),
        }
    }

    fn write(&mut self, addr: u64, from: &[u8]) -> Result<(), Fault> {
        // SAFETY: the program's own instruction would do the same, and faults are caught.
        match unsafe { hodo_engine_copy(addr, from.as_ptr() as u64, from.len()) } {
            0 => Ok(()),
            _ => Err(Fault),
        }
    }
}
