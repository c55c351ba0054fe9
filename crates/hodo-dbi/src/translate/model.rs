//! What a translation is made from, and what it has.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use hodo_abi::Span;
use hodo_codegen::statemap;
use serde::{Deserialize, Serialize};

use crate::block::Block;
use crate::changes::Check;
use crate::events::Watch;
use crate::fixups::Fixups;
use crate::numbers::Identify;
use crate::passes::Passes;
use crate::profile::Profile;
use crate::protected::{Notice, Uncompared};
use crate::recent::Recent;

/// Which of the program's registers are in the thread's block instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub(crate) struct Saved {
    /// Those that have words of their own there, bit by their place in the instruction set's list of these.
    pub(crate) kept: u8,
    /// The flags are in a register, whose own value is in its word.
    pub(crate) flags: bool,
    /// Registers in the two words for scratch registers.
    pub(crate) scratch: [Option<u8>; 2],
    /// The program's own instruction comes here.
    pub(crate) is_own: bool,
    /// The thread need not go on to have the program's state: that of the instruction which is being executed.
    pub(crate) is_known: bool,
    /// The program's code is compared with what was translated.
    pub(crate) compares: bool,
    /// It is in a fragment.
    pub(crate) in_fragment: bool,
    /// It is about to return from a handler, whose frame leads into the cache.
    pub(crate) returns: bool,
    /// The number of a map of what else is in the thread's block.
    pub(crate) map: u32,
}

impl Saved {
    /// The program's state is in its registers.
    pub(crate) const NOTHING: Self = Self::kept(0);

    /// Only these registers are in the block, all in words of their own.
    pub(crate) const fn kept(kept: u8) -> Self {
        Self {
            kept,
            flags: false,
            scratch: [None; 2],
            is_own: false,
            is_known: false,
            compares: false,
            in_fragment: false,
            returns: false,
            map: 0,
        }
    }
}

/// What of the code for a block has been executed, besides that for the instructions before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub(crate) enum Stage {
    /// Everything.
    #[default]
    Body,
    /// Nothing: neither the counter nor the record.
    Head,
    /// The counter.
    Counted,
    /// The record of a repeated instruction, which is being executed, is not written yet.
    Repeating,
    /// The record of a repeated instruction, which has been executed, is not written yet.
    Repeated,
    /// A branch has left the block after this many instructions; the record of that is not written yet.
    Left(u16),
}

/// The state of a thread in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub(crate) struct State {
    /// `None`: where the state begins, the thread is before the instruction, with the program's state.
    pub(crate) inside: Option<Saved>,
    pub(crate) stage: Stage,
}

/// From an address in the cache on, the state of a thread, and the instruction of the program that is being executed,
/// or comes next.
pub(crate) type Point = statemap::Point<State>;
pub(crate) type Points = statemap::Points<State>;

/// What is inserted into the code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Insertion {
    /// Counters of blocks.
    pub(crate) counts: bool,
    /// Records of all blocks; else only of those with special accesses.
    pub(crate) records: bool,
    /// Records of accesses that are not of the lines that were used last.
    pub(crate) recent: Option<Recent>,
}

impl Insertion {
    /// Whether something is inserted for a client. If so, passes see only what accesses lanes; else, all code.
    pub(super) fn observes(&self) -> bool {
        self.counts || self.records || self.recent.is_some()
    }
}

/// Where the cache ends, because what follows is not translated.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Exit {
    /// The breakpoint.
    pub(crate) trap: u64,
    /// The word that holds where to jump: at first to the breakpoint.
    pub(crate) cell: u64,
    /// The program's instruction that comes next.
    pub(crate) target: u64,
    /// The word holds the address of its translation.
    pub(crate) linked: bool,
}

