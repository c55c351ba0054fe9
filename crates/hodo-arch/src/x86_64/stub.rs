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

use super::emit::{Code, Pending};

/// Offsets into the thread control block (`gs` base) and bits of a record, given by the trace format.
#[derive(Debug, Clone, Copy)]
pub struct Layout {
    /// Offset of the cursor, `u64`.
    pub cursor: u32,
    /// Offset of the chunk's limit, `u64`.
    pub limit: u32,
    /// Offset of the upper half of the counter, `u32`.
    pub epoch: u32,
    /// Offset of the shadow range's start, `u64`.
    pub shadow_lo: u32,
    /// Offset of the shadow range's length, `u64`.
    pub shadow_len: u32,
    /// Offsets of start and length of the two island regions, `u64` each.
    pub islands: [(u32, u32); 2],
    /// Distance from a stack slot to its shadow.
    pub shadow_distance: u64,
    /// Bytes of a record.
    pub record_size: u32,
    /// Left shift that brings the stack pointer to its field in the upper half of a record.
    pub sp_shift: u8,
    /// Mask of that field.
    pub sp_mask: u32,
}

/// Addresses of the runtime's slow paths.
#[derive(Debug, Clone, Copy)]
pub struct Runtime {
    /// The upper half of the counter changed.
    pub epoch: u64,
    /// The chunk is full.
    pub chunk: u64,
    /// The shadow of this stack may not be mapped.
    pub shadow: u64,
    /// One record, with all of the work (timed or not, as the stub is).
    pub record: u64,
}

/// What is recorded.
#[derive(Debug, Clone, Copy)]
pub struct Records {
    /// Upper half of the entry record, without the stack bits.
    pub entry: u32,
    /// Upper half of the exit record; `None`: only the entry is recorded.
    pub exit: Option<u32>,
    /// Upper half of the record for an entry by tail call.
    pub tail: u32,
    /// With the time counter, or without.
    pub timed: bool,
}

const PUSH_SCRATCH: &[u8] = &[0x50, 0x52, 0x51]; // push rax; push rdx; push rcx
const POP_SCRATCH: &[u8] = &[0x59, 0x5A, 0x58];
const CALL: &[u8] = &[0xE8];
const JMP: &[u8] = &[0xE9];
const JB: &[u8] = &[0x0F, 0x82];
const JAE: &[u8] = &[0x0F, 0x83];
const JNE: &[u8] = &[0x0F, 0x85];

/// Slow paths of one stub, emitted behind its hot code: where they are entered and where they go back to.
#[derive(Default)]
struct Slow {
    epoch: Vec<(Pending, u64)>,
    chunk: Vec<(Pending, u64)>,
}

/// Emits one stub at `code.here()`, calling `body` with the address of the body to get its relocated code.
/// Returns the body's address.
///
/// # Errors
/// What `body` returns.
pub fn emit_stub<E>(
    code: &mut Code<'_>,
    layout: &Layout,
    runtime: &Runtime,
    records: &Records,
    body: impl FnOnce(u64) -> Result<(Vec<u8>, Option<u64>), E>,
) -> Result<u64, E> {
    let Some(exit) = records.exit else {
        return emit_entry_only(code, runtime, records.entry, body);
    };
    let mut slow = Slow::default();
    code.raw(PUSH_SCRATCH);
    code.raw(&[0x48, 0x8B, 0x44, 0x24, 0x18]); // mov rax, [rsp+24]: the return address
    // A return address in an island means that a traced function jumped here.
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
    code.op64(&[0x48, 0xBA], layout.shadow_distance.wrapping_neg()); // movabs rdx, -distance
    code.raw(&[0x48, 0x89, 0x44, 0x14, 0x18]); // mov [rsp+rdx+24], rax
    emit_record(code, layout, records.timed, records.entry, &mut slow);
    code.raw(POP_SCRATCH);
    code.raw(&[0x48, 0x8D, 0x64, 0x24, 0x08]); // lea rsp, [rsp+8]
    let call_body = code.forward(CALL);

    code.raw(&[0x48, 0x8D, 0x64, 0x24, 0xF8]); // lea rsp, [rsp-8]
    code.raw(PUSH_SCRATCH);
    emit_record(code, layout, records.timed, exit, &mut slow);
    code.op64(&[0x48, 0xBA], layout.shadow_distance.wrapping_neg());
    code.raw(&[0x48, 0x8B, 0x44, 0x14, 0x18]); // mov rax, [rsp+rdx+24]
    code.raw(&[0x48, 0x89, 0x44, 0x24, 0x18]); // mov [rsp+24], rax
    code.raw(POP_SCRATCH);
    code.raw(&[0xC3]); // ret

    // No shadow to be had: the entry alone is recorded.
    code.bind(shadow);
    code.branch(CALL, runtime.shadow);
    code.branch(JAE, shadow_back);
    code.op32(&[0xB9], records.entry); // mov ecx, entry
    let no_shadow = code.forward(JMP);
    for pending in tail {
        code.bind(pending);
    }
    code.op32(&[0xB9], records.tail); // mov ecx, tail
    code.bind(no_shadow);
    code.branch(CALL, runtime.record);
    code.raw(POP_SCRATCH);
    code.bind(call_body);
    let at = emit_body(code, body)?;
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
    Ok(at)
}

fn emit_entry_only<E>(
    code: &mut Code<'_>,
    runtime: &Runtime,
    entry: u32,
    body: impl FnOnce(u64) -> Result<(Vec<u8>, Option<u64>), E>,
) -> Result<u64, E> {
    code.raw(PUSH_SCRATCH);
    code.op32(&[0xB9], entry); // mov ecx, entry
    code.branch(CALL, runtime.record);
    code.raw(POP_SCRATCH);
    emit_body(code, body)
}

fn emit_body<E>(
    code: &mut Code<'_>,
    body: impl FnOnce(u64) -> Result<(Vec<u8>, Option<u64>), E>,
) -> Result<u64, E> {
    let at = code.here();
    let (bytes, resume) = body(at)?;
    code.raw(&bytes);
    if let Some(resume) = resume {
        code.branch(JMP, resume);
    }
    Ok(at)
}

/// Appends a record. `rax`, `rdx`, `rcx` are free; S is `rsp + 24`.
fn emit_record(code: &mut Code<'_>, layout: &Layout, timed: bool, info: u32, slow: &mut Slow) {
    if timed {
        code.raw(&[0x0F, 0x31]); // rdtsc
        code.op32(&[0x65, 0x3B, 0x14, 0x25], layout.epoch); // cmp edx, gs:[epoch]
        let pending = code.forward(JNE);
        slow.epoch.push((pending, code.here()));
    }
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
