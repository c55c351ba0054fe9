//! What leads from code to an island and back: jumps, and the bytes that replace them.
//!
//! Every jump is `b`, which reaches 128 MiB and needs no register. It may lead to any place in memory that is guarded
//! (PROT_BTI), which a jump through a register may not.

use alloc::vec::Vec;
use core::ops::Range;
use hodo_isa::aarch64::asm::ops::Insns as _;

use super::stub::Body;
pub use crate::patch::{Displaced, Leaving, NoWindow, Through, Window};
use crate::stub::Registers;
use hodo_isa::aarch64::asm::operand::mem;
use hodo_isa::aarch64::asm::{Code, Reach};
use hodo_isa::aarch64::cfa::{Row, State, add_row, moved_rows, pushed};
use hodo_isa::aarch64::decode::Kind;
use hodo_isa::aarch64::regs::{BETWEEN, LINK};
use hodo_isa::aarch64::relocate::{Link, Options, RelocateError, relocate};
use hodo_isa::aarch64::scan::{Flow, Sweep};
use hodo_isa::aarch64::{Aarch64, JUMP, JUMP_REACH, asm};
use hodo_isa::{InstructionSet as _, Signing, Via};

/// A breakpoint: `brk #0`.
pub const TRAP: &[u8] = &asm::BREAKPOINT;

/// Everything at a site and its island must be closer together than this.
pub const REACH: u64 = JUMP_REACH - (1 << 16);

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
        // Plans for this instruction set have no other jump.
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

/// Whether sites can have stubs that no long jump reaches. No: moved code could continue in guarded memory by a jump
/// through a register only.
pub const REACHES_ANYWHERE: bool = false;

/// Whether everything in stubs and jumps that depends on addresses is a four-byte word, to which a difference can be
/// added.
pub const MOVABLE: bool = false;

/// Whether displaced bytes contain the mark by which stubs are recognized, formed in part by the word at an offset.
/// Never asked, since stubs are not movable.
#[must_use]
pub fn forges_stub(_: &[u8], _: usize) -> bool {
    true
}

/// A jump at a site through an address in memory. There is none.
#[must_use]
pub fn by_literal(_: u64, _: u64, _: Via) -> Option<Vec<u8>> {
    None
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

/// The code before a stub for [`trap_entry`]: nothing.
#[must_use]
pub fn before_stub(_: &mut Code<'_>, _: Via) -> Vec<Row> {
    Vec::new()
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

/// Moves the instructions `code` from `from` to `to`; execution then continues at `resume`.
///
/// # Errors
/// If they cannot be moved there.
pub fn displace(
    code: &[u8],
    (from, resume): (u64, u64),
    to: u64,
    leaving: Leaving<'_>,
) -> Result<Displaced, RelocateError> {
    let options = Options {
        reach: Reach::Jump,
        dead: leaving.dead,
        link: Link::Original,
        system_calls: true,
        sequences: false,
    };
    let mut moved = relocate(code, from, to, &options)?;
    let (mut rows, last) = moved_rows(code, from, &moved, leaving.signing);
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
        let back = jump(to + end as u64, resume, leaving.back);
        let offset = code.len();
        moved
            .bytes
            .extend(back.ok_or(RelocateError::OutOfRange { offset })?);
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
        exits: Vec::new(),
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
