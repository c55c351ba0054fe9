//! What leads from code to an island and back: jumps, and the bytes that replace them.

use alloc::vec::Vec;
use core::ops::Range;
use hodo_isa::riscv64::asm::ops::Insns as _;

use super::stub::Body;
use crate::linked::exits::{Exit, keep_rows};
pub use crate::patch::{Displaced, Leaving, NoWindow, Through, Window};
use crate::stub::Registers;
use hodo_isa::riscv64::asm::{Code, Reach};
use hodo_isa::riscv64::cfa::{Row, Rule, State, add_row, moved_rows, pushed};
use hodo_isa::riscv64::decode::Insn;
use hodo_isa::riscv64::decode::Kind;
use hodo_isa::riscv64::encode::c_j;
use hodo_isa::riscv64::isa::options;
use hodo_isa::riscv64::regs::KEPT;
use hodo_isa::riscv64::regs::{RA, SP, ZERO};
use hodo_isa::riscv64::relocate::{EXIT, Options, RelocateError, choose, relocate};
use hodo_isa::riscv64::scan::{Flow, Sweep};
use hodo_isa::riscv64::{FAR, JUMP, KEEP, Riscv64};
use hodo_isa::{InstructionSet, Signing, Via};

/// A breakpoint: `c.ebreak`.
pub const TRAP: &[u8] = &hodo_isa::riscv64::asm::BREAKPOINT;

/// Moved code that is no farther away than this refers to its original targets by pairs of instructions, which reach 2
/// GiB. The difference leaves room for the moved code, which is small.
const NEAR: u64 = (1 << 31) - (1 << 20);

/// The registers that PLT entries use: for the target, and as link.
const TARGET: u8 = 28;
const LINK: u8 = 6;
/// Registers that no caller of a function in another file expects to be preserved on entry: `t0`–`t6`.
const FREE: u32 = 0xF000_00E0;
/// And when it returns: these, and `a2`–`a7`.
const FREE_AFTER: u32 = FREE | 0x0003_F000;

/// Everything at a site and its island must be closer together than this.
pub const REACH: u64 = (1 << 31) - (1 << 16);

/// A jump at `from` to anywhere within 2 GiB; `None` if the target is farther away, or no register is available.
#[must_use]
pub fn jump(from: u64, to: u64, via: Via) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity((JUMP + KEEP) as usize);
    let mut code = Code::new(&mut bytes, from);
    jump_by(&mut code, to, via)?;
    Some(bytes)
}

fn jump_by(code: &mut Code<'_>, to: u64, via: Via) -> Option<()> {
    match via {
        Via::Nothing => code.jump(to, Reach::Jump, ZERO),
        Via::Free(register) => code.jump(to, Reach::Pair, register),
        Via::Kept(register) => {
            code.keep(register);
            code.jump(to, Reach::Pair, register)
        }
    }
    .ok()
}

/// A short jump of this length to `to`; `None` if it does not reach that far.
#[must_use]
pub fn hop(from: u64, to: u64, len: u8) -> Option<Vec<u8>> {
    if len != 2 {
        return jump(from, to, Via::Nothing);
    }
    let distance = to.wrapping_sub(from).cast_signed();
    if !(-2048..2048).contains(&distance) || distance & 1 != 0 {
        return None;
    }
    Some(c_j(distance).to_le_bytes().to_vec())
}

/// The addresses that a short jump of this length can reach, if our memory can be there; it can.
#[must_use]
pub fn near(from: u64, len: u8) -> Option<Range<u64>> {
    let reach = if len == 2 { 1 << 11 } else { 1 << 20 };
    Some(from.saturating_sub(reach)..from.saturating_add(reach - 1))
}

/// How far from a jump to search for our memory: a little less than the jump reaches.
pub const NEARBY: u64 = 0x7000_0000;
/// Bytes that the longest jump in our memory takes there.
pub const ROOM: u64 = FAR + KEEP;
/// Jumps in our memory begin at multiples of this.
pub const ALIGNED: u64 = 2;

