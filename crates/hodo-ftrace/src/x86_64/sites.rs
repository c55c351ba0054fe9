//! The code of sites on x86-64.
//!
//! Flags are dead where sites are, so a call is switched off by making it a `test` of the same length. The opcode of
//! `call` and the one of `test eax, imm32` are followed by four bytes; those of `call [rip + d32]` and
//! `test [rip + d32], edx` by five. So a site is switched by writing one byte. While it is off, the distance of its
//! call is an operand that means nothing, and can be changed in any order. No thread can be harmed, wherever it is, and
//! no breakpoint is needed, unlike in the kernel's `text_poke_bp`. (`hodo-keys` changes branches in the same way.)

use crate::dynamic::{Bytes, Entry, Prepared};

/// What a site's code is.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `call rel32`, or `test eax, imm32`. It calls a trampoline.
    Call = 0,
    /// `call [rip + d32]`, or `test [rip + d32], edx`. It calls what the compiler made it call.
    Slot = 1,
}

impl Form {
    pub(crate) const ALL: [Self; 2] = [Self::Call, Self::Slot];

    /// Returns whether it calls a trampoline, not `mcount` or `__fentry__`.
    pub fn calls_trampoline(self) -> bool {
        self == Self::Call
    }

    /// Its length in bytes.
    pub(crate) fn length(self) -> usize {
        match self {
            Self::Call => 5,
            Self::Slot => 6,
        }
    }
}

const CALL: u8 = 0xE8;
const TEST: u8 = 0xA9;
const SLOT_CALL: [u8; 2] = [0xFF, 0x15];
const SLOT_TEST: [u8; 2] = [0x85, 0x15];

/// See [`crate::dynamic::apply`]: off; another target; on.
pub(crate) const STEPS: usize = 3;
/// No site has more bytes.
pub const LONGEST: usize = 6;
/// How far a call reaches.
pub(crate) const REACH: usize = 0x7FFF_0000;
/// Each trampoline is there once, in any of a module's pages.
pub(crate) const COPIES: usize = 1;
pub(crate) const MANY_PAGES: bool = true;
pub(crate) const WINDOW: usize = REACH;
/// The size of a trampoline in bytes.
pub const TRAMPOLINE: usize = 32;

/// The bytes at an address.
///
/// # Safety
/// They can be read.
unsafe fn read<const SIZE: usize>(address: usize) -> [u8; SIZE] {
    core::array::from_fn(|index| {
        // SAFETY: as the caller promises. Another thread may be writing: each byte is one that was or will be there.
        unsafe { ((address + index) as *const u8).read_volatile() }
    })
}

/// Returns whether there is what can be at a site.
///
/// # Safety
/// The address is a site's.
pub(crate) unsafe fn is_site(form: Form, address: usize, _: u32) -> bool {
    // SAFETY: a site has two bytes.
    let code: [u8; 2] = unsafe { read(address) };
    match form {
        Form::Call => matches!(code[0], CALL | TEST),
        Form::Slot => matches!(code, SLOT_CALL | SLOT_TEST),
    }
}

/// The distance of a call from the end of its site.
fn distance(address: usize, to: usize) -> [u8; 4] {
    (to.wrapping_sub(address + 5) as u32).to_le_bytes()
}

/// What is to be written in one step: at which distance from the site, and the bytes. `to` is what it shall call.
///
/// # Safety
/// The address is a site's.
pub(crate) unsafe fn step(
    form: Form,
    address: usize,
    _: u32,
    on: bool,
    to: Option<usize>,
    step: usize,
) -> Option<(usize, Bytes)> {
    // SAFETY: both forms have five bytes.
    let code: [u8; 5] = unsafe { read(address) };
    let (is_on, off, call) = match form {
        Form::Call => (code[0] == CALL, TEST, CALL),
        Form::Slot => (code[0] == SLOT_CALL[0], SLOT_TEST[0], SLOT_CALL[0]),
    };
    let moves = match (form, to) {
        (Form::Call, Some(to)) if on => Some(distance(address, to)),
        _ => None,
    };
    let moves = moves.filter(|distance| code[1..] != *distance);
    match step {
        0 if is_on && (!on || moves.is_some()) => Some((0, Bytes::new(&[off]))),
        1 => moves.map(|distance| (1, Bytes::new(&distance))),
        2 if on && !is_on && moves.is_none() => Some((0, Bytes::new(&[call]))),
        _ => None,
    }
}

