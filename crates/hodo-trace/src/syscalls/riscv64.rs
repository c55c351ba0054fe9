//! The system calls of RISC-V Linux that are not generic ones.

/// The first number, and the names from there on.
pub(super) const NAMES: [(u64, &str); 1] = [(258, "riscv_hwprobe riscv_flush_icache")];

/// Calls that no other instruction set has: their names and arguments.
pub(super) const OWN: [(&str, &str); 2] = [
    ("riscv_hwprobe", "ptr size size ptr hex"),
    ("riscv_flush_icache", "ptr ptr hex"),
];

/// The names of arguments where the kernel has others, or another order, than elsewhere.
pub(super) const ARGUMENTS: [(&str, &str); 2] = [
    ("clone", "clone_flags newsp parent_tidptr tls child_tidptr"),
    ("mmap", "addr len prot flags fd offset"),
];
