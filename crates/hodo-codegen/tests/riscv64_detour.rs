//! Runs detours of probes on random state, and compares what they count, write and leave with what is computed here.
//!
//! For RISC-V only: `scripts/cross.sh` runs it under an emulator.
#![cfg(target_arch = "riscv64")]

#[path = "../../hodo-isa/tests/riscv64/mod.rs"]
mod common;
#[path = "detour/mod.rs"]
mod detours;
#[path = "detour/riscv64.rs"]
mod isa;
#[path = "../../hodo-isa/tests/riscv64/machine.rs"]
mod machine;
