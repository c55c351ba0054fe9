//! What ELF files encode differently on each instruction set: register numbers, and where a frame is.

use gimli::{AArch64, Register, Vendor};
use hodo_abi::Isa;
use object::read::elf::{ElfFile64, FileHeader as _};

/// How to read an instruction set's debugging information and unwind tables, according to its supplement of the System
/// V ABI. A "number" is the processor's, a "column" is DWARF's.
pub(crate) struct Numbers {
    /// The columns of the general registers, in the order of the processor's numbers.
    pub general: &'static [u16],
    /// The columns of the vector registers.
    pub vectors: std::ops::Range<u16>,
    /// The number of the stack pointer.
    pub stack: u8,
    /// The number of the register used as frame pointer.
    pub frame: u8,
    /// The numbers of the registers with the first integer arguments.
    pub arguments: &'static [u8],
    /// The column of the instruction's address.
    pub instruction: u16,
    /// Bytes between the stack pointer and the frame's address at a function's entry.
    pub entry: i32,
    /// What some numbers of unwind tables' instructions mean.
    pub vendor: Vendor,
    /// The column that says whether the return address is signed, if it may be.
    pub signed: Option<Register>,
}

/// The bits of an address that a signature leaves alone. No address of code in a program has others: a program must ask
/// for memory in a larger address space, and no loader does.
const UNSIGNED: u64 = (1 << 48) - 1;

/// The columns of RISC-V and AArch64 are the processor's own numbers.
const SAME: [u16; 32] = {
    let mut same = [0; 32];
    let mut at = 0;
    while at < 32 {
        same[at] = at as u16;
        at += 1;
    }
    same
};

const X86_64: Numbers = Numbers {
    general: &[0, 2, 1, 3, 7, 6, 4, 5, 8, 9, 10, 11, 12, 13, 14, 15],
    vectors: 17..33,
    stack: 4,
    frame: 5,
    arguments: &[7, 6, 2, 1, 8, 9],
    instruction: 16,
    entry: 8,
    vendor: Vendor::Default,
    signed: None,
};

const RISCV64: Numbers = Numbers {
    general: &SAME,
    vectors: 32..64,
    stack: 2,
    frame: 8,
    arguments: &[10, 11, 12, 13, 14, 15, 16, 17],
    // "Alternate frame return column": not a register.
    instruction: 64,
    entry: 0,
    vendor: Vendor::Default,
    signed: None,
};

const AARCH64: Numbers = Numbers {
    general: &SAME,
    vectors: 64..96,
    stack: 31,
    frame: 29,
    arguments: &[0, 1, 2, 3, 4, 5, 6, 7],
    instruction: 32,
    entry: 0,
    vendor: Vendor::AArch64,
    signed: Some(AArch64::RA_SIGN_STATE),
};

/// Returns the instruction set of a 64-bit ELF file, if hodo knows it.
#[must_use]
pub fn isa_of(bytes: &[u8]) -> Option<Isa> {
    of_file(&ElfFile64::parse(bytes).ok()?)
}

/// Returns the instruction set of an opened file.
pub(crate) fn of_file(file: &ElfFile64<'_>) -> Option<Isa> {
    let endian = file.endian();
    if endian != object::Endianness::Little {
        return None;
    }
    Isa::of_elf(file.elf_header().e_machine(endian))
}

pub(crate) fn numbers(isa: Isa) -> &'static Numbers {
    match isa {
        Isa::X86_64 => &X86_64,
        Isa::Riscv64 => &RISCV64,
        Isa::Aarch64 => &AARCH64,
    }
}

/// Returns a return address without its signature.
pub(crate) fn without_signature(addr: u64) -> u64 {
    addr & UNSIGNED
}

/// Returns whether symbols without a type show where code (`$x`) and data (`$d`) begin.
pub(crate) fn has_mapping_symbols(isa: Isa) -> bool {
    isa != Isa::X86_64
}

impl Numbers {
    /// Returns the processor's number of a general register.
    pub fn register(&self, column: u16) -> Option<u8> {
        let at = self.general.iter().position(|&own| own == column)?;
        Some(at as u8)
    }

    /// Returns the column of a general register.
    pub fn column(&self, register: u8) -> Option<u16> {
        self.general.get(usize::from(register)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_columns_belong_together() {
        for isa in Isa::ALL {
            let numbers = numbers(isa);
            for register in 0..numbers.general.len() as u8 {
                let column = numbers.column(register).expect("a column");
                assert_eq!(numbers.register(column), Some(register));
                assert!(!numbers.vectors.contains(&column) && column != numbers.instruction);
            }
            assert_eq!(numbers.register(numbers.vectors.start), None);
        }
        // rsp and rbp
        let x86 = numbers(Isa::X86_64);
        assert_eq!(
            (x86.column(x86.stack), x86.column(x86.frame)),
            (Some(7), Some(6))
        );
        // sp and s0
        let riscv = numbers(Isa::Riscv64);
        assert_eq!(
            (riscv.column(riscv.stack), riscv.column(riscv.frame)),
            (Some(2), Some(8))
        );
    }

    #[test]
    fn files_name_their_instruction_set() {
        let bytes = std::fs::read("/proc/self/exe").expect("this program");
        assert_eq!(isa_of(&bytes), Some(Isa::NATIVE));
        assert_eq!(isa_of(b"\x7fELF"), None);
    }
}
