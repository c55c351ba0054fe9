//! Return probes: the detour of the code that begins a function calls the rest of it, so that the function's own `ret`
//! comes back to the probes, and then returns to the caller. How that can be right is told in [`crate::x86_64::stub`].
//!
//! S is the address of the function's return address. Nothing lives below it at entry and after the return; all registers
//! are kept at both, but for the flags.

use alloc::vec::Vec;

use super::{Cold, DetourError, JMP, Probe, When, emit_probe};
use crate::x86_64::emit::{Code, Pending};
use crate::x86_64::stub::{Layout, Runtime};
use hodo_isa::x86_64::track::{Row, Rule, State, code_rows};

const CALL: &[u8] = &[0xE8];
const JB: &[u8] = &[0x0F, 0x82];
const JE: &[u8] = &[0x0F, 0x84];
const JNE: &[u8] = &[0x0F, 0x85];
const JBE: &[u8] = &[0x0F, 0x86];
const JA: &[u8] = &[0x0F, 0x87];
const JAE: &[u8] = &[0x0F, 0x83];
const PUSH_SCRATCH: &[u8] = &[0x50, 0x52, 0x51]; // push rax; push rdx; push rcx
const POP_SCRATCH: &[u8] = &[0x59, 0x5A, 0x58];

/// Code of which the frames are found by following what it does to the stack pointer.
struct Followed {
    start: u32,
    at: u64,
    state: State,
}

impl Followed {
    fn begin(code: &Code<'_>, state: State) -> Self {
        Self {
            start: code.offset(),
            at: code.here(),
            state,
        }
    }

    fn end(self, code: &Code<'_>, rows: &mut Vec<Row>) {
        let followed = code_rows(code.from(self.start), self.at, &[(0, self.state)]);
        rows.extend(followed.into_iter().map(|row| Row {
            at: row.at + self.start,
            ..row
        }));
    }
}

/// From here on this tells where the frame is.
fn row(rows: &mut Vec<Row>, code: &Code<'_>, rule: Rule) {
    rows.push(Row {
        at: code.offset(),
        rule,
    });
}

