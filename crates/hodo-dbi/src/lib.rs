//! The instrumentation engine: runs a program from a code cache, from its first instruction to its last.
//!
//! The program's own code stays mapped and readable, but cannot be executed. What is about to be executed is translated
//! into the cache first, by hodo, which traces the program. Whatever reaches the program's own code faults, and hodo
//! continues it in the cache. So nothing escapes.
//!
//! From the bottom up:
//!
//! * **What is recorded**: `block` has blocks of code and what threads record when they execute them, `access` the
//!   accesses that follow from that, and `plan` how they are computed. `recent` is about lines that were used last.
//! * **Passes** look at code before it is executed, and change it (`passes`): `fragment` is what they see, `inserted`
//!   what they insert, `wide` the vectors and masks in that. `expanding` is a pass of our own; it records lanes one by
//!   one.
//! * **Translation** (`translate`) turns a program's code into code of the cache, for any instruction set. It knows no
//!   register by its name. An instruction set says what becomes of each instruction, in the folder named after it.
//!   There are two: x86-64, and RISC-V, for which nothing can be inserted. `bare` gives a translation to who executes
//!   it without an engine.
//! * **An address space** (`process`): what may be executed, where its instructions were translated to (`known`), the
//!   parts of the cache, with the state of a thread at each place (`region`; the table is in `hodo_codegen::statemap`),
//!   the targets of returns and indirect branches (`table`), and code that may change (`soft`): its translations
//!   (`changes`) and its pages (`marks`, `protected`). `hot` translates again what is executed often. `kept` remembers
//!   where code was entered in earlier runs, `prepare` translates that, and `image` keeps translations. `unloaded` has
//!   those of code that may be loaded again.
//! * **Threads** (`engine`) are followed from their first stop to their end. The files in `engine/` are its parts:
//!   `run` runs a program, or a part of its run; `policy` says what is done at stops, `attach` attaches to a running
//!   process and detaches from it, `marked` observes the parts that a program marks (`markers`), `watched` sees system
//!   calls, `handlers` leads threads to handlers of signals and back, `blocked` knows which signals threads block,
//!   `debuggers` leaves to these what they trace (`tracers`), `stepped` deals with programs that step themselves, and
//!   `notes` reports what is known at stops. Below it, `state` finds the program's state of a thread that is in the
//!   cache, `trap` has the program's own actions for signals that hodo uses, and `written` knows what hodo has written
//!   lately.
//! * **Clients** (`client`) receive blocks and accesses from `recorder`, which takes them from the threads, and
//!   `events` besides these; `calls` knows in which functions a thread is.
#![forbid(unsafe_code)]

#[macro_use(warn_user)]
extern crate hodo_ptrace;

mod access;
pub mod bare;
mod block;
mod calls;
mod changes;
mod client;
mod contents;
mod engine;
mod events;
mod expanding;
mod fixups;
mod fragment;
mod image;
mod inserted;
mod kept;
mod known;
mod making;
mod markers;
mod marks;
mod numbered;
mod numbers;
mod passes;
mod placed;
mod places;
mod plan;
mod process;
mod profile;
mod protected;
mod ran;
mod recent;
mod recorder;
mod region;
mod riscv64;
mod shown;
mod spans;
mod state;
mod table;
mod target;
mod targets;
mod translate;
mod trap;
mod unloaded;
mod wide;
mod written;
mod x86_64;

/// The instruction set whose programs run from the cache.
mod native {
    pub(crate) use crate::x86_64::X86_64 as Native;
    pub(crate) use crate::x86_64::*;
}

pub use access::{Access, Kind};
pub use block::{Block, Insn, Transfer};
pub use client::{Client, Decode, Listener, Message, Observe, size_of_other_record, stands_alone};
pub use contents::contents;
pub use engine::run::{instrument, listen, observe, run};
pub use events::{Choice, Event, Events};
pub use fragment::{Fragment, Instruction, Item, Operand, RegisterBank, RegisterOperand};
pub use hodo_follow::Exit;
pub use hodo_ptrace::launch::{find_program, why_not};
pub use hodo_ptrace::signals::stay_blocked;
pub use inserted::{
    Bytes, Code, Compare, Compute, Lanes, Mark, Repeated, Scratch, ScratchMask, ScratchVector,
    Step, TooMany, Value, VectorStep, Word,
};
pub use native::banks::{has_masks, vector_bytes, vector_registers};
pub use passes::{Inserting, Pass, Replacing, Revising, Words};
pub use plan::Accesses;
pub use ran::Ran;
pub use recent::{LineSets, Recent};
pub use riscv64::translate_riscv64;
pub use target::{Amount, Period, Target};
pub use x86_64::check_machine;
pub use x86_64::facts::{branch_target, mnemonic};
