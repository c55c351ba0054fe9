//! A probe with a condition, or with actions that share values: each value is fetched once.

use alloc::vec::Vec;

use super::condition::Computing;
use super::event::{emit_record, emit_source};
use super::frame::Saved;
use super::hist::emit_histogram;
use super::{Block, Cold, Counter, Deed, DetourError, Fetch, Source, computed, emit_count};
use crate::detour::kept_at;
use crate::lower::{Lowering, Needs};
use crate::x86_64::masm::*;
use crate::x86_64::stub::Layout;

/// Bytes of machine code that a block takes at most.
#[must_use]
pub fn size(block: &Block, layout: &Layout) -> u64 {
    let mut bytes = Vec::new();
    let mut cold = Cold::default();
    let mut code = Masm::new(&mut bytes, 0);
    // What fails takes no room: its place is refused later.
    let _ = emit_block(&mut code, (layout, Some(0)), false, block, 0, &mut cold);
    let slow = cold.epoch.len() + cold.chunk.len() + cold.fault.len() + 4 * cold.large.len();
    bytes.len() as u64 + 16 * slow as u64 + 16
}

pub(super) fn emit_block(
    code: &mut Masm<'_>,
    (layout, pack): (&Layout, Option<u64>),
    flags_dead: bool,
    block: &Block,
    here: u64,
    cold: &mut Cold,
) -> Result<(), DetourError> {
    let needs = needs(block);
    let mut saved = Saved::begin(code, flags_dead);
    let begun = saved.len();
    let (off, out) = (code.label(), code.label());
    if let Some(switch) = block.switch {
        unless_on(code, block.base, switch, off);
    }
    if needs.pairs {
        saved.push(code, RCX);
        saved.push(code, RDX);
    }
    let frame = saved.frame(code, needs.words());
    let mut given = Given {
        block,
        here,
        needs,
        frame,
        fetched: 0,
    };
    let mut loads = Vec::new();
    if let Some(condition) = &block.condition {
        let mut computing = given.computing(code, &saved);
        let mut lowering = given.lowering(&mut computing, out);
        lowering.unless(condition);
        let fetched = lowering.fetched;
        loads = lowering.finish()?;
        given.fetched = fetched;
    }
    let kept = |value: usize| {
        let at = kept_at(needs.kept, value)?;
        (given.fetched >> value & 1 == 1).then_some(frame - 1 - at)
    };
    for deed in &block.deeds {
        match deed {
            Deed::Count(counter) => emit_counter(code, *counter),
            Deed::Record(event, gate, shared) => {
                let closed = code.label();
                if let Some(gate) = gate {
                    unless_on(code, block.base, *gate, closed);
                }
                let kept = |value: usize| shared.then(|| kept(value)).flatten();
                emit_record(code, (layout, pack), &mut saved, event, (here, &kept), cold)?;
                code.bind(closed);
            }
            Deed::Switch(at, on) => emit_switch(code, block.base, *at, *on),
            Deed::Histogram(histogram) => {
                emit_histogram(code, &mut saved, histogram, &given, cold)?;
            }
            Deed::Name(source, at) => emit_name(code, (&mut saved, here), source, *at, cold),
            Deed::Return(_) => {}
        }
    }
    let returned = block.deeds.iter().find_map(|deed| match deed {
        Deed::Return(value) => Some(*value),
        _ => None,
    });
    if let Some(value) = returned {
        saved.clone().drop_flags(code);
        code.movabs_ri(RAX, value);
        code.ret();
    }
    let exit = code.here();
    code.bind(out);
    cold.leave
        .extend(loads.into_iter().map(|load| (load, exit)));
    saved.back(code, begun);
    code.bind(off);
    saved.end(code);
    Ok(())
}