fn emit_all(
    code: &mut Code<'_>,
    context: (&Layout, &Runtime),
    (probes, when): (&[Probe<'_>], When),
    from: u64,
    cold: &mut Cold,
) -> Result<(), DetourError> {
    for probe in probes.iter().filter(|probe| probe.when == when) {
        emit_probe(code, context, probe, from, cold)?;
    }
    Ok(())
}

/// Emits what comes before the moved code: the probes that stand at its first instruction, and what belongs to its
/// return probes. Gives the places that lead to the first instruction.
pub(super) fn emit_returns(
    code: &mut Code<'_>,
    layout: &Layout,
    runtime: &Runtime,
    probes: &[Probe<'_>],
    from: u64,
    (cold, rows): (&mut Cold, &mut Vec<Row>),
) -> Result<[Pending; 3], DetourError> {
    let context = (layout, runtime);
    let first: Vec<_> = probes.iter().filter(|p| p.offset == 0).cloned().collect();
    let before = Followed::begin(code, State::ENTRY);
    emit_all(code, context, (&first, When::Hit), from, cold)?;
    before.end(code, rows);
    row(rows, code, Rule::Stub);
    code.raw(PUSH_SCRATCH);
    code.raw(&[0x48, 0x8B, 0x44, 0x24, 0x18]); // mov rax, [rsp+24]: the return address
    let mut chained = Vec::new();
    for (lo, len) in layout.islands {
        code.raw(&[0x48, 0x89, 0xC2]); // mov rdx, rax
        code.op32(&[0x65, 0x48, 0x2B, 0x14, 0x25], lo); // sub rdx, gs:[lo]
        code.op32(&[0x65, 0x48, 0x3B, 0x14, 0x25], len); // cmp rdx, gs:[len]
        chained.push(code.forward(JB));
    }
    code.raw(&[0x48, 0x8D, 0x54, 0x24, 0x18]); // lea rdx, [rsp+24]: S
    code.op32(&[0x65, 0x48, 0x2B, 0x14, 0x25], layout.shadow_lo); // sub rdx, gs:[shadow_lo]
    code.op32(&[0x65, 0x48, 0x3B, 0x14, 0x25], layout.shadow_len); // cmp rdx, gs:[shadow_len]
    let shadow = code.forward(JAE);
    let shadow_back = code.here();
    let distance = layout.shadow_distance.wrapping_neg();
    code.op64(&[0x48, 0xBA], distance); // movabs rdx, -distance
    code.raw(&[0x48, 0x89, 0x44, 0x14, 0x18]); // mov [rsp+rdx+24], rax
    let call_body = emit_call(code);

    let return_point = emit_return_point(code);
    let after = Followed::begin(code, State::ENTRY);
    emit_actions(code, context, &first, from, cold)?;
    code.raw(&[0x52]); // push rdx
    code.op64(&[0x48, 0xBA], distance); // movabs rdx, -distance
    code.raw(&[0x48, 0x8B, 0x54, 0x14, 0x08]); // mov rdx, [rsp+rdx+8]
    code.raw(&[0x48, 0x89, 0x54, 0x24, 0x08]); // mov [rsp+8], rdx
    code.raw(&[0x5A, 0xC3]); // pop rdx; ret
    after.end(code, rows);

    // Another function of ours returns from this frame, which is kept in the thread's list.
    row(rows, code, Rule::Stub);
    for pending in chained {
        code.bind(pending);
    }
    // A function that jumps to its own beginning does not begin again: it is a loop, or as good as one. With a full list,
    // functions in between may have been missed.
    code.branch(&[0x48, 0x8D, 0x15], return_point); // lea rdx, [rip+return_point]
    code.raw(&[0x48, 0x39, 0xD0]); // cmp rax, rdx
    let own = code.forward(JE);
    let chain_point = code.forward(&[0x48, 0x8D, 0x15]); // lea rdx, [rip+chain_point]
    code.raw(&[0x48, 0x39, 0xD0]);
    let own_chained = code.forward(JE);
    let full = emit_keep(code, layout);
    let call_chained = emit_call(code);

    code.bind(chain_point);
    emit_return_point(code);
    let after = Followed::begin(code, State::ENTRY);
    emit_actions(code, context, &first, from, cold)?;
    code.raw(PUSH_SCRATCH);
    let lost = emit_find(code, layout);
    let found = code.here();
    code.raw(&[0x48, 0x89, 0x44, 0x24, 0x18]); // mov [rsp+24], rax
    code.raw(POP_SCRATCH);
    code.raw(&[0xC3]); // ret
    // Another thread has begun this frame: the others that share it are missed.
    for pending in lost {
        code.bind(pending);
    }
    emit_all(code, context, (&first, When::Missed), from, cold)?;
    code.op64(&[0x48, 0xBA], distance); // movabs rdx, -distance
    code.raw(&[0x48, 0x8B, 0x44, 0x14, 0x18]); // mov rax, [rsp+rdx+24]
    code.raw(&[0x48, 0x0F, 0xBA, 0xF0, 0x3F]); // btr rax, 63: `--check-frames` marks it
    code.branch(JMP, found);
    after.end(code, rows);

    // No shadow to be had, or no room in the list.
    row(rows, code, Rule::Stub);
    code.bind(shadow);
    code.branch(CALL, runtime.shadow);
    code.branch(JAE, shadow_back);
    let missing = code.forward(JMP);
    code.bind(full);
    code.op32(&[0x65, 0x48, 0x83, 0x2C, 0x25], layout.chain_top);
    code.raw(&[ENTRY]); // sub qword gs:[top], 16
    code.bind(missing);
    let missing_one = code.here();
    let missed = Followed::begin(code, State::pushed(24));
    emit_all(code, context, (&first, When::Missed), from, cold)?;
    missed.end(code, rows);
    row(rows, code, Rule::Stub);
    let leave = code.here();
    code.raw(POP_SCRATCH);
    let body = code.forward(JMP);
    row(rows, code, Rule::Stub);
    code.bind(own);
    code.bind(own_chained);
    code.op32(&[0x65, 0x48, 0x8B, 0x14, 0x25], layout.chain_top); // mov rdx, gs:[top]
    code.op32(&[0x65, 0x48, 0x2B, 0x14, 0x25], layout.chain_lo); // sub rdx, gs:[lo]
    code.op32(&[0x48, 0x81, 0xFA], layout.chain_size - u32::from(ENTRY)); // cmp rdx, size - 16
    code.branch(JA, missing_one);
    code.branch(JMP, leave);
    row(rows, code, Rule::Unknown);
    Ok([call_body, call_chained, body])
}

/// Calls the rest of the function, in the frame of its caller.
fn emit_call(code: &mut Code<'_>) -> Pending {
    code.raw(POP_SCRATCH);
    code.raw(&[0x48, 0x8D, 0x64, 0x24, 0x08]); // lea rsp, [rsp+8]
    code.forward(CALL)
}

/// The instruction to which the function returns; unwinders know it.
fn emit_return_point(code: &mut Code<'_>) -> u64 {
    let at = code.here();
    code.raw(&[0x48, 0x8D, 0x64, 0x24, 0xF8]); // lea rsp, [rsp-8]
    at
}

/// What is done at the return, with the stack pointer of the caller.
fn emit_actions(
    code: &mut Code<'_>,
    context: (&Layout, &Runtime),
    first: &[Probe<'_>],
    from: u64,
    cold: &mut Cold,
) -> Result<(), DetourError> {
    code.raw(&[0x48, 0x8D, 0x64, 0x24, 0x08]); // lea rsp, [rsp+8]
    emit_all(code, context, (first, When::Return), from, cold)?;
    code.raw(&[0x48, 0x8D, 0x64, 0x24, 0xF8]); // lea rsp, [rsp-8]
    Ok(())
}

/// Bytes of an entry of the list: S, and where the function returns to.
const ENTRY: u8 = 16;

/// Keeps the return address in `rax` in the thread's list. A signal handler that interrupts this leaves the list as it
/// finds it: first the place is taken, which holds a 0. Returns the jump for a full list, in which the place stays taken.
fn emit_keep(code: &mut Code<'_>, layout: &Layout) -> Pending {
    code.op32(&[0xBA], u32::from(ENTRY)); // mov edx, 16
    code.op32(&[0x65, 0x48, 0x0F, 0xC1, 0x14, 0x25], layout.chain_top); // xadd gs:[top], rdx
    code.raw(&[0x48, 0x89, 0xD1]); // mov rcx, rdx
    code.op32(&[0x65, 0x48, 0x2B, 0x0C, 0x25], layout.chain_lo); // sub rcx, gs:[lo]
    code.op32(&[0x48, 0x81, 0xF9], layout.chain_size - u32::from(ENTRY)); // cmp rcx, size - 16
    let full = code.forward(JA);
    code.raw(&[0x48, 0x8D, 0x4C, 0x24, 0x18]); // lea rcx, [rsp+24]: S
    code.raw(&[0x48, 0x89, 0x42, 0x08]); // mov [rdx+8], rax
    code.raw(&[0x48, 0x89, 0x0A]); // mov [rdx], rcx
    full
}

/// Takes what was kept for this frame into `rax`, from above: what has the same S below belongs to a function that jumped
/// here, or to a frame that was left. Returns the jumps for when nothing is there.
///
/// The entry's S becomes 1; entries at the top of the list that have 1 there are taken off, one by one, and get a 0.
fn emit_find(code: &mut Code<'_>, layout: &Layout) -> [Pending; 2] {
    code.raw(&[0x48, 0x8D, 0x4C, 0x24, 0x18]); // lea rcx, [rsp+24]: S
    code.op32(&[0x65, 0x48, 0x8B, 0x14, 0x25], layout.chain_top); // mov rdx, gs:[top]
    code.raw(&[0x48, 0x89, 0xD0]); // mov rax, rdx
    code.op32(&[0x65, 0x48, 0x2B, 0x04, 0x25], layout.chain_lo); // sub rax, gs:[lo]
    code.op32(&[0x48, 0x3D], layout.chain_size); // cmp rax, size
    let none = code.forward(JA);
    let next = code.here();
    code.op32(&[0x65, 0x48, 0x3B, 0x14, 0x25], layout.chain_lo); // cmp rdx, gs:[lo]
    let end = code.forward(JBE);
    code.raw(&[0x48, 0x83, 0xEA, ENTRY]); // sub rdx, 16
    code.raw(&[0x48, 0x39, 0x0A]); // cmp [rdx], rcx
    code.branch(JNE, next);
    code.raw(&[0x48, 0x8B, 0x42, 0x08]); // mov rax, [rdx+8]
    code.raw(&[0x48, 0xC7, 0x02, 1, 0, 0, 0]); // mov qword [rdx], 1
    code.op32(&[0x65, 0x48, 0x8B, 0x14, 0x25], layout.chain_top); // mov rdx, gs:[top]
    let off = code.here();
    code.op32(&[0x65, 0x48, 0x3B, 0x14, 0x25], layout.chain_lo); // cmp rdx, gs:[lo]
    let empty = code.forward(JBE);
    code.raw(&[0x48, 0x83, 0x7A, 0xF0, 1]); // cmp qword [rdx-16], 1
    let used = code.forward(JNE);
    code.raw(&[0x48, 0xC7, 0x42, 0xF0, 0, 0, 0, 0]); // mov qword [rdx-16], 0
    code.raw(&[0x48, 0x83, 0xEA, ENTRY]); // sub rdx, 16
    code.op32(&[0x65, 0x48, 0x89, 0x14, 0x25], layout.chain_top); // mov gs:[top], rdx
    code.branch(JMP, off);
    code.bind(empty);
    code.bind(used);
    [none, end]
}
