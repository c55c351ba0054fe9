//! Frame information for an island, where calls put the return address in a register: how unwinders get from any
//! instruction of it to the traced function's caller.
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
//! The agent preserves the caller's registers. Its link is another register than that of functions, which is therefore
//! the column of return addresses there.
//!
//! One FDE describes a group of neighbors and follows them. The search table is at the end of the island. Islands grow
//! upward, so the table grows at its end, and is valid at any time.

use alloc::vec::Vec;
use gimli::constants as dw;
use hodo_isa::Signing;

use crate::frames::{Frames, advance, entry, fde, uleb};

use hodo_isa::cfa::{Row, Rule, SAVED};

/// What an instruction set's tables depend on.
pub(crate) trait Tables {
    /// Bytes of a unit of code in tables.
    const UNIT: u32;
    /// The column of the stack pointer.
    const STACK: u8;
    /// The column of return addresses.
    const RETURN: u8;
    /// The register that is the agent's link.
    const AGENT_LINK: u8;
    /// The columns of [`Rule::Frame`]'s saved registers; the first is that of the return address.
    const SAVED: [u8; SAVED];

    /// Appends breakpoints up to a length.
    fn fill(island: &mut Vec<u8>, len: usize);

    /// How the agent's code moves its frame, in the order of addresses.
    fn moves(agent: &[u8]) -> impl Iterator<Item = Move>;

    /// How the return address is signed, by the list of saved registers.
    fn signing(_saved: &[u16; SAVED]) -> Signing {
        Signing::None
    }
}

/// An instruction of the agent that moves the frame.
pub(crate) struct Move {
    /// The offset of the next instruction.
    pub next: u32,
    /// How.
    pub how: How,
}

/// How the frame moves.
pub(crate) enum How {
    /// The stack pointer is lowered by this much.
    Lower(i64),
    /// The CFA is now relative to this register.
    Base(u8),
}

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
fn stack_pointer<T: Tables>(more: i32) -> [u8; 2] {
    [0x70 + T::STACK, sleb(more)]
}

/// The beginning of a CIE whose return addresses are in this column.
fn beginning<T: Tables>(column: u8) -> Vec<u8> {
    // id 0; version 1; "zR"; code alignment; data alignment −8; the column; pointers pc-relative.
    let mut body = vec![0, 0, 0, 0, 1, b'z', b'R', 0];
    body.extend([T::UNIT as u8, 0x78, column, 1, 0x1B]);
    body
}

fn cie<T: Tables>(shadow_distance: u64, signal_return: u64) -> Vec<u8> {
    let mut body = beginning::<T>(T::RETURN);
    const { assert!(BELOW == 1 << 3) };
    // From S to the return address. minus; deref; without the top bit, which marks open frames: lit1; shl; lit1; shr.
    let mut load = number(shadow_distance).to_vec();
    load.extend([0x1C, 0x06, 0x31, 0x24, 0x31, 0x25]);
    let mut frame = [stack_pointer::<T>(-BELOW), stack_pointer::<T>(0)].concat();
    frame.extend(&load);
    frame.extend(number(signal_return));
    frame.extend([0x29, 0x33, 0x24, 0x22]); // eq; lit3; shl; plus
    // S; the CFA is on the expression's stack. dup, the stack pointer, ne; lit3; shl; plus.
    let mut start = vec![0x12];
    start.extend(stack_pointer::<T>(0));
    start.extend([0x2E, 0x33, 0x24, 0x22]);
    let back = [&start[..], &load].concat();
    let mut rule = |start: &[u8], expression: &[u8]| {
        body.extend(start);
        uleb(&mut body, expression.len() as u32);
        body.extend(expression);
    };
    rule(&[dw::DW_CFA_def_cfa_expression.0], &frame);
    rule(&[dw::DW_CFA_val_expression.0, T::STACK], &start);
    rule(&[dw::DW_CFA_val_expression.0, T::RETURN], &back);
    body
}

/// The CIE of the agent: CFA = stack pointer, return address in its own link.
fn agent_cie<T: Tables>() -> Vec<u8> {
    let mut body = beginning::<T>(T::AGENT_LINK);
    body.extend([dw::DW_CFA_def_cfa.0, T::STACK, 0]);
    body
}

