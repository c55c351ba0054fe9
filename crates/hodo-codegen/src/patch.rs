//! What leads from code to an island and back, for all instruction sets.

use alloc::vec::Vec;
use core::ops::Range;

use crate::stub::Body;
use hodo_isa::Via;

/// Displaced instructions at another address, with what goes on after them.
#[derive(Debug, Clone, Default)]
pub struct Displaced {
    /// The code.
    pub body: Body,
    /// Addresses of instructions, and those of their copies. The last ones can be where the code goes on, and the jump
    /// there.
    pub copies: Vec<(u64, u64)>,
    /// Where control leaves it with a register that is taken back elsewhere.
    pub exits: Vec<Range<u64>>,
}

/// How control leaves displaced instructions at another address.
#[derive(Clone, Copy)]
pub struct Leaving<'a> {
    /// The registers that are dead at an instruction.
    pub dead: &'a dyn Fn(u64) -> u32,
    /// The register of the jump that goes on after them.
    pub back: Via,
    /// Where what leaves them without a register goes, by the instruction's address, or by the end of all: a place near
    /// that, which takes the register back.
    pub pads: &'a dyn Fn(u64) -> Option<u64>,
}

/// How our instructions use a slot that holds the address of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Through {
    /// An entry of the procedure linkage table, which jumps through it.
    Entry,
    /// A call through it.
    Call,
    /// A jump through it.
    Jump,
    /// The address is loaded from it into this register, for a call or jump a little later.
    Loaded(u8),
}

/// The first instructions of a function that is entered by calls only, as far as a jump to elsewhere displaces them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    /// Where they end.
    pub end: u64,
    /// The register of the jump.
    pub via: Via,
    /// The register of the jump back.
    pub back: Via,
    /// Registers that are dead at the instructions that need one when they are moved.
    pub dead: Vec<(u64, u32)>,
}

/// Why a jump cannot displace the first instructions of a function. Each with the bytes of the jump.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoWindow {
    /// Control leaves them.
    #[error("a branch in its first {} bytes", word(*.0))]
    Branch(u64),
    /// The function has fewer bytes.
    #[error("it is shorter than {} bytes", word(*.0))]
    Short(u64),
    /// A branch of the function leads into them.
    #[error("a branch into its first {} bytes", word(*.0))]
    BranchInto(u64),
    /// The jump back has no register.
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

/// The registers that are dead at an address, by a list of those where one is needed.
#[must_use]
pub fn dead(list: &[(u64, u32)], at: u64) -> u32 {
    list.iter()
        .find(|&&(addr, _)| addr == at)
        .map_or(0, |&(_, registers)| registers)
}
