//! What depends on the instruction set: the text of a branch, its entry in the table, and how it is changed.

use core::ops::Range;

#[cfg(target_arch = "aarch64")]
#[path = "aarch64.rs"]
mod isa;
#[cfg(target_arch = "riscv64")]
#[path = "riscv64.rs"]
mod isa;
#[cfg(target_arch = "x86_64")]
#[path = "x86_64.rs"]
mod isa;

pub use isa::{Entry, LONGEST, STEPS, is_branch, step};

use isa::length;

/// One branch, with addresses.
#[derive(Debug, Clone, Copy)]
pub struct Branch {
    /// The instruction.
    pub code: usize,
    /// Where it jumps to.
    pub target: usize,
    /// The key.
    pub key: usize,
    /// What the program's expression is where the instruction does not jump.
    pub likely: bool,
}

/// What is written at a branch.
#[derive(Debug, Clone)]
pub struct Step {
    pub bytes: [u8; LONGEST],
    /// Which of them.
    pub range: Range<usize>,
}

/// Reads what is at a branch.
///
/// # Safety
/// It is code that is mapped, and can be read.
pub unsafe fn bytes(branch: &Branch) -> [u8; LONGEST] {
    // SAFETY: as the caller says; volatile, for it is changed behind the compiler's back.
    let read = |place: usize| unsafe { ((branch.code + place) as *const u8).read_volatile() };
    let mut bytes = [0; LONGEST];
    bytes[0] = read(0);
    // A short branch may be the last code of a page.
    for (place, byte) in bytes.iter_mut().enumerate().take(length(read(0))).skip(1) {
        *byte = read(place);
    }
    bytes
}

/// One of three steps: to an instruction that does nothing whatever bytes follow it, then these bytes, then the wanted
/// instruction. None if nothing is to be written.
#[cfg(not(target_arch = "aarch64"))]
fn step_by_way_of(between: u8, number: usize, bytes: &[u8], wanted: [u8; LONGEST]) -> Option<Step> {
    let size = bytes.len();
    let (first, range) = match number {
        0 if *bytes != wanted[..size] && bytes[0] != between => (between, 0..1),
        1 if bytes[0] == between && bytes[1..] != wanted[1..size] => (wanted[0], 1..size),
        2 if bytes[0] == between => (wanted[0], 0..1),
        _ => return None,
    };
    let mut bytes = wanted;
    bytes[0] = first;
    Some(Step { bytes, range })
}