/// The data at offset `at` of an island of `size` bytes. `signal_return`: the address to which signal handlers return.
#[must_use]
pub(crate) fn build<T: Tables>(
    at: u32,
    size: u32,
    shadow_distance: u64,
    signal_return: u64,
) -> Frames {
    let cie = cie::<T>(shadow_distance, signal_return);
    Frames::new(at, size, &[&cie, &agent_cie::<T>()])
}

/// Appends the FDE of the agent, which is alone in its island. Returns its search table entry. The agent's code lowers
/// and raises the stack pointer in the order of addresses, so its functions need not be told apart. If a register says
/// how much to lower it by, the preceding instruction has copied the stack pointer to another register.
#[must_use]
pub(crate) fn agent<T: Tables>(island: &mut Vec<u8>, frames: &Frames, agent: &[u8]) -> [u8; 8] {
    let end = island.len() as u32;
    let at = place::<T>(island);
    let mut body = fde(at, frames.agent, 0..end);
    let (mut place, mut lowered) = (0, 0);
    for Move { next, how } in T::moves(agent) {
        advance(&mut body, (next - place) / T::UNIT);
        place = next;
        match how {
            How::Base(register) => {
                body.push(dw::DW_CFA_def_cfa_register.0);
                uleb(&mut body, u32::from(register));
            }
            How::Lower(bytes) => {
                lowered += bytes;
                body.push(dw::DW_CFA_def_cfa_offset.0);
                uleb(&mut body, lowered as u32);
            }
        }
    }
    entry(island, &body);
    frames.table_entry(0, at)
}

/// Where the next FDE begins.
fn place<T: Tables>(island: &mut Vec<u8>) -> u32 {
    let at = island.len().next_multiple_of(4);
    T::fill(island, at);
    at as u32
}

