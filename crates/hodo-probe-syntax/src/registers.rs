//! The registers that can be fetched. Each instruction set has a module and a variant of [`Register`].
//!
//! hodo probes only code of the instruction set that it is built for, so the names are those of that one.

use core::fmt;

pub mod riscv64;
pub mod x86_64;

/// A register, or a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Register {
    /// One of x86-64.
    X86_64(x86_64::Register),
    /// One of RISC-V.
    Riscv64(riscv64::Register),
}

impl Register {
    /// Returns the register with this name (without `%`), if this instruction set has one.
    #[must_use]
    pub fn named(name: &str) -> Option<Register> {
        if cfg!(target_arch = "riscv64") {
            riscv64::Register::named(name).map(Register::Riscv64)
        } else {
            x86_64::Register::named(name).map(Register::X86_64)
        }
    }

    /// Returns all names, the usual ones first.
    pub fn names() -> impl Iterator<Item = &'static str> {
        let riscv64 = cfg!(target_arch = "riscv64");
        let others = x86_64::names().filter(move |_| !riscv64);
        riscv64::names().filter(move |_| riscv64).chain(others)
    }
}

impl fmt::Display for Register {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Register::X86_64(register) => register.fmt(f),
            Register::Riscv64(register) => register.fmt(f),
        }
    }
}
