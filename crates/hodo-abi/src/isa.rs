//! Instruction sets, and what their ABIs say that several crates need.

/// An instruction set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Isa {
    /// x86-64.
    X86_64,
    /// RISC-V of 64 bits.
    Riscv64,
    /// AArch64. Its static keys are known, its symbols and unwind tables, and its instructions: files can be planned.
    /// Nothing is recorded yet.
    Aarch64,
}

impl Isa {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::X86_64, Self::Riscv64, Self::Aarch64];

    /// That of this process, and of the processes that it can record.
    pub const NATIVE: Self = if cfg!(target_arch = "riscv64") {
        Self::Riscv64
    } else if cfg!(target_arch = "aarch64") {
        Self::Aarch64
    } else {
        Self::X86_64
    };

    /// By the number in the header of an ELF file of 64 bits (`e_machine`).
    #[must_use]
    pub fn of_elf(machine: u16) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|isa| isa.elf_machine() == machine)
    }

    /// That number.
    #[must_use]
    pub const fn elf_machine(self) -> u16 {
        match self {
            Self::X86_64 => 62,
            Self::Riscv64 => 243,
            Self::Aarch64 => 183,
        }
    }

    /// By its name in traces.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|isa| isa.name() == name)
    }

    /// Its name in traces.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86-64",
            Self::Riscv64 => "riscv64",
            Self::Aarch64 => "aarch64",
        }
    }

    /// The general registers, in the processor's numbering, with the values of which the words of a stack trace begin.
    /// The address of the instruction follows. None where nothing is recorded.
    #[must_use]
    pub const fn stack_trace_registers(self) -> &'static [u8] {
        match self {
            Self::X86_64 => &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
            // By which callers are found: those that functions keep, and t0, in which functions that save registers
            // have where they return to.
            Self::Riscv64 => &[1, 2, 5, 8, 9, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27],
            Self::Aarch64 => &[],
        }
    }

    /// The address that a frame goes by in records and in the shadow of the stack: what the stack pointer is when its
    /// function is entered. `outside`: what it was before the call.
    #[must_use]
    pub const fn frame_name(self, outside: u64) -> u64 {
        match self {
            // The call has put the return address there.
            Self::X86_64 => outside.wrapping_sub(8),
            Self::Riscv64 | Self::Aarch64 => outside,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_lead_back() {
        for isa in Isa::ALL {
            assert_eq!(Isa::named(isa.name()), Some(isa));
            assert_eq!(Isa::of_elf(isa.elf_machine()), Some(isa));
        }
        assert_eq!(Isa::named("pdp-11"), None);
        assert_eq!(Isa::named(""), None);
        assert_eq!(Isa::of_elf(3), None);
    }

    #[test]
    fn this_process_is_of_a_known_one() {
        let header = std::fs::read("/proc/self/exe").expect("this program");
        assert_eq!(header[18..20], Isa::NATIVE.elf_machine().to_le_bytes());
    }
}
