//! Programs in the code cache: `hodo mem`, and clients of the engine.
#![cfg(target_arch = "x86_64")]

mod accesses;
mod attach;
mod calls;
mod clients;
mod counting;
mod coverage;
mod events;
mod expanded;
mod heap;
mod lackey;
mod lane_interpreter;
mod lines;
mod many_gathers;
mod marked;
mod opcodes;
mod passes;
mod programs;
mod shown;
mod tools;
