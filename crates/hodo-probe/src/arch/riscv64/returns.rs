//! The code of return probes.

use alloc::vec::Vec;

use super::asm::{Asm, RA, SP, T0, T1, ZERO};
use super::common::FRAME;
use crate::returns::Window;

/// How far a stack is from its shadow; no multiple of a page, or reading the one would seem to depend on the other. The
/// first in address spaces of 39 bits, of which programs have half.
const DISTANCE: u64 = 0x20_0000_0840;
const WIDE: u64 = 0x2000_0000_0840;
/// Below the mappings of libraries, so much may be stacks, and above them, in small and in large address spaces.
const BELOW: u64 = 1 << 35;
const ABOVE: u64 = 1 << 33;
const BELOW_WIDE: u64 = 1 << 40;

/// The columns of `ra` and `sp` in unwind tables.
pub(crate) const COLUMNS: [u8; 2] = [1, 2];

/// Where the shadow is to be, for a process that maps memory at `here`.
pub(crate) fn window(here: u64) -> Window {
    let (distance, below, above) = if here < 1 << 39 {
        (DISTANCE, BELOW, ABOVE)
    } else {
        (WIDE, BELOW_WIDE, BELOW_WIDE)
    };
    Window {
        low: (here - below) & !0xFFFF,
        top: (here + above) & !0xFFFF,
        distance,
    }
}

/// The first eight bytes at the point of return, by which it is known: `lui zero, …` twice, which do nothing.
const MAGIC: u64 = 0x4F44_4037_484F_D037;

/// What the code refers to.
pub(super) struct Places {
    /// Address of the pointer to the head of the site's return handlers.
    pub head: u64,
    /// Address of four more words, which [`words`] has.
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
    /// From after the call of the body to the end of what follows it.
    pub frames: [u64; 2],
    /// A load that may fault, for `ra` may be anything, and where to go on then.
    pub guard: (u64, u64),
}

/// The code between the entry's handlers and the body, which comes directly after it. It stands at `at`.
///
/// The shadow of `ra` is as far below the word under the stack pointer as the window says.
pub(super) fn emit(at: u64, places: &Places) -> Option<Emitted> {
    // Twice, for branches forwards.
    let first = pass(at, places, &[at; 3])?;
    let second = pass(at, places, &first.1)?;
    Some(second.0)
}

fn pass(at: u64, places: &Places, labels: &[u64; 3]) -> Option<(Emitted, [u64; 3])> {
    let [good, without, body] = *labels;
    let word = |index: u64| places.words + index * 8;
    let mut code = Asm::new(at);
    let frame = FRAME as i32;
    code.addi(SP, SP, -16);
    code.sd(T0, 0, SP);
    code.sd(T1, 8, SP);
    code.addi(T0, SP, 16);
    code.load(T1, word(0))?;
    code.sub(T0, T0, T1);
    code.load(T1, word(1))?;
    code.branch(7, T0, T1, without); // bgeu
    // Points of return begin at multiples of eight.
    code.andi(T0, RA, 7);
    code.branch(1, T0, ZERO, good); // bne
    let guarded = code.here();
    code.ld(T0, 0, RA);
    code.load(T1, word(3))?;
    code.branch(0, T0, T1, without); // beq
    let good = code.here();
    code.load(T1, word(2))?;
    code.add(T1, T1, SP);
    code.sd(RA, 8, T1);
    code.ld(T0, 0, SP);
    code.ld(T1, 8, SP);
    code.addi(SP, SP, 16);
    if !(code.here() + 4).is_multiple_of(8) {
        code.addi(ZERO, ZERO, 0);
    }
    code.jal(RA, body)?;
    let back = code.here();
    code.word(MAGIC as u32);
    code.word((MAGIC >> 32) as u32);
    code.addi(SP, SP, -frame);
    code.sd(T0, 40, SP);
    code.load(RA, word(2))?;
    code.add(RA, RA, SP);
    code.ld(RA, frame - 8, RA);
    code.sd(RA, 8, SP);
    code.load(T0, places.head)?;
    code.jal(RA, places.common)?;
    code.ld(RA, 8, SP);
    code.addi(SP, SP, frame);
    code.jalr(ZERO, 0, RA);
    let without = code.here();
    code.load(T0, word(4))?;
    code.addi(T1, ZERO, 1);
    code.amoadd(T1, T0);
    code.ld(T0, 0, SP);
    code.ld(T1, 8, SP);
    code.addi(SP, SP, 16);
    let body = code.here();
    let emitted = Emitted {
        code: code.bytes,
        frames: [back, without],
        guard: (guarded, good),
    };
    Some((emitted, [good, without, body]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_does_nothing_and_points_of_return_are_aligned() {
        let text = hodo_isa::riscv64::text(&MAGIC.to_le_bytes(), 0);
        assert!(text.starts_with("lui zero"), "{text}");
        for at in [0x1000u64, 0x1002, 0x1004, 0x1006] {
            let places = Places {
                head: 0x2000,
                words: 0x2008,
                common: 0x800,
            };
            let start = at.next_multiple_of(4);
            let emitted = emit(start, &places).expect("in reach");
            let [back, without] = emitted.frames;
            assert!(back.is_multiple_of(8) && back < without);
            let offset = (back - start) as usize;
            assert_eq!(emitted.code[offset..offset + 8], MAGIC.to_le_bytes());
            let call = hodo_isa::riscv64::text(&emitted.code[offset - 4..], back - 4);
            let body = start + emitted.code.len() as u64;
            assert_eq!(call, format!("jal ra, {body:#x}"));
        }
    }
}
