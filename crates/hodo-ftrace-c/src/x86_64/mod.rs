//! The data of the calling thread on x86-64.

use std::arch::asm;

use gimli::constants as dw;
use hodo_ftrace::dynamic::{Entry, TRAMPOLINE_PUSH};
use hodo_isa::InstructionSet;
use hodo_isa::x86_64::X86_64;

use crate::frames::Frames;

/// The address of `hodo_ftrace_thread`, which `linux.rs` defines. (ELF Handling For Thread-Local Storage, section
/// 4.4.6: the initial-exec model.) No function is called, and no vector register is used.
#[inline]
pub(crate) fn thread() -> usize {
    let address;
    // SAFETY: it reads two words that do not change in a thread.
    unsafe {
        asm!(
            "mov {0}, fs:0",
            "add {0}, [rip + hodo_ftrace_thread@GOTTPOFF]",
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
            "mov {0}, [rip + hodo_ftrace_thread@GOTTPOFF]",
            out(reg) offset,
            options(pure, readonly, nostack),
        );
    }
    offset
}

/// Whether code may use vector registers: the library finds that out itself.
pub(crate) fn has_vectors() -> bool {
    true
}

/// Returns whether code may have a call of a function in the same file, or through a slot: any bytes that look like
/// one.
pub(crate) fn may_call(
    code: &[u8],
    at: usize,
    is_called: impl Fn(usize) -> bool,
    has_slots: bool,
    is_slot: impl Fn(usize) -> bool,
) -> bool {
    const CALL: u8 = 0xE8;
    const INDIRECT: u8 = 0xFF;
    let is_it = |place: usize| {
        let to = |end: usize, distance: [u8; 4]| {
            (at + place + end).wrapping_add_signed(i32::from_le_bytes(distance) as isize)
        };
        match code[place..] {
            [CALL, a, b, c, d, ..] => is_called(to(5, [a, b, c, d])),
            [INDIRECT, 0x15, a, b, c, d, ..] => is_slot(to(6, [a, b, c, d])),
            _ => false,
        }
    };
    match has_slots {
        true => memchr::memchr2_iter(CALL, INDIRECT, code).any(is_it),
        false => memchr::memchr_iter(CALL, code).any(is_it),
    }
}

/// How many bytes the longest of these calls has.
pub(crate) const LONGEST_CALL: usize = 6;

/// The options of compilers that put a site at the entry.
pub(crate) const ENTRY_OPTIONS: &str = "-mfentry or -fpatchable-function-entry=5";

/// How instructions are read.
pub(crate) const INSTRUCTIONS: &dyn InstructionSet = &X86_64;
/// The register that a site at the entry changes. There is none: all are restored.
pub(crate) const CHANGED: Option<u8> = None;
/// How many bytes before a function its room for calls may begin.
pub(crate) const ROOM: u64 = 256;

/// The length of the instruction at the entry that allows calls to land there, `endbr64`.
pub(crate) fn landing(code: &[u8]) -> usize {
    if code == [0xF3, 0x0F, 0x1E, 0xFA] {
        4
    } else {
        0
    }
}

/// What compilers call.
pub(crate) fn stubs() -> [(usize, Entry); 4] {
    [
        (hodo_ftrace::mcount as *const () as usize, Entry::Framed),
        (hodo_ftrace::_mcount as *const () as usize, Entry::Framed),
        (hodo_ftrace::__mcount as *const () as usize, Entry::Framed),
        (hodo_ftrace::__fentry__ as *const () as usize, Entry::First),
    ]
}

/// Where the call begins whose last instruction this is.
pub(crate) fn call_start(_: &[u8], last: usize) -> usize {
    last
}

/// The unwind table's rows for a trampoline.
pub(crate) const FRAMES: Frames = Frames {
    code_alignment: 1,
    return_column: 16,
    // The stack pointer is 8 below the frame's end, and the return address is there.
    initial: &[dw::DW_CFA_def_cfa.0, 7, 8, dw::DW_CFA_offset.0 | 16, 1],
    // After the first instruction, the stack has `rax`.
    rows: &[
        dw::DW_CFA_advance_loc.0 | TRAMPOLINE_PUSH as u8,
        dw::DW_CFA_def_cfa_offset.0,
        16,
        dw::DW_CFA_offset.0,
        2,
    ],
};

/// Flags in the headers of ELF files. There are none.
pub(crate) const ELF_FLAGS: u32 = 0;

/// The time counter's name in traces.
pub(crate) const COUNTER: &str = "tsc";

/// The time counter.
#[inline]
pub(crate) fn counter() -> u64 {
    // SAFETY: it only reads a counter.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// The distance from the stack slot of a return address to the stack pointer at the entry, as traces have it.
pub(crate) const STACK_POINTER: usize = 0;

/// The stack pointer that a signal has interrupted, and all general registers with the program counter.
pub(crate) fn interrupted(context: &libc::ucontext_t) -> (usize, [usize; 17]) {
    let registers = &context.uc_mcontext.gregs;
    let words = std::array::from_fn(|at| registers[at] as usize);
    (registers[libc::REG_RSP as usize] as usize, words)
}
// The registers are the first ones, and the program counter follows.
const _: () = assert!(libc::REG_RIP == 16);

/// How many registers the frame tables' rules are about; the last one is the instruction's address. (System V ABI,
/// AMD64 supplement, figure 3.36.)
pub(crate) const COLUMNS: usize = 17;
pub(crate) const INSTRUCTION: usize = 16;
pub(crate) const STACK: usize = 7;
/// The register in which calls leave the return address. They push it.
pub(crate) const LINK: Option<usize> = None;

/// The registers of [`interrupted`] by the frame tables' numbers.
pub(crate) fn columns(words: &[usize; 17], _: usize) -> [Option<usize>; COLUMNS] {
    // r8 to r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, rip
    const ORDER: [usize; 17] = [8, 9, 10, 11, 12, 13, 14, 15, 5, 4, 6, 3, 1, 0, 2, 7, 16];
    let mut columns = [None; COLUMNS];
    for (column, word) in ORDER.iter().zip(words) {
        columns[*column] = Some(*word);
    }
    columns
}

/// `syscall`.
pub(crate) const SYSTEM_CALL: &[u8] = &[0x0F, 0x05];
/// The code to which signal handlers return, if its frame table does not lead on.
pub(crate) const SIGNAL_RETURN: &[u8] = &[];

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
                "endbr64",
                "mov r8, rsp",
                "mov r9, [rsp]",
                "jmp {to}",
                ".cfi_endproc",
                to = sym $to,
            )
        }
    };
}
pub(crate) use with_caller;
