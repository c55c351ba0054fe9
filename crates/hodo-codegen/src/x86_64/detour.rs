//! The detour of probes: moved instructions, and before each that has a probe the code that does the probe's work.
//!
//! A probe may be anywhere in a function, so all registers and the red zone below the stack pointer (System V ABI,
//! x86-64 supplement, 3.2.2) are live, and the flags unless the planner knows better. What a probe needs it pushes below
//! the red zone. Nothing here takes a lock; a signal handler that interrupts a probe and hits it again finds room of
//! its own, because the thread's cursor moves by one instruction.

mod block;
mod condition;
mod event;
mod frame;
mod hist;
mod returns;
mod syscall;
mod text;

use alloc::string::ToString;
use alloc::vec::Vec;

use super::masm::*;
use super::stub::{Layout, Runtime};
pub use crate::detour::*;
pub use block::size;
use event::emit_event;
use frame::Saved;
use hodo_isa::x86_64::relocate::relocate_apart;
use returns::emit_returns;
pub use syscall::SYSTEM_CALL;
use syscall::{BEHIND, without_syscalls};

/// Slow paths, emitted behind the hot code.
#[derive(Default)]
struct Cold {
    epoch: Vec<(Label, Label)>,
    chunk: Vec<(Label, Label)>,
    /// Events for which the bucket is too small: the jump, where they begin again, where they end.
    large: Vec<(Label, Label, Label)>,
    /// Where the value is stored that could not be fetched, its number, and the faulting instruction.
    fault: Vec<(Label, u32, u64)>,
    /// Loads of conditions, and where to go on if they fault.
    leave: Vec<(u64, u64)>,
}

