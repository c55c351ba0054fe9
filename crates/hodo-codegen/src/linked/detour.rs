//! The detour of probes: moved instructions, and in front of each probed one the code that does the probe's work.
//!
//! A probe may be anywhere in a function, so all registers are live unless the planner knows better. A probe uses free
//! registers, and saves others below the stack pointer if it needs more. It never touches floating-point and vector
//! registers. Nothing here takes a lock; a signal handler that interrupts a probe and hits it again gets room of its
//! own, because a single instruction moves the thread's cursor.

mod agent;
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

use super::asm::Assembler;
use crate::detour::*;
use crate::lower::{Events, record};
use crate::stub::{Layout, Runtime};
pub(crate) use block::size;
use frame::{Frame, Regs};
use hodo_isa::buffer::{Buffer, Label, OutOfRange};
use hodo_isa::cfa::{Row, Rule};
use hodo_isa::linked::{If, Relocated};
use hodo_isa::{Signing, Via};
use syscall::without_syscalls;

/// Slow paths, emitted after the hot code.
#[derive(Default)]
struct Cold {
    /// The branch there, and where to start again.
    epoch: Vec<(Label, Label, Regs)>,
    /// The same; also, for events that are too large for the bucket, where they end.
    chunk: Vec<(Label, Label, Regs, Option<Label>)>,
    /// Where a value is stored that could not be fetched, its number, and the faulting instruction.
    fault: Vec<(Label, u32, Label, Regs)>,
    /// Loads that may fault, and where to continue then.
    leave: Vec<(Label, Label)>,
    rows: Rows,
}

/// What all probes of a place have in common.
#[derive(Clone, Copy)]
struct Context<'a> {
    layout: &'a Layout,
    runtime: &'a Runtime,
    /// How the return address is signed where the place begins.
    signing: Signing,
}

/// A probe being written.
struct Probing<'a, A> {
    asm: &'a mut A,
    layout: &'a Layout,
    /// Address of the probed instruction.
    here: u64,
    frame: Frame,
    /// The first word of the frame with keys and sums of a histogram, which are above the words of the condition.
    keys: usize,
    cold: &'a mut Cold,
}

/// Where the frame is while a probe lowers the stack pointer. Only used if a function returns to the detour.
#[derive(Default)]
struct Rows {
    /// Whether the return address is in the shadow instead of its register; `None`: not needed.
    shadow: Option<bool>,
    /// How far the stack pointer is lowered.
    bytes: i64,
    list: Vec<(Label, Rule)>,
}

impl Rows {
    /// The stack pointer has been lowered by this much.
    fn lower<A: Assembler>(&mut self, asm: &mut A, by: i64) {
        self.bytes += by;
        if let (Some(shadow), Ok(bytes)) = (self.shadow, u16::try_from(self.bytes)) {
            let at = asm.here();
            self.list.push((at, Rule::Lowered { bytes, shadow }));
        }
    }

    /// From here on, the return address is in the shadow or in its register, and this many bytes of stack are in use.
    fn turn<A: Assembler>(&mut self, asm: &mut A, shadow: Option<bool>, bytes: i64) {
        self.shadow = shadow;
        self.bytes = bytes;
        if shadow.is_none() {
            let at = asm.here();
            self.list.push((at, Rule::Unknown));
        }
        self.lower(asm, 0);
    }
}

/// A piece of moved code.
struct Piece {
    /// Offset of the original instruction.
    old: usize,
    /// Where its probes begin.
    before: Label,
    /// Where it is, after the probes.
    at: Label,
}

/// All the code except the moved instructions.
struct Draft<A> {
    asm: A,
    pieces: Vec<Piece>,
    /// What follows the moved instructions, if control gets there.
    end: Option<Piece>,
    faults: Vec<(Label, Label)>,
    /// Where the code after the moved instructions saves its register, and where that ends.
    exit: Option<(Label, Label)>,
    /// Offsets of system calls that probes make, and their labels.
    calls: Vec<(usize, Label)>,
    rows: Vec<(Label, Rule)>,
}

