//! Frame information for an island: how unwinders get from any instruction of it to the traced function's caller.
//!
//! At nearly all instructions of a stub, the return address is at S in the stack, with three scratch registers below
//! it. The exceptions can be recognized by the instruction itself: a push, a pop, a return, the call of the body. So
//! one rule that reads the executed code serves all stubs, and tables hold only what does not follow from it: displaced
//! instructions, the agent, hooks. The rule has an exception, the point to which bodies return. There the return
//! address is in the shadow of S, CFA = S (it must differ from the caller's CFA, or libgcc takes the stub for the frame
//! that handles an exception), and rsp = CFA + 8. Elsewhere CFA = S + 8, and the return address is the word at S. If
//! that word is an address in an island, because the frame was entered by a jump or is about to be left, it is the
//! return point of a stub.
//!
//! One FDE describes a group of neighbors and follows them. The search table is at the end of the island. Islands grow
//! upward, so the table grows at its end, and is valid at any time.
//! Encodings: DWARF 5, section 6.4; LSB 5.0, section 10.6 (`.eh_frame`, `.eh_frame_hdr`).

pub use crate::frames::{Frames, GROUP, header, table_room};
use crate::frames::{advance, entry, fde, uleb};
use alloc::vec::Vec;
use gimli::constants as dw;
use hodo_isa::cfa::SAVED;
use hodo_isa::x86_64::cfa::{CALLEE_SAVED, RSP, Row, Rule, State, code_rows};

/// The second to fifth byte of the instruction to which bodies return: `lea rsp, [rsp-8]`.
pub const RETURN_POINT: [u8; 4] = [0x8D, 0x64, 0x24, 0xF8];
/// The second to fifth byte of `lea rsp, [rsp+8]`.
const RELEASE: [u8; 4] = [0x8D, 0x64, 0x24, 0x08];
/// Length of the call of the body; the return point is after it.
const CALL_SIZE: u8 = 5;
/// For each of the opcodes 0x50…0x5F, from the lowest digit on: the number of words that are pushed when it is
/// executed.
const PUSHED: u64 = 0x3333_4231_3333_3120;

/// A DWARF expression being written.
#[derive(Default)]
struct Expression(Vec<u8>);

impl Expression {
    fn ops(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend(bytes);
        self
    }

    /// Whether the code at `offset` from the executed instruction is this.
    fn code_is(&mut self, offset: u8, code: [u8; 4]) -> &mut Self {
        // breg16 offset; deref_size 4; const4u; eq
        self.ops(&[0x80, offset, 0x94, 4, 0x0C])
            .ops(&code)
            .ops(&[0x29])
    }

    /// The executed instruction's first byte.
    fn opcode(&mut self) -> &mut Self {
        self.ops(&[0x80, 0, 0x94, 1]) // breg16 0; deref_size 1
    }

    /// A jump if the top is not 0.
    fn branch(&mut self) -> usize {
        self.ops(&[0x28, 0, 0]).0.len() // bra
    }

    fn skip(&mut self) -> usize {
        self.ops(&[0x2F, 0, 0]).0.len() // skip
    }

    fn bind(&mut self, jumps: impl IntoIterator<Item = usize>) -> &mut Self {
        for jump in jumps {
            let distance = (self.0.len() - jump) as u16;
            self.0[jump - 2..jump].copy_from_slice(&distance.to_le_bytes());
        }
        self
    }
}

