//! The code of return probes.
//!
//! It is entered with the return address as calls leave it, since functions sign it after their first instruction: a
//! moved `paciasp` then signs the address of our code. Nothing here changes the flags.

use alloc::vec::Vec;

use hodo_isa::aarch64::asm::Code;
use hodo_isa::aarch64::asm::operand::{DOUBLE, Extend, after, before, mem};
use hodo_isa::aarch64::asm::ops::Insns as _;
use hodo_isa::aarch64::regs::{LINK, SP};

use super::common::{self, FRAME, load};
use crate::environment::Window;

/// The columns of `x30` and `sp` in unwind tables.
pub(crate) const COLUMNS: [u8; 2] = [30, 31];

/// The first eight bytes at the point of return, by which it is recognized: `movz xzr, …` twice, which do nothing.
const MAGIC: u64 = 0xD28D_EC5F_D28E_0E5F;

/// What the code refers to.
pub(super) struct Places {
    /// Address of the pointer to the head of the site's return handlers.
    pub head: u64,
    /// Address of five more words, which [`words`] makes.
    pub words: u64,
    /// The code that all detours share.
    pub common: u64,
}

/// The words that the code refers to.
pub(super) fn words(missed: u64, window: &Window) -> [u64; 5] {
    let shadow = window.distance.wrapping_neg();
    [window.low, window.top - window.low, shadow, MAGIC, missed]
}

/// What was emitted.
pub(super) struct Emitted {
    pub code: Vec<u8>,
    /// From after the call of the body to the end of the code that follows it.
    pub frames: [u64; 2],
    /// A load that may fault, because `x30` may be anything, and where execution then continues.
    pub guard: (u64, u64),
}

/// The code between the entry's handlers and the body, which follows directly. It is placed at `at`.
///
/// The shadow of `x30` is as far below the word under the stack pointer as the window says.
pub(super) fn emit(at: u64, places: &Places) -> Option<Emitted> {
    let word = |index: u64| places.words + index * 8;
    let mut bytes = Vec::new();
    let mut code = Code::new(&mut bytes, at);
    let [x, y, z] = common::SCRATCH;
    code.stp(x, y, before(SP, -32));
    code.str(z, mem(SP, 16));
    code.addi(x, SP, 32);
    load(&mut code, y, word(0));
    code.sub(x, x, y);
    let outside = code.label();
    // Below the window, or above it.
    code.tbnz(x, 63, outside);
    load(&mut code, y, word(1));
    code.sub(x, x, y);
    code.tbz(x, 63, outside);
    // Points of return begin at multiples of eight.
    code.andi(x, LINK, 7);
    let unlike = code.label();
    code.cbnz(x, unlike);
    let guarded = code.here();
    code.ldr(x, mem(LINK, 0));
    load(&mut code, y, word(3));
    code.sub(x, x, y);
    let again = code.label();
    code.cbz(x, again);
    code.bind(unlike);
    let good = code.here();
    load(&mut code, y, word(2));
    code.add_extended(y, SP, y, (Extend::Uxtx, 0));
    code.str(LINK, mem(y, 24));
    restore(&mut code);
    if !(code.here() + 4).is_multiple_of(8) {
        code.nop();
    }
    let body = code.label();
    code.bl(body);
    let back = code.here();
    code.raw(&MAGIC.to_le_bytes());
    common::begin(&mut code);
    load(&mut code, LINK, word(2));
    code.add_extended(LINK, SP, LINK, (Extend::Uxtx, 0));
    code.ldr(LINK, mem(LINK, FRAME - 8));
    common::enter(&mut code, places.head, places.common)?;
    code.ret();
    code.bind(outside);
    code.bind(again);
    let without = code.here();
    load(&mut code, x, word(4));
    let count = code.label_here();
    code.ldxr(DOUBLE, y, x);
    code.addi(y, y, 1);
    code.stxr(DOUBLE, z, y, x);
    code.cbnz_w(z, count);
    restore(&mut code);
    code.bind(body);
    Some(Emitted {
        code: bytes,
        frames: [back, without],
        guard: (guarded, good),
    })
}

/// Restores the registers that were put on the stack.
fn restore(code: &mut Code<'_>) {
    let [x, y, z] = common::SCRATCH;
    code.ldr(z, mem(SP, 16));
    code.ldp(x, y, after(SP, 32));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_does_nothing_and_points_of_return_are_aligned() {
        let text = hodo_isa::aarch64::text(&MAGIC.to_le_bytes(), 0);
        assert!(text.contains("xzr, #0x7072"), "{text}");
        for start in [0x1000u64, 0x1004] {
            let places = Places {
                head: 0x2000,
                words: 0x2008,
                common: 0x800,
            };
            let emitted = emit(start, &places).expect("in reach");
            let [back, without] = emitted.frames;
            assert!(back.is_multiple_of(8) && back < without);
            let offset = (back - start) as usize;
            assert_eq!(emitted.code[offset..offset + 8], MAGIC.to_le_bytes());
            let call = hodo_isa::aarch64::text(&emitted.code[offset - 4..], back - 4);
            let body = start + emitted.code.len() as u64;
            assert_eq!(call, format!("bl {body:#x}"));
        }
    }
}
