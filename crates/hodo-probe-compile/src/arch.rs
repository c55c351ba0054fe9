//! What of probes depends on the processor: its registers, where functions get their arguments, and how compilers write
//! operands.

#[cfg(target_arch = "riscv64")]
mod riscv64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

/// An operand as compilers write it into the notes of USDT probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operand<'a> {
    /// By its name.
    Register(&'a str),
    /// As it is written.
    Number(&'a str),
    /// In memory: what is added to a register, and that one's name. To the program counter a symbol is added.
    Memory(&'a str, &'a str),
}

#[cfg(target_arch = "riscv64")]
pub use riscv64::*;
#[cfg(target_arch = "x86_64")]
pub use x86_64::*;
