//! What leads from code to an island and back: jumps, and the bytes that replace them.

use alloc::vec::Vec;
use core::ops::Range;

use super::frames::RETURN_POINT;
use super::masm::{Masm, address, label};
use super::stub::Body;
pub use crate::patch::{Displaced, Leaving, NoWindow, Through, Window};
use crate::stub::Registers;
use hodo_isa::code::Flow;
use hodo_isa::x86_64::cfa::{Row, State, pushed};
use hodo_isa::x86_64::relocate::{RelocateError, relocate_mapped};
use hodo_isa::x86_64::scan::Sweep;
use hodo_isa::x86_64::{JUMP, asm};
use hodo_isa::{Signing, Via};

/// A breakpoint.
pub const TRAP: &[u8] = &asm::BREAKPOINT;

/// Everything at a site and its island must be closer together than this.
pub const REACH: u64 = (1 << 31) - (1 << 16);

/// A jump at `from` to anywhere within 2 GiB; `None` if the target is farther away.
#[must_use]
pub fn jump(from: u64, to: u64, _: Via) -> Option<Vec<u8>> {
    asm::jump(from, to).ok().map(Vec::from)
}

/// A short jump to `to`; `None` if it does not reach that far.
#[must_use]
pub fn hop(from: u64, to: u64, _: u8) -> Option<Vec<u8>> {
    let hop = i8::try_from(to.wrapping_sub(from + 2).cast_signed()).ok()?;
    let mut bytes = Vec::with_capacity(2);
    Masm::new(&mut bytes, from).jmp_by(hop);
    Some(bytes)
}

/// The addresses that a short jump can reach, if our memory can be there; it cannot.
#[must_use]
pub fn near(_: u64, _: u8) -> Option<Range<u64>> {
    None
}

/// A jump to anywhere, through the address that follows it.
#[must_use]
pub fn far(from: u64, to: u64, _: Via) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(14);
    let mut code = Masm::new(&mut bytes, from);
    let after = code.label();
    code.jmp_m(label(after));
    code.bind(after);
    code.data(to);
    Some(bytes)
}

/// How far from a jump to search for our memory. Never asked: there are no stubs that no long jump reaches.
pub const NEARBY: u64 = REACH;
/// Bytes that the longest jump in our memory takes there.
pub const ROOM: u64 = 14;
/// Jumps in our memory begin at multiples of this.
pub const ALIGNED: u64 = 2;

/// The register of all jumps between a far stub and our memory near its site. There are no such stubs.
pub const FAR_VIA: Option<Via> = None;

/// What a site's own jump and the jump in our memory nearby get in place of a single one.
#[must_use]
pub fn in_two(via: Via) -> [Via; 2] {
    [via, via]
}

/// Whether sites can have stubs that no long jump reaches. No: displaced instructions could neither continue nor refer
/// to anything.
pub const REACHES_ANYWHERE: bool = false;

/// Whether everything in stubs and jumps that depends on addresses is a four-byte word, to which a difference can be
/// added.
pub const MOVABLE: bool = true;

/// Whether displaced bytes contain the mark by which stubs are recognized, formed in part by the word at an offset.
#[must_use]
pub fn forges_stub(bytes: &[u8], word: usize) -> bool {
    let start = word.saturating_sub(RETURN_POINT.len() - 1);
    let end = (word + 4 + RETURN_POINT.len() - 1).min(bytes.len());
    (bytes[start.min(end)..end].windows(RETURN_POINT.len())).any(|code| code == RETURN_POINT)
}

/// A jump at a site through an address in memory. There is none.
#[must_use]
pub fn by_literal(_: u64, _: u64, _: Via) -> Option<Vec<u8>> {
    None
}

/// Where a pun's jump at an address can lead, if these are the bytes of its distance. The `free` lowest ones can be
/// chosen, and are zero here.
#[must_use]
pub fn pun(at: u64, distance: [u8; 4], free: u8) -> Option<Range<u64>> {
    let lowest = i32::from_le_bytes(distance);
    let start = at
        .wrapping_add(JUMP)
        .checked_add_signed(i64::from(lowest))?;
    Some(start..start.checked_add(1 << (8 * u32::from(free)))?)
}

/// Where a breakpoint's handler enters a stub.
#[must_use]
pub fn trap_entry(stub: u64, _: Via) -> u64 {
    stub
}

/// The code before a stub for [`trap_entry`]: nothing.
#[must_use]
pub fn before_stub(_: &mut Masm<'_>, _: Via, _: Signing) -> Vec<Row> {
    Vec::new()
}

/// Where a jump enters a stub.
#[must_use]
pub fn jump_entry(stub: u64, _: Via) -> u64 {
    stub
}

