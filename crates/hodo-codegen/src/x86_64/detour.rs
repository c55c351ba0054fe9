//! The detour of probes: moved instructions, and in front of each probed one the code that does the probe's work.
//!
//! A probe may be anywhere in a function, so all registers and the red zone below the stack pointer (System V ABI,
//! x86-64 supplement, 3.2.2) are live, and so are the flags unless the planner knows better. A probe pushes what it
//! needs below the red zone. Nothing here takes a lock; a signal handler that interrupts a probe and hits it again gets
//! room of its own, because a single instruction moves the thread's cursor.

mod block;
mod condition;
mod event;
mod frame;
mod hist;
mod returns;
mod syscall;
mod text;

use alloc::string::ToString;
use alloc::vec;
use alloc::vec::Vec;

use super::masm::*;
use super::stub::{Layout, Runtime};
pub use crate::detour::*;
use crate::lower::{Events, record};
pub use block::size;
use frame::Saved;
pub use hodo_isa::x86_64::asm::SYSTEM_CALL;
use hodo_isa::x86_64::relocate::relocate_apart;
use returns::emit_returns;
use syscall::without_syscalls;

/// Slow paths, emitted after the hot code.
#[derive(Default)]
struct Cold {
    epoch: Vec<(Label, Label)>,
    chunk: Vec<(Label, Label)>,
    /// Events that are too large for the bucket: the jump, where they start again, and where they end.
    large: Vec<(Label, Label, Label)>,
    /// Where a value is stored that could not be fetched, its number, and the faulting instruction.
    fault: Vec<(Label, u32, u64)>,
    /// Loads of conditions, and where to continue if they fault.
    leave: Vec<(u64, Label)>,
}

/// Emits the detour of a piece of code at `code.here()`.
///
/// # Errors
/// If it cannot be emitted; then the code so far must be discarded.
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
        // The length is the same at all addresses.
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
            for at in emit_probe(code, (layout, runtime), probe, from, &mut cold)? {
                detour
                    .calls
                    .push((piece.old, at + SYSTEM_CALL.len() as u64));
                detour.syscalls.push((at, from + probe.offset as u64));
            }
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
    detour.faults = cold.emit(code, layout, runtime);
    debug_assert!(code.all_bound());
    Ok(detour)
}

impl Cold {
    /// Emits the slow paths. Returns the loads that may fault, and where to continue then.
    fn emit(self, code: &mut Masm<'_>, layout: &Layout, runtime: &Runtime) -> Vec<(u64, u64)> {
        for (from, back) in self.epoch {
            code.bind(from);
            code.call_to(runtime.epoch);
            code.jmp(back);
        }
        for (from, again) in self.chunk {
            code.bind(from);
            // The place that it returns remains a hole, because an event needs more room.
            code.call_to(runtime.chunk);
            code.jmp(again);
        }
        for (from, again, done) in self.large {
            code.bind(from);
            code.call_to(runtime.chunk);
            code.mov_rm(RCX, gs(layout.bucket));
            code.add_ri(RCX, layout.bucket_size);
            code.cmp_rm(RCX, gs(layout.limit));
            code.jcc(Cond::NE, again);
            code.inc_m(QWORD, gs(layout.lost));
            code.jmp(done);
        }
        let leave = self.leave.into_iter();
        let leave = leave.map(|(load, to)| (load, code.address_of(to)));
        let mut faults: Vec<_> = leave.collect();
        for (store, value, load) in self.fault {
            faults.push((load, code.here()));
            let word = match value {
                0..32 => 0x10,
                // After the first word of the payload.
                _ => 0x18 + (value / 32 - 1) * 4,
            };
            code.or_mi(DWORD, mem32(RCX, word), 1 << (value % 32));
            code.xor_rr(EAX, EAX);
            code.jmp(store);
        }
        faults
    }
}

/// A probe being written.
struct Probing<'a, 'c> {
    code: &'a mut Masm<'c>,
    layout: &'a Layout,
    /// The address of the code that packs a stack.
    pack: Option<u64>,
    /// Address of the probed instruction.
    here: u64,
    saved: Saved,
    /// How much had been pushed before the latest request.
    mark: usize,
    /// The frame for values and intermediate results.
    frame: usize,
    /// The frame for keys and sums of a histogram, if there is one.
    keys: usize,
    cold: &'a mut Cold,
}

impl<'a, 'c> Probing<'a, 'c> {
    /// Begins a probe: pushes `rax` and the flags.
    fn begin_probe(
        code: &'a mut Masm<'c>,
        (layout, pack): (&'a Layout, Option<u64>),
        flags_dead: bool,
        here: u64,
        cold: &'a mut Cold,
    ) -> Self {
        Self {
            saved: Saved::begin(code, flags_dead),
            code,
            layout,
            pack,
            here,
            mark: 0,
            frame: 0,
            keys: 0,
            cold,
        }
    }

    /// Pushes the registers that are not pushed yet.
    fn begin(&mut self, registers: &[Reg]) {
        self.mark = self.saved.len();
        for &register in registers {
            self.saved.need(self.code, register);
        }
    }

    /// The place of a word of the frame.
    fn word(&self, number: usize) -> Mem {
        self.saved.word(self.frame, number)
    }
}

/// Emits what a probe does. Returns where it makes the system call of its instruction.
fn emit_probe(
    code: &mut Masm<'_>,
    (layout, runtime): (&Layout, &Runtime),
    probe: &Probe<'_>,
    from: u64,
    cold: &mut Cold,
) -> Result<Vec<u64>, DetourError> {
    let here = from + probe.offset as u64;
    if let Action::Count(Counter::Thread(at)) = probe.action
        && probe.flags_dead
    {
        code.inc_m(QWORD, gs(at.cast_unsigned()));
        return Ok(Vec::new());
    }
    match probe.action {
        Action::Syscall => return Ok(vec![syscall::emit(code, runtime, here)]),
        Action::Calls(calls) => {
            let emit = &mut |code: &mut Masm<'_>, action: &Action| {
                let probe = Probe {
                    flags_dead: false,
                    action,
                    ..probe.clone()
                };
                emit_probe(code, (layout, runtime), &probe, from, cold).map(|_| ())
            };
            return syscall::emit_calls(code, calls, (here, probe.flags_dead), emit);
        }
        _ => {}
    }
    let layout = (layout, runtime.stack);
    let mut probing = Probing::begin_probe(code, layout, probe.flags_dead, here, cold);
    match probe.action {
        Action::Count(counter) => probing.count(*counter),
        Action::Record(event) => {
            let off = probing.code.label();
            if event.may_fault() {
                probing.unless_traced(off);
            }
            record(&mut probing, event, &|_| None)?;
            probing.code.bind(off);
        }
        Action::Block(block) => {
            probing.block(block)?;
            return Ok(Vec::new());
        }
        Action::Syscall | Action::Calls(_) => {}
    }
    probing.saved.end(probing.code);
    Ok(Vec::new())
}

#[cfg(test)]
mod tests;
