//! What leads from code to an island and back; for all instruction sets.

use alloc::vec::Vec;
use core::ops::Range;

use crate::stub::Body;
use hodo_isa::{Signing, Via};

/// Displaced instructions at another address, and how execution continues after them.
#[derive(Debug, Clone, Default)]
pub struct Displaced {
    /// The code.
    pub body: Body,
    /// Addresses of instructions, and those of their copies. The last ones can be the address where execution
    /// continues, and the jump there.
    pub copies: Vec<(u64, u64)>,
    /// Where control leaves them with a register that is restored elsewhere.
    pub exits: Vec<Range<u64>>,
}

/// How control leaves displaced instructions at another address.
#[derive(Clone, Copy)]
pub struct Leaving<'a> {
    /// Returns the registers that are dead at an instruction.
    pub dead: &'a dyn Fn(u64) -> u32,
    /// The register of the jump after them.
    pub back: Via,
    /// The pad through which control leaves them if no register is free, by the instruction's address, or by the end of
    /// all. The pad is near the place where execution continues, and restores the register.
    pub pads: &'a dyn Fn(u64) -> Option<u64>,
    /// How the return address is signed before them.
    pub signing: Signing,
}

/// How our instructions use a slot that holds the address of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Through {
    /// An entry of the procedure linkage table, which jumps through it.
    Entry,
    /// A call through the slot.
    Call,
    /// A jump through the slot.
    Jump,
    /// Loads the address from the slot into this register, for a call or jump a little later.
    Loaded(u8),
}

/// The first instructions of a function, as many as a jump to elsewhere displaces. The function is entered only by
/// calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    /// Where they begin: after an instruction that calls must find, if there is one.
    pub start: u64,
    /// Where they end.
    pub end: u64,
    /// The register of the jump.
    pub via: Via,
    /// The register of the jump that returns to the function.
    pub back: Via,
    /// How the return address is signed there.
    pub signing: Signing,
    /// Registers that are dead at the instructions that need one when they are moved.
    pub dead: Vec<(u64, u32)>,
}

/// Why a jump cannot displace the first instructions of a function. Each variant has the jump's length in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoWindow {
    /// Control leaves them.
    #[error("a branch in its first {} bytes", word(*.0))]
    Branch(u64),
    /// The function is shorter.
    #[error("it is shorter than {} bytes", word(*.0))]
    Short(u64),
    /// A branch of the function leads into them.
    #[error("a branch into its first {} bytes", word(*.0))]
    BranchInto(u64),
    /// No register is free for the jump back.
    #[error("no register is free after its first {} bytes", word(*.0))]
    NoRegister(u64),
}

/// A small number as a word.
fn word(number: u64) -> &'static str {
    const WORDS: [&str; 10] = [
        "no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine",
    ];
    let index = usize::try_from(number).unwrap_or(usize::MAX);
    WORDS.get(index).copied().unwrap_or("its")
}

impl Window {
    /// The registers that are dead at an address.
    #[must_use]
    pub fn dead(&self, at: u64) -> u32 {
        dead(&self.dead, at)
    }
}

/// The registers that are dead at an address, looked up in a list of addresses where one is needed.
#[must_use]
pub fn dead(list: &[(u64, u32)], at: u64) -> u32 {
    list.iter()
        .find(|&&(addr, _)| addr == at)
        .map_or(0, |&(_, registers)| registers)
}
