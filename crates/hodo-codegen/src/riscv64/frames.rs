//! Frame information for an island: how unwinders get from any instruction of it to the traced function's caller.
//!
//! In a stub, CFA = S − 8, and the caller's stack pointer is CFA + 8. (The CFA must differ from S, which is the CFA of
//! the function that the stub calls, or libgcc takes the stub for the frame that handles an exception. It must also
//! differ from the CFA of any other function, which is a multiple of 16.) The return address is in its register, or in
//! the shadow once it has been stored there. In displaced instructions, CFA = S, as in the original code. Rows describe
//! the changes from one instruction to the next; a table's initial state is that of the place to which bodies return.
//!
//! There, CFA = S for a signal handler: the code that it returns to has no frame information (that of the kernel's code
//! is not found), and libgcc takes the CFA for the place of the interrupted registers. The return address shows which
//! case it is. Since the stack is lowered by multiples of 16, CFA = stack pointer in no other case; this is how the
//! other rules know where S is.
//!
//! The agent preserves the caller's registers. Its link is `t0`, which is therefore the column of return addresses
//! there.
//!
//! One FDE describes a group of neighbors and follows them. The search table is at the end of the island. Islands grow
//! upward, so the table grows at its end, and is valid at any time.

use alloc::vec::Vec;
use gimli::constants as dw;

pub use crate::frames::{Frames, GROUP, header, table_room};
use crate::frames::{advance, entry, fde, uleb};

use hodo_isa::riscv64::asm::fill;
use hodo_isa::riscv64::cfa::{CALLEE_SAVED, Row, Rule};
use hodo_isa::riscv64::decode::Insn;
use hodo_isa::riscv64::decode::operand::imm_i;
use hodo_isa::riscv64::encode::{OP, OP_IMM, i, r};
use hodo_isa::riscv64::regs::{RA, SP, T0, ZERO};
use hodo_isa::riscv64::scan::Sweep;

/// Bytes of a unit of code in tables.
const UNIT: u32 = 2;
/// In stubs, the CFA is this far below S. This is the unit of distances in tables.
const BELOW: i32 = 8;

/// A number as one signed byte.
fn sleb(value: i32) -> u8 {
    debug_assert!((-64..64).contains(&value));
    value as u8 & 0x7F
}

/// A number in an expression.
fn number(value: u64) -> [u8; 9] {
    let mut bytes = [dw::DW_OP_const8u.0; 9];
    bytes[1..].copy_from_slice(&value.to_le_bytes());
    bytes
}

/// The stack pointer plus a number in an expression. DW_OP_breg2
fn stack_pointer(more: i32) -> [u8; 2] {
    [0x70 + SP, sleb(more)]
}

fn cie(shadow_distance: u64, signal_return: u64) -> Vec<u8> {
    // id 0; version 1; "zR"; code alignment; data alignment −8; return address in column 1; pointers pc-relative.
    let mut body = vec![0, 0, 0, 0, 1, b'z', b'R', 0, UNIT as u8, 0x78, RA, 1, 0x1B];
    const { assert!(BELOW == 1 << 3) };
    // From S to the return address. minus; deref; without the top bit, which marks open frames: lit1; shl; lit1; shr.
    let mut load = number(shadow_distance).to_vec();
    load.extend([0x1C, 0x06, 0x31, 0x24, 0x31, 0x25]);
    let mut frame = [stack_pointer(-BELOW), stack_pointer(0)].concat();
    frame.extend(&load);
    frame.extend(number(signal_return));
    frame.extend([0x29, 0x33, 0x24, 0x22]); // eq; lit3; shl; plus
    // S; the CFA is on the expression's stack. dup, the stack pointer, ne; lit3; shl; plus.
    let mut start = vec![0x12];
    start.extend(stack_pointer(0));
    start.extend([0x2E, 0x33, 0x24, 0x22]);
    let back = [&start[..], &load].concat();
    let mut rule = |start: &[u8], expression: &[u8]| {
        body.extend(start);
        uleb(&mut body, expression.len() as u32);
        body.extend(expression);
    };
    rule(&[dw::DW_CFA_def_cfa_expression.0], &frame);
    rule(&[dw::DW_CFA_val_expression.0, SP], &start);
    rule(&[dw::DW_CFA_val_expression.0, RA], &back);
    body
}

/// The CIE of the agent: CFA = stack pointer, return address in `t0`.
fn agent_cie() -> Vec<u8> {
    let mut body = vec![0, 0, 0, 0, 1, b'z', b'R', 0, UNIT as u8, 0x78, T0, 1, 0x1B];
    body.extend([dw::DW_CFA_def_cfa.0, SP, 0]);
    body
}

/// The data at offset `at` of an island of `size` bytes. `signal_return`: the address to which signal handlers return.
#[must_use]
pub fn build(at: u32, size: u32, shadow_distance: u64, signal_return: u64) -> Frames {
    let cie = cie(shadow_distance, signal_return);
    Frames::new(at, size, &[&cie, &agent_cie()])
}

