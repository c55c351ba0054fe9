//! x86-64.

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
    /// Room for what hodo passes to the kernel.
    pub(crate) const SCRATCH: u64 = 64;
    /// The size of a block.
    pub(crate) const SIZE: u64 = 128;
}