/// Whether sites can have stubs that no long jump reaches.
pub const REACHES_ANYWHERE: bool = true;

/// The register of all jumps between a far stub and our memory near its site; `None` if each site has its own.
pub const FAR_VIA: Option<Via> = None;

/// What a site's own jump and the jump in our memory nearby get in place of a single one. The first one saves the
/// register.
#[must_use]
pub fn in_two(via: Via) -> [Via; 2] {
    [via, via.jumping()]
}

/// Whether everything in stubs and jumps that depends on addresses is a four-byte word, to which a difference can be
/// added.
pub const MOVABLE: bool = false;

/// Whether displaced bytes contain the mark by which stubs are recognized, formed in part by the word at an offset.
/// Never asked, since stubs are not movable.
#[must_use]
pub fn forges_stub(_: &[u8], _: usize) -> bool {
    true
}

/// A jump at `from` to the address in memory at `literal`; `None` if that is not within 2 GiB, or no register is
/// available.
#[must_use]
pub fn by_literal(from: u64, literal: u64, via: Via) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity((FAR + KEEP) as usize);
    let mut code = Code::new(&mut bytes, from);
    let register = match via {
        Via::Nothing => return None,
        Via::Free(register) => register,
        Via::Kept(register) => {
            code.keep(register);
            register
        }
    };
    code.load_from(register, literal).ok()?;
    code.c_jr(register);
    Some(bytes)
}

/// A jump to anywhere, if only the addresses are known: it reaches no farther than others.
#[must_use]
pub fn far(from: u64, to: u64, via: Via) -> Option<Vec<u8>> {
    jump(from, to, via)
}

/// There are no puns.
#[must_use]
pub fn pun(_: u64, _: [u8; 4], _: u8) -> Option<Range<u64>> {
    None
}

/// Where a breakpoint's handler enters a stub: at the code that saves a register on the stack as the jump would.
#[must_use]
pub fn trap_entry(stub: u64, via: Via) -> u64 {
    match via {
        Via::Kept(_) => stub - KEEP,
        _ => stub,
    }
}

/// The code before a stub for [`trap_entry`]. Returns where the frame is in it.
#[must_use]
pub fn before_stub(code: &mut Code<'_>, via: Via, _: Signing) -> Vec<Row> {
    let Via::Kept(register) = via else {
        return Vec::new();
    };
    // The stub itself stays aligned.
    code.breakpoints(16 - KEEP as usize);
    let start = code.offset();
    code.keep(register);
    // The first instruction, of two bytes, lowers the stack.
    let row = |(at, bytes)| Row {
        at,
        rule: Rule::Lowered {
            bytes,
            shadow: false,
        },
    };
    [(start, 0), (start + 2, 16)].map(row).into()
}

/// Where a jump that may have saved a register enters a stub.
#[must_use]
pub fn jump_entry(stub: u64, _: Via) -> u64 {
    stub
}

/// What a long jump needs in place of a call, if these registers are dead; `None` if there can be none. A call
/// overwrites its link.
#[must_use]
pub fn way_to_call(code: &[u8], addr: u64, dead: u32) -> Option<Via> {
    let call = Insn::new(code, addr);
    let free = (dead | 1 << call.link()?) & !call.reads().x;
    choose(free).map(Via::Free)
}

/// The code that restores a register which the way back from a stub has saved on the stack.
#[must_use]
pub fn take_back(back: Via) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Via::Kept(register) = back {
        let mut code = Code::new(&mut bytes, 0);
        code.take_back(register);
    }
    bytes
}

/// The pad at `at` for code that has saved [`KEPT`] on the stack to continue at `to`; `None` if that is too far away.
#[must_use]
pub fn pad(at: u64, to: u64) -> Option<Vec<u8>> {
    let mut bytes = take_back(Via::Kept(KEPT));
    let here = at + bytes.len() as u64;
    bytes.extend(jump(here, to, Via::Nothing)?);
    Some(bytes)
}

