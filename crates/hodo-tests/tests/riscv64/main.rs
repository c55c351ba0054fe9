//! Programs for RISC-V in a real Linux, seen from this machine.
#![cfg(target_arch = "x86_64")]

mod programs;
mod reference;
