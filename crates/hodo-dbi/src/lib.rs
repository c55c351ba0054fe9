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
#[cfg(target_arch = "x86_64")]
mod attach;
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, reason = "only an engine makes blocks and messages")
)]
mod block;
mod calls;
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, reason = "only an engine makes blocks and messages")
)]
mod client;
#[cfg(not(target_arch = "x86_64"))]
#[allow(dead_code, reason = "only an engine makes fragments")]
mod elsewhere;
#[cfg(target_arch = "x86_64")]
mod engine;
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, reason = "only an engine makes blocks and messages")
)]
mod events;
#[cfg(target_arch = "x86_64")]
mod expanding;
#[cfg(target_arch = "x86_64")]
mod fixups;
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, reason = "only an engine makes fragments")
)]
mod fragment;
#[cfg(target_arch = "x86_64")]
mod hot;
#[cfg(target_arch = "x86_64")]
mod image;
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, reason = "only an engine makes fragments")
)]
mod inserted;
#[cfg(target_arch = "x86_64")]
mod kept;
#[cfg(target_arch = "x86_64")]
mod known;
#[cfg(target_arch = "x86_64")]
mod limit;
#[cfg(target_arch = "x86_64")]
mod making;
#[cfg(target_arch = "x86_64")]
mod notes;
#[cfg(target_arch = "x86_64")]
mod numbered;
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, reason = "only an engine makes fragments")
)]
mod passes;
#[cfg(target_arch = "x86_64")]
mod placed;
#[cfg(target_arch = "x86_64")]
mod places;
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, reason = "only an engine makes blocks and messages")
)]
mod plan;
#[cfg(target_arch = "x86_64")]
mod points;
#[cfg(target_arch = "x86_64")]
mod prepare;
#[cfg(target_arch = "x86_64")]
mod process;
#[cfg(target_arch = "x86_64")]
mod profile;
mod ran;
#[cfg_attr(
    not(target_arch = "x86_64"),
    expect(dead_code, reason = "the engine needs it")
)]
mod recent;
#[cfg(target_arch = "x86_64")]
mod recorder;
#[cfg(target_arch = "x86_64")]
mod region;
#[cfg(target_arch = "x86_64")]
mod run;
#[cfg(target_arch = "x86_64")]
mod shown;
#[cfg(target_arch = "x86_64")]
mod spans;
#[cfg(target_arch = "x86_64")]
mod state;
#[cfg(target_arch = "x86_64")]
mod stepped;
#[cfg(target_arch = "x86_64")]
mod table;
mod target;
#[cfg(target_arch = "x86_64")]
mod targets;
#[cfg(target_arch = "x86_64")]
mod trap;
#[cfg(target_arch = "x86_64")]
mod units;
#[cfg(target_arch = "x86_64")]
mod watched;
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, reason = "only an engine makes fragments")
)]
mod wide;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(not(target_arch = "x86_64"))]
use elsewhere as native;
#[cfg(target_arch = "x86_64")]
use x86_64 as native;

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
#[cfg(target_arch = "x86_64")]
pub use run::{instrument, listen, observe, run};
pub use target::{Amount, Period, Target};
#[cfg(target_arch = "x86_64")]
pub use x86_64::analyze::{branch_target, mnemonic};

/// The name of the operation of an instruction: there is none without an engine.
#[cfg(not(target_arch = "x86_64"))]
#[must_use]
pub fn mnemonic(_: &[u8]) -> String {
    "?".to_owned()
}

/// Where a direct branch or call leads: nobody knows without an engine.
#[cfg(not(target_arch = "x86_64"))]
#[must_use]
pub fn branch_target(_: u64, _: &[u8]) -> Option<u64> {
    None
}

/// There is no engine for this instruction set yet.
///
/// # Errors
/// Always.
#[cfg(not(target_arch = "x86_64"))]
pub fn run(_: &Target<'_>) -> anyhow::Result<Ran> {
    anyhow::bail!("the engine works only on x86-64")
}

/// There is no engine for this instruction set yet.
///
/// # Errors
/// Always.
#[cfg(not(target_arch = "x86_64"))]
pub fn observe<C: Client + 'static>(
    target: &Target<'_>,
    observe: Observe,
    client: C,
) -> anyhow::Result<(Ran, C)> {
    let (ran, decode) = listen(target, observe, Decode::new(client))?;
    Ok((ran, decode.into_client()))
}

/// There is no engine for this instruction set yet.
///
/// # Errors
/// Always.
#[cfg(not(target_arch = "x86_64"))]
pub fn listen<L: Listener + 'static>(_: &Target<'_>, _: Observe, _: L) -> anyhow::Result<(Ran, L)> {
    anyhow::bail!("the engine works only on x86-64")
}

/// There is no engine for this instruction set yet.
///
/// # Errors
/// Always.
#[cfg(not(target_arch = "x86_64"))]
pub fn instrument<C: Client + 'static>(
    _: &Target<'_>,
    _: Vec<Box<dyn Pass>>,
    _: C,
) -> anyhow::Result<(Ran, C)> {
    anyhow::bail!("the engine works only on x86-64")
}
