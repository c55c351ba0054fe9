//! The registers of x86-64.
//!
//! | name | what it means |
//! |---|---|
//! | `rax` … `r15`, `rip`, `rflags` | all 64 bits |
//! | `ax`, `bx`, `cx`, `dx`, `si`, `di`, `bp`, `sp`, `ip`, `flags` | **all 64 bits**, too: these are the names of the kernel's `uprobe_events` |
//! | `eax` …, `r8d` …, `eip`, `eflags` | the lower 32 bits |
//! | `r8w` … `r15w` | the lower 16 bits; of the other registers by a type: `%ax:u16` |
//! | `al`, `sil`, `r8b` … | the lower 8 bits |
//! | `ah`, `bh`, `ch`, `dh` | bits 8 to 15 |
//! | `cs`, `ss` | the segment selectors |

use core::fmt;

/// A register as a whole. General registers have the numbers that machine code gives them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Whole {
    Rax = 0,
    Rcx = 1,
    Rdx = 2,
    Rbx = 3,
    Rsp = 4,
    Rbp = 5,
    Rsi = 6,
    Rdi = 7,
    R8 = 8,
    R9 = 9,
    R10 = 10,
    R11 = 11,
    R12 = 12,
    R13 = 13,
    R14 = 14,
    R15 = 15,
    Rip = 16,
    Flags = 17,
    Cs = 18,
    Ss = 19,
}

/// A part of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// All 64.
    All,
    /// 0 to 31.
    Low32,
    /// 0 to 15.
    Low16,
    /// 0 to 7.
    Low8,
    /// 8 to 15.
    High8,
}

impl Part {
    /// Returns the number of bits.
    #[must_use]
    pub fn bits(self) -> u32 {
        match self {
            Part::All => 64,
            Part::Low32 => 32,
            Part::Low16 => 16,
            Part::Low8 | Part::High8 => 8,
        }
    }

    /// Returns the lowest bit.
    #[must_use]
    pub fn shift(self) -> u32 {
        if self == Part::High8 { 8 } else { 0 }
    }

    /// Returns this part of `whole`, zero-extended.
    #[must_use]
    pub fn of(self, whole: u64) -> u64 {
        whole >> self.shift() & u64::MAX >> (64 - self.bits())
    }
}

/// A register, or a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Register {
    /// The register.
    pub whole: Whole,
    /// The part.
    pub part: Part,
}

use Part::{All, High8, Low8, Low16, Low32};
use Whole::{
    Cs, Flags, R8, R9, R10, R11, R12, R13, R14, R15, Rax, Rbp, Rbx, Rcx, Rdi, Rdx, Rip, Rsi, Rsp,
    Ss,
};

/// Names and their meanings. A register is printed by its first name.
#[rustfmt::skip]
const NAMES: [(&str, Whole, Part); 76] = [
    ("rax", Rax, All), ("rbx", Rbx, All), ("rcx", Rcx, All), ("rdx", Rdx, All),
    ("rsi", Rsi, All), ("rdi", Rdi, All), ("rbp", Rbp, All), ("rsp", Rsp, All),
    ("r8", R8, All), ("r9", R9, All), ("r10", R10, All), ("r11", R11, All),
    ("r12", R12, All), ("r13", R13, All), ("r14", R14, All), ("r15", R15, All),
    ("rip", Rip, All), ("flags", Flags, All), ("cs", Cs, All), ("ss", Ss, All),
    // The kernel's names for all 64 bits.
    ("ax", Rax, All), ("bx", Rbx, All), ("cx", Rcx, All), ("dx", Rdx, All),
    ("si", Rsi, All), ("di", Rdi, All), ("bp", Rbp, All), ("sp", Rsp, All),
    ("ip", Rip, All), ("rflags", Flags, All),
    ("eax", Rax, Low32), ("ebx", Rbx, Low32), ("ecx", Rcx, Low32), ("edx", Rdx, Low32),
    ("esi", Rsi, Low32), ("edi", Rdi, Low32), ("ebp", Rbp, Low32), ("esp", Rsp, Low32),
    ("r8d", R8, Low32), ("r9d", R9, Low32), ("r10d", R10, Low32), ("r11d", R11, Low32),
    ("r12d", R12, Low32), ("r13d", R13, Low32), ("r14d", R14, Low32), ("r15d", R15, Low32),
    ("eip", Rip, Low32), ("eflags", Flags, Low32),
    ("r8w", R8, Low16), ("r9w", R9, Low16), ("r10w", R10, Low16), ("r11w", R11, Low16),
    ("r12w", R12, Low16), ("r13w", R13, Low16), ("r14w", R14, Low16), ("r15w", R15, Low16),
    ("al", Rax, Low8), ("bl", Rbx, Low8), ("cl", Rcx, Low8), ("dl", Rdx, Low8),
    ("sil", Rsi, Low8), ("dil", Rdi, Low8), ("bpl", Rbp, Low8), ("spl", Rsp, Low8),
    ("r8b", R8, Low8), ("r9b", R9, Low8), ("r10b", R10, Low8), ("r11b", R11, Low8),
    ("r12b", R12, Low8), ("r13b", R13, Low8), ("r14b", R14, Low8), ("r15b", R15, Low8),
    ("ah", Rax, High8), ("bh", Rbx, High8), ("ch", Rcx, High8), ("dh", Rdx, High8),
];

impl Register {
    pub(super) fn named(name: &str) -> Option<Register> {
        let (_, whole, part) = *NAMES.iter().find(|(known, ..)| *known == name)?;
        Some(Register { whole, part })
    }

    /// Returns all registers and parts that have names, each once.
    pub fn all() -> impl Iterator<Item = Register> {
        NAMES
            .iter()
            .enumerate()
            .filter_map(|(index, &(_, whole, part))| {
                let first = NAMES.iter().position(|&(_, w, p)| (w, p) == (whole, part));
                (first == Some(index)).then_some(Register { whole, part })
            })
    }
}

impl fmt::Display for Register {
    /// Writes its name, without `%`. A part without a name (16 bits of `rax`) is written as the whole register.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |part| {
            let known = NAMES
                .iter()
                .find(|&&(_, w, p)| (w, p) == (self.whole, part));
            known.map(|(name, ..)| *name)
        };
        f.write_str(name(self.part).or(name(All)).unwrap_or_default())
    }
}

pub(super) fn names() -> impl Iterator<Item = &'static str> {
    NAMES.iter().map(|(name, ..)| *name)
}
