//! The stub of a traced function.
//!
//! The entry half records the entry, puts the real return address into the shadow and *calls* the body; the body's own
//! `ret` comes back to the exit half, which records the exit, fetches the real return address and returns to it. So every
//! `ret` is predicted and nothing but the return address on the stack differs from the untraced run. All general and
//! vector registers are kept, at entry and at exit: gcc's `-fipa-ra` lets callers hold values in registers that the ABI
//! calls clobbered. Flags are dead at both points (System V ABI, x86-64 supplement, 3.2.1).
//!
//! S below is the address of the return address when the function is entered. Three registers are pushed below it; at
//! entry and after return nothing lives there.

mod template;

use alloc::vec::Vec;
use core::ops::Range;

use super::emit::{Code, Pending};
use super::frames::RETURN_POINT;
pub use crate::stub::{Body, Emitted, Layout, Records, Registers, Runtime, Scope};
use hodo_isa::track::SAVED;
use hodo_isa::x86_64::track::{RSP, Row, Rule, pushed};
pub use template::Templates;

const PUSH_SCRATCH: &[u8] = &[0x50, 0x52, 0x51]; // push rax; push rdx; push rcx
const POP_SCRATCH: &[u8] = &[0x59, 0x5A, 0x58];
const CALL: &[u8] = &[0xE8];
const JMP: &[u8] = &[0xE9];
const JB: &[u8] = &[0x0F, 0x82];
const JAE: &[u8] = &[0x0F, 0x83];
const JE: &[u8] = &[0x0F, 0x84];
const JNE: &[u8] = &[0x0F, 0x85];
/// In a record, the upper of the two bits of the kind, which is set in tail calls.
const KIND_TAIL_BIT: u8 = 53;
const JA: &[u8] = &[0x0F, 0x87];
/// mov rcx, [rsp+24]
const RETURN_ADDRESS: &[u8] = &[0x48, 0x8B, 0x4C, 0x24, 0x18];

/// Slow paths of one stub, emitted behind its hot code: where they are entered and where they go back to.
#[derive(Default)]
struct Slow {
    epoch: Vec<(Pending, u64)>,
    /// The same where `rcx` has the return address.
    entry: Option<(Pending, u64)>,
    chunk: Vec<(Pending, u64)>,
}

