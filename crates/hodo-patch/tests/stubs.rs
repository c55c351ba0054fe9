//! Stubs and the agent for RISC-V, executed: functions of this program are patched as hodo would do it from outside,
//! with a thread control block and an events file in memory; what they record is read as a trace. This needs no ptrace,
//! so it runs under qemu's user mode emulator (`scripts/cross.sh`).
#![cfg(target_arch = "riscv64")]

#[path = "stubs/calls.rs"]
mod calls;
#[path = "stubs/code.rs"]
mod code;
#[path = "stubs/compiled.rs"]
mod compiled;
#[path = "stubs/far.rs"]
mod far;
#[path = "stubs/generated.rs"]
mod generated;
#[path = "stubs/hooks.rs"]
mod hooks;
#[path = "stubs/leads.rs"]
mod leads;
#[path = "stubs/leaving.rs"]
mod leaving;
#[path = "stubs/planned.rs"]
mod planned;
#[path = "stubs/program.rs"]
mod program;
#[path = "../../hodo-tests/src/skipped.rs"]
mod skipped;
#[path = "stubs/state.rs"]
mod state;
#[path = "stubs/vectors.rs"]
mod vectors;
#[path = "stubs/windows.rs"]
mod windows;
#[path = "stubs/world.rs"]
mod world;
#[path = "stubs/writer.rs"]
mod writer;
