//! Instruction sets of recordings.

/// The instruction set of the programs of a recording.
///
/// As `"arch"` in `info.json` it is called as in [`Machine::name`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Machine {
    /// x86-64. Traces that do not tell are of this one.
    X86_64,
    /// RISC-V of 64 bits.
    Riscv64,
}

/// Of each: its name, and its number in ELF files (`e_machine`).
const ALL: [(Machine, &str, u16); 2] = [
    (Machine::X86_64, "x86-64", 62),
    (Machine::Riscv64, "riscv64", 243),
];

impl Machine {
    /// What programs of this process's instruction set are recorded with.
    pub const NATIVE: Self = if cfg!(target_arch = "riscv64") {
        Self::Riscv64
    } else {
        Self::X86_64
    };

    /// By its name in traces.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let machine = ALL.iter().find(|machine| machine.1 == name)?;
        Some(machine.0)
    }

    /// Its name in traces.
    #[must_use]
    pub fn name(self) -> &'static str {
        ALL[self as usize].1
    }

    /// Its number in ELF files (`e_machine`).
    #[must_use]
    pub fn elf(self) -> u16 {
        ALL[self as usize].2
    }

    /// What its time counter is called, `"source"` of the clock in `info.json`.
    #[must_use]
    pub fn counter(self) -> &'static str {
        match self {
            Self::X86_64 => "tsc",
            Self::Riscv64 => "time",
        }
    }

    /// The general registers, in the processor's numbering, with the values of which the words of a stack trace begin. The address
    /// of the instruction follows.
    #[must_use]
    pub const fn stack_trace_registers(self) -> &'static [u8] {
        match self {
            Self::X86_64 => &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
            // By which callers are found: those that functions keep, and t0, in which functions that save registers
            // have where they return to.
            Self::Riscv64 => &[1, 2, 5, 8, 9, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27],
        }
    }

    /// The address that a frame goes by in records and in the shadow of the stack: what the stack pointer is when its function is
    /// entered. `outside`: what it was before the call.
    #[must_use]
    pub fn frame_name(self, outside: u64) -> u64 {
        match self {
            // The call has put the return address there.
            Self::X86_64 => outside.wrapping_sub(8),
            Self::Riscv64 => outside,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back() {
        for (at, (machine, name, elf)) in ALL.into_iter().enumerate() {
            assert_eq!(machine as usize, at);
            assert_eq!(Machine::named(name), Some(machine));
            assert_eq!((machine.name(), machine.elf()), (name, elf));
        }
        assert_eq!(Machine::named("pdp-11"), None);
        assert_eq!(Machine::named(""), None);
    }

    #[test]
    fn this_process_is_of_a_known_one() {
        let header = std::fs::read("/proc/self/exe").expect("this program");
        assert_eq!(header[18..20], Machine::NATIVE.elf().to_le_bytes());
    }
}
