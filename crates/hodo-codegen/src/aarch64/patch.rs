//! What leads from code to an island and back: jumps, and the bytes that replace them.
//!
//! Every jump in the program is `b`, which reaches 128 MiB and needs no register. It may lead to any place in memory
//! that is guarded (PROT_BTI), which a jump through a register may not.
//!
//! If the island is farther away, two jumps lead there, and two lead back: those in the program and to it are `b`, and
//! the others go through [`KEPT`], which they save on the stack. So no register has to be free anywhere.
//!
//! ```text
//! site:   b entry                    (nearby, in our memory, which is not guarded)
//! entry:  str x16, [sp, #-16]!; adrp x16, …; ldr x16, [x16, #…]; br x16
//! island: ldr x16, [sp], #16
//! stub:   …
//!         displaced instructions
//!         str x16, [sp, #-16]!; movz x16, …; movk …; movk …; movk …; br x16
//! pad:    ldr x16, [sp], #16; b …    (nearby again)
//! ```

use alloc::vec::Vec;
use core::ops::Range;
use hodo_isa::aarch64::asm::ops::Insns as _;

use super::stub::Body;
use crate::linked::exits::{self, Exit, keep_rows};
pub use crate::patch::{Displaced, Leaving, NoWindow, Through, Window};
use crate::stub::Registers;
use hodo_isa::aarch64::asm::operand::mem;
use hodo_isa::aarch64::asm::{Code, Reach};
use hodo_isa::aarch64::cfa::{Row, Rule, State, add_row, moved_rows, pushed};
use hodo_isa::aarch64::decode::Kind;
use hodo_isa::aarch64::regs::{BETWEEN, KEPT, LINK, SP};
use hodo_isa::aarch64::relocate::{EXIT, Link, Options, RelocateError, relocate};
use hodo_isa::aarch64::scan::{Flow, Sweep};
use hodo_isa::aarch64::{Aarch64, JUMP, JUMP_REACH, KEEP, asm};
use hodo_isa::{InstructionSet as _, Signing, Via};

/// A breakpoint: `brk #0`.
pub const TRAP: &[u8] = &asm::BREAKPOINT;

/// If everything at a site and its island is closer together than this, one jump leads there.
pub const REACH: u64 = JUMP_REACH - (1 << 16);

/// How far from a jump to search for our memory: a little less than the jump reaches.
pub const NEARBY: u64 = REACH;
/// Bytes that the longest jump in our memory takes there.
pub const ROOM: u64 = 16;
/// Jumps in our memory begin at multiples of this.
pub const ALIGNED: u64 = JUMP;

/// The registers that code between a call and its callee may change: PLT entries have the slot's address and the target
/// in them.
const SLOT: u8 = BETWEEN[0];
const TARGET: u8 = BETWEEN[1];
/// Registers that no caller of a function in another file expects to be preserved, and in which it passes nothing: `x9`
/// to `x17`. (Nested functions are called through registers only.)
const FREE: u32 = 0x3_FE00;

/// A jump at `from` to anywhere within 128 MiB; `None` if the target is farther away.
#[must_use]
pub fn jump(from: u64, to: u64, via: Via) -> Option<Vec<u8>> {
    match via {
        Via::Nothing => asm::jump(from, to).ok().map(Vec::from),
        // No other jump is written over code.
        Via::Free(_) | Via::Kept(_) => None,
    }
}

/// A short jump to `to`: there is none.
#[must_use]
pub fn hop(_: u64, _: u64, _: u8) -> Option<Vec<u8>> {
    None
}

/// The addresses that a short jump can reach: there is none.
#[must_use]
pub fn near(_: u64, _: u8) -> Option<Range<u64>> {
    None
}

/// A jump to anywhere, if only the addresses are known: it reaches no farther than others.
#[must_use]
pub fn far(from: u64, to: u64, via: Via) -> Option<Vec<u8>> {
    jump(from, to, via)
}

/// Whether sites can have stubs that no long jump reaches.
pub const REACHES_ANYWHERE: bool = true;

/// The register of all jumps between a far stub and our memory near its site; `None` if each site has its own.
pub const FAR_VIA: Option<Via> = Some(Via::Kept(KEPT));

