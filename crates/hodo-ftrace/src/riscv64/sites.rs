//! The code of sites on RISC-V.
//!
//! A call is switched off by changing one byte of it, the lowest of its last instruction, so that it becomes an
//! instruction of the same length that only writes the link register: `jal ra` becomes `lui ra`, and `jalr` becomes
//! `addi`, with the same operands. Nobody needs the link register there: the call would change it. Half of a changed
//! instruction can never be executed, and its distance is kept.

use crate::dynamic::{Bytes, Entry, Prepared};

/// What a site's code is.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `auipc t0; jalr t0`, or `addi` instead of the latter. It calls a trampoline, always the same.
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

/// See [`crate::dynamic::apply`]: a site is changed at once.
pub(crate) const STEPS: usize = 1;
/// No site has more bytes.
pub const LONGEST: usize = 8;
/// How far `auipc` and `jalr` reach.
pub(crate) const REACH: usize = 0x7FFF_0000;
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

/// Returns whether there is what can be at a site.
///
/// # Safety
/// The address is that of a site.
pub(crate) unsafe fn is_site(form: Form, address: usize, _: u32) -> bool {
    let (at, on, off) = form.switch();
    // SAFETY: it is in the site.
    let byte = unsafe { read(address + at) };
    byte == on || byte == off
}

/// What is to be written in one step: at which distance from the site, and the bytes.
///
/// # Safety
/// The address is that of a site.
pub(crate) unsafe fn step(
    form: Form,
    address: usize,
    _: u32,
    on: bool,
    _: Option<usize>,
    _: usize,
) -> Option<(usize, Bytes)> {
    let (at, call, off) = form.switch();
    let wanted = if on { call } else { off };
    // SAFETY: it is in the site.
    let there = unsafe { read(address + at) };
    (there != wanted).then(|| (at, Bytes::new(&[wanted])))
}

/// Returns whether a change is complete.
///
/// # Safety
/// The address is that of a site.
pub(crate) unsafe fn is_done(
    form: Form,
    address: usize,
    _: u32,
    on: bool,
    _: Option<usize>,
) -> bool {
    let (at, call, off) = form.switch();
    // SAFETY: it is in the site.
    (unsafe { read(address + at) }) == if on { call } else { off }
}

/// What a site needs before it is used, if its target can never change: its code, calling nobody.
pub(crate) fn fix(form: Form, address: usize, to: usize) -> Option<Bytes> {
    if form != Form::Room {
        return None;
    }
    let distance = to.wrapping_sub(address) as u32;
    let upper = distance.wrapping_add(0x800) & !0xFFF;
    let auipc = upper | T0 << 7 | AUIPC;
    let addi = (distance & 0xFFF) << 20 | T0 << 15 | T0 << 7 | u32::from(ADDI);
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

/// Trampolines with different keys are different. A site's target cannot change, so there is one key.
pub(crate) fn trampoline_key(_: u64) -> u64 {
    0
}

/// The code of a trampoline.
pub(crate) fn trampoline(_: u64, _: u8) -> [u8; TRAMPOLINE] {
    // addi sp, sp, -16; sd t1, 0(sp); auipc t1, 0; ld t1, 16(t1); jr t1; nop
    const CODE: [u32; 6] = [
        0xFF01_0113,
        0x0061_3023,
        0x0000_0317,
        0x0103_3303,
        0x0003_0067,
        0x0000_0013,
    ];
    let mut bytes = [0; TRAMPOLINE];
    for (place, word) in bytes.chunks_exact_mut(4).zip(CODE) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    let stub = super::callers::first as *const () as u64;
    bytes[24..].copy_from_slice(&stub.to_le_bytes());
    bytes
}

/// The length in bytes of the first instruction of a trampoline: after it, the stack has two words more.
pub const TRAMPOLINE_PUSH: usize = 4;
