//! Stubs and the agent for RISC-V and AArch64, executed: functions of this program are patched as hodo would do it
//! from outside, with a thread control block and an events file in memory; what they record is read as a trace. This
//! needs no ptrace, so it runs under qemu's user mode emulator (`scripts/cross.sh`).
#![cfg(any(target_arch = "riscv64", target_arch = "aarch64"))]

#[path = "stubs/calls.rs"]
mod calls;
#[cfg_attr(target_arch = "riscv64", path = "stubs/riscv64/code.rs")]
#[cfg_attr(target_arch = "aarch64", path = "stubs/aarch64/code.rs")]
mod code;
#[cfg(target_arch = "riscv64")]
#[path = "stubs/riscv64/compiled.rs"]
mod compiled;
#[cfg_attr(target_arch = "riscv64", path = "stubs/riscv64/far.rs")]
#[cfg_attr(target_arch = "aarch64", path = "stubs/aarch64/far.rs")]
mod far;
#[path = "stubs/generated.rs"]
mod generated;
#[path = "stubs/hooks.rs"]
mod hooks;
#[cfg_attr(target_arch = "riscv64", path = "stubs/riscv64/isa.rs")]
#[cfg_attr(target_arch = "aarch64", path = "stubs/aarch64/isa.rs")]
mod isa;
#[cfg(target_arch = "aarch64")]
#[path = "stubs/aarch64/landings.rs"]
mod landings;
#[cfg(target_arch = "riscv64")]
#[path = "stubs/riscv64/leads.rs"]
mod leads;
#[path = "stubs/leaving.rs"]
mod leaving;
#[path = "stubs/planned.rs"]
mod planned;
#[path = "stubs/program.rs"]
mod program;
#[cfg(target_arch = "aarch64")]
#[path = "stubs/aarch64/signed.rs"]
mod signed;
#[path = "../../hodo-tests/src/skipped.rs"]
mod skipped;
#[path = "stubs/state.rs"]
mod state;
#[cfg(target_arch = "riscv64")]
#[path = "stubs/riscv64/vectors.rs"]
mod vectors;
#[path = "stubs/windows.rs"]
mod windows;
#[path = "stubs/world.rs"]
mod world;
#[path = "stubs/writer.rs"]
mod writer;
