//! x86-64.

pub(crate) mod analyze;
mod insert;
pub(crate) mod translate;

/// The block of a thread, to which its `gs` base points: offsets in bytes.
pub(crate) mod block {
    /// The program's `rcx`.
    pub(crate) const RCX: u32 = 0;
    /// The program's `r11`.
    pub(crate) const R11: u32 = 8;
    /// The program's `rax`.
    pub(crate) const RAX: u32 = 16;
    /// Where an indirect call or jump leads.
    pub(crate) const TARGET: u32 = 24;
    /// Two registers of the program that code of hodo needs.
    pub(crate) const SCRATCH: [u32; 2] = [32, 40];
    /// Where the next record goes.
    pub(crate) const POSITION: u32 = 48;
    /// What `rsi` and `rdi` were before a repeated instruction.
    pub(crate) const BEFORE: [(u8, u32); 2] = [(6, 56), (7, 64)];
    /// Room for what hodo passes to the kernel.
    pub(crate) const ARGUMENTS: u64 = 72;
    /// The size of a block.
    pub(crate) const SIZE: u64 = 128;
    /// Where the counters of blocks of code are, if there are some.
    pub(crate) const COUNTERS: u32 = 4096;
}