/// Returns whether a change is complete.
///
/// # Safety
/// The address is a site's.
pub(crate) unsafe fn is_done(
    form: Form,
    address: usize,
    _: u32,
    on: bool,
    to: Option<usize>,
) -> bool {
    // SAFETY: both forms have five bytes.
    let code: [u8; 5] = unsafe { read(address) };
    match (form, on) {
        (Form::Call, false) => code[0] == TEST,
        (Form::Call, true) => {
            code[0] == CALL && to.is_some_and(|to| code[1..] == distance(address, to))
        }
        (Form::Slot, on) => code[..2] == if on { SLOT_CALL } else { SLOT_TEST },
    }
}

/// Which copy of a trampoline a site can call. There is one.
///
/// # Safety
/// The address is a site's.
pub(crate) unsafe fn reached(_: usize, to: usize, _: usize) -> usize {
    to
}

/// What a site needs before it is used: nothing here.
pub(crate) fn fix(_: Form, _: usize, _: usize, _: usize) -> Option<Bytes> {
    None
}

/// The length of the nop with which code begins, as assemblers and compilers make them (Intel SDM, volume 2, "NOP").
fn nop(code: &[u8]) -> Option<usize> {
    let prefixes = code
        .iter()
        .take_while(|byte| matches!(byte, 0x66 | 0x2E))
        .count();
    let rest = match code.get(prefixes..)? {
        [0x90, ..] => 1,
        [0x0F, 0x1F, 0x00, ..] => 3,
        [0x0F, 0x1F, 0x40, _, ..] => 4,
        [0x0F, 0x1F, 0x44, _, _, ..] => 5,
        [0x0F, 0x1F, 0x80, _, _, _, _, ..] => 7,
        [0x0F, 0x1F, 0x84, _, _, _, _, _, ..] => 8,
        _ => return None,
    };
    Some(prefixes + rest)
}

/// The length of the instructions at a site, if they are nops with at least five bytes.
fn nops(code: &[u8]) -> Option<usize> {
    let mut length = 0;
    while length < 5 {
        length += nop(code.get(length..)?)?;
    }
    Some(length)
}

/// How a place becomes a site, from its code: a call, or nops of at least five bytes. `code` has up to 16 bytes.
/// `alone` says that no other thread executes it; without that, some places cannot become sites.
pub fn prepare(code: &[u8], alone: bool) -> Option<Prepared> {
    const PADDING: [u8; 16] = [0x90; 16];
    let prepared = |distance, form, bytes: &[u8]| {
        Some(Prepared {
            distance,
            offset: 0,
            form,
            kept: 0,
            bytes: Bytes::new(bytes),
        })
    };
    match code {
        // A test whose operand is what was the distance, or the rest of the nop.
        [CALL, _, _, _, _, ..] | [0x0F, 0x1F, 0x44, _, _, ..] => prepared(0, Form::Call, &[TEST]),
        // Linkers shorten calls through a slot to a call with a prefix that means nothing.
        [0x67, CALL, _, _, _, _, ..] => prepared(1, Form::Call, &[TEST]),
        [0xFF, 0x15, _, _, _, _, ..] if alone => prepared(0, Form::Call, &[TEST, 0, 0, 0, 0, 0x90]),
        [0xFF, 0x15, _, _, _, _, ..] => prepared(0, Form::Slot, &SLOT_TEST[..1]),
        _ if alone => {
            let length = nops(code)?;
            let mut bytes = PADDING;
            bytes[..5].copy_from_slice(&[TEST, 0, 0, 0, 0]);
            prepared(0, Form::Call, bytes.get(..length)?)
        }
        _ => None,
    }
}

/// Which of the stubs a trampoline leads to.
pub(crate) fn kind(entry: Entry, with_registers: bool) -> u8 {
    entry as u8 | u8::from(with_registers) << 1
}

/// The code of a trampoline. `frames.rs` knows its instructions.
pub(crate) fn trampoline(mask: u64, kind: u8) -> [u8; TRAMPOLINE] {
    use super::callers::{first, first_registers, framed, framed_registers};
    let stubs = [first, framed, first_registers, framed_registers];
    let stub = stubs[usize::from(kind) % stubs.len()] as usize;
    let mut code = [0xCC; TRAMPOLINE];
    // push rax; mov rax, mask; jmp [rip]
    code[0] = 0x50;
    code[1..3].copy_from_slice(&[0x48, 0xB8]);
    code[3..11].copy_from_slice(&mask.to_le_bytes());
    code[11..17].copy_from_slice(&[0xFF, 0x25, 0, 0, 0, 0]);
    code[17..25].copy_from_slice(&(stub as u64).to_le_bytes());
    code
}

/// The length in bytes of the first instruction of a trampoline: after it, the stack has one word more.
pub const TRAMPOLINE_PUSH: usize = 1;

/// An instruction that does nothing.
#[cfg(test)]
pub(crate) const NOP_FOR_TESTS: &[u8] = &[0x90];
