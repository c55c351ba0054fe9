//! The code of sites on RISC-V.
//!
//! A call is switched off by changing one byte of it, the lowest of its last instruction, so that it becomes an
//! instruction of the same length that only writes the link register: `jal ra` becomes `lui ra`, and `jalr` becomes
//! `addi`, with the same operands. Nobody needs the link register there: the call would change it. While a site is off,
//! the immediate operand of the `addi` means nothing, and can be changed.
//!
//! An instruction may begin at any even address, so no store writes all of it at once. But the distance of a `jalr` is
//! in its upper half, and what switches it in the lower one; and each half is written at once.
//!
//! The `auipc` before a `jalr` stays as it is, because a thread may be between the two. So the `jalr` reaches the 4,096
//! bytes around what the `auipc` gives. These are different ones for each site, with ends anywhere. Therefore each
//! trampoline is there twice, half of these bytes apart: the end of what a site reaches can be within the first copies,
//! or within the second ones, but not both.

use super::callers::{MASK, T1, first};
use crate::dynamic::{Bytes, Entry, Prepared};

/// What a site's code is.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `auipc t0; jalr t0`, or `addi` instead of the latter. It calls a trampoline.
    Room = 0,
    /// `auipc; jalr ra`, or `addi` instead of the latter. It calls what the compiler made it call.
    Pair = 1,
    /// `jal ra`, or `lui ra`. It calls what the compiler made it call.
    Jal = 2,
}

impl Form {
    pub(crate) const ALL: [Self; 3] = [Self::Room, Self::Pair, Self::Jal];

    /// Returns whether it calls a trampoline, not `mcount`.
    pub fn calls_trampoline(self) -> bool {
        self == Self::Room
    }

    /// Its length in bytes.
    pub(crate) fn length(self) -> usize {
        match self {
            Self::Room | Self::Pair => 8,
            Self::Jal => 4,
        }
    }

    /// Where the byte is that is changed, its value for a call, and without.
    fn switch(self) -> (usize, u8, u8) {
        match self {
            Self::Room => (4, JALR | T0_LOW, ADDI | T0_LOW),
            Self::Pair => (4, JALR | RA_LOW, ADDI | RA_LOW),
            Self::Jal => (0, JAL | RA_LOW, LUI | RA_LOW),
        }
    }
}

// Opcodes (RISC-V ISA manual, "RV32/64G Instruction Set Listings").
const JALR: u8 = 0x67;
const JAL: u8 = 0x6F;
const ADDI: u8 = 0x13;
const LUI: u8 = 0x37;
const AUIPC: u32 = 0x17;
/// The lowest bit of the register that is written is the highest of the byte with the opcode: `ra` is 1, `t0` is 5.
const RA_LOW: u8 = 0x80;
const T0_LOW: u8 = 0x80;
const T0: u32 = 5;

/// See [`crate::dynamic::apply`]: off; another target; on.
pub(crate) const STEPS: usize = 3;
/// No site has more bytes.
pub const LONGEST: usize = 8;
/// How far `auipc` and `jalr` reach.
pub(crate) const REACH: usize = 0x7FFF_0000;
/// Each trampoline is there twice, in the only page of a module that all its sites reach.
pub(crate) const COPIES: usize = 2;
pub(crate) const MANY_PAGES: bool = false;
/// How many bytes a `jalr` reaches.
pub(crate) const WINDOW: usize = 0x1000;
/// The size of a trampoline in bytes.
pub const TRAMPOLINE: usize = 32;

/// The byte at an address.
///
/// # Safety
/// It can be read.
unsafe fn read(address: usize) -> u8 {
    // SAFETY: as the caller promises.
    unsafe { (address as *const u8).read_volatile() }
}

/// The instruction at an address.
///
/// # Safety
/// It can be read.
unsafe fn word(address: usize) -> u32 {
    // SAFETY: as the caller promises. Another thread may be writing: each byte is one that was or will be there.
    u32::from_le_bytes(core::array::from_fn(|index| unsafe {
        read(address + index)
    }))
}

/// Returns whether there is what can be at a site.
///
/// # Safety
/// The address is a site's.
pub(crate) unsafe fn is_site(form: Form, address: usize, _: u32) -> bool {
    let (at, on, off) = form.switch();
    // SAFETY: it is in the site.
    let (first, byte) = unsafe { (word(address), read(address + at)) };
    let is_whole = form != Form::Room || first & 0xFFF == AUIPC | T0 << 7;
    is_whole && (byte == on || byte == off)
}

/// The upper half of a site's `jalr` if it has a target: the distance from what the `auipc` gives, and a part of `t0`.
///
/// # Safety
/// The address is a site's.
unsafe fn upper_half(form: Form, address: usize, to: Option<usize>) -> Option<u16> {
    let to = to.filter(|_| form == Form::Room)?;
    // SAFETY: as the caller promises.
    let distance = to.wrapping_sub(unsafe { base(address) }) as u16;
    Some(distance << 4 | (T0 >> 1) as u16)
}

/// What the `auipc` of a site gives.
///
/// # Safety
/// The address is a site's.
unsafe fn base(address: usize) -> usize {
    // SAFETY: as the caller promises.
    let upper = (unsafe { word(address) } & !0xFFF).cast_signed();
    address.wrapping_add_signed(upper as isize)
}

/// Returns whether a `jalr` reaches an address from another one.
fn is_reached(base: usize, to: usize) -> bool {
    to.wrapping_sub(base).wrapping_add(WINDOW / 2) < WINDOW
}

