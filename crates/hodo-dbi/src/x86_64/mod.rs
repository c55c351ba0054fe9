//! x86-64.

pub(crate) mod banks;
mod changing;
#[cfg(test)]
mod checker;
mod emit;
mod emitter;
mod exchange;
pub(crate) mod facts;
mod far;
mod features;
mod flags;
mod insert;
mod instruction;
mod lane_steps;
mod lanes;
mod lower;
mod narrow;
pub(crate) mod outputs;
pub(crate) mod rebuilt;
mod recent;
mod records;
pub(crate) mod redirect;
mod rounds;
mod set;
mod special;
pub(crate) mod stopped;
pub(crate) mod system_call;
mod vectors;

use anyhow::{Context, Result, bail};

/// x86-64.
pub(crate) enum X86_64 {}

/// The instruction of a marker, `nop`.
pub(crate) const MARKER: [u8; 1] = [0x90];

/// Checks that the engine makes code for this machine. It must not run a program elsewhere.
///
/// # Errors
/// If it does not.
pub fn check_machine() -> Result<()> {
    if !features::IS_HERE {
        bail!(
            "programs can be run from a code cache only on x86-64; recordings that were made there can be read (-d)"
        );
    }
    Ok(())
}

/// Checks that this machine can execute what clients have inserted: the base of `fs` is read by an instruction that the
/// kernel must allow (`FSGSBASE`, Linux 5.9; AT_HWCAP2 bit 1, arch/x86/include/uapi/asm/hwcap2.h).
///
/// # Errors
/// If not.
pub(crate) fn check() -> Result<()> {
    const FSGSBASE: u64 = 2;
    check_machine()?;
    let vector = hodo_ptrace::auxv::of(std::process::id().cast_signed())
        .context("cannot read /proc/self/auxv")?;
    let found = hodo_ptrace::auxv::find(&vector, libc::AT_HWCAP2);
    let is_allowed = found.is_some_and(|found| found & FSGSBASE != 0);
    if !is_allowed {
        bail!(
            "accesses cannot be observed here: the kernel does not allow rdfsbase (Linux 5.9 does)"
        );
    }
    Ok(())
}

/// Registers that inserted code may use, the better ones first. The stores of vectors cannot be based on `r12`.
const SCRATCH: [u8; 13] = [1, 2, 0, 6, 7, 8, 9, 10, 11, 3, 13, 14, 15];
/// How many general registers there are.
pub(crate) const GENERAL: u8 = 16;
/// The numbers of some of them.
const RAX_NUMBER: u8 = 0;
const RCX_NUMBER: u8 = 1;
const RSP_NUMBER: u8 = 4;

/// Registers that have words of their own in the block of a thread, as bits of
/// [`Saved::kept`](crate::translate::Saved).
pub(crate) mod kept {
    use super::block;

    pub(crate) const RCX: u8 = 1;
    pub(crate) const R11: u8 = 2;
    pub(crate) const RAX: u8 = 4;
    /// The one in which flags may be.
    pub(crate) const FLAGS: u8 = RAX;

    /// Nothing is kept, but a call has put the address to which it returns on the stack. It is not complete: if its
    /// target is no address at all, it faults, and has put nothing there.
    pub(crate) const CALLED: u8 = 8;

    /// Their numbers and words, in the order of these bits.
    pub(crate) const WORDS: [(u8, u32); 3] = [(1, block::RCX), (11, block::R11), (0, block::RAX)];
}

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
    /// Room for what hodo passes to the kernel, 40 bytes.
    pub(crate) const ARGUMENTS: u64 = 72;
    /// A number that no other thread has: children that have a copy of the block are found by it.
    pub(crate) const MARK: u64 = 112;
    /// Which of the signals by which threads stop for hodo the program blocks, four bytes.
    pub(crate) const BLOCKED: u32 = 120;
    /// Whether the kernel has handlers in the cache, two bytes.
    pub(crate) const ARMED: u32 = 124;
    /// Whether hodo has protected memory from the program and the kernel, two bytes.
    pub(crate) const PROTECTED: u32 = 126;
    /// The size of a block.
    pub(crate) const SIZE: u64 = 128;
    /// The address of an access whose line is looked up.
    pub(crate) const ADDRESS: u32 = 128;
    /// Words for values of the program that are not in their registers,
    pub(crate) const FIRST_SPILL: u32 = 256;
    /// and how many there are.
    pub(crate) const SPILLS: u32 = 48;
    /// Lanes of a gather or scatter: their values,
    pub(crate) const LANES: u32 = FIRST_SPILL + 8 * SPILLS;
    /// their indices,
    pub(crate) const INDICES: u32 = LANES + 64;
    /// and the mask.
    pub(crate) const ACTIVE: u32 = INDICES + 64;
    /// Numbers of lines from which instructions were fetched last, of four bytes. The other table comes after it.
    pub(crate) const FETCHED: u32 = 1024;
    /// Lines of data that were used last, of eight bytes.
    pub(crate) const USED: u32 = FETCHED + 4 * crate::recent::MOST_ENTRIES;
    /// Words for vector registers of the program that inserted code needs, of 64 bytes. There are no tables of lines if
    /// there is inserted code of passes.
    pub(crate) const VECTORS: u32 = 1024;
    /// How many there are.
    pub(crate) const VECTOR_SLOTS: u32 = 20;
    /// The same for mask registers, of 8 bytes.
    pub(crate) const MASKS: u32 = VECTORS + 64 * VECTOR_SLOTS;
    pub(crate) const MASK_SLOTS: u32 = 12;
    /// A vector whose elements are looked at.
    pub(crate) const ELEMENTS: u32 = MASKS + 128;
    /// Where the counters of blocks of code are, if there are some.
    pub(crate) const COUNTERS: u32 = 4096;
}