/// Appends the FDE of the code from the first of the rows to the end of the island so far. Returns its search table
/// entry.
#[must_use]
pub(crate) fn group<T: Tables>(island: &mut Vec<u8>, frames: &Frames, rows: &[Row]) -> [u8; 8] {
    let start = rows.first().map_or(0, |row| row.at);
    let end = island.len() as u32;
    let at = place::<T>(island);
    let mut body = fde(at, frames.cie, start..end);
    let mut place = start;
    let mut now = Told::begin::<T>();
    for row in rows.iter().filter(|row| row.at < end) {
        let next = Told::of::<T>(row.rule, now);
        if next == now {
            continue;
        }
        advance(&mut body, (row.at - place) / T::UNIT);
        place = row.at;
        now.change::<T>(&next, &mut body);
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
pub(crate) fn detours<T: Tables>(
    island: &mut Vec<u8>,
    frames: &Frames,
    start: u32,
    syscalls: &[(u32, u64)],
) -> [u8; 8] {
    let end = island.len() as u32;
    let at = place::<T>(island);
    let mut body = fde(at, frames.cie, start..end);
    Told::begin::<T>().differ::<T>(&Told::unknown::<T>(), &mut body);
    let mut place = start;
    for &(syscall, original) in syscalls {
        // A restarted call begins at its own address; an interrupted one has ended.
        for (offset, address) in [(syscall, original), (syscall + 4, original + 4)] {
            advance(&mut body, (offset - place) / T::UNIT);
            place = offset;
            body.extend([
                dw::DW_CFA_val_expression.0,
                T::RETURN,
                9,
                dw::DW_OP_const8u.0,
            ]);
            body.extend(address.to_le_bytes());
        }
        advance(&mut body, 1);
        place += T::UNIT;
        body.extend([dw::DW_CFA_undefined.0, T::RETURN]);
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
    /// How the return address is signed.
    signing: Signing,
    /// Where the registers after the first one are saved.
    saved: [u16; SAVED],
}

impl Told {
    /// The state that the CIE gives.
    fn begin<T: Tables>() -> Self {
        Self {
            back: Return::Shadow,
            ..Self::unknown::<T>()
        }
    }

    /// The return address is not known.
    fn unknown<T: Tables>() -> Self {
        Self {
            base: T::STACK,
            offset: -BELOW,
            above: BELOW,
            back: Return::Unknown,
            signing: Signing::None,
            saved: [0; SAVED],
        }
    }

    fn of<T: Tables>(rule: Rule, before: Self) -> Self {
        match rule {
            Rule::Stub => Self::begin::<T>(),
            Rule::Lowered { bytes, shadow } => Self {
                offset: i32::from(bytes) - BELOW,
                back: if shadow {
                    Return::Shadow
                } else {
                    Return::Register
                },
                ..Self::begin::<T>()
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
                let signing = T::signing(&saved);
                saved[0] = 0;
                if signing != Signing::None {
                    // What says so is no register.
                    saved[SAVED - 1] = 0;
                }
                Self {
                    base,
                    offset,
                    above: 0,
                    back,
                    signing,
                    saved,
                }
            }
            Rule::Unknown => Self {
                back: Return::Unknown,
                signing: Signing::None,
                ..before
            },
        }
    }

    /// Appends the change from this state to the next. The initial state of a table is long, and libgcc does not
    /// restore single rules from the CIE; so it is remembered, and restored as a whole.
    fn change<T: Tables>(&self, next: &Self, out: &mut Vec<u8>) {
        const REMEMBER: u8 = 0x0A;
        const RESTORE: u8 = 0x0B;
        let begin = Self::begin::<T>();
        let shadow = |told: &Self| told.back == Return::Shadow;
        if *self == begin {
            out.push(REMEMBER);
        } else if *next == begin {
            out.push(RESTORE);
        } else if !shadow(self) && shadow(next) {
            out.extend([RESTORE, REMEMBER]);
            begin.differ::<T>(next, out);
            return;
        }
        if *next != begin {
            self.differ::<T>(next, out);
        }
    }

    /// Appends the differences, one by one.
    fn differ<T: Tables>(&self, next: &Self, out: &mut Vec<u8>) {
        // The initial state finds the frame by expressions.
        let begins = *self == Self::begin::<T>();
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
                BELOW => out.extend([dw::DW_CFA_val_offset_sf.0, T::STACK, sleb(-BELOW / 8)]),
                _ => out.extend([dw::DW_CFA_val_offset.0, T::STACK, 0]),
            }
        }
        if (next.back, next.signing) != (self.back, self.signing) {
            // With key A, unwinders know by a state of the row that they have to authenticate the address.
            if (self.signing == Signing::A) != (next.signing == Signing::A) {
                out.push(dw::DW_CFA_AARCH64_negate_ra_state.0);
            }
            next.differ_return::<T>(out);
        }
        let saved = T::SAVED.into_iter().zip(self.saved).zip(next.saved);
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

    /// Appends where the return address is.
    fn differ_return<T: Tables>(&self, out: &mut Vec<u8>) {
        let column = T::RETURN;
        match self.back {
            // Only by restoring what was remembered.
            Return::Shadow => {}
            Return::Unknown => out.extend([dw::DW_CFA_undefined.0, column]),
            Return::Register if self.signing == Signing::B => {
                // The register plus 0. DW_OP_breg0
                plain(&[0x70 + column, 0], column, out);
            }
            Return::Saved(words) if self.signing == Signing::B => {
                // The CFA is on the expression's stack. minus; deref
                let mut place = number(u64::from(words) * 8).to_vec();
                place.extend([0x1C, 0x06]);
                plain(&place, column, out);
            }
            Return::Register => out.extend([dw::DW_CFA_same_value.0, column]),
            Return::Saved(words) => {
                out.push(dw::DW_CFA_offset.0 | column);
                uleb(out, words.into());
            }
        }
    }
}

/// Appends a rule for a return address that is signed with key B: an expression for its value, and the bits of an
/// address in it. (A CIE says whether its functions use key B, and stubs of all functions share one.)
fn plain(value: &[u8], column: u8, out: &mut Vec<u8>) {
    let mut expression = value.to_vec();
    expression.extend(number((1 << 48) - 1));
    expression.push(0x1A); // and
    out.extend([dw::DW_CFA_val_expression.0, column]);
    uleb(out, expression.len() as u32);
    out.extend(expression);
}
