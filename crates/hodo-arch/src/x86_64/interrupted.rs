//! Which half of a stub an instruction belongs to, for signals that arrive there.

use alloc::vec::Vec;
use core::ops::Range;

use super::scan::{Flow, Sweep};

/// Whether the traced function has not returned yet at `pc`, an instruction of a stub whose `code` begins at `start`: from
/// there the stub goes on to its body, and not to its return.
#[must_use]
pub fn before_return(code: &[u8], start: u64, body: Range<u64>, pc: u64) -> bool {
    let mut todo = vec![pc];
    let mut seen = Vec::new();
    while let Some(at) = todo.pop() {
        if body.contains(&at) {
            return true;
        }
        let Some(rest) = at
            .checked_sub(start)
            .and_then(|offset| code.get(usize::try_from(offset).ok()?..))
        else {
            continue;
        };
        let Some(insn) = Sweep::new(rest, at).next() else {
            continue;
        };
        if seen.contains(&at) {
            continue;
        }
        seen.push(at);
        let next = at + u64::from(insn.len);
        match insn.flow {
            Flow::Return { .. } => return false,
            Flow::Next => todo.push(next),
            Flow::Branch(to) => todo.extend([to, next]),
            Flow::Jump(to) => todo.push(to),
            // The agent comes back; the body has to be called first.
            Flow::Call(to) if body.contains(&to) => return true,
            Flow::Call(_) => todo.push(next),
            _ => {}
        }
    }
    false
}