/// What a site's own jump and the jump in our memory nearby get in place of a single one.
#[must_use]
pub fn in_two(via: Via) -> [Via; 2] {
    [Via::Nothing, via]
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

/// A jump in our memory to the address in memory at `literal`; `None` if that is not within 4 GiB, or no register is
/// available.
#[must_use]
pub fn by_literal(from: u64, literal: u64, via: Via) -> Option<Vec<u8>> {
    let Via::Kept(register) = via else {
        return None;
    };
    let mut bytes = Vec::with_capacity(ROOM as usize);
    let mut code = Code::new(&mut bytes, from);
    code.keep(register);
    code.load_from(register, literal).ok()?;
    code.br(register);
    Some(bytes)
}

/// There are no puns.
#[must_use]
pub fn pun(_: u64, _: [u8; 4], _: u8) -> Option<Range<u64>> {
    None
}

/// Where a breakpoint's handler enters a stub.
#[must_use]
pub fn trap_entry(stub: u64, _: Via) -> u64 {
    stub
}

/// The code before a stub for jumps that have saved a register. Returns where the frame is in it.
#[must_use]
pub fn before_stub(code: &mut Code<'_>, via: Via, signing: Signing) -> Vec<Row> {
    let Via::Kept(register) = via else {
        return Vec::new();
    };
    // The stub itself stays aligned.
    code.breakpoints(16 - KEEP as usize);
    let at = code.offset();
    code.take_back(register);
    let mut lowered = state(signing);
    lowered.lower(exits::KEPT);
    // As in the stub itself.
    let rule = match signing {
        Signing::None => Rule::Lowered {
            bytes: exits::KEPT as u16,
            shadow: false,
        },
        _ => lowered.rule(),
    };
    vec![Row { at, rule }]
}

/// Where a jump that may have saved a register enters a stub.
#[must_use]
pub fn jump_entry(stub: u64, via: Via) -> u64 {
    match via {
        Via::Kept(_) => stub - KEEP,
        _ => stub,
    }
}

/// What a long jump needs in place of a call, if these registers are dead; `None` if there can be none.
#[must_use]
pub fn way_to_call(_: &[u8], _: u64, _: u32) -> Option<Via> {
    Some(Via::Nothing)
}

/// The pad at `at` for code that has saved [`KEPT`] on the stack to continue at `to`; `None` if that is too far away.
#[must_use]
pub fn pad(at: u64, to: u64) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(Via::PAD as usize);
    let mut code = Code::new(&mut bytes, at);
    code.take_back(KEPT);
    code.jump(to, Reach::Jump, LINK).ok()?;
    Some(bytes)
}

/// Where the pad may be.
#[must_use]
pub fn near_pad(to: u64) -> Option<Range<u64>> {
    Some(to.saturating_sub(NEARBY)..to.saturating_add(NEARBY))
}

/// The code at the end of the displaced instructions that restores a register which the way back from a stub has saved
/// on the stack. There is none: pads do that.
#[must_use]
pub fn take_back(_: Via) -> Vec<u8> {
    Vec::new()
}

/// Code that makes the return address a plain one again. The stack pointer is that of the function's entry.
pub fn take_signature(code: &mut Code<'_>, signing: Signing) {
    match signing {
        Signing::None => {}
        Signing::A => code.autiasp(),
        Signing::B => code.autibsp(),
    }
}

/// Code that signs the return address as the instruction in front of the site has done.
pub fn sign(code: &mut Code<'_>, signing: Signing) {
    match signing {
        Signing::None => {}
        Signing::A => code.paciasp(),
        Signing::B => code.pacibsp(),
    }
}

/// Where the frame is at such a site.
#[must_use]
pub fn state(signing: Signing) -> State {
    State::ENTRY.signed(signing)
}

