//! Return probes: the detour of the code that begins a function calls the rest of it, so that the function's own `ret`
//! comes back to the probes, and then returns to the caller. How that can be right is told in [`crate::x86_64::stub`].
//!
//! S is the address of the function's return address. Nothing lives below it at entry and after the return; all registers
//! are kept at both, but for the flags.

use alloc::vec::Vec;

use super::{Cold, DetourError, JMP, Probe, When, emit_probe};
use crate::x86_64::emit::{Code, Pending};
use crate::x86_64::stub::{Layout, Runtime};
use crate::x86_64::track::{Row, Rule, State, code_rows};

const CALL: &[u8] = &[0xE8];
const JB: &[u8] = &[0x0F, 0x82];
const JE: &[u8] = &[0x0F, 0x84];
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
) -> Result<[Pending; 2], DetourError> {
    let first: Vec<_> = probes.iter().filter(|p| p.offset == 0).cloned().collect();
    let before = Followed::begin(code, State::ENTRY);
    emit_all(code, (layout, runtime), (&first, When::Hit), from, cold)?;
    before.end(code, rows);
    row(rows, code, Rule::Stub);
    code.raw(PUSH_SCRATCH);
    code.raw(&[0x48, 0x8B, 0x44, 0x24, 0x18]); // mov rax, [rsp+24]: the return address
    let mut tail = Vec::new();
    for (lo, len) in layout.islands {
        code.raw(&[0x48, 0x89, 0xC2]); // mov rdx, rax
        code.op32(&[0x65, 0x48, 0x2B, 0x14, 0x25], lo); // sub rdx, gs:[lo]
        code.op32(&[0x65, 0x48, 0x3B, 0x14, 0x25], len); // cmp rdx, gs:[len]
        tail.push(code.forward(JB));
    }
    code.raw(&[0x48, 0x8D, 0x54, 0x24, 0x18]); // lea rdx, [rsp+24]: S
    code.op32(&[0x65, 0x48, 0x2B, 0x14, 0x25], layout.shadow_lo); // sub rdx, gs:[shadow_lo]
    code.op32(&[0x65, 0x48, 0x3B, 0x14, 0x25], layout.shadow_len); // cmp rdx, gs:[shadow_len]
    let shadow = code.forward(JAE);
    let shadow_back = code.here();
    let distance = layout.shadow_distance.wrapping_neg();
    code.op64(&[0x48, 0xBA], distance); // movabs rdx, -distance
    code.raw(&[0x48, 0x89, 0x44, 0x14, 0x18]); // mov [rsp+rdx+24], rax
    code.raw(POP_SCRATCH);
    code.raw(&[0x48, 0x8D, 0x64, 0x24, 0x08]); // lea rsp, [rsp+8]
    let call_body = code.forward(CALL);

    // Unwinders know this instruction.
    let return_point = code.here();
    code.raw(&[0x48, 0x8D, 0x64, 0x24, 0xF8]); // lea rsp, [rsp-8]
    let after = Followed::begin(code, State::ENTRY);
    // Probes see the stack pointer of the caller.
    code.raw(&[0x48, 0x8D, 0x64, 0x24, 0x08]); // lea rsp, [rsp+8]
    emit_all(code, (layout, runtime), (&first, When::Return), from, cold)?;
    code.raw(&[0x48, 0x8D, 0x64, 0x24, 0xF8]); // lea rsp, [rsp-8]
    code.raw(&[0x52]); // push rdx
    code.op64(&[0x48, 0xBA], distance); // movabs rdx, -distance
    code.raw(&[0x48, 0x8B, 0x54, 0x14, 0x08]); // mov rdx, [rsp+rdx+8]
    code.raw(&[0x48, 0x89, 0x54, 0x24, 0x08]); // mov [rsp+8], rdx
    code.raw(&[0x5A, 0xC3]); // pop rdx; ret
    after.end(code, rows);

    // No shadow to be had, or another function of ours returns from this frame.
    row(rows, code, Rule::Stub);
    code.bind(shadow);
    code.branch(CALL, runtime.shadow);
    code.branch(JAE, shadow_back);
    for pending in tail {
        code.bind(pending);
    }
    // A function that jumps to its own beginning does not begin again: it is a loop, or as good as one.
    code.branch(&[0x48, 0x8D, 0x15], return_point); // lea rdx, [rip+return_point]
    code.raw(&[0x48, 0x39, 0xD0]); // cmp rax, rdx
    let own = code.forward(JE);
    let missed = Followed::begin(code, State::pushed(24));
    emit_all(code, (layout, runtime), (&first, When::Missed), from, cold)?;
    missed.end(code, rows);
    row(rows, code, Rule::Stub);
    code.bind(own);
    code.raw(POP_SCRATCH);
    let body = code.forward(JMP);
    row(rows, code, Rule::Unknown);
    Ok([call_body, body])
}
