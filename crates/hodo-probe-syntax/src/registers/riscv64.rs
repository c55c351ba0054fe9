//! The registers of RISC-V with 64 bits.
//!
//! | name | what it means |
//! |---|---|
//! | `ra`, `sp`, `gp`, `tp`, `t0` … `t6`, `s0` … `s11`, `a0` … `a7` | the names of the calling convention |
//! | `zero` | always 0 |
//! | `fp` | `s0` |
//! | `x0` … `x31` | by their numbers |
//! | `pc` | the address of the instruction; in return probes where the function returns to |
//!
//! All have 64 bits. A type selects fewer: `%a0:s32`.

use core::fmt;

/// A register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Register {
    /// A general register by its number, from 0 to 31.
    X(u8),
    /// The address of the instruction.
    Pc,
}

/// The names by number.
const NAMES: [&str; 32] = [
    "zero", "ra", "sp", "gp", "tp", "t0", "t1", "t2", "s0", "s1", "a0", "a1", "a2", "a3", "a4",
    "a5", "a6", "a7", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9", "s10", "s11", "t3", "t4",
    "t5", "t6",
];
/// The same registers.
const NUMBERED: [&str; 32] = [
    "x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13", "x14",
    "x15", "x16", "x17", "x18", "x19", "x20", "x21", "x22", "x23", "x24", "x25", "x26", "x27",
    "x28", "x29", "x30", "x31",
];
const PC: &str = "pc";
/// Another name of `s0`.
const FP: &str = "fp";

impl Register {
    /// Returns the register with this name (without `%`), if there is one.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        match name {
            PC => return Some(Self::Pc),
            FP => return Some(Self::X(8)),
            _ => {}
        }
        let number = |names: &[&str]| names.iter().position(|known| *known == name);
        let number = number(&NAMES).or_else(|| number(&NUMBERED))?;
        Some(Self::X(number as u8))
    }

    /// Returns all registers, each once.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..32).map(Self::X).chain([Self::Pc])
    }
}

impl fmt::Display for Register {
    /// Writes its name, without `%`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::X(number) => NAMES.get(usize::from(*number)).copied().unwrap_or_default(),
            Self::Pc => PC,
        })
    }
}

pub(super) fn names() -> impl Iterator<Item = &'static str> {
    NAMES.into_iter().chain([PC, FP]).chain(NUMBERED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn names_lead_to_registers() {
        for (name, number) in [
            ("zero", 0),
            ("ra", 1),
            ("fp", 8),
            ("s0", 8),
            ("a0", 10),
            ("x31", 31),
        ] {
            assert_eq!(Register::named(name), Some(Register::X(number)), "{name}");
        }
        assert_eq!(Register::named("pc"), Some(Register::Pc));
        for name in ["x32", "a8", "rax", "fa0", ""] {
            assert_eq!(Register::named(name), None, "{name}");
        }
        for register in Register::all() {
            assert_eq!(Register::named(&register.to_string()), Some(register));
        }
        assert!(names().all(|name| Register::named(name).is_some()));
    }
}