/// What a long jump needs in place of a call, if these registers are dead; `None` if there can be none.
#[must_use]
pub fn way_to_call(_: &[u8], _: u64, _: u32) -> Option<Via> {
    Some(Via::Nothing)
}

/// No pads are needed, because jumps need no register.
#[must_use]
pub fn pad(_: u64, _: u64) -> Option<Vec<u8>> {
    None
}

/// There is none.
#[must_use]
pub fn near_pad(_: u64) -> Option<Range<u64>> {
    None
}

/// The code that restores a register which the way back from a stub has saved on the stack.
#[must_use]
pub fn take_back(_: Via) -> Vec<u8> {
    Vec::new()
}

/// Code that makes a signed return address a plain one again: none are signed.
pub fn take_signature(_: &mut Masm<'_>, _: Signing) {}

/// Code that signs the return address: none are signed.
pub fn sign(_: &mut Masm<'_>, _: Signing) {}

/// Where the frame is at a function's entry.
#[must_use]
pub fn state(_: Signing) -> State {
    State::ENTRY
}

/// Moves the instructions `code` from `from` to `to`; execution then continues at `resume`.
///
/// # Errors
/// If they cannot be moved there.
pub fn displace(
    code: &[u8],
    (from, resume): (u64, u64),
    to: u64,
    _: Leaving<'_>,
) -> Result<Displaced, RelocateError> {
    let mut moved = relocate_mapped(code, from, to)?;
    let pieces = moved.map.iter();
    let mut copies: Vec<_> = pieces
        .map(|piece| (from + piece.old as u64, to + piece.new as u64))
        .collect();
    if moved.falls_through {
        let end = to + moved.bytes.len() as u64;
        copies.push((resume, end));
        Masm::new(&mut moved.bytes, to).jmp_to(resume);
    }
    let body = Body {
        bytes: moved.bytes,
        resume: None,
        rows: moved.rows,
        returns: false,
    };
    Ok(Displaced {
        body,
        copies,
        exits: Vec::new(),
    })
}

/// The code with which a stub calls the function whose address is in the slot `got`.
#[must_use]
pub fn call_through(at: u64, got: u64, _: Through, _: u64) -> Body {
    let mut bytes = Vec::with_capacity(6);
    Masm::new(&mut bytes, at).jmp_m(address(got));
    let rule = pushed(0);
    Body {
        bytes,
        resume: None,
        rows: vec![Row { at: 0, rule }],
        returns: false,
    }
}

/// The bytes to write at such a site; `None` if the stub is too far away. The return address must stay the same, and
/// nothing of a displaced instruction may remain: a prefix without effect makes up the sixth byte.
#[must_use]
pub fn lead_through(at: u64, stub: u64, through: Through, _: u8) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(6);
    let mut code = Masm::new(&mut bytes, at);
    match through {
        Through::Call => code.call_to_long(stub),
        Through::Jump => code.jmp_to_long(stub),
        Through::Entry => code.jmp_to(stub),
        // Calls need no register.
        Through::Loaded(_) => return None,
    }
    Some(bytes)
}

/// Whether sites of both kinds that use the same slot can share a stub.
#[must_use]
pub fn shares(_: Through) -> bool {
    true
}

/// How far away the stub of such a site can be.
#[must_use]
pub fn reach_through(_: Through, _: u8) -> u64 {
    REACH
}

/// How far away from an island slots can be.
pub const SLOT_REACH: u64 = REACH;

/// The registers that a stub at such a site may use.
#[must_use]
pub fn registers_through(_: Through) -> Registers {
    Registers::default()
}

/// What a jump at the start of a function's code displaces. System calls may always be among it: no instruction knows
/// where it is.
///
/// # Errors
/// Why there can be none.
pub fn window(code: &[u8], addr: u64, _calls: bool) -> Result<Window, NoWindow> {
    let mut end = addr;
    for insn in Sweep::new(code, addr) {
        if end >= addr + JUMP {
            break;
        }
        if insn.flow != Flow::Next {
            return Err(NoWindow::Branch(JUMP));
        }
        end = insn.addr + u64::from(insn.len);
    }
    if end < addr + JUMP {
        return Err(NoWindow::Short(JUMP));
    }
    let into = Sweep::new(code, addr).any(|insn| match insn.flow {
        Flow::Branch(to) | Flow::Jump(to) | Flow::Call(to) => addr < to && to < end,
        _ => false,
    });
    if into {
        return Err(NoWindow::BranchInto(JUMP));
    }
    Ok(Window {
        start: addr,
        end,
        via: Via::Nothing,
        back: Via::Nothing,
        signing: Signing::None,
        dead: Vec::new(),
    })
}
