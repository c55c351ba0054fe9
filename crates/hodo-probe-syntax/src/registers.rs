//! The registers that can be fetched. Each instruction set has a module and a variant of [`Register`].
//!
//! Processes that hodo probes run code of the instruction set that it is built for, so the names are usually those of
//! that one. Definitions for files of other sets are read with [`parse_for`](crate::parse_for).

use core::fmt;

pub mod aarch64;
pub mod riscv64;
pub mod x86_64;

/// An instruction set, whose registers definitions can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Set {
    /// x86-64.
    X86_64,
    /// RISC-V with 64 bits.
    Riscv64,
    /// AArch64.
    Aarch64,
}

impl Set {
    /// All of them.
    pub const ALL: [Set; 3] = [Set::X86_64, Set::Riscv64, Set::Aarch64];

    /// The one that this is built for; x86-64 where it is none of these.
    pub const NATIVE: Set = if cfg!(target_arch = "riscv64") {
        Set::Riscv64
    } else if cfg!(target_arch = "aarch64") {
        Set::Aarch64
    } else {
        Set::X86_64
    };
}

/// A register, or a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Register {
    /// One of x86-64.
    X86_64(x86_64::Register),
    /// One of RISC-V.
    Riscv64(riscv64::Register),
    /// One of AArch64.
    Aarch64(aarch64::Register),
}

impl Register {
    /// Returns the register with this name (without `%`), if this instruction set has one.
    #[must_use]
    pub fn named(name: &str) -> Option<Register> {
        Self::named_in(Set::NATIVE, name)
    }

    /// Returns the register with this name (without `%`), if the instruction set has one.
    #[must_use]
    pub fn named_in(set: Set, name: &str) -> Option<Register> {
        match set {
            Set::X86_64 => x86_64::Register::named(name).map(Register::X86_64),
            Set::Riscv64 => riscv64::Register::named(name).map(Register::Riscv64),
            Set::Aarch64 => aarch64::Register::named(name).map(Register::Aarch64),
        }
    }

    /// Returns all names, the usual ones first.
    pub fn names() -> impl Iterator<Item = &'static str> {
        Self::names_in(Set::NATIVE)
    }

    /// Returns all names of an instruction set, the usual ones first.
    pub fn names_in(set: Set) -> impl Iterator<Item = &'static str> {
        let x86_64 = x86_64::names().filter(move |_| set == Set::X86_64);
        let riscv64 = riscv64::names().filter(move |_| set == Set::Riscv64);
        let aarch64 = aarch64::names().filter(move |_| set == Set::Aarch64);
        x86_64.chain(riscv64).chain(aarch64)
    }
}

impl fmt::Display for Register {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Register::X86_64(register) => register.fmt(f),
            Register::Riscv64(register) => register.fmt(f),
            Register::Aarch64(register) => register.fmt(f),
        }
    }
}
