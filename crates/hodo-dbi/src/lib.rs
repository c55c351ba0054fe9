//! The instrumentation engine: runs a program from a code cache, from its first instruction to its last.
//!
//! The program's own code stays mapped and readable, but cannot be executed. What is about to be executed is translated
//! into the cache first, by hodo, which traces the program. Whatever reaches the program's own code faults, and hodo
//! continues it in the cache. So nothing escapes.
//!
//! * `process`: an address space: what may be executed, what was translated, and the state at each instruction.
//! * `state`: the program's state of a thread that is in the cache; `stepped`: programs that step themselves.
//! * `hot`: translates again what is executed often.
//! * `kept`: where code was entered in earlier runs; `prepare`: translates that.
//! * `known`: where instructions were translated to.
//! * `table`: the targets of returns and indirect branches.
//! * `trap`: the program's own actions for SIGTRAP and SIGSEGV.
//! * `units`: translations of code that may change.
//! * `run`: runs programs, or parts of their runs.
//! * `engine`: follows threads; `attach`: comes to running processes, and leaves them.
//! * `block`, `access`: blocks of code, what threads record when they execute them, and the accesses that this says.
//! * `plan`: how accesses are computed from records.
//! * `passes`: passes look at code before it is executed, and change it; `fragment`: what they see; `inserted`: what they
//!   insert; `wide`: vectors and masks in that.
//! * `expanding`: a pass with which lanes are recorded one by one.
//! * `recorder`: how hodo takes that from the threads; `client`: who hears of it.
//! * `events`: what clients hear besides accesses; `notes`: of it, what is known at stops; `calls`: the functions in which a thread is, of those that they name.
//! * A folder for each instruction set has what is emitted. So far there is one, for x86-64.
#![forbid(unsafe_code)]

mod access;
mod attach;
mod block;
mod blocked;
mod calls;
mod client;
mod engine;
mod events;
mod expanding;
mod fixups;
mod fragment;
mod hot;
mod image;
mod inserted;
mod kept;
mod known;
mod limit;
mod making;
mod notes;
mod numbered;
mod passes;
mod placed;
mod places;
mod plan;
mod points;
mod prepare;
mod process;
mod profile;
mod ran;
mod recent;
mod recorder;
mod region;
mod run;
mod shown;
mod spans;
mod state;
mod stepped;
mod table;
mod target;
mod targets;
mod translate;
mod trap;
mod units;
mod watched;
mod wide;
mod x86_64;

/// The instruction set whose programs run from the cache.
mod native {
    pub(crate) use crate::x86_64::X86_64 as Native;
    pub(crate) use crate::x86_64::*;
}

pub use access::{Access, Kind};
pub use block::{Block, Flow, Insn};
pub use client::{Client, Decode, Listener, Message, Observe, size_of_other_record, stands_alone};
pub use events::{Choice, Event, Events};
pub use fragment::{Fragment, Instruction, Item, Operand};
pub use hodo_ptrace::launch::find_program;
pub use inserted::{
    Bytes, Code, Compare, Compute, Lanes, Mark, Repeated, Scratch, ScratchMask, ScratchVector,
    Step, TooMany, Value, VectorStep, Word,
};
pub use native::banks::{has_masks, vector_bytes, vector_registers};
pub use passes::{Inserting, Pass, Replacing, Revising, Words};
pub use ran::{End, Ran};
pub use recent::{LineSets, Recent};
pub use run::{instrument, listen, observe, run};
pub use target::{Amount, Period, Target};
pub use x86_64::analyze::{branch_target, mnemonic};
