//! Calls of the runtime's slow paths, as stubs make them.

use super::frame::Regs;
use super::{KEPT, Rows};
use crate::riscv64::masm::{Asm, If, Label};
use hodo_isa::riscv64::regs::{SP, T0, ZERO};

/// Which registers the runtime is given: the control block's address, one for an argument or result, the time.
const A: u32 = 5;
const TIME: u32 = 10;
/// How many times 16 bytes the stack pointer is below the one of the function's entry.
const LOWERED: u32 = 15;

/// A new upper half of the time. Keeps all registers. `t` has the time.
pub(super) fn epoch(asm: &mut Asm, to: u64, regs: &Regs) {
    call(asm, to, &[told(regs, 0)], &mut Rows::default());
}

/// Opens a new chunk. Keeps all registers but `v`, in which it gives a place for a record.
pub(super) fn chunk(asm: &mut Asm, to: u64, regs: &Regs) {
    call(asm, to, &[told(regs, 0)], &mut Rows::default());
}

/// The shadow of the present stack is not known to be mapped, which is `depth` bytes below the function's. Goes to
/// `missing` if there can be none. Keeps all registers but `v`.
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

/// The runtime keeps all registers but the link, of which it finds the value on the stack. It returns after the words.
fn call(asm: &mut Asm, to: u64, words: &[u32], rows: &mut Rows) {
    asm.stack(-KEPT);
    rows.lower(asm, KEPT);
    asm.store(8, T0, SP, 0, ZERO);
    asm.far(to, T0, T0);
    for word in words {
        asm.raw(&word.to_le_bytes());
    }
    asm.ld(T0, SP, 0);
    asm.stack(KEPT);
    rows.lower(asm, -KEPT);
}
