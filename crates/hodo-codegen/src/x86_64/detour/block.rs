//! A probe with a condition, or with actions that share values: each value is fetched once.

use alloc::vec::Vec;

use super::condition::Computing;
use super::event::{emit_record, emit_source};
use super::frame::Saved;
use super::{Block, Cold, Counter, Deed, DetourError, Histogram, Source, emit_count};
use crate::detour::kept_at;
use crate::lower::{Given, histogram};
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
    let mut given = given(block);
    let needs = given.needs;
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
    let loads = given.condition(&mut computing(code, &saved, here, (frame, 0)), out)?;
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
                emit_histogram(code, &mut saved, histogram, (given, here, frame), cold)?;
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

/// What the condition and the deeds of a block need.
fn given(block: &Block) -> Given<'_> {
    let mut bytes = Vec::new();
    let (mut code, saved) = (Masm::new(&mut bytes, 0), Saved::default());
    Given::new(block, &mut computing(&mut code, &saved, 0, (0, 0)))
}

fn computing<'a, 'c>(
    code: &'a mut Masm<'c>,
    saved: &'a Saved,
    here: u64,
    (frame, keys): (usize, usize),
) -> Computing<'a, 'c> {
    Computing {
        code,
        saved,
        here,
        frame,
        keys,
    }
}

/// Counts a hit in a histogram.
fn emit_histogram(
    code: &mut Masm<'_>,
    saved: &mut Saved,
    table: &Histogram,
    (given, here, frame): (Given<'_>, u64, usize),
    cold: &mut Cold,
) -> Result<(), DetourError> {
    let words = table.words();
    let mark = saved.len();
    for register in [RCX, RDX, R8, R9] {
        saved.need(code, register);
    }
    // Keys, sums, and a place for the slot's number.
    let keys = saved.frame(code, words.keys + words.sums + 1);
    let lost = code.label();
    let mut computing = computing(code, saved, here, (frame, keys));
    let loads = histogram(&mut computing, table, given, lost)?;
    let unread = code.address_of(lost);
    cold.leave
        .extend(loads.into_iter().map(|load| (load, unread)));
    saved.back(code, mark);
    Ok(())
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