/// Emits one stub at `code.here()`, calling `body` with the address of the body to get its relocated code, and adds to
/// `rows` where its frame is; offsets are those in the buffer.
///
/// # Errors
/// What `body` returns.
pub fn emit_stub<E>(
    code: &mut Code<'_>,
    layout: &Layout,
    runtime: &Runtime,
    records: &Records,
    rows: &mut Vec<Row>,
    body: impl FnOnce(u64) -> Result<Body, E>,
) -> Result<Emitted, E> {
    let Some(exit) = records.exit else {
        return emit_entry_only(code, layout, runtime, records, rows, body);
    };
    let mut slow = Slow::default();
    let outside = emit_scope(code, layout, records, rows);
    code.raw(PUSH_SCRATCH);
    let off = emit_switch(code, layout, records);
    let cut = emit_depth(code, layout, records, true);
    code.raw(RETURN_ADDRESS);
    // A return address in an island means that a traced function jumped here.
    let mut tail = Vec::new();
    for (lo, len) in layout.islands {
        code.raw(&[0x48, 0x89, 0xCA]); // mov rdx, rcx
        code.op32(&[0x65, 0x48, 0x2B, 0x14, 0x25], lo); // sub rdx, gs:[lo]
        code.op32(&[0x65, 0x48, 0x3B, 0x14, 0x25], len); // cmp rdx, gs:[len]
        tail.push(code.forward(JB));
    }
    // The time comes before the window: by it, readers notice a signal handler that has changed the window before the record
    // had its place.
    if records.timed {
        slow.entry = Some(emit_clock(code, layout));
    }
    // All of the window has a shadow.
    emit_window(code, layout);
    let shadow = code.forward(JAE);
    let shadow_back = code.here();
    code.op64(&[0x48, 0xBA], layout.shadow_distance.wrapping_neg()); // movabs rdx, -distance
    if records.check.is_some() {
        // A frame is marked as long as it is open.
        code.raw(&[0x48, 0x0F, 0xBA, 0xE9, 0x3F]); // bts rcx, 63
    }
    code.raw(&[0x48, 0x89, 0x4C, 0x14, 0x18]); // mov [rsp+rdx+24], rcx
    emit_place(code, layout, records.timed, records.entry, &mut slow);
    if records.scope == Scope::Filter {
        code.op32(&[0x65, 0x48, 0xFF, 0x04, 0x25], layout.inside); // inc qword gs:[inside]
    }
    code.raw(POP_SCRATCH);
    code.raw(&[0x48, 0x8D, 0x64, 0x24, 0x08]); // lea rsp, [rsp+8]
    let call_body = code.forward(CALL);

    code.raw(&[0x48, 0x8D, 0x64, 0x24, 0xF8]); // lea rsp, [rsp-8]
    code.raw(PUSH_SCRATCH);
    let dropped = emit_take_back(code, layout, runtime, records, rows, &mut slow);
    emit_record(code, layout, records.timed, exit, &mut slow);
    for pending in dropped.into_iter().flatten() {
        code.bind(pending);
    }
    emit_leave(code, layout, records);
    code.op64(&[0x48, 0xBA], layout.shadow_distance.wrapping_neg());
    code.raw(&[0x48, 0x8B, 0x44, 0x14, 0x18]); // mov rax, [rsp+rdx+24]
    let bad = records.check.map(|id| {
        code.raw(&[0x48, 0x0F, 0xBA, 0xF0, 0x3F]); // btr rax, 63
        (code.forward(JAE), id)
    });
    let go_back = code.here();
    code.raw(&[0x48, 0x89, 0x44, 0x24, 0x18]); // mov [rsp+24], rax
    if records.check.is_some() {
        // Not earlier: the return address must be somewhere for unwinders.
        code.raw(&[0x48, 0xC7, 0x44, 0x14, 0x18, 0, 0, 0, 0]); // mov qword [rsp+rdx+24], 0
    }
    code.raw(POP_SCRATCH);
    code.raw(&[0xC3]); // ret
    if let Some((bad, id)) = bad {
        code.bind(bad);
        code.op32(&[0xB9], id); // mov ecx, id
        code.branch(CALL, runtime.frame);
        code.branch(JMP, go_back);
    }

    // Outside of the window. If there can be no shadow, only the entry is recorded.
    code.bind(shadow);
    code.branch(CALL, runtime.shadow);
    code.branch(CALL, runtime.window);
    code.branch(JAE, shadow_back);
    code.op32(&[0xB9], records.entry); // mov ecx, entry
    let no_shadow = code.forward(JMP);
    for pending in tail {
        code.bind(pending);
    }
    code.op32(&[0xB9], records.tail); // mov ecx, tail
    code.bind(no_shadow);
    code.branch(CALL, runtime.record);
    for pending in [off, cut].into_iter().flatten() {
        code.bind(pending);
    }
    code.raw(POP_SCRATCH);
    code.bind(call_body);
    if let Some(outside) = outside {
        code.bind(outside);
    }
    let at = emit_body(code, rows, body)?;
    if let Some((pending, back)) = slow.entry {
        code.bind(pending);
        code.branch(CALL, runtime.epoch);
        code.raw(RETURN_ADDRESS);
        code.branch(JMP, back);
    }
    for (pending, back) in slow.epoch {
        code.bind(pending);
        code.branch(CALL, runtime.epoch);
        code.branch(JMP, back);
    }
    for (pending, back) in slow.chunk {
        code.bind(pending);
        code.branch(CALL, runtime.chunk);
        code.branch(JMP, back);
    }
    Ok(at.into())
}

fn emit_entry_only<E>(
    code: &mut Code<'_>,
    layout: &Layout,
    runtime: &Runtime,
    records: &Records,
    rows: &mut Vec<Row>,
    body: impl FnOnce(u64) -> Result<Body, E>,
) -> Result<Emitted, E> {
    let outside = emit_scope(code, layout, records, rows);
    code.raw(PUSH_SCRATCH);
    let off = emit_switch(code, layout, records);
    let cut = emit_depth(code, layout, records, false);
    if records.placed {
        emit_window(code, layout);
        let inside = code.forward(JB);
        code.branch(CALL, runtime.window);
        code.bind(inside);
    }
    code.op32(&[0xB9], records.entry); // mov ecx, entry
    code.branch(CALL, runtime.record);
    for pending in [off, cut].into_iter().flatten() {
        code.bind(pending);
    }
    code.raw(POP_SCRATCH);
    if let Some(outside) = outside {
        code.bind(outside);
    }
    Ok(emit_body(code, rows, body)?.into())
}

