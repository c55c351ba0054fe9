//! AArch64: a branch is a `nop` or a `b`, four bytes long.
//!
//! # How a branch is changed while threads execute it
//!
//! These two may be exchanged while other processors execute them (Arm Architecture Reference Manual, section B2.3.4,
//! "Concurrent modification and execution of instructions"): each processor executes the old or the new one, provided
//! the aligned word is written by one store. Linux writes to `/proc/self/mem` with `memcpy` (`copy_to_user_page` in
//! `arch/arm64/mm/flush.c`, which also cleans the data cache and invalidates the instruction caches of all processors),
//! and that uses one `str` for four bytes, or two of the same word (`arch/arm64/lib/copy_template.S` up to Linux 5.13,
//! `memcpy.S` since). But since Linux 6.13 (commit 836ed3c4e473) it uses `cpyp`, `cpym`, `cpye` where the processor has
//! them (`FEAT_MOPS`), and they promise nothing about the size of their stores.
//!
//! Where single stores are not guaranteed, a nop becomes a jump by way of `prfm` with a literal. Whatever its operands,
//! that instruction only prefetches into a cache what may be at some address, and its operands are where `b` has its
//! distance:
//!
//! ```text
//! 1f 20 03 d5    nop
//! 1f 20 03 d8    prfm #31, …         one byte is written
//! .. .. .. d8    prfm …              any of the bytes may be seen before the others
//! .. .. .. 1.    b …                 one byte is written
//! ```
//!
//! The manual does not mention `prfm` in that section; but a processor that executed bytes that were never there would
//! fail at the exchange of whole words, too. After each step every processor executes `isb`.

use super::{Branch, Step, step_by_way_of};

/// A branch that is initially a jump, or a nop.
#[doc(hidden)]
#[macro_export]
macro_rules! __branch_asm {
    (jump, $key:path, $offset:expr, $likely:literal, $label:block) => {
        $crate::__branch_with!(["2: b {other}"], $key, $offset, $likely, $label)
    };
    (nop, $key:path, $offset:expr, $likely:literal, $label:block) => {
        $crate::__branch_with!(["2: nop"], $key, $offset, $likely, $label)
    };
}

const NOP: [u8; 4] = 0xD503_201F_u32.to_le_bytes();
const B: u32 = 0b000101 << 26;
/// The last byte of `prfm` with a literal.
const PRFM: u8 = 0xD8;

/// The number of steps of a change.
pub const STEPS: usize = 3;

/// How many bytes of a branch are rewritten unchanged to find out whether code can be written.
pub const FIRST: usize = 4;

/// The longest branch, in bytes.
pub const LONGEST: usize = 4;

/// Returns whether the bytes may be a branch, also in the middle of a change.
pub fn is_branch(bytes: &[u8; LONGEST]) -> bool {
    *bytes == NOP || bytes[3] == PRFM || u32::from_le_bytes(*bytes) >> 26 == B >> 26
}

/// The length of a branch in bytes.
pub fn length(_: u8) -> usize {
    4
}

/// What must be written at a branch in one of the steps to a jump or to a nop; `None` if nothing. The bytes there must
/// be one of the forms. `words` says that an aligned word is written by one store.
pub fn step(
    number: usize,
    branch: &Branch,
    bytes: &[u8; LONGEST],
    jump: bool,
    words: bool,
) -> Option<Step> {
    let distance = branch.target.wrapping_sub(branch.code) as u32;
    let jump = jump.then(|| (B | distance >> 2 & 0x3FF_FFFF).to_le_bytes());
    let wanted = jump.unwrap_or(NOP);
    if words {
        return (*bytes != wanted).then_some(Step {
            bytes: wanted,
            range: 0..LONGEST,
        });
    }
    step_by_way_of((3, PRFM), number, bytes, wanted)
}