/// What the condition needs, and what deeds compute, found by writing it somewhere.
fn needs(block: &Block) -> Needs {
    let mut bytes = Vec::new();
    let mut code = Masm::new(&mut bytes, 0);
    let nowhere = code.label();
    let given = Given {
        block,
        here: 0,
        needs: Needs::default(),
        frame: 0,
        fetched: 0,
    };
    let saved = Saved::default();
    let mut computing = given.computing(&mut code, &saved);
    let mut needs = Needs::default();
    if let Some(condition) = &block.condition {
        let mut lowering = given.lowering(&mut computing, nowhere);
        lowering.unless(condition);
        needs = lowering.needs;
    }
    for test in computed(&block.deeds) {
        let mut lowering = given.lowering(&mut computing, nowhere);
        lowering.number(test);
        needs.scratch = needs.scratch.max(lowering.needs.scratch);
    }
    needs
}

/// What a deed finds.
pub(super) struct Given<'b> {
    pub(super) block: &'b Block,
    here: u64,
    needs: Needs,
    frame: usize,
    fetched: u64,
}

impl<'b> Given<'b> {
    pub(super) fn computing<'a, 'c>(
        &self,
        code: &'a mut Masm<'c>,
        saved: &'a Saved,
    ) -> Computing<'a, 'c> {
        Computing {
            code,
            saved,
            here: self.here,
            frame: self.frame,
        }
    }

    /// What knows what has been fetched, and goes to `out` if something cannot be computed.
    pub(super) fn lowering<'w, 'a, 'c>(
        &self,
        computing: &'w mut Computing<'a, 'c>,
        out: Label,
    ) -> Lowering<'w, Computing<'a, 'c>>
    where
        'b: 'w,
    {
        let values: &'b [Fetch] = &self.block.values;
        Lowering::new(computing, values, self.needs, self.fetched, out)
    }
}

/// Copies a text from where `source` is.
fn emit_name(
    code: &mut Masm<'_>,
    (saved, here): (&mut Saved, u64),
    source: &Source,
    at: u32,
    cold: &mut Cold,
) {
    let mark = saved.len();
    saved.need(code, RCX);
    saved.need(code, RDX);
    let mut loads = Vec::new();
    emit_source(code, (saved, here), source, &mut loads);
    code.xor_rr(ECX, ECX);
    code.mov_ri(DL, 1);
    let (next, ended) = (code.label_here(), code.label());
    code.test_rr(DL, DL);
    code.jcc_short(Cond::E, ended);
    loads.push(code.here());
    code.mov_rm(DL, mem(RAX, 0).plus(RCX));
    code.bind(ended);
    code.mov_mr(mem32(RCX, at).in_gs(), DL);
    code.inc_r(ECX);
    code.cmp_ri8(ECX, 15);
    code.jcc_short(Cond::B, next);
    let done = code.here();
    code.mov_mi(BYTE, gs(at + 15), 0);
    cold.leave
        .extend(loads.into_iter().map(|load| (load, done)));
    saved.back(code, mark);
}

/// Makes a byte of the events file 0 or 1, if it is not yet: then no other processor's cache loses it.
fn emit_switch(code: &mut Masm<'_>, base: u32, at: u32, on: bool) {
    code.mov_rm(RAX, gs(base));
    code.cmp_mi(BYTE, mem32(RAX, at), u32::from(on));
    let done = code.label();
    code.jcc_short(Cond::E, done);
    code.mov_mi(BYTE, mem32(RAX, at), u32::from(on));
    code.bind(done);
}

/// Goes to `off` if a byte of the events file is 0.
fn unless_on(code: &mut Masm<'_>, base: u32, at: u32, off: Label) {
    code.mov_rm(RAX, gs(base));
    code.cmp_mi(BYTE, mem32(RAX, at), 0);
    code.jcc(Cond::E, off);
}

/// Counts, where `rax` and the flags are saved.
fn emit_counter(code: &mut Masm<'_>, counter: Counter) {
    match counter {
        Counter::Thread(at) => emit_count(code, at),
        Counter::Shared { base, at } => {
            code.mov_rm(RAX, gs(base));
            code.lock().inc_m(QWORD, mem32(RAX, at.cast_unsigned()));
        }
    }
}
