//! The registers of AArch64.
//!
//! | name | what it means |
//! |---|---|
//! | `x0` … `x30` | the general registers |
//! | `fp`, `lr` | `x29` and `x30` |
//! | `sp` | the stack pointer |
//! | `pc` | the address of the instruction; in return probes where the function returns to |
//!
//! All have 64 bits. A type selects fewer: `%x0:s32`.

use core::fmt;

/// A register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Register {
    /// A general register by its number, from 0 to 30.
    X(u8),
    /// The stack pointer.
    Sp,
    /// The address of the instruction.
    Pc,
}

/// The names by number.
const NAMES: [&str; 31] = [
    "x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13", "x14",
    "x15", "x16", "x17", "x18", "x19", "x20", "x21", "x22", "x23", "x24", "x25", "x26", "x27",
    "x28", "x29", "x30",
];
const SP: &str = "sp";
const PC: &str = "pc";
/// Another name of `x29`.
const FP: &str = "fp";
/// Another name of `x30`.
const LR: &str = "lr";

impl Register {
    /// Returns the register with this name (without `%`), if there is one.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        match name {
            SP => return Some(Self::Sp),
            PC => return Some(Self::Pc),
            FP => return Some(Self::X(29)),
            LR => return Some(Self::X(30)),
            _ => {}
        }
        let number = NAMES.iter().position(|known| *known == name)?;
        Some(Self::X(number as u8))
    }

    /// Returns all registers, each once.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..31).map(Self::X).chain([Self::Sp, Self::Pc])
    }
}

impl fmt::Display for Register {
    /// Writes its name, without `%`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::X(number) => NAMES.get(usize::from(*number)).copied().unwrap_or_default(),
            Self::Sp => SP,
            Self::Pc => PC,
        })
    }
}

pub(super) fn names() -> impl Iterator<Item = &'static str> {
    NAMES.into_iter().chain([SP, PC, FP, LR])
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn names_lead_to_registers() {
        for (name, number) in [("x0", 0), ("x30", 30), ("fp", 29), ("lr", 30)] {
            assert_eq!(Register::named(name), Some(Register::X(number)), "{name}");
        }
        assert_eq!(Register::named("sp"), Some(Register::Sp));
        assert_eq!(Register::named("pc"), Some(Register::Pc));
        for name in ["x31", "w0", "rax", "a0", ""] {
            assert_eq!(Register::named(name), None, "{name}");
        }
        for register in Register::all() {
            assert_eq!(Register::named(&register.to_string()), Some(register));
        }
        assert!(names().all(|name| Register::named(name).is_some()));
    }
}
