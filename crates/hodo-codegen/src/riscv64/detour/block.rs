//! A probe with a condition, or with actions that share values: each value is fetched once.

use alloc::vec::Vec;

use super::asm::{Asm, If, Label};
use super::frame::{self, Frame};
use super::{Block, Cold, Deed, DetourError, Layout, Probing, Register, Source, emit_count};
use crate::detour::kept_at;
use crate::lower::{Given, histogram};
use hodo_isa::riscv64::regs::{TP, ZERO};

/// The register in which functions return.
const A0: Register = 10;

/// Bytes of machine code that a block takes at most.
#[must_use]
pub fn size(block: &Block, layout: &Layout) -> u64 {
    let mut asm = Asm::default();
    let mut cold = Cold::default();
    // What fails takes no room: its place is refused later.
    let _ = emit_block(&mut asm, layout, block, (0, 0), &mut cold);
    cold.emit(&mut asm, layout, None);
    // Addresses that are small numbers here, and branches that do not reach.
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
    asm.ld(regs.block, TP, layout.block.into());
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
    } else if needs.texts || block.deeds.iter().any(by_address) {
        // What does not find the control block faults where it uses this register first, and is put right. So that is not left
        // to what uses an address that is made of it.
        probing.asm.ld(regs.x, regs.block, block.base.into());
    }
    let loads = given.condition(&mut probing, off)?;
    let ways = loads.into_iter().map(|load| (load, off));
    probing.cold.leave.extend(ways);
    for deed in &block.deeds {
        match deed {
            Deed::Count(counter) => {
                emit_count(probing.asm, *counter, &regs);
                let block = (regs.block, TP, i64::from(layout.block));
                probing.asm.ld(block.0, block.1, block.2);
            }
            Deed::Record(event, gate, shared) => {
                let closed = probing.asm.label();
                if let Some(gate) = gate {
                    probing.unless_on(block.base, *gate, closed);
                }
                let kept = |value: usize| {
                    let at = kept_at(needs.kept, value)?;
                    let has = *shared && given.fetched >> value & 1 == 1;
                    has.then_some(8 * at as i64)
                };
                probing.record(event, &kept)?;
                probing.asm.bind(closed);
            }
            Deed::Switch(at, on) => probing.switch(block.base, *at, *on),
            Deed::Histogram(table) => {
                let unread = probing.asm.label();
                let loads = histogram(&mut probing, table, given, unread)?;
                let ways = loads.into_iter().map(|load| (load, unread));
                probing.cold.leave.extend(ways);
            }
            Deed::Name(source, at) => probing.name(source, *at)?,
            Deed::Return(_) => {}
        }
    }
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

/// What the condition and the deeds of a block need.
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

impl Probing<'_> {
    /// Goes to `off` if a byte of the events file is 0.
    fn unless_on(&mut self, base: u32, at: u32, off: Label) {
        let regs = self.frame.regs;
        self.asm.ld(regs.v, regs.block, base.into());
        self.asm.load(1, regs.x, regs.v, at.into());
        self.asm.branch(If::Equal, regs.x, ZERO, off);
    }

    /// Makes a byte of the events file 0 or 1, if it is not yet: then no other processor's cache loses it.
    fn switch(&mut self, base: u32, at: u32, on: bool) {
        let regs = self.frame.regs;
        let done = self.asm.label();
        self.asm.ld(regs.v, regs.block, base.into());
        self.asm.load(1, regs.x, regs.v, at.into());
        self.asm.li(regs.t, on.into());
        self.asm.branch(If::Equal, regs.x, regs.t, done);
        self.asm.store(1, regs.t, regs.v, at.into(), regs.x);
        self.asm.bind(done);
    }

    /// Copies a text of 15 bytes at most from where `source` is into the control block.
    fn name(&mut self, source: &Source, at: u32) -> Result<(), DetourError> {
        let regs = self.frame.regs;
        let mut loads = Vec::new();
        self.source(source, &mut loads)?;
        let asm = &mut *self.asm;
        asm.add(regs.a, regs.block, at.into());
        asm.add(regs.b, regs.a, 15);
        asm.li(regs.x, 1);
        let next = asm.here();
        let ended = asm.label();
        asm.branch(If::Equal, regs.x, ZERO, ended);
        loads.push(asm.load(1, regs.x, regs.v, 0));
        asm.bind(ended);
        asm.store(1, regs.x, regs.a, 0, ZERO);
        asm.add(regs.v, regs.v, 1);
        asm.add(regs.a, regs.a, 1);
        asm.branch(If::NotEqual, regs.a, regs.b, next);
        let done = asm.here();
        asm.store(1, ZERO, regs.block, i64::from(at) + 15, regs.x);
        let ways = loads.into_iter().map(|load| (load, done));
        self.cold.leave.extend(ways);
        Ok(())
    }
}
