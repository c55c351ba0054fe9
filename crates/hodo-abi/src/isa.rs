//! Instruction sets, and those parts of their ABIs that several crates need.

/// An instruction set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Isa {
    /// x86-64.
    X86_64,
    /// 64-bit RISC-V.
    Riscv64,
    /// AArch64.
    Aarch64,
}

impl Isa {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::X86_64, Self::Riscv64, Self::Aarch64];

    /// The instruction set of this process, and of the processes that it can record.
    pub const NATIVE: Self = if cfg!(target_arch = "riscv64") {
        Self::Riscv64
    } else if cfg!(target_arch = "aarch64") {
        Self::Aarch64
    } else {
        Self::X86_64
    };

    /// Returns the instruction set with this number in the header of a 64-bit ELF file (`e_machine`).
    #[must_use]
    pub fn of_elf(machine: u16) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|isa| isa.elf_machine() == machine)
    }

    /// Returns its `e_machine` number.
    #[must_use]
    pub const fn elf_machine(self) -> u16 {
        match self {
            Self::X86_64 => 62,
            Self::Riscv64 => 243,
            Self::Aarch64 => 183,
        }
    }

    /// Returns the instruction set with this name in traces.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|isa| isa.name() == name)
    }

    /// Returns its name in traces.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86-64",
            Self::Riscv64 => "riscv64",
            Self::Aarch64 => "aarch64",
        }
    }

    /// Returns its name for people.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::X86_64 => "x86-64",
            Self::Riscv64 => "RISC-V 64",
            Self::Aarch64 => "AArch64",
        }
    }

    /// Returns the general registers at the beginning of a stack trace, by the processor's numbers. The address of the
    /// instruction follows them.
    #[must_use]
    pub const fn stack_trace_registers(self) -> &'static [u8] {
        match self {
            Self::X86_64 => &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
            // These are needed to find callers: ra, sp, the callee-saved registers, and t0, which has the return
            // address in the helper functions that save registers.
            Self::Riscv64 => &[1, 2, 5, 8, 9, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27],
            // Frame pointer, link register and stack pointer are the last three.
            Self::Aarch64 => &[19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31],
        }
    }

    /// Returns the address that identifies a frame in records and in the shadow: the stack pointer at the function's
    /// entry. `outside` is the stack pointer before the call.
    #[must_use]
    pub const fn frame_name(self, outside: u64) -> u64 {
        match self {
            // The call pushed the return address.
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
    fn this_process_has_a_known_instruction_set() {
        let header = std::fs::read("/proc/self/exe").expect("this program");
        assert_eq!(header[18..20], Isa::NATIVE.elf_machine().to_le_bytes());
    }
}