/// CFA of a stub's frame.
fn frame_address() -> Vec<u8> {
    let mut e = Expression::default();
    let returned = e.code_is(1, RETURN_POINT).branch();
    let call = e.code_is(CALL_SIZE + 1, RETURN_POINT).branch();
    let release = e.code_is(1, RELEASE).branch();
    let leave = e.opcode().ops(&[0x08, 0xC3, 0x29]).branch(); // const1u 0xC3; eq
    let stack = e.opcode().ops(&[0x34, 0x25, 0x35, 0x29]).branch(); // lit4; shr; lit5; eq
    let usual = e.ops(&[0x08, 32]).skip(); // const1u 32
    e.bind([stack]).ops(&[0x0E]).ops(&PUSHED.to_le_bytes()); // const8u
    e.opcode().ops(&[0x3F, 0x1A, 0x32, 0x24, 0x25, 0x3F, 0x1A]); // lit15; and; lit2; shl; shr; lit15; and
    let pushed = e.ops(&[0x31, 0x22, 0x33, 0x24]).skip(); // lit1; plus; lit3; shl
    let at_return = e.bind([returned]).ops(&[0x09, 0xF8]).skip(); // const1s -8
    let at_call = e.bind([call]).ops(&[0x30]).skip(); // lit0
    e.bind([release, leave]).ops(&[0x38]); // lit8
    e.bind([usual, pushed, at_return, at_call])
        .ops(&[0x77, 0, 0x22]); // breg7 0; plus
    e.0
}

/// The return address; the CFA is on the expression's stack.
fn return_address(shadow_distance: u64) -> Vec<u8> {
    let mut e = Expression::default();
    let returned = e.code_is(1, RETURN_POINT).branch();
    let usual = e.ops(&[0x38, 0x1C, 0x06]).skip(); // lit8; minus; deref
    e.bind([returned])
        .ops(&[0x0E])
        .ops(&shadow_distance.to_le_bytes());
    // minus; deref; without the top bit, which marks open frames: lit1; shl; lit1; shr.
    e.ops(&[0x1C, 0x06, 0x31, 0x24, 0x31, 0x25]);
    e.bind([usual]);
    e.0
}

/// The stack pointer; the CFA is on the expression's stack.
fn stack_pointer() -> Vec<u8> {
    let mut e = Expression::default();
    e.code_is(1, RETURN_POINT).ops(&[0x33, 0x24, 0x22]); // lit3; shl; plus
    e.0
}

fn cie(shadow_distance: u64) -> Vec<u8> {
    // id 0; version 1; "zR"; code alignment 1; data alignment -8; return address in column 16; pointers pc-relative.
    let mut body = vec![0, 0, 0, 0, 1, b'z', b'R', 0, 1, 0x78, 16, 1, 0x1B];
    let mut rule = |start: &[u8], expression: &[u8]| {
        body.extend(start);
        uleb(&mut body, expression.len() as u32);
        body.extend(expression);
    };
    rule(&[dw::DW_CFA_def_cfa_expression.0], &frame_address());
    rule(&[dw::DW_CFA_val_expression.0, RSP], &stack_pointer());
    rule(
        &[dw::DW_CFA_val_expression.0, 16],
        &return_address(shadow_distance),
    );
    body
}

/// The data at offset `at` of an island of `size` bytes. The code to which signal handlers return has frame information
/// of its own.
#[must_use]
pub fn build(at: u32, size: u32, shadow_distance: u64, _signal_return: u64) -> Frames {
    Frames::new(at, size, &[&cie(shadow_distance)])
}

/// Appends the FDE of the agent, which is alone in its island. `entries`: the offsets of its functions. Returns its
/// search table entry.
#[must_use]
pub fn agent(island: &mut Vec<u8>, frames: &Frames, agent: &[u8], entries: &[u32]) -> [u8; 8] {
    let entries: Vec<_> = entries.iter().map(|&at| (at, State::ENTRY)).collect();
    let mut rows = code_rows(agent, 0, &entries);
    rows.push(Row {
        at: agent.len() as u32,
        rule: Rule::Unknown,
    });
    group(island, frames, &rows)
}

