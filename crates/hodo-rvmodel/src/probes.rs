//! Ways to probe an instruction, as code for the model: a kernel's breakpoint with a single step, the same boosted, a
//! detour of plain copies, Hodoscope's detour, and detours in shadow mode. What a hit does is the same everywhere: it
//! counts.

pub mod copied;
pub mod hit;
pub mod kernel;
pub mod region;
pub mod run;
pub mod shadow;
pub mod today;

use std::ops::Range;

/// Where the code of probes is: out of reach of `jal`, in reach of a pair.
pub const DETOUR: u64 = 0x2000_0000;
/// The control block of a thread, and the counter in it.
pub const BLOCK: u64 = 0x5000_0000;
/// The counter's distance.
pub const COUNTER: i32 = 0x100;

/// How the jump to a detour in shadow mode gets there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// `auipc; jalr` through a free register: 8 bytes.
    Pair,
    /// `auipc; jalr` after a register was put on the stack: 12 bytes.
    Kept,
    /// `c.jall` without a link: 6 bytes.
    Jall,
    /// As the planner of today's detours does: at the start of its region, also by a short jump to a slot.
    Planned,
}

/// A way to probe an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mechanism {
    /// A breakpoint; the handler executes the instruction elsewhere, with a breakpoint after it. It simulates what uses
    /// its own address.
    SingleStep,
    /// A breakpoint; the handler continues at a copy of the instruction, after which a jump leads back.
    Boosted,
    /// The instructions under the jump are copied as they are, and a second jump leads back.
    Copied,
    /// The planner's region is moved.
    Detour,
    /// The instructions under the jump are copied, and run in shadow mode.
    Shadow(Way),
}

impl Mechanism {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::SingleStep,
        Self::Boosted,
        Self::Copied,
        Self::Detour,
        Self::Shadow(Way::Pair),
        Self::Shadow(Way::Kept),
        Self::Shadow(Way::Jall),
        Self::Shadow(Way::Planned),
    ];

    /// Its name in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::SingleStep => "single step or simulation",
            Self::Boosted => "boosted",
            Self::Copied => "detour of plain copies",
            Self::Detour => "today's detour",
            Self::Shadow(Way::Pair) => "Shadow PC, `auipc; jr`",
            Self::Shadow(Way::Kept) => "Shadow PC, register on the stack",
            Self::Shadow(Way::Jall) => "Shadow PC, `c.jall`",
            Self::Shadow(Way::Planned) => "Shadow PC, the planner's jump",
        }
    }
}

/// Why an instruction cannot be probed in a way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Refused {
    /// The slides' list: system instructions, fences, `lr` and `sc`.
    #[error("it must not run elsewhere")]
    Rejected,
    /// It uses its own address, or is a jump.
    #[error("it uses its own address")]
    Relative,
    /// No register is free for the jump back.
    #[error("no register is free for the jump back")]
    NoWayBack,
    /// No register is free for the jump to the detour.
    #[error("no register is free for the jump there")]
    NoRegister,
    /// The region around it is shorter than the jump.
    #[error("there is no room for the jump")]
    NoRoom,
    /// The planner has no region for it.
    #[error("the planner refuses it")]
    Planner,
    /// The planner uses a breakpoint.
    #[error("the planner uses a breakpoint")]
    Breakpoint,
    /// A branch of the region leads to bytes that the jump overwrites; today's detour has a copy of its target.
    #[error("a branch nearby leads under the jump")]
    Entered,
    /// Something could not be encoded.
    #[error("it cannot be encoded")]
    Encoding,
}

/// What is written for a probe.
#[derive(Debug, Clone, Default)]
pub struct Setup {
    /// Bytes and their addresses; later ones overwrite earlier ones.
    pub writes: Vec<(u64, Vec<u8>)>,
    /// Bytes that change at the site.
    pub patched: usize,
    /// Bytes of code and literals elsewhere, without the handler of traps, which all probes share.
    pub elsewhere: usize,
    /// The handler of traps that must be there.
    pub handler: bool,
    /// Registers, as bits, whose values nobody needs afterwards.
    pub clobbers: u32,
}

impl Setup {
    /// Where its code is.
    pub(crate) fn contains(&self, at: u64) -> bool {
        let range = |(start, bytes): &(u64, Vec<u8>)| Range {
            start: *start,
            end: start + bytes.len() as u64,
        };
        self.writes.iter().any(|write| range(write).contains(&at))
    }
}
