//! Translated code is made to lead elsewhere while threads may be executing it.

use hodo_isa::x86_64::asm::{BREAKPOINT, jump};

/// What is written in one step: the distance from the beginning, and bytes.
pub(crate) type Write = (u64, Vec<u8>);

/// What is written over the code for an instruction so that it leads to other code, step by step: nobody executes a
/// mixture of the old instruction and the new one, if all processors have seen one step before the next one. After any
/// of them, the code leads there, or to a breakpoint at its beginning. `None`: it is too far away.
pub(crate) fn steps(from: u64, to: u64) -> Option<[Write; 3]> {
    let jump = jump(from, to).ok()?;
    let (first, rest) = jump.split_at(BREAKPOINT.len());
    Some([
        (0, BREAKPOINT.to_vec()),
        (first.len() as u64, rest.to_vec()),
        (0, first.to_vec()),
    ])
}
