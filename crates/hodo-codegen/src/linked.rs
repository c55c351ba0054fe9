//! Instruction sets whose calls put the return address in a register: RISC-V and AArch64. What is here is the same for
//! both, and names no instruction.

pub(crate) mod asm;
pub(crate) mod detour;
pub(crate) mod exits;
pub(crate) mod frames;
pub(crate) mod hooks;