/// Which copy of a trampoline a site can call.
///
/// # Safety
/// The address is a site's.
pub(crate) unsafe fn reached(address: usize, to: usize, copy: usize) -> usize {
    // SAFETY: as the caller promises.
    if is_reached(unsafe { base(address) }, to) {
        to
    } else {
        to + copy
    }
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
    let (at, call, off) = form.switch();
    let half = at + 2;
    // SAFETY: it is in the site.
    let (is_on, there) = unsafe { (read(address + at) == call, word(address + at)) };
    // SAFETY: as the caller promises.
    let moves = unsafe { upper_half(form, address, to) }.filter(|_| on);
    let moves = moves.filter(|upper| there >> 16 != u32::from(*upper));
    match step {
        0 if is_on && (!on || moves.is_some()) => Some((at, Bytes::new(&[off]))),
        1 => moves.map(|upper| (half, Bytes::new(&upper.to_le_bytes()))),
        2 if on && !is_on && moves.is_none() => Some((at, Bytes::new(&[call]))),
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
    let (at, call, off) = form.switch();
    // SAFETY: it is in the site.
    let there = unsafe { word(address + at) };
    // SAFETY: as the caller promises.
    let upper = unsafe { upper_half(form, address, to) }.filter(|_| on);
    there as u8 == if on { call } else { off }
        && upper.is_none_or(|upper| there >> 16 == u32::from(upper))
}

/// What a site needs before it is used: its code, calling nobody. Trampolines will be between two addresses, the second
/// copies of them from there on.
pub(crate) fn fix(form: Form, address: usize, area: usize, copy: usize) -> Option<Bytes> {
    if form != Form::Room {
        return None;
    }
    let upper = |to: usize| (to.wrapping_sub(address) as u32).wrapping_add(0x800) & !0xFFF;
    let base = |upper: u32| address.wrapping_add_signed(upper.cast_signed() as isize);
    let first = upper(area);
    // Are all the first copies within reach?
    let is_first = is_reached(base(first), area + copy.saturating_sub(1));
    let to = if is_first { area } else { area + copy };
    let upper = upper(to);
    let auipc = upper | T0 << 7 | AUIPC;
    let distance = to.wrapping_sub(base(upper)) as u32;
    let addi = distance << 20 | T0 << 15 | T0 << 7 | u32::from(ADDI);
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&auipc.to_le_bytes());
    bytes[4..].copy_from_slice(&addi.to_le_bytes());
    Some(Bytes::new(&bytes))
}

/// The length of the nops with which code begins, if they fill eight bytes.
fn is_room(code: &[u8]) -> bool {
    let mut length = 0;
    while length < 8 {
        length += match code.get(length..) {
            Some([0x01, 0x00, ..]) => 2,
            Some([0x13, 0x00, 0x00, 0x00, ..]) => 4,
            _ => return false,
        };
    }
    // The second half of a nop must not be left.
    length == 8
}

/// How a place becomes a site, from its code: a call, or nops of eight bytes. `code` has up to 16 bytes. `alone` says
/// that no other thread executes it; without that, nops cannot become sites.
pub fn prepare(code: &[u8], alone: bool) -> Option<Prepared> {
    let word = |at: usize| {
        let bytes = code.get(at..at + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    };
    let prepared = |form: Form| {
        let (offset, _, off) = form.switch();
        Prepared {
            distance: 0,
            offset,
            form,
            kept: 0,
            bytes: Bytes::new(&[off]),
        }
    };
    let first = word(0)?;
    if first & 0xFFF == u32::from(JAL) | 1 << 7 {
        return Some(prepared(Form::Jal));
    }
    let register = first >> 7 & 31;
    let jalr = register << 15 | 1 << 7 | u32::from(JALR);
    if first & 0x7F == AUIPC && word(4)? & 0xF_FFFF == jalr {
        return Some(prepared(Form::Pair));
    }
    (alone && is_room(code)).then_some(Prepared {
        distance: 0,
        offset: 0,
        form: Form::Room,
        kept: 0,
        bytes: Bytes::new(&[]),
    })
}

/// Which of the stubs a trampoline leads to. There is one.
pub(crate) fn kind(_: Entry, _: bool) -> u8 {
    0
}

/// The code of a trampoline: it makes `t1` lead to the mask. It is the same at any address.
pub(crate) fn trampoline(mask: u64, _: u8) -> [u8; TRAMPOLINE] {
    const {
        assert!(
            cfg!(target_feature = "c"),
            "the code has short instructions"
        );
    }
    let mut bytes = [0; TRAMPOLINE];
    // addi sp, sp, -16; sd t1, 0(sp); sd t2, 8(sp); auipc t1, 0; ld t2, 10(t1); jr t2
    bytes[..2].copy_from_slice(&0x1141_u16.to_le_bytes());
    bytes[2..4].copy_from_slice(&0xE01A_u16.to_le_bytes());
    bytes[4..T1].copy_from_slice(&0xE41E_u16.to_le_bytes());
    bytes[T1..10].copy_from_slice(&0x0000_0317_u32.to_le_bytes());
    bytes[10..14].copy_from_slice(&0x00A3_3383_u32.to_le_bytes());
    bytes[14..16].copy_from_slice(&0x8382_u16.to_le_bytes());
    let stub = first as *const () as u64;
    bytes[16..MASK].copy_from_slice(&stub.to_le_bytes());
    bytes[MASK..].copy_from_slice(&mask.to_le_bytes());
    bytes
}

/// The length in bytes of the first instruction of a trampoline: after it, the stack has two words more.
pub const TRAMPOLINE_PUSH: usize = 2;

/// An instruction that does nothing.
#[cfg(test)]
pub(crate) const NOP_FOR_TESTS: &[u8] = &[0x13, 0, 0, 0];
