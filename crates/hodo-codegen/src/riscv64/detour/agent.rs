//! Calls of the runtime's slow paths, as stubs make them.

use super::frame::Regs;
use super::{KEPT, Rows};
use crate::riscv64::masm::{Asm, If, Label};
use hodo_isa::riscv64::regs::{SP, T0, ZERO};

/// Positions of the register numbers that the runtime is given: the control block's address, an argument or result, and
/// the time.
const A: u32 = 5;
const TIME: u32 = 10;
/// Position of the distance of the stack pointer below that at the function's entry, in units of 16 bytes.
const LOWERED: u32 = 15;

/// Handles a new upper half of the time. Preserves all registers. `t` holds the time.
pub(super) fn epoch(asm: &mut Asm, to: u64, regs: &Regs) {
    call(asm, to, &[told(regs, 0)], &mut Rows::default());
}

/// Opens a new chunk. Preserves all registers but `v`, which receives a place for a record.
pub(super) fn chunk(asm: &mut Asm, to: u64, regs: &Regs) {
    call(asm, to, &[told(regs, 0)], &mut Rows::default());
}

/// Handles a stack whose shadow may not be mapped; the stack pointer is `depth` bytes below that at the function's
/// entry. Jumps to `missed` if there can be no shadow. Preserves all registers but `v`.
pub(super) fn shadow(
    asm: &mut Asm,
    to: u64,
    (regs, depth): (&Regs, i64),
    missing: Label,
    rows: &mut Rows,
) {
    call(asm, to, &[told(regs, depth), 0], rows);
    asm.branch(If::NotEqual, regs.v, ZERO, missing);
}

fn told(regs: &Regs, depth: i64) -> u32 {
    u32::from(regs.block)
        | u32::from(regs.v) << A
        | u32::from(regs.t) << TIME
        | ((depth / 16) as u32) << LOWERED
}

/// Calls the runtime. It preserves all registers but the link, whose value it finds on the stack. It returns to the
/// address after the words.
fn call(asm: &mut Asm, to: u64, words: &[u32], rows: &mut Rows) {
    asm.stack(-KEPT);
    rows.lower(asm, KEPT);
    asm.store(8, T0, SP, 0, ZERO);
    asm.far(to, T0, T0);
    for word in words {
        asm.raw(&word.to_le_bytes());
    }
    asm.ld(T0, 0, SP);
    asm.stack(KEPT);
    rows.lower(asm, -KEPT);
}
