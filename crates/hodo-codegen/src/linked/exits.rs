//! Where moved instructions leave with a register on the stack, which a pad restores.

use alloc::vec::Vec;

use hodo_isa::cfa::{Row, Rule};
use hodo_isa::linked::Relocated;

/// The code with which they leave.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Exit {
    /// After this many bytes, the stack pointer is lowered.
    pub lowers: u32,
    /// Bytes of all of it.
    pub len: u32,
    /// The number of the stack pointer.
    pub stack: u8,
}

/// Bytes of stack that it uses.
pub(crate) const KEPT: i32 = 16;

/// Adds where the frame is while moved instructions that leave through pads have a register saved.
pub(crate) fn keep_rows(rows: &mut Vec<Row>, moved: &Relocated, form: Exit) {
    for exit in &moved.exits {
        let at = exit.new as u32;
        let next = rows.partition_point(|row| row.at <= at);
        let before = next.checked_sub(1).map(|before| rows[before].rule);
        let Some(Rule::Frame {
            base,
            offset,
            saved,
        }) = before
        else {
            continue;
        };
        if base != form.stack {
            continue;
        }
        let rule = Rule::Frame {
            base,
            offset: offset + KEPT,
            saved,
        };
        // After it, the state is that of the instruction.
        let end = at + form.len;
        let restored = before.filter(|_| rows.get(next).is_none_or(|row| row.at > end));
        let restored = restored.map(|rule| Row { at: end, rule });
        let at = at + form.lowers;
        rows.splice(next..next, [Row { at, rule }].into_iter().chain(restored));
    }
}