/// Where the pad may be.
#[must_use]
pub fn near_pad(to: u64) -> Option<Range<u64>> {
    let Range { start, end } = near(to, 4)?;
    Some(start..end.saturating_sub(Via::PAD))
}

/// Code that makes a signed return address a plain one again: none are signed.
pub fn take_signature(_: &mut Code<'_>, _: Signing) {}

/// Code that signs the return address: none are signed.
pub fn sign(_: &mut Code<'_>, _: Signing) {}

/// Where the frame is at a function's entry.
#[must_use]
pub fn state(_: Signing) -> State {
    State::ENTRY
}

/// Moves the instructions `code` from `from` to `to`, which can be anywhere. Execution then continues at `resume`, by a
/// jump that gets its register as `leaving` says. A register that it saves is restored just before `resume`, or by a
/// pad.
///
/// # Errors
/// If they cannot be moved there.
pub fn displace(
    code: &[u8],
    (from, resume): (u64, u64),
    to: u64,
    leaving: Leaving<'_>,
) -> Result<Displaced, RelocateError> {
    let Leaving {
        dead,
        back,
        pads,
        signing: _,
    } = leaving;
    let near = to.abs_diff(from) < NEAR;
    let reach = if near { Reach::Pair } else { Reach::Any };
    let options = Options {
        reach,
        ..options(dead, pads)
    };
    let mut moved = relocate(code, from, to, &options)?;
    let (mut rows, last) = moved_rows(code, from, &moved);
    let form = Exit {
        lowers: 2,
        len: EXIT as u32,
        stack: SP,
    };
    keep_rows(&mut rows, &moved, form);
    let pieces = moved.map.iter();
    let mut copies: Vec<_> = pieces
        .map(|piece| (from + piece.old as u64, to + piece.new as u64))
        .collect();
    let way = |at: u64| at..at + (KEEP + reach.jump_len() as u64);
    let exits = moved.exits.iter().map(|exit| way(to + exit.new as u64));
    let mut exits: Vec<_> = exits.collect();
    if moved.falls_through {
        let end = moved.bytes.len();
        copies.push((resume, to + end as u64));
        if let (Via::Kept(_), Some(mut state)) = (back, last) {
            state.lower(16);
            add_row(&mut rows, end as u32 + 2, state.rule());
        }
        let exit = to + end as u64;
        let target = match back {
            Via::Kept(_) => pads(resume).unwrap_or(resume - Via::TAKE),
            _ => resume,
        };
        let offset = code.len();
        let mut code = Code::new(&mut moved.bytes, to);
        let jump = match near {
            true => jump_by(&mut code, target, back),
            false => far_back(&mut code, target, back),
        };
        jump.ok_or(RelocateError::NoRegister { offset })?;
        if let Via::Kept(_) = back {
            exits.push(exit..to + moved.bytes.len() as u64);
        }
    }
    let body = Body {
        bytes: moved.bytes,
        resume: None,
        rows,
        returns: false,
    };
    Ok(Displaced {
        body,
        copies,
        exits,
    })
}

/// A jump to anywhere through the address that follows it.
fn far_back(code: &mut Code<'_>, to: u64, via: Via) -> Option<()> {
    let here = code.here();
    let literal = (here + Riscv64.far_jump(via)?.len).next_multiple_of(8);
    code.raw(&by_literal(here, literal, via)?);
    code.align(8);
    code.raw(&to.to_le_bytes());
    Some(())
}

/// The code with which a stub calls the function whose address is in the slot `got`. `site` is the instruction that
/// used the slot. After a PLT entry, the address 12 bytes after its start tells the dynamic linker which entry it was.
///
/// # Panics
/// If slot or site are not within 2 GiB.
#[must_use]
pub fn call_through(at: u64, got: u64, through: Through, site: u64) -> Body {
    let mut bytes = Vec::with_capacity(20);
    let mut code = Code::new(&mut bytes, at);
    if through == Through::Entry {
        let near = code.address(LINK, site + 12, Reach::Pair);
        assert!(near.is_ok(), "an entry that is too far away");
    }
    let near = code.load_from(TARGET, got);
    assert!(near.is_ok(), "a slot that is too far away");
    code.jr(TARGET);
    let rule = pushed(0);
    Body {
        bytes,
        resume: None,
        rows: vec![Row { at: 0, rule }],
        returns: false,
    }
}

/// The bytes to write at such a site of this length; `None` if that is not possible. A call must end where it ended.
#[must_use]
pub fn lead_through(at: u64, stub: u64, through: Through, len: u8) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(len.into());
    let mut code = Code::new(&mut bytes, at);
    match through {
        Through::Entry => code.jump(stub, Reach::Pair, TARGET).ok()?,
        Through::Jump => code.jump(stub, Reach::Pair, LINK).ok()?,
        Through::Call => {
            let before = u64::from(len).checked_sub(JUMP)?;
            for _ in 0..before / 2 {
                code.nop();
            }
            code.jump_and_link(stub, Reach::Pair, RA, RA).ok()?;
        }
        Through::Loaded(register) => code.address(register, stub, Reach::Pair).ok()?,
    }
    Some(bytes)
}

/// Whether sites of this kind can have a stub of another kind that uses the same slot.
#[must_use]
pub fn shares(through: Through) -> bool {
    through != Through::Entry
}

/// How far away the stub of such a site can be.
#[must_use]
pub fn reach_through(_: Through, _: u8) -> u64 {
    REACH
}

/// How far away from an island slots can be.
pub const SLOT_REACH: u64 = REACH;

/// The registers that a stub at such a site may use. Calls through slots are calls of functions in other files.
#[must_use]
pub fn registers_through(through: Through) -> Registers {
    Registers {
        free: FREE,
        free_after: FREE_AFTER,
        via: match through {
            Through::Entry => Via::Free(TARGET),
            Through::Call | Through::Loaded(_) => Via::Nothing,
            Through::Jump => Via::Free(LINK),
        },
        signing: Signing::None,
    }
}

/// What a jump at the start of a function's code displaces. The function is called from other files; so registers that
/// calls do not preserve hold nothing useful until the function writes them. `calls`: it may have system calls.
///
/// # Errors
/// Why there can be none.
pub fn window(code: &[u8], addr: u64, calls: bool) -> Result<Window, NoWindow> {
    let mut end = addr;
    let mut dead = Vec::new();
    let mut free = FREE;
    for scanned in Sweep::new(code, addr) {
        let insn = &scanned.insn;
        if end >= addr + JUMP {
            break;
        }
        if insn.flow() != Flow::Next || insn.kind == Kind::Ecall && !calls {
            return Err(NoWindow::Branch(JUMP));
        }
        dead.push((insn.addr, free));
        free &= !insn.general().1;
        end = insn.end();
    }
    if end < addr + JUMP {
        return Err(NoWindow::Short(JUMP));
    }
    let into = Sweep::new(code, addr).any(|scanned| match scanned.flow {
        Flow::Branch(to) | Flow::Jump(to) | Flow::Call(to) => addr < to && to < end,
        _ => false,
    });
    if into {
        return Err(NoWindow::BranchInto(JUMP));
    }
    let back = choose(free).ok_or(NoWindow::NoRegister(JUMP))?;
    Ok(Window {
        start: addr,
        end,
        via: Via::Free(LINK),
        back: Via::Free(back),
        signing: Signing::None,
        dead,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use hodo_isa::riscv64::text;

    #[test]
    fn jumps_by_literals_load_where_they_lead() {
        let (at, literal) = (0x1_0006, 0x1_0818);
        for via in [Via::Free(6), Via::Kept(6)] {
            let bytes = by_literal(at, literal, via).expect("a jump");
            let form = Riscv64.far_jump(via).expect("a form");
            assert_eq!(bytes.len() as u64, form.len);
            let kept = bytes.len() - FAR as usize;
            let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four"));
            let upper = word(kept) & 0xFFFF_F000;
            assert_eq!(word(kept) & 0xFFF, 0x317, "auipc t1");
            assert_eq!(word(kept + 4) & 0xF_FFFF, 0x3_3303, "ld t1, …(t1)");
            let lower = word(kept + 4).cast_signed() >> 20;
            let from = at + kept as u64 + u64::from(upper);
            assert_eq!(from.wrapping_add_signed(lower.into()), literal);
            assert_eq!(text(&bytes[kept + 8..], 0), "c.jr t1");
        }
        assert_eq!(by_literal(at, at + (1 << 32), Via::Free(6)), None);
        assert_eq!(by_literal(at, literal, Via::Nothing), None);
    }

    #[test]
    fn pads_take_back_what_was_kept() {
        let there = pad(0x1_3000, 0x1_0400).expect("it is near");
        assert_eq!(text(&there, 0), "c.ldsp t1, 0(sp)");
        assert_eq!(text(&there[2..], 0), "c.addi sp, 16");
        assert_eq!(text(&there[4..], 0x1_3004), "jal zero, 0x10400");
        assert_eq!(pad(0, 1 << 21), None);
    }

    #[test]
    fn what_is_moved_far_away_loads_where_it_goes_on() {
        // add a0, a0, a1
        let code = 0x00B5_0533u32.to_le_bytes();
        let (from, resume, to) = (0x1_0000, 0x1_0004, 0x7F_0000_0002);
        let leaving = Leaving {
            dead: &|_| 0,
            back: Via::Free(6),
            pads: &|_| None,
            signing: Signing::None,
        };
        let moved = displace(&code, (from, resume), to, leaving).expect("moved");
        let bytes = &moved.body.bytes;
        // The instruction and the jump, then the aligned address.
        assert_eq!(bytes.len(), 4 + FAR as usize + 8);
        assert_eq!(bytes[14..], resume.to_le_bytes());
        assert_eq!((to + 14) % 8, 0);
        let near = displace(&code, (from, resume), from + 0x1000, leaving);
        assert_eq!(near.expect("moved").body.bytes.len(), 4 + JUMP as usize);
    }

    #[test]
    fn system_calls_that_functions_begin_with_are_moved() {
        // addi a7, zero, 64; ecall
        let code = [0x93, 0x08, 0x00, 0x04, 0x73, 0x00, 0x00, 0x00];
        let leaving = Leaving {
            dead: &|_| 0,
            back: Via::Free(6),
            pads: &|_| None,
            signing: Signing::None,
        };
        let moved = displace(&code, (0x1_0000, 0x1_0008), 0x1_4000, leaving).expect("moved");
        assert_eq!(moved.body.bytes[..8], code);
    }

    #[test]
    fn what_has_no_register_leaves_by_pads() {
        // c.li a4, 0; jal x0, +0x100
        let code = [0x01, 0x47, 0x6F, 0x00, 0x00, 0x10];
        let (from, to, pad) = (0x1_0000, 0x1_4000, 0x1_2000);
        let leaving = Leaving {
            dead: &|_| 0,
            back: Via::Nothing,
            pads: &|at| (at == from + 2).then_some(pad),
            signing: Signing::None,
        };
        let moved = displace(&code, (from, from + 6), to, leaving).expect("moved");
        let exit = to + 2..to + 2 + EXIT;
        assert_eq!(moved.exits, [exit]);
        let frames: Vec<_> = moved
            .body
            .rows
            .iter()
            .map(|row| (row.at, row.rule))
            .collect();
        assert_eq!(frames[..2], [(0, pushed(0)), (4, pushed(16))]);
        // Only the first one, and then on through a pad.
        let leaving = Leaving {
            back: Via::Kept(KEPT),
            pads: &|at| (at == from + 2).then_some(pad),
            ..leaving
        };
        let moved = displace(&code[..2], (from, from + 2), to, leaving).expect("moved");
        let jump = jump(to + 2, pad, Via::Kept(KEPT)).expect("near");
        assert_eq!(moved.body.bytes[2..], jump);
    }
}
