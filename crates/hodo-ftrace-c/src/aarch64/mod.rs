//! The data of the calling thread on AArch64.

#[path = "../unsearched.rs"]
mod unsearched;

use std::arch::asm;

use gimli::constants as dw;
use hodo_ftrace::dynamic::Entry;
use hodo_isa::InstructionSet;
use hodo_isa::aarch64::Aarch64;

use crate::frames::Frames;
pub(crate) use unsearched::{LONGEST_CALL, may_call};

/// The address of `hodo_ftrace_thread`, which `linux.rs` defines.
#[inline]
pub(crate) fn thread() -> usize {
    let pointer: usize;
    // SAFETY: it reads a register that does not change in a thread.
    unsafe {
        asm!("mrs {}, tpidr_el0", out(reg) pointer, options(pure, nomem, nostack, preserves_flags));
    }
    pointer.wrapping_add_signed(thread_offset())
}

/// Its distance from the thread pointer, which is the same in all threads. (Arm, "ELF for the Arm 64-bit Architecture",
/// initial exec.)
#[inline]
pub(crate) fn thread_offset() -> isize {
    let offset;
    // SAFETY: it reads a word that does not change.
    unsafe {
        asm!(
            "adrp {0}, :gottprel:hodo_ftrace_thread",
            "ldr {0}, [{0}, :gottprel_lo12:hodo_ftrace_thread]",
            out(reg) offset,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    offset
}

/// Whether code may use SVE's registers.
pub(crate) fn has_vectors() -> bool {
    // Linux, `Documentation/arch/arm64/elf_hwcaps.rst`.
    const SVE: u64 = 1 << 22;
    // SAFETY: it reads what the kernel has given this process.
    (unsafe { libc::getauxval(libc::AT_HWCAP) }) & SVE != 0
}

/// The options of compilers that put a site at the entry.
pub(crate) const ENTRY_OPTIONS: &str = "-fpatchable-function-entry=2";

/// How instructions are read.
pub(crate) const INSTRUCTIONS: &dyn InstructionSet = &Aarch64;
/// The register that a site at the entry changes, on or off: `x9`.
pub(crate) const CHANGED: Option<u8> = Some(9);
/// How many bytes before a function its room for calls may begin.
pub(crate) const ROOM: u64 = 256;

/// The length of the instruction at the entry that allows calls to land there: `bti`, or `paciasp`.
pub(crate) fn landing(code: &[u8]) -> usize {
    const BTI: [[u8; 4]; 5] = [
        [0x5F, 0x24, 0x03, 0xD5],
        [0x9F, 0x24, 0x03, 0xD5],
        [0xDF, 0x24, 0x03, 0xD5],
        [0x3F, 0x23, 0x03, 0xD5],
        [0x7F, 0x23, 0x03, 0xD5],
    ];
    let is_it = BTI.iter().any(|landing| landing == code);
    if is_it { 4 } else { 0 }
}

/// What compilers call.
pub(crate) fn stubs() -> [(usize, Entry); 3] {
    [
        (hodo_ftrace::mcount as *const () as usize, Entry::Framed),
        (hodo_ftrace::_mcount as *const () as usize, Entry::Framed),
        (hodo_ftrace::__mcount as *const () as usize, Entry::Framed),
    ]
}

/// Where the call begins whose last instruction this is.
pub(crate) fn call_start(_: &[u8], last: usize) -> usize {
    last
}

/// The unwind table's rows for a trampoline.
pub(crate) const FRAMES: Frames = Frames {
    code_alignment: 1,
    // `x17`: see `first` in `callers.rs`.
    return_column: 17,
    // The stack pointer is the frame's end; `x17` is in `x30`, and `x30` in `x9`.
    initial: &[
        dw::DW_CFA_def_cfa.0,
        31,
        0,
        dw::DW_CFA_register.0,
        17,
        30,
        dw::DW_CFA_register.0,
        30,
        9,
    ],
    rows: &[],
};

/// Flags in the headers of ELF files. There are none.
pub(crate) const ELF_FLAGS: u32 = 0;

/// The time counter's name in traces.
pub(crate) const COUNTER: &str = "time";

/// The time counter.
#[inline]
pub(crate) fn counter() -> u64 {
    let value;
    // SAFETY: it only reads a counter.
    unsafe { asm!("mrs {}, cntvct_el0", out(reg) value, options(nomem, nostack)) };
    value
}

/// The distance from the stack slot of a return address to the stack pointer at the entry, as traces have it.
pub(crate) const STACK_POINTER: usize = 8;

/// The stack pointer that a signal has interrupted, and all general registers with the program counter.
pub(crate) fn interrupted(context: &libc::ucontext_t) -> (usize, [usize; 32]) {
    let machine = &context.uc_mcontext;
    let pc = machine.pc as usize;
    let words = std::array::from_fn(|at| machine.regs.get(at).map_or(pc, |word| *word as usize));
    (machine.sp as usize, words)
}

/// How many registers the frame tables' rules are about; the last one is the instruction's address. (Arm, "DWARF for
/// the Arm 64-bit Architecture", section 4.1.)
pub(crate) const COLUMNS: usize = 33;
pub(crate) const INSTRUCTION: usize = 32;
pub(crate) const STACK: usize = 31;
/// The register in which calls leave the return address.
pub(crate) const LINK: Option<usize> = Some(30);

/// The registers of [`interrupted`] by the frame tables' numbers.
pub(crate) fn columns(words: &[usize; 32], stack: usize) -> [Option<usize>; COLUMNS] {
    let mut columns = [None; COLUMNS];
    for (column, word) in columns.iter_mut().zip(words) {
        *column = Some(*word);
    }
    // The last word is the program counter.
    columns[INSTRUCTION] = Some(words[31]);
    columns[STACK] = Some(stack);
    columns
}

/// `svc #0`.
pub(crate) const SYSTEM_CALL: &[u8] = &[1, 0, 0, 0xD4];
/// The code to which signal handlers return, whose frame table does not lead on: `mov x8, #139; svc #0`.
pub(crate) const SIGNAL_RETURN: &[u8] = &[0x68, 0x11, 0x80, 0xD2, 1, 0, 0, 0xD4];

/// Where the kernel saves the stack pointer for a signal handler, from the place of the program counter.
pub(crate) const SAVED_STACK: isize = -8;

/// Defines a function of the C interface that passes on where it was called: the stack pointer and the return address
/// become the fifth and sixth argument.
macro_rules! with_caller {
    ($name:ident, $to:ident) => {
        /// See the header.
        ///
        /// # Safety
        /// As for what it calls.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            std::arch::naked_asm!(
                ".cfi_startproc",
                "hint 34",
                "mov x4, sp",
                "mov x5, x30",
                "b {to}",
                ".cfi_endproc",
                to = sym $to,
            )
        }
    };
}
pub(crate) use with_caller;