/// Appends the FDE of the agent, which is alone in its island. Returns its search table entry. The agent's code lowers
/// and raises the stack pointer in the order of addresses, so its functions need not be told apart. If a register says
/// how much to lower it by, the preceding instruction has copied the stack pointer to another register.
#[must_use]
pub fn agent(island: &mut Vec<u8>, frames: &Frames, agent: &[u8], _: &[u32]) -> [u8; 8] {
    let end = island.len() as u32;
    let at = place(island);
    let mut body = fde(at, frames.agent, 0..end);
    let (mut place, mut lowered) = (0, 0);
    let mut before = None;
    for scanned in Sweep::new(agent, 0) {
        let insn = &scanned.insn;
        let more = lowering(insn);
        let by = match copied(insn) {
            Some((SP, _)) => Some(SP),
            _ => copied_before(insn, before),
        };
        before = copied(insn);
        if more == 0 && by.is_none() {
            continue;
        }
        let next = insn.end() as u32;
        advance(&mut body, (next - place) / UNIT);
        place = next;
        lowered += more;
        match by {
            Some(register) => {
                body.push(dw::DW_CFA_def_cfa_register.0);
                uleb(&mut body, u32::from(register));
            }
            None => {
                body.push(dw::DW_CFA_def_cfa_offset.0);
                uleb(&mut body, lowered as u32);
            }
        }
    }
    entry(island, &body);
    frames.table_entry(0, at)
}

/// The registers of an instruction that copies one to another (`mv`): destination and source.
fn copied(insn: &Insn) -> Option<(u8, u8)> {
    let (rd, rs1, rs2) = (insn.rd(), insn.rs1(), insn.rs2());
    // The latter is the expansion of `c.mv`.
    let from = match insn.word {
        word if word == i(OP_IMM, 0, rd, rs1, 0) => rs1,
        word if word == r(OP, 0, 0, rd, ZERO, rs2) => rs2,
        _ => return None,
    };
    (insn.rd() != from && from != 0).then_some((insn.rd(), from))
}

/// If an instruction subtracts a register from the stack pointer: the register to which the preceding instruction has
/// copied the stack pointer.
fn copied_before(insn: &Insn, before: Option<(u8, u8)>) -> Option<u8> {
    let subtracts = insn.word == r(OP, 0, 0x20, SP, SP, insn.rs2());
    before
        .filter(|&(_, from)| subtracts && from == SP)
        .map(|(to, _)| to)
}

/// By how much an instruction lowers the stack pointer.
fn lowering(insn: &Insn) -> i64 {
    let added = imm_i(insn.word);
    match insn.word == i(OP_IMM, 0, SP, SP, added) {
        true => -added,
        false => 0,
    }
}

/// Where the next FDE begins.
fn place(island: &mut Vec<u8>) -> u32 {
    let at = island.len().next_multiple_of(4);
    fill(island, at);
    at as u32
}

/// Appends the FDE of the code from the first of the rows to the end of the island so far. Returns its search table
/// entry.
#[must_use]
pub fn group(island: &mut Vec<u8>, frames: &Frames, rows: &[Row]) -> [u8; 8] {
    let start = rows.first().map_or(0, |row| row.at);
    let end = island.len() as u32;
    let at = place(island);
    let mut body = fde(at, frames.cie, start..end);
    let mut place = start;
    let mut now = Told::default();
    for row in rows.iter().filter(|row| row.at < end) {
        let next = Told::of(row.rule, now);
        if next == now {
            continue;
        }
        advance(&mut body, (row.at - place) / UNIT);
        place = row.at;
        now.change(&next, &mut body);
        now = next;
    }
    entry(island, &body);
    frames.table_entry(start, at)
}

/// Appends the FDE of detours, from offset `start` to the end of the island so far. At the moved system calls (given by
/// their offset and original address) and right after them, the state is what it would be at the original address. The
/// frame there looks like one of size 0 that was called from the original address; CFA = sp − 8, since it must differ
/// from the caller's. Unwinding ends everywhere else. Returns its search table entry.
#[must_use]
pub fn detours(
    island: &mut Vec<u8>,
    frames: &Frames,
    start: u32,
    syscalls: &[(u32, u64)],
) -> [u8; 8] {
    let end = island.len() as u32;
    let at = place(island);
    let mut body = fde(at, frames.cie, start..end);
    Told::default().differ(&Told::UNKNOWN, &mut body);
    let mut place = start;
    for &(syscall, original) in syscalls {
        // A restarted call begins at its own address; an interrupted one has ended.
        for (offset, address) in [(syscall, original), (syscall + 4, original + 4)] {
            advance(&mut body, (offset - place) / UNIT);
            place = offset;
            body.extend([dw::DW_CFA_val_expression.0, RA, 9, dw::DW_OP_const8u.0]);
            body.extend(address.to_le_bytes());
        }
        advance(&mut body, 1);
        place += UNIT;
        body.extend([dw::DW_CFA_undefined.0, RA]);
    }
    entry(island, &body);
    frames.table_entry(start, at)
}

