//! Jumps as patches write them: how long they are, how far they lead, and which register they take.

use core::ops::RangeInclusive;

/// How a long jump from a site gets the register that it may need.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Via {
    /// The jump needs none.
    #[default]
    Nothing,
    /// A register whose value is of no use to anybody at the site, by its number.
    Free(u8),
    /// A register, by its number, that the patch puts on the stack before it jumps. What it leads to takes it from
    /// there.
    Kept(u8),
}

impl Via {
    /// Bytes of the instructions that take a kept register from the stack, as many as of those that put it there.
    pub const TAKE: u64 = 4;

    /// Bytes of a place that takes a kept register back and goes on by a short jump.
    pub const PAD: u64 = Self::TAKE + 4;

    /// The same for a jump after another one, which has put on the stack what is kept.
    #[must_use]
    pub const fn jumping(self) -> Self {
        match self {
            Self::Kept(register) => Self::Free(register),
            other => other,
        }
    }
}

/// A jump that a patch can write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JumpForm {
    /// Its length in bytes.
    pub len: u64,
    /// How far back it leads from its first byte.
    pub back: u64,
    /// How far on it leads from its first byte.
    pub on: u64,
    /// The register that it takes.
    pub register: Via,
}

impl JumpForm {
    /// One that takes no register.
    pub(crate) const fn plain(len: u64, back: u64, on: u64) -> Self {
        Self {
            len,
            back,
            on,
            register: Via::Nothing,
        }
    }

    /// Whether it leads this far from its first byte.
    #[must_use]
    pub const fn leads(self, distance: i64) -> bool {
        let limit = if distance < 0 { self.back } else { self.on };
        distance.unsigned_abs() <= limit
    }

    /// The addresses that it reaches from `from`, both ends included.
    #[must_use]
    pub fn reach(self, from: u64) -> RangeInclusive<u64> {
        from.saturating_sub(self.back)..=from.saturating_add(self.on)
    }

    /// The addresses from which it reaches `to`, both ends included.
    #[must_use]
    pub fn sources(self, to: u64) -> RangeInclusive<u64> {
        to.saturating_sub(self.on)..=to.saturating_add(self.back)
    }
}
