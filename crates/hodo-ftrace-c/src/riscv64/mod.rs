//! The data of the calling thread on RISC-V.

#[path = "../unsearched.rs"]
mod unsearched;

use std::arch::asm;

use gimli::constants as dw;
use hodo_ftrace::dynamic::{Entry, TRAMPOLINE_PUSH};
use hodo_isa::InstructionSet;
use hodo_isa::riscv64::Riscv64;

use crate::frames::Frames;
pub(crate) use unsearched::{LONGEST_CALL, may_call};

/// The address of `hodo_ftrace_thread`, which `linux.rs` defines. (RISC-V ELF psABI, "Initial Exec".)
#[inline]
pub(crate) fn thread() -> usize {
    let address;
    // SAFETY: it reads a word that does not change in a thread.
    unsafe {
        asm!(
            "la.tls.ie {0}, hodo_ftrace_thread",
            "add {0}, {0}, tp",
            out(reg) address,
            options(pure, readonly, nostack),
        );
    }
    address
}

/// Its distance from the thread pointer, which is the same in all threads.
pub(crate) fn thread_offset() -> isize {
    let offset;
    // SAFETY: it reads a word that does not change.
    unsafe {
        asm!(
            "la.tls.ie {0}, hodo_ftrace_thread",
            out(reg) offset,
            options(pure, readonly, nostack),
        );
    }
    offset
}

/// Whether code may use registers of the V extension.
pub(crate) fn has_vectors() -> bool {
    // The bit of the letter (Linux, `Documentation/arch/riscv/uabi.rst`).
    const V: u64 = 1 << (b'V' - b'A');
    // SAFETY: it reads what the kernel has given this process.
    (unsafe { libc::getauxval(libc::AT_HWCAP) }) & V != 0
}

/// The options of compilers that put a site at the entry.
pub(crate) const ENTRY_OPTIONS: &str = "-fpatchable-function-entry=4";

/// How instructions are read.
pub(crate) const INSTRUCTIONS: &dyn InstructionSet = &Riscv64;
/// The register that a site at the entry changes, on or off: `t0`.
pub(crate) const CHANGED: Option<u8> = Some(5);
/// How many bytes before a function its room for calls may begin.
pub(crate) const ROOM: u64 = 256;

/// The length of the instruction at the entry that allows calls to land there. There is none.
pub(crate) fn landing(_: &[u8]) -> usize {
    0
}

/// What compilers call.
pub(crate) fn stubs() -> [(usize, Entry); 3] {
    [
        (hodo_ftrace::mcount as *const () as usize, Entry::Framed),
        (hodo_ftrace::_mcount as *const () as usize, Entry::Framed),
        (hodo_ftrace::__mcount as *const () as usize, Entry::Framed),
    ]
}

/// Where the call begins whose last instruction this is: at the `auipc` before a `jalr`.
pub(crate) fn call_start(code: &[u8], last: usize) -> usize {
    const OPCODE: u8 = 0x7F;
    const AUIPC: u8 = 0x17;
    const JALR: u8 = 0x67;
    let opcode = |at: Option<usize>| Some(code.get(at?)? & OPCODE);
    let first = last.checked_sub(4);
    if opcode(Some(last)) == Some(JALR) && opcode(first) == Some(AUIPC) {
        return last - 4;
    }
    last
}

/// The unwind table's rows for a trampoline.
pub(crate) const FRAMES: Frames = Frames {
    code_alignment: 1,
    // `t0`
    return_column: 5,
    // The stack pointer is the frame's end.
    initial: &[dw::DW_CFA_def_cfa.0, 2, 0],
    // After the first instruction, the stack has two words.
    rows: &[
        dw::DW_CFA_advance_loc.0 | TRAMPOLINE_PUSH as u8,
        dw::DW_CFA_def_cfa_offset.0,
        16,
    ],
};

/// Flags in the headers of ELF files: short instructions, and `double` in registers.
pub(crate) const ELF_FLAGS: u32 = 5;

/// The time counter's name in traces.
pub(crate) const COUNTER: &str = "time";

/// The time counter.
#[inline]
pub(crate) fn counter() -> u64 {
    let value;
    // SAFETY: it only reads a counter.
    unsafe { asm!("rdtime {}", out(reg) value, options(nomem, nostack)) };
    value
}

/// The distance from the stack slot of a return address to the stack pointer at the entry, as traces have it.
pub(crate) const STACK_POINTER: usize = 8;

/// The stack pointer that a signal has interrupted, and all general registers with the program counter.
pub(crate) fn interrupted(context: &libc::ucontext_t) -> (usize, [usize; 32]) {
    const SP: usize = 2;
    // The program counter is in the place of `x0`.
    let words = context.uc_mcontext.__gregs.map(|word| word as usize);
    (words[SP], words)
}

/// How many registers the frame tables' rules are about; the last one is the instruction's address. (RISC-V psABI,
/// "DWARF Register Numbers".)
pub(crate) const COLUMNS: usize = 33;
pub(crate) const INSTRUCTION: usize = 32;
pub(crate) const STACK: usize = 2;
/// The register in which calls leave the return address.
pub(crate) const LINK: Option<usize> = Some(1);

/// The registers of [`interrupted`] by the frame tables' numbers.
pub(crate) fn columns(words: &[usize; 32], _: usize) -> [Option<usize>; COLUMNS] {
    let mut columns = [None; COLUMNS];
    for (column, word) in columns.iter_mut().zip(words) {
        *column = Some(*word);
    }
    columns[0] = Some(0);
    columns[INSTRUCTION] = Some(words[0]);
    columns
}

/// `ecall`.
pub(crate) const SYSTEM_CALL: &[u8] = &[0x73, 0, 0, 0];
/// The code to which signal handlers return, whose frame table does not lead on: `li a7, 139; ecall`.
pub(crate) const SIGNAL_RETURN: &[u8] = &[0x93, 0x08, 0xB0, 0x08, 0x73, 0, 0, 0];

/// Where the kernel saves the stack pointer for a signal handler, from the place of the program counter.
pub(crate) const SAVED_STACK: isize = 16;

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
                "mv a4, sp",
                "mv a5, ra",
                "tail {to}",
                ".cfi_endproc",
                to = sym $to,
            )
        }
    };
}
pub(crate) use with_caller;
