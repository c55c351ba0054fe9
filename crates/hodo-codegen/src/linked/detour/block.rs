//! A probe with a condition, or with actions that share values: each value is fetched once.

use super::frame::{self, Frame};
use super::{Block, Cold, Context, Deed, DetourError, Layout, Probing, Runtime};
use crate::linked::asm::Assembler;
use crate::lower::{Events, Given, condition, deeds};
use hodo_isa::Signing;

/// Maximum length of a block's machine code in bytes.
pub(crate) fn size<A: Assembler>(block: &Block, layout: &Layout) -> u64 {
    let mut asm = A::default();
    let mut cold = Cold::default();
    // A block that fails takes no room: it is refused later.
    let context = Context {
        layout,
        runtime: &Runtime::default(),
        signing: Signing::A,
    };
    let _ = emit_block(&mut asm, context, block, (0, 0, true), &mut cold);
    cold.emit(&mut asm, layout, None);
    // Addresses are small numbers here but not later, and branches may be out of reach later.
    2 * asm.len() as u64 + 64
}

/// Emits a block at the instruction `here`, where these registers are free, and the flags are needed or not.
pub(super) fn emit_block<A: Assembler>(
    asm: &mut A,
    context: Context<'_>,
    block: &Block,
    (here, free, flags): (u64, u32, bool),
    cold: &mut Cold,
) -> Result<(), DetourError> {
    let layout = context.layout;
    let mut given = given::<A>(layout, block);
    let needs = given.needs;
    let words = needs.words() + frame::histogram_words(&block.deeds);
    let count = match needs.texts {
        true => frame::ALL,
        false => frame::for_deeds(&block.deeds),
    };
    let frame = Frame::new::<A>(count, free, frame::of_block(block), words)
        .with_flags::<A>(flags && frame::block_compares(block));
    frame.begin(asm, &mut cold.rows);
    let regs = frame.regs;
    asm.block(regs.block, layout);
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
        probing.asm.load(8, regs.x, regs.block, block.base.into());
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
        asm.authenticate(context.signing);
        asm.li(A::RESULT, value);
        asm.ret();
        let shadow = cold.rows.shadow;
        cold.rows.turn(asm, shadow, bytes);
    }
    asm.bind(off);
    frame.end(asm, &mut cold.rows);
    Ok(())
}

/// What the condition and the actions of a block need.
fn given<'b, A: Assembler>(layout: &Layout, block: &'b Block) -> Given<'b> {
    let mut somewhere = Probing {
        asm: &mut A::default(),
        layout,
        here: 0,
        frame: Frame::new::<A>(frame::ALL, 0, 0, 0),
        keys: 0,
        cold: &mut Cold::default(),
    };
    Given::new(block, &mut somewhere)
}