/// What was translated.
#[derive(Debug, Default)]
pub(crate) struct Translation {
    pub(crate) bytes: Vec<u8>,
    /// In ascending order.
    pub(crate) points: Vec<Point>,
    /// Instructions of the program and their translations.
    pub(crate) instructions: Vec<(u64, u64)>,
    /// Where calls return to, and what the table has to say of that.
    pub(crate) returns: Vec<(u64, u64)>,
    pub(crate) exits: Vec<Exit>,
    /// Where code that may change is compared with what was translated.
    pub(crate) checks: Vec<Check>,
    /// Where code that may change is not compared.
    pub(crate) uncompared: Vec<Uncompared>,
    /// Breakpoints before watched system calls, and the instructions that make these.
    pub(crate) calls: Vec<(u64, u64)>,
    /// Breakpoints that are reached with a target that is not in the table, and where to continue when its address in
    /// the cache is known.
    pub(crate) misses: Vec<(u64, u64)>,
    /// Blocks, and where their code begins. Code that belongs to none begins at an address without a block.
    pub(crate) blocks: Vec<(u64, Option<Arc<Block>>)>,
    /// Where code begins that writes a record: it can be executed again if it faults.
    pub(crate) records: Vec<u64>,
    /// Words of the code that depend on places, if nothing but counters is inserted.
    pub(crate) fixups: Fixups,
    /// Instructions to which others lead than the ones before them.
    pub(crate) entries: Vec<u64>,
    /// Its code depends on its place in a way that cannot be changed.
    pub(crate) stays: bool,
    /// A call or a return passes flags which are read then, but none that is translated here keeps them.
    pub(crate) loses_flags: bool,
}

/// The most bytes that an instruction has, rounded up.
pub(crate) const LONGEST: usize = 16;

/// An instruction's bytes, and what comes after them.
pub(crate) type Bytes = [u8; LONGEST];

/// What a translation depends on.
pub(crate) struct Request<'r> {
    /// The first instructions.
    pub(crate) starts: &'r [u64],
    /// Only these are translated, with what lies between them, in a way that records less. How often blocks of the
    /// program were executed helps with that.
    pub(crate) profile: Option<&'r Profile>,
    /// The maximum number of instructions that are translated.
    pub(crate) most: usize,
    /// What is not here is not translated.
    pub(crate) within: Span,
    /// Where the translation will be.
    pub(crate) base: u64,
    /// The address of the table of targets.
    pub(crate) table: u64,
    /// Reads the program's code at an address: up to [`LONGEST`] bytes, and how many there are. `None`: it is not code
    /// that the program may execute.
    pub(crate) read: &'r mut dyn FnMut(u64) -> Option<(Bytes, usize)>,
    /// Where an instruction of the program was translated to.
    pub(crate) known: &'r dyn Fn(u64) -> Option<u64>,
    /// Whether an instruction may change, or must be reached by an exit for another reason.
    pub(crate) soft: &'r dyn Fn(u64) -> bool,
    /// How hodo notices that an instruction has changed which may.
    pub(crate) notice: &'r dyn Fn(u64) -> Notice,
    /// Whether what may change may be on a stack.
    pub(crate) on_stack: bool,
    /// The address of the mark of a page that may change.
    pub(crate) mark: &'r dyn Fn(u64) -> u32,
    pub(crate) insertion: Option<Insertion>,
    /// Whether calls and returns keep the flags of the program.
    pub(crate) keeps_flags: bool,
    /// What changes the code.
    pub(crate) passes: Option<&'r RefCell<Passes>>,
    /// The file from which code is, and where it is in that.
    pub(crate) file: &'r dyn Fn(u64) -> Option<(PathBuf, u64)>,
    /// The events that a client wants to receive.
    pub(crate) watch: Option<&'r Watch>,
    /// Numbers for blocks, and for their counters. What the block is, is found out if that matters.
    pub(crate) numbers: &'r mut dyn FnMut(Identify<'_>) -> (u32, u32),
    /// Numbers for lines from which instructions are fetched.
    pub(crate) line_number: &'r mut dyn FnMut(u64) -> u32,
}

/// A translation of an instruction: for threads of which the values of these registers are known from what they have
/// recorded, bit by number. The translation without such registers is for all threads.
pub(crate) type Version = (u64, u16);

/// Bytes of a translation after which it ends soon.
pub(super) const ENOUGH: u32 = 256 << 10;

/// An instruction of a block: its address, its bytes, and what it does.
pub(crate) type BlockInsn<'c, F> = (u64, &'c [u8], Rc<F>);

/// What a block is found for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Analyzed {
    /// Executions are counted.
    Counts,
    /// The same, and threads record what they access outside of the lines used last.
    Lines,
    /// Threads record what its accesses depend on.
    Accesses,
    /// The same, and blocks that it leads to may use that. The values of these registers are known from earlier
    /// records, bit by number.
    Hot(u16),
}

/// What [`Request::read`] finds at an address, if there is code from `start` on.
pub(crate) fn first_bytes(code: &[u8], start: u64, pc: u64) -> Option<(Bytes, usize)> {
    let rest = code.get(pc.checked_sub(start)? as usize..)?;
    let mut bytes = [0; LONGEST];
    let len = rest.len().min(LONGEST);
    bytes[..len].copy_from_slice(&rest[..len]);
    (len > 0).then_some((bytes, len))
}