/// Is the stack pointer in the window of stack addresses? It is below it or above if the carry is clear. Clobbers `rdx`. S is `rsp + 24`.
fn emit_window(code: &mut Code<'_>, layout: &Layout) {
    code.raw(&[0x48, 0x8D, 0x54, 0x24, 0x18]); // lea rdx, [rsp+24]: S
    code.op32(&[0x65, 0x48, 0x2B, 0x14, 0x25], layout.window); // sub rdx, gs:[window]
    code.op32(&[0x48, 0x81, 0xFA], layout.window_size); // cmp rdx, window_size
}

/// Leaves out what is called outside of filter functions.
fn emit_scope(
    code: &mut Code<'_>,
    layout: &Layout,
    records: &Records,
    rows: &mut Vec<Row>,
) -> Option<Pending> {
    if records.scope != Scope::Inside {
        row(rows, code, Rule::Stub);
        return None;
    }
    row(rows, code, pushed(0));
    code.op32(&[0x65, 0x48, 0x83, 0x3C, 0x25], layout.inside);
    code.raw(&[0]); // cmp qword gs:[inside], 0
    let outside = code.forward(JE);
    row(rows, code, Rule::Stub);
    Some(outside)
}

/// Leaves out what is called while recording is switched off: the frame gets no shadow, so it has no exit. Frames that
/// are open then return as ever, with an exit.
fn emit_switch(code: &mut Code<'_>, layout: &Layout, records: &Records) -> Option<Pending> {
    let switch = records.switch?;
    code.op32(&[0x65, 0x48, 0x8B, 0x04, 0x25], layout.base); // mov rax, gs:[base]
    code.op32(&[0x80, 0xB8], switch);
    code.raw(&[0]); // cmp byte [rax+switch], 0
    Some(code.forward(JE))
}

/// From here on this tells where the frame is.
fn row(rows: &mut Vec<Row>, code: &Code<'_>, rule: Rule) {
    rows.push(Row {
        at: code.offset(),
        rule,
    });
}

/// Leaves out what is called too deep. Frames that the stack has left are forgotten first; with `open`, this one is
/// added. S is `rsp + 24`.
fn emit_depth(
    code: &mut Code<'_>,
    layout: &Layout,
    records: &Records,
    open: bool,
) -> Option<Pending> {
    let depth = records.depth?;
    code.raw(&[0x48, 0x8D, 0x54, 0x24, 0x18]); // lea rdx, [rsp+24]: S
    if records.scope == Scope::Filter {
        code.raw(&[0x31, 0xC9]); // xor ecx, ecx: the depth counts from here
    } else {
        emit_pop(code, layout);
    }
    code.op32(&[0x48, 0x81, 0xF9], depth * 8); // cmp rcx, depth * 8
    let cut = code.forward(JAE);
    if open {
        code.op32(&[0x65, 0x48, 0x89, 0x91], layout.frames); // mov gs:[rcx+frames], rdx
        code.raw(&[0x48, 0x83, 0xC1, 8]); // add rcx, 8
        code.op32(&[0x65, 0x48, 0x89, 0x0C, 0x25], layout.depth); // mov gs:[depth], rcx
    }
    Some(cut)
}

/// `rcx` = bytes of the counting frames that lie above the stack address in `rdx`. Clobbers nothing else.
fn emit_pop(code: &mut Code<'_>, layout: &Layout) {
    code.op32(&[0x65, 0x48, 0x8B, 0x0C, 0x25], layout.depth); // mov rcx, gs:[depth]
    let again = code.here();
    code.raw(&[0x48, 0x85, 0xC9]); // test rcx, rcx
    let none = code.forward(JE);
    let below = layout.frames.wrapping_sub(8);
    code.op32(&[0x65, 0x48, 0x39, 0x91], below); // cmp gs:[rcx+frames-8], rdx
    let alive = code.forward(JA);
    code.raw(&[0x48, 0x83, 0xE9, 8]); // sub rcx, 8
    code.branch(JMP, again);
    code.bind(none);
    code.bind(alive);
}