/// Appends the FDE of the code from the first of the rows to the end of the island so far. Returns its search table
/// entry.
#[must_use]
pub fn group(island: &mut Vec<u8>, frames: &Frames, rows: &[Row]) -> [u8; 8] {
    let start = rows.first().map_or(0, |row| row.at);
    let end = island.len() as u32;
    island.resize(island.len().next_multiple_of(4), 0xCC);
    let at = island.len() as u32;
    let mut body = fde(at, frames.cie, start..end);
    let mut place = start;
    let mut now = Rule::Stub;
    for row in rows.iter().filter(|row| row.at < end) {
        if row.rule == now {
            continue;
        }
        advance(&mut body, row.at - place);
        place = row.at;
        change(&mut body, now, row.rule);
        now = row.rule;
    }
    entry(island, &body);
    frames.table_entry(start, at)
}

/// Appends the FDE of detours, from offset `start` to the end of the island so far. At the moved system calls (given by
/// their offset and original address) and right after them, the state is what it would be at the original address. The
/// frame there looks like one of size 0 that was called from the original address; CFA = rsp - 8, since it must differ
/// from the caller's. Unwinding ends everywhere else. Returns its search table entry.
#[must_use]
pub fn detours(
    island: &mut Vec<u8>,
    frames: &Frames,
    start: u32,
    syscalls: &[(u32, u64)],
) -> [u8; 8] {
    let end = island.len() as u32;
    island.resize(island.len().next_multiple_of(4), 0xCC);
    let at = island.len() as u32;
    let mut body = fde(at, frames.cie, start..end);
    body.extend([dw::DW_CFA_def_cfa_sf.0, RSP, 1]); // rsp - 8
    body.extend([dw::DW_CFA_val_expression.0, RSP, 2, dw::DW_OP_breg7.0, 0]);
    body.extend([dw::DW_CFA_undefined.0, 16]); // return address
    let mut place = start;
    for &(syscall, original) in syscalls {
        // A restarted call begins at its own address; an interrupted one has ended.
        for (offset, address) in [(syscall, original), (syscall + 2, original + 2)] {
            advance(&mut body, offset - place);
            place = offset;
            body.extend([dw::DW_CFA_val_expression.0, 16, 9, dw::DW_OP_const8u.0]);
            body.extend(address.to_le_bytes());
        }
        advance(&mut body, 1);
        place += 1;
        body.extend([dw::DW_CFA_undefined.0, 16]);
    }
    entry(island, &body);
    frames.table_entry(start, at)
}

/// Changes from one rule to a different one.
fn change(out: &mut Vec<u8>, now: Rule, next: Rule) {
    const REMEMBER: u8 = dw::DW_CFA_remember_state.0;
    const RESTORE: u8 = dw::DW_CFA_restore_state.0;
    let (
        Rule::Frame {
            base,
            offset,
            saved,
        },
        false,
    ) = (next, now == Rule::Unknown)
    else {
        if now != Rule::Stub && next != Rule::Unknown {
            out.push(RESTORE);
        }
        match next {
            Rule::Stub | Rule::Lowered { .. } => {}
            Rule::Unknown => {
                if now == Rule::Stub {
                    out.push(REMEMBER);
                }
                out.extend([dw::DW_CFA_undefined.0, 16]); // return address
            }
            Rule::Frame { .. } => change(out, Rule::Stub, next),
        }
        return;
    };
    let (old_base, old_offset, old_saved) = match now {
        Rule::Frame {
            base,
            offset,
            saved,
        } => (Some(base), offset, saved),
        _ => {
            out.push(REMEMBER);
            (None, 0, [0; SAVED])
        }
    };
    if old_base != Some(base) {
        out.extend([dw::DW_CFA_def_cfa.0, base]);
        uleb(out, offset.cast_unsigned());
    } else if old_offset != offset {
        out.push(dw::DW_CFA_def_cfa_offset.0);
        uleb(out, offset.cast_unsigned());
    }
    for ((register, old), new) in CALLEE_SAVED.into_iter().zip(old_saved).zip(saved) {
        if old == new {
            continue;
        }
        if new == 0 {
            out.push(dw::DW_CFA_restore.0 | register);
        } else {
            out.push(dw::DW_CFA_offset.0 | register);
            uleb(out, u32::from(new));
        }
    }
}
