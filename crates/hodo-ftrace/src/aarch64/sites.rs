//! The code of sites on AArch64.
//!
//! A call is one instruction, an aligned word, which the processor sees whole; without a call, it is a `nop`. (Arm ARM,
//! "Concurrent modification and execution of instructions", allows both to be changed while they are executed.)

use crate::dynamic::{Bytes, Entry, Prepared};

/// What a site's code is.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `mov x9, x30; bl`, or a nop instead of the latter. It calls a trampoline.
    Room = 0,
    /// `bl`, or a nop. It calls what the compiler made it call.
    Call = 1,
}

impl Form {
    pub(crate) const ALL: [Self; 2] = [Self::Room, Self::Call];

    /// Returns whether it calls a trampoline, not `mcount`.
    pub fn calls_trampoline(self) -> bool {
        self == Self::Room
    }

    /// Its length in bytes.
    pub(crate) fn length(self) -> usize {
        match self {
            Self::Room => 8,
            Self::Call => 4,
        }
    }

    /// Where the instruction is that is changed.
    fn switch(self) -> usize {
        match self {
            Self::Room => 4,
            Self::Call => 0,
        }
    }
}

const NOP: u32 = 0xD503_201F;
const MOV_X9_X30: u32 = 0xAA1E_03E9;
/// `bl` has these bits, and 26 bits of a distance in words.
const BL: u32 = 0x9400_0000;
const BL_MASK: u32 = 0xFC00_0000;

/// See [`crate::dynamic::apply`]: a site is changed at once.
pub(crate) const STEPS: usize = 1;
/// No site has more bytes.
pub const LONGEST: usize = 8;
/// How far `bl` reaches.
pub(crate) const REACH: usize = 0x7FF_0000;
/// Each trampoline is there once, in any of a module's pages.
pub(crate) const COPIES: usize = 1;
pub(crate) const MANY_PAGES: bool = true;
pub(crate) const WINDOW: usize = REACH;
/// The size of a trampoline in bytes.
pub const TRAMPOLINE: usize = 32;

/// The instruction at an address.
///
/// # Safety
/// It can be read.
unsafe fn read(address: usize) -> u32 {
    // SAFETY: as the caller promises; instructions are aligned.
    unsafe { (address as *const u32).read_volatile() }
}

/// The call of a site.
fn call(form: Form, address: usize, kept: u32, to: Option<usize>) -> u32 {
    match (form, to) {
        (Form::Room, Some(to)) => {
            let distance = to.wrapping_sub(address + form.switch()) as u32;
            BL | distance >> 2 & !BL_MASK
        }
        _ => kept,
    }
}

/// Returns whether there is what can be at a site.
///
/// # Safety
/// The address is a site's.
pub(crate) unsafe fn is_site(form: Form, address: usize, kept: u32) -> bool {
    // SAFETY: it is in the site.
    let there = unsafe { read(address + form.switch()) };
    there == NOP
        || match form {
            Form::Room => there & BL_MASK == BL,
            Form::Call => there == kept,
        }
}

/// What is to be written in one step: at which distance from the site, and the bytes.
///
/// # Safety
/// The address is a site's.
pub(crate) unsafe fn step(
    form: Form,
    address: usize,
    kept: u32,
    on: bool,
    to: Option<usize>,
    _: usize,
) -> Option<(usize, Bytes)> {
    let wanted = if on {
        call(form, address, kept, to)
    } else {
        NOP
    };
    // SAFETY: it is in the site.
    let there = unsafe { read(address + form.switch()) };
    (there != wanted).then(|| (form.switch(), Bytes::new(&wanted.to_le_bytes())))
}

/// Returns whether a change is complete.
///
/// # Safety
/// The address is a site's.
pub(crate) unsafe fn is_done(
    form: Form,
    address: usize,
    kept: u32,
    on: bool,
    to: Option<usize>,
) -> bool {
    let wanted = if on {
        call(form, address, kept, to)
    } else {
        NOP
    };
    // SAFETY: it is in the site.
    (unsafe { read(address + form.switch()) }) == wanted
}

/// Which copy of a trampoline a site can call. There is one.
///
/// # Safety
/// The address is a site's.
pub(crate) unsafe fn reached(_: usize, to: usize, _: usize) -> usize {
    to
}

/// What a site needs before it is used: its code, calling nobody.
pub(crate) fn fix(form: Form, _: usize, _: usize, _: usize) -> Option<Bytes> {
    if form != Form::Room {
        return None;
    }
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&MOV_X9_X30.to_le_bytes());
    bytes[4..].copy_from_slice(&NOP.to_le_bytes());
    Some(Bytes::new(&bytes))
}

/// How a place becomes a site, from its code: a call, or two nops. `code` has up to 16 bytes. What other threads
/// execute can become a site, too.
pub fn prepare(code: &[u8], _: bool) -> Option<Prepared> {
    let word = |at: usize| {
        let bytes = code.get(at..at + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    };
    let first = word(0)?;
    if first & BL_MASK == BL {
        return Some(Prepared {
            distance: 0,
            offset: 0,
            form: Form::Call,
            kept: first,
            bytes: Bytes::new(&NOP.to_le_bytes()),
        });
    }
    (first == NOP && word(4)? == NOP).then_some(Prepared {
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

/// The code of a trampoline: it loads the mask into `x17`.
pub(crate) fn trampoline(mask: u64, _: u8) -> [u8; TRAMPOLINE] {
    // bti c; ldr x17, mask; ldr x16, stub; br x16; stub; mask
    const CODE: [u32; 4] = [0xD503_245F, 0x5800_00B1, 0x5800_0050, 0xD61F_0200];
    let mut bytes = [0; TRAMPOLINE];
    for (place, word) in bytes.chunks_exact_mut(4).zip(CODE) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    let stub = super::callers::first as *const () as u64;
    bytes[16..24].copy_from_slice(&stub.to_le_bytes());
    bytes[24..].copy_from_slice(&mask.to_le_bytes());
    bytes
}

/// The length in bytes of the first instruction of a trampoline, after which nothing changes for unwinders.
pub const TRAMPOLINE_PUSH: usize = 4;

/// An instruction that does nothing.
#[cfg(test)]
pub(crate) const NOP_FOR_TESTS: &[u8] = &NOP.to_le_bytes();
