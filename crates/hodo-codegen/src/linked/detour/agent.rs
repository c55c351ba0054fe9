//! Calls of the runtime's slow paths, as stubs make them.

use super::frame::Regs;
use super::{KEPT, Rows};
use crate::linked::asm::Assembler;
use hodo_isa::buffer::Label;
use hodo_isa::linked::If;

/// Positions of the register numbers that the runtime is given: the control block's address, an argument or result, and
/// the time.
const A: u32 = 5;
const TIME: u32 = 10;
/// Position of the distance of the stack pointer below that at the function's entry, in units of 16 bytes.
const LOWERED: u32 = 15;

/// Handles a new upper half of the time. Preserves all registers. `t` holds the time.
pub(super) fn epoch<A: Assembler>(asm: &mut A, to: u64, regs: &Regs) {
    call(asm, to, &[told(regs, 0)], &mut Rows::default());
}

/// Opens a new chunk. Preserves all registers but `v`, which receives a place for a record.
pub(super) fn chunk<A: Assembler>(asm: &mut A, to: u64, regs: &Regs) {
    call(asm, to, &[told(regs, 0)], &mut Rows::default());
}

/// Handles a stack whose shadow may not be mapped; the stack pointer is `depth` bytes below that at the function's
/// entry. Jumps to `missed` if there can be no shadow. Preserves all registers but `v`.
pub(super) fn shadow<A: Assembler>(
    asm: &mut A,
    to: u64,
    (regs, depth): (&Regs, i64),
    missing: Label,
    rows: &mut Rows,
) {
    call(asm, to, &[told(regs, depth), 0], rows);
    asm.branch(If::NotEqual, regs.v, A::ZERO, missing);
}

fn told(regs: &Regs, depth: i64) -> u32 {
    u32::from(regs.block)
        | u32::from(regs.v) << A
        | u32::from(regs.t) << TIME
        | ((depth / 16) as u32) << LOWERED
}

/// Calls the runtime. It preserves all registers but its link, whose value it finds on the stack. It returns to the
/// address after the words.
fn call<A: Assembler>(asm: &mut A, to: u64, words: &[u32], rows: &mut Rows) {
    let link = A::RUNTIME_LINK;
    asm.stack(-KEPT, link);
    rows.lower(asm, KEPT);
    asm.store(8, link, A::STACK, 0, A::ZERO);
    asm.call_runtime(to);
    for word in words {
        asm.raw(&word.to_le_bytes());
    }
    asm.load(8, link, A::STACK, 0);
    asm.stack(KEPT, link);
    rows.lower(asm, -KEPT);
}