/// Where the return address is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Return {
    /// In the shadow.
    Shadow,
    /// In its register.
    Register,
    /// This many words below the CFA.
    Saved(u16),
    /// It is not known.
    Unknown,
}

/// What a table says at one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Told {
    base: u8,
    offset: i32,
    /// How far the caller's stack pointer is above the CFA.
    above: i32,
    back: Return,
    /// Where the registers after the first one are saved.
    saved: [u16; CALLEE_SAVED.len()],
}

impl Default for Told {
    /// The state that the CIE gives.
    fn default() -> Self {
        Self {
            back: Return::Shadow,
            ..Self::UNKNOWN
        }
    }
}

impl Told {
    /// The return address is not known.
    const UNKNOWN: Self = Self {
        base: SP,
        offset: -BELOW,
        above: BELOW,
        back: Return::Unknown,
        saved: [0; CALLEE_SAVED.len()],
    };

    fn of(rule: Rule, before: Self) -> Self {
        match rule {
            Rule::Stub => Self::default(),
            Rule::Lowered { bytes, shadow } => Self {
                offset: i32::from(bytes) - BELOW,
                back: if shadow {
                    Return::Shadow
                } else {
                    Return::Register
                },
                ..Self::default()
            },
            Rule::Frame {
                base,
                offset,
                mut saved,
            } => {
                let back = match saved[0] {
                    0 => Return::Register,
                    words => Return::Saved(words),
                };
                saved[0] = 0;
                Self {
                    base,
                    offset,
                    above: 0,
                    back,
                    saved,
                }
            }
            Rule::Unknown => Self {
                back: Return::Unknown,
                ..before
            },
        }
    }

    /// Appends the change from this state to the next. The initial state of a table is long, and libgcc does not
    /// restore single rules from the CIE; so it is remembered, and restored as a whole.
    fn change(&self, next: &Self, out: &mut Vec<u8>) {
        const REMEMBER: u8 = 0x0A;
        const RESTORE: u8 = 0x0B;
        let begin = Self::default();
        let shadow = |told: &Self| told.back == Return::Shadow;
        if *self == begin {
            out.push(REMEMBER);
        } else if *next == begin {
            out.push(RESTORE);
        } else if !shadow(self) && shadow(next) {
            out.extend([RESTORE, REMEMBER]);
            begin.differ(next, out);
            return;
        }
        if *next != begin {
            self.differ(next, out);
        }
    }

    /// Appends the differences, one by one.
    fn differ(&self, next: &Self, out: &mut Vec<u8>) {
        // The initial state finds the frame by expressions.
        let begins = *self == Self::default();
        let base = (begins || next.base != self.base).then_some(next.base);
        match (base, next.offset) {
            (None, offset) if offset == self.offset => {}
            (Some(base), 0..) => out.extend([dw::DW_CFA_def_cfa.0, base]),
            (None, 0..) => out.push(dw::DW_CFA_def_cfa_offset.0),
            (Some(base), _) => out.extend([dw::DW_CFA_def_cfa_sf.0, base]),
            (None, _) => out.push(dw::DW_CFA_def_cfa_offset_sf.0),
        }
        if base.is_some() || next.offset != self.offset {
            match next.offset {
                0.. => uleb(out, next.offset.cast_unsigned()),
                below => out.push(sleb(-below / 8)),
            }
        }
        if next.above != self.above {
            match next.above {
                BELOW => out.extend([dw::DW_CFA_val_offset_sf.0, SP, sleb(-BELOW / 8)]),
                _ => out.extend([dw::DW_CFA_val_offset.0, SP, 0]),
            }
        }
        if next.back != self.back {
            match next.back {
                // Only by restoring what was remembered.
                Return::Shadow => {}
                Return::Register => out.extend([dw::DW_CFA_same_value.0, RA]),
                Return::Saved(words) => {
                    out.push(dw::DW_CFA_offset.0 | RA);
                    uleb(out, words.into());
                }
                Return::Unknown => out.extend([dw::DW_CFA_undefined.0, RA]),
            }
        }
        let saved = CALLEE_SAVED.into_iter().zip(self.saved).zip(next.saved);
        for ((register, old), new) in saved.filter(|((_, old), new)| old != new) {
            debug_assert_ne!(old, new);
            if new == 0 {
                out.push(dw::DW_CFA_restore.0 | register);
            } else {
                out.push(dw::DW_CFA_offset.0 | register);
                uleb(out, new.into());
            }
        }
    }
}