/// The function returns: its frame counts no more.
fn emit_leave(code: &mut Code<'_>, layout: &Layout, records: &Records) {
    if records.scope == Scope::Filter {
        // It may be below zero where a stack has moved from one thread to another: then it stays.
        code.op32(&[0x65, 0x48, 0x83, 0x3C, 0x25], layout.inside);
        code.raw(&[0]);
        let none = code.forward(JE);
        code.op32(&[0x65, 0x48, 0xFF, 0x0C, 0x25], layout.inside); // dec qword gs:[inside]
        code.bind(none);
    }
    if records.depth.is_some() {
        code.raw(&[0x48, 0x8D, 0x54, 0x24, 0x18]); // lea rdx, [rsp+24]
        emit_pop(code, layout);
        code.op32(&[0x65, 0x48, 0x89, 0x0C, 0x25], layout.depth);
    }
}

/// `edx` = upper half of the entry record. S is `rsp + 32`.
fn emit_entry_info(code: &mut Code<'_>, layout: &Layout, records: &Records) {
    code.raw(&[0x8D, 0x54, 0x24, 0x20]); // lea edx, [rsp+32]
    code.raw(&[0xC1, 0xE2, layout.sp_shift]);
    code.op32(&[0x81, 0xE2], layout.sp_mask);
    code.op32(&[0x81, 0xCA], records.entry);
}

/// A short call whose entry is the last record takes that record back, and has no exit. Returns the jump of that case.
/// Single instructions change the cursor and the record, so that what a signal handler records in between is kept.
fn emit_take_back(
    code: &mut Code<'_>,
    layout: &Layout,
    runtime: &Runtime,
    records: &Records,
    rows: &mut Vec<Row>,
    slow: &mut Slow,
) -> Option<[Pending; 2]> {
    // rbx is saved below the scratch registers.
    let mut below = [0; SAVED];
    below[0] = 5;
    let saved = Rule::Frame {
        base: RSP,
        offset: 32 + 8,
        saved: below,
    };
    let shortest = records
        .shortest
        .filter(|_| records.timed)?
        .min(i32::MAX as u32);
    let size = u8::try_from(layout.record_size).ok()?.wrapping_neg();
    let again = code.here();
    slow.epoch.push(emit_clock(code, layout));
    code.raw(&[0x53]); // push rbx
    row(rows, code, saved);
    code.op32(&[0x65, 0x48, 0x8B, 0x0C, 0x25], layout.cursor); // mov rcx, gs:[cursor]
    code.raw(&[0x48, 0x8B, 0x59, size]); // mov rbx, [rcx-8]: the last record
    emit_entry_info(code, layout, records);
    code.raw(&[0x48, 0xC1, 0xE2, 0x20]); // shl rdx, 32
    code.raw(&[0x48, 0x31, 0xDA]); // xor rdx, rbx: if it is this call's entry, its time
    code.raw(&[0x48, 0xF7, 0xDA]); // neg rdx
    code.raw(&[0x48, 0x01, 0xC2]); // add rdx, rax: now - then, or something huge
    code.op32(&[0x48, 0x81, 0xFA], shortest); // cmp rdx, shortest
    let keep = code.forward(JAE);
    code.raw(&[0x48, 0x89, 0xC8]); // mov rax, rcx
    code.raw(&[0x48, 0x8D, 0x51, size]); // lea rdx, [rcx-8]
    code.op32(&[0x65, 0x48, 0x0F, 0xB1, 0x14, 0x25], layout.cursor); // cmpxchg gs:[cursor], rdx
    let lost = code.forward(JNE);
    code.raw(&[0x48, 0x89, 0xD8]); // mov rax, rbx
    code.raw(&[0x31, 0xDB]); // xor ebx, ebx
    code.raw(&[0x48, 0x0F, 0xB1, 0x1A]); // cmpxchg [rdx], rbx
    code.raw(&[0x5B]); // pop rbx
    row(rows, code, Rule::Stub);
    let dropped = code.forward(JMP);
    code.bind(lost);
    row(rows, code, saved);
    code.raw(&[0x5B]);
    row(rows, code, Rule::Stub);
    code.branch(JMP, again);
    code.bind(keep);
    row(rows, code, saved);
    // Behind the entry there may be records of jumps to other functions.
    code.raw(&[0x48, 0x0F, 0xBA, 0xE3, KIND_TAIL_BIT]); // bt rbx, 53
    let other = code.forward(JAE);
    emit_entry_info(code, layout, records);
    code.op32(&[0xB9], shortest); // mov ecx, shortest
    code.branch(CALL, runtime.tails);
    let still = code.forward(JAE);
    code.raw(&[0x5B]);
    row(rows, code, Rule::Stub);
    let dropped_tails = code.forward(JMP);
    code.bind(other);
    code.bind(still);
    row(rows, code, saved);
    code.raw(&[0x5B]);
    row(rows, code, Rule::Stub);
    Some([dropped, dropped_tails])
}

