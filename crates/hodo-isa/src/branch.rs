//! Jumps as patches write them: how long they are, how far they reach, and which register they need.

use core::ops::RangeInclusive;

/// Where a long jump from a site gets the register that it may need.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Via {
    /// The jump needs none.
    #[default]
    Nothing,
    /// A register, by its number, whose value nobody needs at the site.
    Free(u8),
    /// A register, by its number, that the patch saves on the stack before it jumps. The jump's target restores it from
    /// there.
    Kept(u8),
}

impl Via {
    /// Bytes of the instructions that restore a saved register from the stack; those that save it are as long.
    pub const TAKE: u64 = 4;

    /// Bytes of a pad, which restores a saved register and continues with a short jump.
    pub const PAD: u64 = Self::TAKE + 4;

    /// The same for a second jump, when the first one has already saved the register on the stack.
    #[must_use]
    pub const fn jumping(self) -> Self {
        match self {
            Self::Kept(register) => Self::Free(register),
            other => other,
        }
    }
}

/// How a return address is signed: with which key, and the stack pointer at the function's entry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Signing {
    /// It is a plain address.
    #[default]
    None,
    /// With key A.
    A,
    /// With key B.
    B,
}

/// A jump that a patch can write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JumpForm {
    /// Its length in bytes.
    pub len: u64,
    /// How far back it reaches from its first byte.
    pub back: u64,
    /// How far forward it reaches from its first byte.
    pub on: u64,
    /// The register that it needs.
    pub register: Via,
}

impl JumpForm {
    /// A jump that needs no register.
    pub(crate) const fn plain(len: u64, back: u64, on: u64) -> Self {
        Self {
            len,
            back,
            on,
            register: Via::Nothing,
        }
    }

    /// Whether it reaches this far from its first byte.
    #[must_use]
    pub const fn leads(self, distance: i64) -> bool {
        let limit = if distance < 0 { self.back } else { self.on };
        distance.unsigned_abs() <= limit
    }

    /// The addresses that it can reach from `from`, both ends included.
    #[must_use]
    pub fn reach(self, from: u64) -> RangeInclusive<u64> {
        from.saturating_sub(self.back)..=from.saturating_add(self.on)
    }

    /// The addresses from which it can reach `to`, both ends included.
    #[must_use]
    pub fn sources(self, to: u64) -> RangeInclusive<u64> {
        to.saturating_sub(self.on)..=to.saturating_add(self.back)
    }
}