/// Emits the detour of a piece of code at `code.here()`.
///
/// # Errors
/// If it cannot be emitted; then the code so far must be discarded.
pub(crate) fn emit<A: Assembler>(
    code: &mut Buffer<'_, A::Refer>,
    layout: &Layout,
    runtime: &Runtime,
    place: &Place<'_>,
    probes: &[Probe<'_>],
) -> Result<Detour, DetourError> {
    let at = code.here();
    let replaced = without_syscalls::<A>(place.code, probes);
    let move_to = |to: u64, gaps: &[(usize, usize)]| {
        A::moved(place, &replaced, to, gaps).map_err(DetourError::Relocate)
    };
    let context = Context {
        layout,
        runtime,
        signing: place.signing,
    };
    let moved = move_to(at, &[])?;
    let mut lengths = lengths(&moved, &[]);
    let mut draft = draft::<A>(context, place, probes, (&moved, &lengths))?;
    // The length of the probes determines how long branches between the moved instructions are. Both only grow.
    loop {
        let offsets = draft.asm.settle();
        let start = draft
            .pieces
            .first()
            .map_or(0, |piece| offsets.at(piece.before));
        let gap = |piece: &Piece| {
            let gap = offsets.at(piece.at) - offsets.at(piece.before);
            (piece.old, gap as usize)
        };
        let gaps: Vec<_> = draft.pieces.iter().map(gap).collect();
        let moved = move_to(at.wrapping_add(start), &gaps)?;
        let now = self::lengths(&moved, &gaps);
        if now == lengths {
            return finish(code, draft, &moved, place.from);
        }
        draft.asm.set_holes(&now);
        lengths = now;
    }
}

fn failed(error: impl ToString) -> DetourError {
    DetourError::Relocate(error.to_string())
}

/// The length of each moved instruction in bytes.
fn lengths(moved: &Relocated, gaps: &[(usize, usize)]) -> Vec<usize> {
    let ends = moved.map.iter().skip(1).map(|next| {
        let gap = gaps.iter().find(|gap| gap.0 == next.old);
        next.new - gap.map_or(0, |gap| gap.1)
    });
    let ends = ends.chain([moved.bytes.len()]);
    let pairs = moved.map.iter().zip(ends);
    pairs.map(|(piece, end)| end - piece.new).collect()
}

/// Writes everything except the moved instructions.
fn draft<A: Assembler>(
    context: Context<'_>,
    place: &Place<'_>,
    probes: &[Probe<'_>],
    (moved, lengths): (&Relocated, &[usize]),
) -> Result<Draft<A>, DetourError> {
    let (from, end) = (place.from, place.code.len());
    let mut draft = Draft {
        asm: A::default(),
        pieces: Vec::with_capacity(moved.map.len()),
        end: None,
        faults: Vec::new(),
        exit: None,
        calls: Vec::new(),
        rows: Vec::new(),
    };
    let mut cold = Cold::default();
    let asm = &mut draft.asm;
    if let Via::Kept(register) = place.via {
        asm.load(8, register, A::STACK, 0);
        asm.stack(KEPT, register);
    }
    let mut to_body = None;
    if probes.iter().any(|probe| probe.when != When::Hit) {
        if probes.iter().any(|p| p.when != When::Hit && p.offset != 0) {
            return Err(DetourError::NotFirst);
        }
        to_body = Some(returns::emit(asm, context, probes, from, &mut cold)?);
    }
    let hits = |offset: usize| {
        let here = move |probe: &&Probe<'_>| probe.offset == offset && probe.when == When::Hit;
        probes.iter().filter(here)
    };
    let mut count = 0;
    for (piece, &length) in moved.map.iter().zip(lengths) {
        let before = asm.here();
        for probe in hits(piece.old) {
            let call = emit_probe(asm, context, probe, from, &mut cold)?;
            draft.calls.extend(call.map(|call| (piece.old, call)));
            count += 1;
        }
        let at = asm.here();
        if piece.old == 0
            && let Some(body) = to_body.take()
        {
            asm.bind(body);
        }
        asm.hole(length);
        let old = piece.old;
        draft.pieces.push(Piece { old, before, at });
    }
    if moved.falls_through {
        let before = asm.here();
        for probe in hits(end) {
            emit_probe(asm, context, probe, from, &mut cold)?;
            count += 1;
        }
        let at = asm.here();
        if let Via::Kept(register) = place.back {
            asm.stack(-KEPT, register);
            asm.store(8, register, A::STACK, 0, A::ZERO);
        }
        (asm.leave(place.resume, place.back)).map_err(DetourError::Relocate)?;
        if matches!(place.back, Via::Kept(_)) {
            draft.exit = Some((at, asm.here()));
        }
        let old = end;
        draft.end = Some(Piece { old, before, at });
    }
    if count < probes.iter().filter(|p| p.when == When::Hit).count() {
        let known = |offset: usize| {
            moved.map.iter().any(|piece| piece.old == offset)
                || moved.falls_through && offset == end
        };
        let unknown = probes.iter().find(|probe| !known(probe.offset));
        return Err(DetourError::NoInstruction(
            unknown.map_or(end, |probe| probe.offset),
        ));
    }
    draft.faults = cold.emit(asm, context.layout, Some(context.runtime));
    draft.rows = cold.rows.list;
    Ok(draft)
}

/// Writes the code where it will be.
fn finish<A: Assembler>(
    code: &mut Buffer<'_, A::Refer>,
    draft: Draft<A>,
    moved: &Relocated,
    from: u64,
) -> Result<Detour, DetourError> {
    let start = code.here();
    let laid = draft
        .asm
        .lay(start)
        .map_err(|OutOfRange| failed("an address is too far away"))?;
    let mut bytes = laid.bytes;
    let offset = |label: Label| laid.labels.at(label) as usize;
    let at = |label: Label| start.wrapping_add(laid.labels.at(label));
    let ends = moved.map.iter().skip(1).zip(draft.pieces.iter().skip(1));
    let ends = ends.map(|(next, piece)| next.new - (offset(piece.at) - offset(piece.before)));
    let ends = ends.chain([moved.bytes.len()]);
    for ((moving, end), piece) in moved.map.iter().zip(ends).zip(&draft.pieces) {
        let instruction = &moved.bytes[moving.new..end];
        bytes[offset(piece.at)..][..instruction.len()].copy_from_slice(instruction);
    }
    let mut detour = Detour {
        faults: draft
            .faults
            .iter()
            .map(|&(load, to)| (at(load), at(to)))
            .collect(),
        ..Detour::default()
    };
    for piece in draft.pieces.iter().chain(&draft.end) {
        detour.map.push((piece.old, at(piece.at)));
        detour.before.push(at(piece.before));
    }
    for exit in &moved.exits {
        let pairs = moved.map.iter().zip(&draft.pieces);
        for (moving, piece) in pairs.filter(|(moving, _)| moving.old == exit.old) {
            let first = at(piece.at) + (exit.new - moving.new) as u64;
            detour.exits.push(first..first + A::EXIT);
        }
    }
    let last = draft.exit.map(|(first, end)| at(first)..at(end));
    detour.exits.extend(last);
    for &(old, call) in &draft.calls {
        detour
            .calls
            .push((old, at(call) + A::SYSTEM_CALL.len() as u64));
        detour.syscalls.push((at(call), from + old as u64));
    }
    let first = code.offset();
    detour.rows = draft
        .rows
        .iter()
        .map(|&(label, rule)| Row {
            at: first + offset(label) as u32,
            rule,
        })
        .collect();
    code.raw(&bytes);
    Ok(detour)
}

/// Bytes of stack that a jump uses to save a register.
const KEPT: i64 = 16;

/// Emits a probe. Returns the system call that it makes.
fn emit_probe<A: Assembler>(
    asm: &mut A,
    context: Context<'_>,
    probe: &Probe<'_>,
    from: u64,
    cold: &mut Cold,
) -> Result<Option<Label>, DetourError> {
    let layout = context.layout;
    let here = from + probe.offset as u64;
    match probe.action {
        Action::Count(counter) => {
            let frame = Frame::new::<A>(A::counts(layout), probe.free, 0, 0);
            frame.begin(asm, &mut cold.rows);
            asm.block(frame.regs.block, layout);
            emit_count(asm, layout, *counter, &frame.regs);
            frame.end(asm, &mut cold.rows);
        }
        Action::Record(event) => {
            let count = frame::for_values(&event.values);
            let frame = Frame::new::<A>(count, probe.free, frame::asked(&event.values), 0)
                .with_flags::<A>(!probe.flags_dead);
            frame.begin(asm, &mut cold.rows);
            asm.block(frame.regs.block, layout);
            let mut probing = Probing {
                asm,
                layout,
                here,
                frame,
                keys: 0,
                cold,
            };
            let off = probing.asm.label();
            if event.may_fault() {
                probing.unless_traced(off);
            }
            record(&mut probing, event, &|_| None)?;
            probing.asm.bind(off);
            let frame = probing.frame;
            frame.end(asm, &mut cold.rows);
        }
        Action::Syscall => return Ok(Some(syscall::emit(asm, context.runtime))),
        Action::Calls(calls) => {
            let emit = &mut |asm: &mut A, action: &Action| {
                let probe = Probe {
                    action,
                    // What is free before the call need not be free after it.
                    free: 0,
                    flags_dead: false,
                    ..probe.clone()
                };
                emit_probe(asm, context, &probe, from, cold).map(|_| ())
            };
            return syscall::emit_calls(asm, calls, emit).map(Some);
        }
        Action::Block(block) => {
            let given = (here, probe.free, !probe.flags_dead);
            block::emit_block(asm, context, block, given, cold)?;
        }
    }
    Ok(None)
}

/// Counts. Clobbers `block` and `x`.
fn emit_count<A: Assembler>(asm: &mut A, layout: &Layout, counter: Counter, regs: &Regs) {
    let at = match counter {
        Counter::Thread(at) => at,
        Counter::Shared { base, at } => {
            asm.load(8, regs.block, regs.block, base.into());
            at
        }
    };
    asm.add_to(regs.block, at.into(), regs.x);
    asm.add_at(layout, 1, (regs.x, regs.v), regs.block);
}

impl Cold {
    /// Emits the slow paths. Returns the loads that may fault, and where to continue then.
    fn emit<A: Assembler>(
        &mut self,
        asm: &mut A,
        layout: &Layout,
        runtime: Option<&Runtime>,
    ) -> Vec<(Label, Label)> {
        let (epoch, chunk) = runtime.map_or((0, 0), |runtime| (runtime.epoch, runtime.chunk));
        for (from, again, regs) in core::mem::take(&mut self.epoch) {
            asm.bind(from);
            agent::epoch(asm, epoch, &regs);
            asm.jump(again);
        }
        for (from, again, regs, large) in core::mem::take(&mut self.chunk) {
            asm.bind(from);
            // The place that it returns remains a hole, because an event needs more room.
            agent::chunk(asm, chunk, &regs);
            let Some(done) = large else {
                asm.jump(again);
                continue;
            };
            asm.load(8, regs.v, regs.block, layout.bucket.into());
            asm.li(regs.x, layout.bucket_size.into());
            asm.op(Arithmetic::Add, regs.v, regs.v, regs.x);
            asm.load(8, regs.x, regs.block, layout.limit.into());
            asm.branch(If::NotEqual, regs.v, regs.x, again);
            asm.add(regs.v, regs.block, layout.lost.into());
            asm.add_at(layout, 1, (regs.x, regs.t), regs.v);
            asm.jump(done);
        }
        let mut faults = core::mem::take(&mut self.leave);
        for (store, value, load, regs) in core::mem::take(&mut self.fault) {
            let failed = asm.here();
            faults.push((load, failed));
            let word = match value {
                0..32 => 0x10,
                // After the first word of the payload.
                _ => 0x18 + (value / 32 - 1) * 4,
            };
            asm.load(4, regs.x, regs.p, word.into());
            asm.li(regs.v, 1 << (value % 32));
            asm.op(Arithmetic::Or, regs.x, regs.x, regs.v);
            asm.store(4, regs.x, regs.p, word.into(), A::ZERO);
            asm.li(regs.v, 0);
            asm.jump(store);
        }
        faults
    }
}