fn emit_body<E>(
    code: &mut Code<'_>,
    rows: &mut Vec<Row>,
    body: impl FnOnce(u64) -> Result<Body, E>,
) -> Result<Range<u64>, E> {
    let at = code.here();
    let body = body(at)?;
    if !body.returns && body.bytes.windows(4).any(|code| code == RETURN_POINT) {
        // It would be taken for what it is not.
        row(rows, code, Rule::Unknown);
    } else {
        let start = code.offset();
        rows.extend(body.rows.iter().map(|row| Row {
            at: start + row.at,
            rule: row.rule,
        }));
    }
    code.raw(&body.bytes);
    if let Some(resume) = body.resume {
        code.branch(JMP, resume);
    }
    row(rows, code, Rule::Stub);
    Ok(at..code.here())
}

/// Appends a record. `rax`, `rdx`, `rcx` are free; S is `rsp + 24`.
fn emit_record(code: &mut Code<'_>, layout: &Layout, timed: bool, info: u32, slow: &mut Slow) {
    if timed {
        slow.epoch.push(emit_clock(code, layout));
    }
    emit_place(code, layout, timed, info, slow);
}

/// `eax` = lower half of the time counter. Clobbers `rdx`, and `rcx` where the upper half has changed. Returns the jump of that case,
/// and where it comes back to.
fn emit_clock(code: &mut Code<'_>, layout: &Layout) -> (Pending, u64) {
    code.raw(&[0x0F, 0x31]); // rdtsc
    code.op32(&[0x65, 0x3B, 0x14, 0x25], layout.epoch); // cmp edx, gs:[epoch]
    let pending = code.forward(JNE);
    (pending, code.here())
}

/// Appends a record, with the time in `rax`. `rdx`, `rcx` are free; S is `rsp + 24`.
fn emit_place(code: &mut Code<'_>, layout: &Layout, timed: bool, info: u32, slow: &mut Slow) {
    // Unlocked xadd: one instruction, so a signal handler that records gets a slot of its own.
    code.op32(&[0xB9], layout.record_size); // mov ecx, 8
    code.op32(&[0x65, 0x48, 0x0F, 0xC1, 0x0C, 0x25], layout.cursor); // xadd gs:[cursor], rcx
    code.op32(&[0x65, 0x48, 0x3B, 0x0C, 0x25], layout.limit); // cmp rcx, gs:[limit]
    let pending = code.forward(JAE);
    slow.chunk.push((pending, code.here()));
    code.raw(&[0x8D, 0x54, 0x24, 0x18]); // lea edx, [rsp+24]
    code.raw(&[0xC1, 0xE2, layout.sp_shift]); // shl edx, sp_shift
    code.op32(&[0x81, 0xE2], layout.sp_mask); // and edx, sp_mask
    code.op32(&[0x81, 0xCA], info); // or edx, info
    code.raw(&[0x48, 0xC1, 0xE2, 0x20]); // shl rdx, 32
    if timed {
        code.raw(&[0x48, 0x09, 0xC2]); // or rdx, rax
    }
    code.raw(&[0x48, 0x89, 0x11]); // mov [rcx], rdx
}

/// The bytes of a jump at `from` to `to`.
///
/// # Panics
/// If they are more than 2 GiB apart.
#[must_use]
pub fn jump(from: u64, to: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(5);
    Code::new(&mut bytes, from).branch(JMP, to);
    bytes
}

/// The bytes of a call at `from` to `to`.
///
/// # Panics
/// If they are more than 2 GiB apart.
#[must_use]
pub fn call(from: u64, to: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(5);
    Code::new(&mut bytes, from).branch(CALL, to);
    bytes
}
