//! A probe with a condition, or with actions that share values: each value is fetched once.

use super::frame::{self, Frame};
use super::{Block, Cold, Deed, DetourError, Layout, Probing, Register};
use crate::lower::{Events, Given, condition, deeds};
use crate::riscv64::masm::Asm;
use hodo_isa::riscv64::regs::TP;

/// The register that holds a function's result.
const A0: Register = 10;

/// Maximum length of a block's machine code in bytes.
#[must_use]
pub fn size(block: &Block, layout: &Layout) -> u64 {
    let mut asm = Asm::default();
    let mut cold = Cold::default();
    // A block that fails takes no room: it is refused later.
    let _ = emit_block(&mut asm, layout, block, (0, 0), &mut cold);
    cold.emit(&mut asm, layout, None);
    // Addresses are small numbers here but not later, and branches may be out of reach later.
    2 * asm.len() as u64 + 64
}

/// Emits a block at the instruction `here`, where these registers are free.
pub(super) fn emit_block(
    asm: &mut Asm,
    layout: &Layout,
    block: &Block,
    (here, free): (u64, u32),
    cold: &mut Cold,
) -> Result<(), DetourError> {
    let mut given = given(layout, block);
    let needs = given.needs;
    let words = needs.words() + frame::histogram_words(&block.deeds);
    let count = match needs.texts {
        true => frame::ALL,
        false => frame::for_deeds(&block.deeds),
    };
    let frame = Frame::new(count, free, frame::of_block(block), words);
    frame.begin(asm, &mut cold.rows);
    let regs = frame.regs;
    asm.ld(regs.block, layout.block.into(), TP);
    let mut probing = Probing {
        asm,
        layout,
        here,
        frame,
        keys: needs.words(),
        cold,
    };
    let off = probing.asm.label();
    let by_address = |deed: &Deed| matches!(deed, Deed::Name(..));
    if let Some(switch) = block.switch {
        probing.unless_on(block.base, switch, off);
    }
    if block.may_fault() {
        probing.unless_traced(off);
    } else if block.switch.is_none() && (needs.texts || block.deeds.iter().any(by_address)) {
        // If a thread does not find its control block, the first access through this register faults, and the register
        // is corrected. So the first access must not go through an address that was computed from it.
        probing.asm.ld(regs.x, block.base.into(), regs.block);
    }
    condition(&mut probing, &mut given, off)?;
    deeds(&mut probing, given)?;
    let returned = block.deeds.iter().find_map(|deed| match deed {
        Deed::Return(value) => Some(*value),
        _ => None,
    });
    let frame = probing.frame;
    if let Some(value) = returned {
        let bytes = cold.rows.bytes;
        frame.end(asm, &mut cold.rows);
        asm.li(A0, value);
        asm.ret();
        let shadow = cold.rows.shadow;
        cold.rows.turn(asm, shadow, bytes);
    }
    asm.bind(off);
    frame.end(asm, &mut cold.rows);
    Ok(())
}

/// What the condition and the actions of a block need.
fn given<'b>(layout: &Layout, block: &'b Block) -> Given<'b> {
    let mut somewhere = Probing {
        asm: &mut Asm::default(),
        layout,
        here: 0,
        frame: Frame::new(frame::ALL, 0, 0, 0),
        keys: 0,
        cold: &mut Cold::default(),
    };
    Given::new(block, &mut somewhere)
}