/// Emits the detour of a piece of code at `code.here()`.
///
/// # Errors
/// If that cannot be done; what was emitted then is to be thrown away.
pub fn emit(
    code: &mut Masm<'_>,
    layout: &Layout,
    runtime: &Runtime,
    place: &Place<'_>,
    probes: &[Probe<'_>],
) -> Result<Detour, DetourError> {
    let (displaced, from, resume) = (place.code, place.from, place.resume);
    let mut cold = Cold::default();
    let mut detour = Detour::default();
    let mut to_body = None;
    if probes.iter().any(|probe| probe.when != When::Hit) {
        if probes.iter().any(|p| p.when != When::Hit && p.offset != 0) {
            return Err(DetourError::NotFirst);
        }
        let out = (&mut cold, &mut detour.rows);
        to_body = Some(emit_returns(code, (layout, runtime), probes, from, out)?);
    }
    let at = code.here();
    let mut gaps: Vec<(usize, usize)> = Vec::with_capacity(probes.len());
    let hits = || probes.iter().filter(|probe| probe.when == When::Hit);
    for probe in hits() {
        let mut bytes = Vec::new();
        // The length is the same everywhere.
        emit_probe(
            &mut Masm::new(&mut bytes, at),
            (layout, runtime),
            probe,
            from,
            &mut Cold::default(),
        )?;
        match gaps.iter_mut().find(|gap| gap.0 == probe.offset) {
            Some(gap) => gap.1 += bytes.len(),
            None => gaps.push((probe.offset, bytes.len())),
        }
    }
    let replaced = without_syscalls(displaced, probes);
    let moved = relocate_apart(&replaced, from, at, &gaps)
        .map_err(|error| DetourError::Relocate(error.to_string()))?;
    let end = displaced.len();
    if let Some((offset, _)) = gaps
        .iter()
        .filter(|(offset, _)| *offset != end || !moved.falls_through)
        .find(|(offset, _)| !moved.map.iter().any(|piece| piece.old == *offset))
    {
        return Err(DetourError::NoInstruction(*offset));
    }
    for (index, piece) in moved.map.iter().enumerate() {
        detour.before.push(code.here());
        for probe in hits().filter(|probe| probe.offset == piece.old) {
            if *probe.action == Action::Syscall {
                detour.calls.push((piece.old, code.here() + BEHIND));
                let at = code.here() + syscall::BEFORE;
                detour.syscalls.push((at, from + probe.offset as u64));
            }
            emit_probe(code, (layout, runtime), probe, from, &mut cold)?;
        }
        let gap = gaps.iter().find(|gap| gap.0 == piece.old);
        let start = piece.new + gap.map_or(0, |gap| gap.1);
        let end = moved.map.get(index + 1);
        let end = end.map_or(moved.bytes.len(), |next| next.new);
        debug_assert_eq!(code.here(), at + start as u64);
        detour.map.push((piece.old, code.here()));
        if piece.old == 0
            && let Some(body) = to_body.take()
        {
            code.bind(body);
        }
        code.raw(&moved.bytes[start..end]);
    }
    debug_assert!(to_body.is_none());
    if moved.falls_through {
        detour.before.push(code.here());
        for probe in hits().filter(|probe| probe.offset == end) {
            emit_probe(code, (layout, runtime), probe, from, &mut cold)?;
        }
        detour.map.push((end, code.here()));
        code.jmp_to(resume);
    }
    for (pending, back) in cold.epoch {
        code.bind(pending);
        code.call_to(runtime.epoch);
        code.jmp(back);
    }
    for (pending, again) in cold.chunk {
        code.bind(pending);
        // The place that it gives stays a hole: an event wants more.
        code.call_to(runtime.chunk);
        code.jmp(again);
    }
    for (pending, again, done) in cold.large {
        code.bind(pending);
        code.call_to(runtime.chunk);
        code.mov_rm(RCX, gs(layout.bucket));
        code.add_ri(RCX, layout.bucket_size);
        code.cmp_rm(RCX, gs(layout.limit));
        code.jcc(Cond::NE, again);
        code.inc_m(QWORD, gs(layout.lost));
        code.jmp(done);
    }
    detour.faults.append(&mut cold.leave);
    for (store, value, load) in cold.fault {
        detour.faults.push((load, code.here()));
        let word = match value {
            0..32 => 0x10,
            // Behind the first word of the payload.
            _ => 0x18 + (value / 32 - 1) * 4,
        };
        code.or_mi(DWORD, mem32(RCX, word), 1 << (value % 32));
        code.xor_rr(EAX, EAX);
        code.jmp(store);
    }
    debug_assert!(code.all_bound());
    Ok(detour)
}

fn emit_probe(
    code: &mut Masm<'_>,
    (layout, runtime): (&Layout, &Runtime),
    probe: &Probe<'_>,
    from: u64,
    cold: &mut Cold,
) -> Result<(), DetourError> {
    let here = from + probe.offset as u64;
    match probe.action {
        Action::Count(Counter::Thread(at)) if probe.flags_dead => emit_count(code, *at),
        Action::Count(Counter::Thread(at)) => {
            let saved = Saved::begin(code, false);
            emit_count(code, *at);
            saved.end(code);
        }
        Action::Count(Counter::Shared { base, at }) => {
            let saved = Saved::begin(code, probe.flags_dead);
            code.mov_rm(RAX, gs(*base));
            code.lock().inc_m(QWORD, mem32(RAX, at.cast_unsigned()));
            saved.end(code);
        }
        Action::Record(event) => {
            let layout = (layout, runtime.stack);
            emit_event(code, layout, probe.flags_dead, event, here, cold)?;
        }
        Action::Syscall => syscall::emit(code, runtime, here),
        Action::Block(block) => {
            let layout = (layout, runtime.stack);
            block::emit_block(code, layout, probe.flags_dead, block, here, cold)?;
        }
    }
    Ok(())
}

/// `inc qword gs:[at]`
fn emit_count(code: &mut Masm<'_>, at: i32) {
    code.inc_m(QWORD, gs(at.cast_unsigned()));
}

#[cfg(test)]
mod tests;