/// Moves the instructions `code` from `from` to `to`; execution then continues at `resume`. If the way back saves a
/// register, `to` can be anywhere, and all ways out lead through pads.
///
/// # Errors
/// If they cannot be moved there.
pub fn displace(
    code: &[u8],
    (from, resume): (u64, u64),
    to: u64,
    leaving: Leaving<'_>,
) -> Result<Displaced, RelocateError> {
    let far = matches!(leaving.back, Via::Kept(_));
    let options = Options {
        reach: if far { Reach::Any } else { Reach::Jump },
        dead: leaving.dead,
        pads: leaving.pads,
        link: Link::Original,
        system_calls: true,
        sequences: false,
    };
    let mut moved = relocate(code, from, to, &options)?;
    let (mut rows, last) = moved_rows(code, from, &moved, leaving.signing);
    let form = Exit {
        lowers: KEEP as u32,
        len: EXIT as u32,
        stack: SP,
    };
    keep_rows(&mut rows, &moved, form);
    let way = |at: u64| at..at + EXIT;
    let exits = moved.exits.iter().map(|exit| way(to + exit.new as u64));
    let mut exits: Vec<_> = exits.collect();
    let pieces = moved.map.iter();
    let mut copies: Vec<_> = pieces
        .map(|piece| (from + piece.old as u64, to + piece.new as u64))
        .collect();
    if moved.falls_through {
        let end = moved.bytes.len();
        copies.push((resume, to + end as u64));
        if let Some(state) = last {
            add_row(&mut rows, end as u32, state.rule());
        }
        let offset = code.len();
        if let Via::Kept(register) = leaving.back {
            let pad = (leaving.pads)(resume).ok_or(RelocateError::NoRegister { offset })?;
            let mut state = last.unwrap_or(State::ENTRY);
            // The processor refuses to use a stack pointer that is not aligned.
            if state
                .address(SP, 0)
                .is_some_and(|below| below % exits::KEPT != 0)
            {
                return Err(RelocateError::NoRegister { offset });
            }
            state.lower(exits::KEPT);
            if last.is_some() {
                add_row(&mut rows, (end as u64 + KEEP) as u32, state.rule());
            }
            exits.push(way(to + end as u64));
            let mut code = Code::new(&mut moved.bytes, to);
            code.keep(register);
            let jump = code.jump(pad, Reach::Any, register);
            jump.map_err(|_| RelocateError::OutOfRange { offset })?;
        } else {
            let back = jump(to + end as u64, resume, leaving.back);
            moved
                .bytes
                .extend(back.ok_or(RelocateError::OutOfRange { offset })?);
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

/// The code with which a stub calls the function whose address is in the slot `got`. Like a PLT entry, it has the
/// address of the slot in a register, by which the dynamic linker knows which function is wanted.
///
/// # Panics
/// If the slot is not within 4 GiB.
#[must_use]
pub fn call_through(at: u64, got: u64, _: Through, _: u64) -> Body {
    let mut bytes = Vec::with_capacity(16);
    let mut code = Code::new(&mut bytes, at);
    let near = code.address(SLOT, got, Reach::Page);
    assert!(near.is_ok(), "a slot that is too far away");
    code.ldr(TARGET, mem(SLOT, 0));
    code.br(TARGET);
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
        // What the entry would put into the register is not needed.
        Through::Entry if stub.abs_diff(at) >= REACH && u64::from(len) >= FAR_ENTRY => {
            code.jump(stub, Reach::Page, SLOT).ok()?;
        }
        Through::Entry | Through::Jump => code.jump(stub, Reach::Jump, LINK).ok()?,
        Through::Call => {
            let before = u64::from(len).checked_sub(JUMP)?;
            for _ in 0..before / hodo_isa::aarch64::LEN {
                code.nop();
            }
            code.jump_and_link(stub, Reach::Jump, LINK, LINK).ok()?;
        }
        Through::Loaded(register) => code.address(register, stub, Reach::Page).ok()?,
    }
    Some(bytes)
}

/// Whether sites of this kind can have a stub of another kind that uses the same slot.
#[must_use]
pub fn shares(_: Through) -> bool {
    true
}

/// How far away the stub of such a site of this length can be.
#[must_use]
pub fn reach_through(through: Through, len: u8) -> u64 {
    match through {
        Through::Entry if u64::from(len) >= FAR_ENTRY => SLOT_REACH,
        Through::Loaded(_) => SLOT_REACH,
        _ => REACH,
    }
}

/// Bytes of the jump from an entry to a stub far away.
const FAR_ENTRY: u64 = Reach::Page.jump_len() as u64;

/// How far away from an island slots can be: 4 GiB.
pub const SLOT_REACH: u64 = (1 << 32) - (1 << 16);

/// The registers that a stub at such a site may use. Calls through slots are calls of functions in other files.
#[must_use]
pub fn registers_through(_: Through) -> Registers {
    Registers {
        free: FREE,
        free_after: FREE,
        via: Via::Nothing,
        signing: Signing::None,
    }
}

/// What a jump at the start of a function's code displaces, after the landing instruction if there is one. The function
/// is called from other files; so registers that calls do not preserve hold nothing useful until the function writes
/// them. `calls`: it may have system calls.
///
/// # Errors
/// Why there can be none.
pub fn window(code: &[u8], addr: u64, calls: bool) -> Result<Window, NoWindow> {
    let start = addr + Aarch64.landing(code);
    let after = code.get((start - addr) as usize..).unwrap_or_default();
    let Some(first) = Sweep::new(after, start).next() else {
        return Err(NoWindow::Short(JUMP));
    };
    let insn = &first.insn;
    if insn.flow() != Flow::Next || insn.kind == Kind::SystemCall && !calls {
        return Err(NoWindow::Branch(JUMP));
    }
    Ok(Window {
        start,
        end: insn.end(),
        via: Via::Nothing,
        back: Via::Nothing,
        signing: Aarch64.signing(code),
        dead: vec![(start, FREE)],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use hodo_isa::aarch64::{Insn, text};
    use std::borrow::ToOwned;
    use std::format;
    use std::string::String;

    fn bytes(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn listing(code: &[u8], at: u64) -> Vec<String> {
        let words = (at..).step_by(4).zip(code.chunks(4));
        words.map(|(at, word)| text(word, at)).collect()
    }

    const LEAVING: Leaving<'_> = Leaving {
        dead: &|_| 0,
        back: Via::Nothing,
        pads: &|_| None,
        signing: Signing::None,
    };

    #[test]
    fn jumps_reach_128_mib_and_need_no_register() {
        let (at, far) = (1u64 << 40, 1 << 27);
        for to in [at - far, at + far - 4, at + 4] {
            let code = jump(at, to, Via::Nothing).expect("within reach");
            assert_eq!(Insn::new(&code, at).flow(), Flow::Jump(to));
        }
        assert_eq!(jump(at, at + far, Via::Nothing), None);
        assert_eq!(jump(at, at + 2, Via::Nothing), None);
        assert_eq!(jump(at, at + 4, Via::Free(17)), None);
    }

    #[test]
    fn displaced_instructions_go_on_where_they_came_from() {
        // adrp x0, .; cbz x0, +0x100
        let code = bytes(&[0x9000_0000, 0xB400_0800]);
        let (from, to) = (0x10_0000, 0x40_0000);
        let moved = displace(&code, (from, from + 8), to, LEAVING).expect("moved");
        let end = to + moved.body.bytes.len() as u64;
        assert_eq!(
            moved.copies,
            [(from, to), (from + 4, to + 8), (from + 8, end - 4)]
        );
        let lines = listing(&moved.body.bytes, to);
        assert_eq!(lines[2], "cbnz x0, 0x400010");
        assert_eq!(lines[3], "b 0x100104");
        assert_eq!(lines[4], "b 0x100008");
        assert!(displace(&code, (from, from + 8), from + (1 << 28), LEAVING).is_err());
    }

    #[test]
    fn displaced_instructions_go_on_through_pads_from_far_away() {
        // stp x29, x30, [sp, #-16]!; cbz x0, +0x100
        let code = bytes(&[0xA9BF_7BFD, 0xB400_0800]);
        let (from, to, pads) = (0x10_0000, 0x7F_0000_0000, 0x20_0000);
        let leaving = Leaving {
            back: Via::Kept(KEPT),
            pads: &|at| Some(pads + (at - from) * 16),
            ..LEAVING
        };
        let moved = displace(&code, (from, from + 8), to, leaving).expect("moved");
        let lines = listing(&moved.body.bytes, to);
        let exit = |pad: &str| {
            let address = ["movk x16, #0x20, lsl #16", "movk x16, #0x0, lsl #32"];
            let [second, third] = address.map(str::to_owned);
            [
                "str x16, [sp, #-0x10]!".to_owned(),
                format!("mov x16, #{pad}"),
                second,
                third,
                "movk x16, #0x0, lsl #48".to_owned(),
                "br x16".to_owned(),
            ]
        };
        assert_eq!(lines[1], "cbnz x0, 0x7f00000020");
        assert_eq!(lines[2..8], exit("0x40"));
        assert_eq!(lines[8..], exit("0x80"));
        let end = to + 32;
        assert_eq!(moved.exits, [to + 8..end, end..end + EXIT]);
        assert_eq!(moved.copies[2], (from + 8, end));
        // After its first instruction, an exit has a register on the stack.
        let offsets = moved.body.rows.iter().map(|row| match row.rule {
            Rule::Frame { offset, .. } => (row.at, offset),
            rule => panic!("{rule:?}"),
        });
        let expected = [(0, 0), (4, 16), (12, 32), (32, 16), (36, 32)];
        assert_eq!(offsets.collect::<Vec<_>>(), expected);
        let none = Leaving {
            pads: &|_| None,
            ..leaving
        };
        assert!(displace(&code[..4], (from, from + 4), to, none).is_err());
        // sub sp, sp, #8
        let odd = bytes(&[0xD100_23FF]);
        assert!(displace(&odd, (from, from + 4), to, leaving).is_err());
    }

    #[test]
    fn jumps_nearby_save_a_register_that_stubs_and_pads_restore() {
        let code = by_literal(0x1000, 0x1234_5008, Via::Kept(KEPT)).expect("a jump");
        assert_eq!(
            listing(&code, 0x1000),
            [
                "str x16, [sp, #-0x10]!",
                "adrp x16, 0x12345000",
                "ldr x16, [x16, #0x8]",
                "br x16"
            ]
        );
        assert_eq!(code.len() as u64, ROOM);
        assert_eq!(by_literal(0, 1 << 33, Via::Kept(KEPT)), None);
        assert_eq!(by_literal(0, 0x1000, Via::Nothing), None);
        let code = pad(0x1000, 0x800).expect("it is near");
        assert_eq!(listing(&code, 0x1000), ["ldr x16, [sp], #0x10", "b 0x800"]);
        assert_eq!(pad(0, 1 << 28), None);
        let mut bytes = Vec::new();
        let mut code = Code::new(&mut bytes, 0x1000);
        let rows = before_stub(&mut code, Via::Kept(KEPT), Signing::None);
        let stub = code.here();
        assert_eq!(stub % 16, 0);
        assert_eq!((rows.len(), rows[0].at), (1, 12));
        assert_eq!(jump_entry(stub, Via::Kept(KEPT)), stub - 4);
        assert_eq!(listing(&bytes[12..], 0x100C), ["ldr x16, [sp], #0x10"]);
        assert_eq!(trap_entry(stub, Via::Kept(KEPT)), stub);
    }

    #[test]
    fn rows_of_displaced_instructions_know_that_the_return_address_is_signed() {
        // stp x29, x30, [sp, #-16]!
        let code = bytes(&[0xA9BF_7BFD]);
        let leaving = Leaving {
            signing: Signing::A,
            ..LEAVING
        };
        let moved = displace(&code, (0x1000, 0x1004), 0x4000, leaving).expect("moved");
        let rules: Vec<_> = moved.body.rows.iter().map(|row| row.rule).collect();
        let mut state = state(Signing::A);
        let insn = Insn::new(&code, 0x1000);
        let first = state.rule();
        state.step(&insn, &insn.effects());
        assert_eq!(rules, [first, state.rule()]);
    }

    #[test]
    fn slots_are_called_as_procedure_linkage_tables_do() {
        let body = call_through(0x1_2000, 0x5_6780, Through::Entry, 0);
        assert_eq!(
            listing(&body.bytes, 0x1_2000),
            [
                "adrp x16, 0x56000",
                "add x16, x16, #0x780",
                "ldr x17, [x16]",
                "br x17"
            ]
        );
        let lead = |through, len| lead_through(0x1000, 0x2004, through, len);
        assert_eq!(
            listing(&lead(Through::Entry, 16).expect("near"), 0x1000),
            ["b 0x2004"]
        );
        let far = lead_through(0x1000, 0x4000_2004, Through::Entry, 16);
        assert_eq!(
            listing(&far.expect("within 4 GiB"), 0x1000),
            ["adrp x16, 0x40002000", "add x16, x16, #0x4", "br x16"]
        );
        assert_eq!(lead_through(0x1000, 0x4000_2004, Through::Entry, 8), None);
        assert_eq!(
            listing(&lead(Through::Call, 8).expect("near"), 0x1000),
            ["nop", "bl 0x2004"]
        );
        assert_eq!(
            listing(&lead(Through::Loaded(3), 8).expect("near"), 0x1000),
            ["adrp x3, 0x2000", "add x3, x3, #0x4"]
        );
    }

    #[test]
    fn windows_begin_after_the_landing_instruction() {
        // stp x29, x30, [sp, #-16]!
        const FRAME: u32 = 0xA9BF_7BFD;
        let window = |words: &[u32]| window(&bytes(words), 0x1000, false);
        let plain = window(&[FRAME, 0]).expect("a window");
        assert_eq!((plain.start, plain.end), (0x1000, 0x1004));
        // paciasp; bti c
        let signed = window(&[0xD503_233F, FRAME]).expect("a window");
        assert_eq!((signed.start, signed.end), (0x1004, 0x1008));
        assert_eq!(signed.signing, Signing::A);
        let landing = window(&[0xD503_245F, FRAME]).expect("a window");
        assert_eq!((landing.start, landing.signing), (0x1004, Signing::None));
        // ret; svc #0
        assert_eq!(window(&[0xD65F_03C0]), Err(NoWindow::Branch(4)));
        assert_eq!(window(&[0xD503_245F]), Err(NoWindow::Short(4)));
        assert_eq!(window(&[0xD400_0001]), Err(NoWindow::Branch(4)));
        assert!(super::window(&bytes(&[0xD400_0001]), 0x1000, true).is_ok());
    }
}
