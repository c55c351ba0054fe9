//! Instructions of blocks.

use std::rc::Rc;

use hodo_isa::x86_64::decode::{Insn, Kind};

use super::analyze::Facts;

/// An instruction of a block: where it is, its bytes, and what it is.
pub(super) struct Decoded {
    pub(super) pc: u64,
    pub(super) bytes: [u8; 16],
    pub(super) insn: Option<Insn>,
    pub(super) facts: Rc<Facts>,
}

impl Decoded {
    fn len(&self) -> usize {
        self.insn.map_or(1, |insn| usize::from(insn.len))
    }

    /// The address after it.
    pub(super) fn next(&self) -> u64 {
        self.pc + self.len() as u64
    }

    pub(super) fn own(&self) -> &[u8] {
        &self.bytes[..self.len()]
    }

    /// Where a conditional branch leads.
    pub(super) fn target(&self) -> Option<u64> {
        let insn = self.insn.filter(|insn| insn.kind == Kind::Branch)?;
        let own = self.own();
        let distance = match own.len() - usize::from(insn.opcode) {
            2 => i64::from(own.last()?.cast_signed()),
            _ => i64::from(i32::from_le_bytes(*own.last_chunk::<4>()?)),
        };
        Some(self.next().wrapping_add_signed(distance))
    }
}
