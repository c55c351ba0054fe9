//! The code of return probes.

use alloc::vec::Vec;
use hodo_isa::riscv64::asm::ops::Insns as _;

use hodo_isa::riscv64::asm::{Code, If, Reach};
use hodo_isa::riscv64::regs::{RA, SP, T0, T1, ZERO};

use super::common::FRAME;
use crate::environment::Window;

/// The columns of `ra` and `sp` in unwind tables.
pub(crate) const COLUMNS: [u8; 2] = [1, 2];

/// The first eight bytes at the point of return, by which it is recognized: `lui zero, …` twice, which do nothing.
const MAGIC: u64 = 0x4F44_4037_484F_D037;

/// What the code refers to.
pub(super) struct Places {
    /// Address of the pointer to the head of the site's return handlers.
    pub head: u64,
    /// Address of four more words, which [`words`] makes.
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
    /// A load that may fault, because `ra` may be anything, and where execution then continues.
    pub guard: (u64, u64),
}

/// The code between the entry's handlers and the body, which follows directly. It is placed at `at`.
///
/// The shadow of `ra` is as far below the word under the stack pointer as the window says.
pub(super) fn emit(at: u64, places: &Places) -> Option<Emitted> {
    let word = |index: u64| places.words + index * 8;
    let mut bytes = Vec::new();
    let mut code = Code::new(&mut bytes, at);
    let frame = FRAME as i64;
    code.addi(SP, SP, -16);
    code.sd(T0, 0, SP);
    code.sd(T1, 8, SP);
    code.addi(T0, SP, 16);
    code.load_from(T1, word(0)).ok()?;
    code.sub(T0, T0, T1);
    code.load_from(T1, word(1)).ok()?;
    let outside = code.label();
    code.branch(If::NotBelow, T0, T1, outside);
    // Points of return begin at multiples of eight.
    code.andi(T0, RA, 7);
    let unlike = code.label();
    code.branch(If::NotEqual, T0, ZERO, unlike);
    let guarded = code.here();
    code.ld(T0, 0, RA);
    code.load_from(T1, word(3)).ok()?;
    let again = code.label();
    code.branch(If::Equal, T0, T1, again);
    code.bind(unlike);
    let good = code.here();
    code.load_from(T1, word(2)).ok()?;
    code.add(T1, T1, SP);
    code.sd(RA, 8, T1);
    restore(&mut code);
    if !(code.here() + 4).is_multiple_of(8) {
        code.addi(ZERO, ZERO, 0);
    }
    let body = code.label();
    code.jal(RA, body);
    let back = code.here();
    code.raw(&MAGIC.to_le_bytes());
    code.addi(SP, SP, -frame);
    code.sd(T0, 40, SP);
    code.load_from(RA, word(2)).ok()?;
    code.add(RA, RA, SP);
    code.ld(RA, frame - 8, RA);
    code.sd(RA, 8, SP);
    code.load_from(T0, places.head).ok()?;
    code.jump_and_link(places.common, Reach::Jump, ZERO, RA)
        .ok()?;
    code.ld(RA, 8, SP);
    code.addi(SP, SP, frame);
    code.jr(RA);
    code.bind(outside);
    code.bind(again);
    let without = code.here();
    code.load_from(T0, word(4)).ok()?;
    code.addi(T1, ZERO, 1);
    code.amoadd_d(ZERO, T1, T0);
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
    code.ld(T0, 0, SP);
    code.ld(T1, 8, SP);
    code.addi(SP, SP, 16);
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
