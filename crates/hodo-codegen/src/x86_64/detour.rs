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

use super::emit::{Code, Pending};
use super::stub::{Layout, Runtime};
use crate::detour::computed;
pub use crate::detour::*;
pub use block::size;
use event::emit_event;
use frame::Saved;
use hodo_isa::x86_64::relocate::relocate_apart;
use returns::emit_returns;
pub use syscall::SYSTEM_CALL;
use syscall::{BEHIND, without_syscalls};

const RAX: Register = 0;
const RCX: Register = 1;
const RDX: Register = 2;
const RSP: Register = 4;
const R8: Register = 8;
const R9: Register = 9;

/// Slow paths, emitted behind the hot code.
#[derive(Default)]
struct Cold {
    epoch: Vec<(Pending, u64)>,
    chunk: Vec<(Pending, u64)>,
    /// Events for which the bucket is too small: the jump, where they begin again, where they end.
    large: Vec<(Pending, u64, u64)>,
    /// Where the value is stored that could not be fetched, its number, and the faulting instruction.
    fault: Vec<(u64, u32, u64)>,
    /// Loads of conditions, and where to go on if they fault.
    leave: Vec<(u64, u64)>,
}

/// Emits the detour of a piece of code at `code.here()`.
///
/// # Errors
/// If that cannot be done; what was emitted then is to be thrown away.
pub fn emit(
    code: &mut Code<'_>,
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
        to_body = Some(emit_returns(code, layout, runtime, probes, from, out)?);
    }
    let at = code.here();
    let mut gaps: Vec<(usize, usize)> = Vec::with_capacity(probes.len());
    let hits = || probes.iter().filter(|probe| probe.when == When::Hit);
    for probe in hits() {
        let mut bytes = Vec::new();
        // The length is the same everywhere.
        emit_probe(
            &mut Code::new(&mut bytes, at),
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
        if piece.old == 0 {
            for pending in to_body.take().into_iter().flatten() {
                code.bind(pending);
            }
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
        code.branch(JMP, resume);
    }
    for (pending, back) in cold.epoch {
        code.bind(pending);
        code.branch(CALL, runtime.epoch);
        code.branch(JMP, back);
    }
    for (pending, again) in cold.chunk {
        code.bind(pending);
        // The place that it gives stays a hole: an event wants more.
        code.branch(CALL, runtime.chunk);
        code.branch(JMP, again);
    }
    for (pending, again, done) in cold.large {
        code.bind(pending);
        code.branch(CALL, runtime.chunk);
        code.op32(&[0x65, 0x48, 0x8B, 0x0C, 0x25], layout.bucket); // mov rcx, gs:[bucket]
        code.op32(&[0x48, 0x81, 0xC1], layout.bucket_size); // add rcx, size
        code.op32(&[0x65, 0x48, 0x3B, 0x0C, 0x25], layout.limit); // cmp rcx, gs:[limit]
        code.branch(JNE, again);
        code.op32(&[0x65, 0x48, 0xFF, 0x04, 0x25], layout.lost); // inc qword gs:[lost]
        code.branch(JMP, done);
    }
    detour.faults.append(&mut cold.leave);
    for (store, value, load) in cold.fault {
        detour.faults.push((load, code.here()));
        let word = match value {
            0..32 => 0x10,
            // Behind the first word of the payload.
            _ => 0x18 + (value / 32 - 1) * 4,
        };
        code.op32(&[0x81, 0x89], word); // or dword [rcx+word], bit
        code.raw(&(1u32 << (value % 32)).to_le_bytes());
        code.raw(&[0x31, 0xC0]); // xor eax, eax
        code.branch(JMP, store);
    }
    Ok(detour)
}

const CALL: &[u8] = &[0xE8];
const JMP: &[u8] = &[0xE9];
const JNE: &[u8] = &[0x0F, 0x85];
const JA: &[u8] = &[0x0F, 0x87];

fn emit_probe(
    code: &mut Code<'_>,
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
            code.op32(&[0x65, 0x48, 0x8B, 0x04, 0x25], *base); // mov rax, gs:[base]
            code.op32(&[0xF0, 0x48, 0xFF, 0x80], at.cast_unsigned()); // lock inc qword [rax+at]
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
fn emit_count(code: &mut Code<'_>, at: i32) {
    code.op32(&[0x65, 0x48, 0xFF, 0x04, 0x25], at.cast_unsigned());
}

#[cfg(test)]
mod tests;
