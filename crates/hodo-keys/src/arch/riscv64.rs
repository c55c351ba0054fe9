//! RISC-V: a branch is a nop or a jump, of two bytes where the target is near and the program has compressed
//! instructions, of four elsewhere.
//!
//! # How a branch is changed while threads execute it
//!
//! By way of an instruction that does nothing that matters whatever its operand is, and has the operand where the jump
//! has its distance. Of four bytes this is `lui x0, …`, a HINT (RISC-V Unprivileged ISA, section 2.9). Of two bytes it
//! depends on bit 6 of the distance, which is where the instructions in between have bit 0 of their register: it is the
//! HINT `c.nop …`, or `c.addi x31, …`, for which the `asm!` does not keep `x31`.
//!
//! ```text
//! 13 00 00 00   nop            01 00   c.nop            01 00   c.nop
//! 37 00 00 00   lui x0, 0      01 00   c.nop            01 0f   c.addi x30, 0    one byte is written
//! 37 .0 .. ..   lui x0, …      .. 00   c.nop …          .. 0f   c.addi x31, …    any of the bytes may be seen before the others
//! 6f .0 .. ..   jal x0, …      .. ..   c.j …            .. ..   c.j …            one byte is written
//! ```
//!
//! After each step every processor executes `fence.i`. So it does not matter that the kernel may write byte by byte
//! (`memcpy` of `arch/riscv/lib/memcpy.S` does, unless all is aligned to four), nor that an instruction of four bytes
//! may be fetched as two halves.
//!
//! # Who decides the size
//!
//! The assembler, in both forms: from distances before the linker relaxes, which only makes them shorter.

use super::{Branch, Step, step_by_way_of};

/// A branch that is a jump at first, or a nop.
#[doc(hidden)]
#[macro_export]
macro_rules! __branch_asm {
    (jump, $key:path, $offset:expr, $likely:literal, $label:block) => {
        $crate::__branch_with!([".option push", ".option norelax", "2: j {other}", ".option pop"], $key, $offset, $likely, $label)
    };
    (nop, $key:path, $offset:expr, $likely:literal, $label:block) => {
        // `.org` as it, unlike other data, does not make disassemblers take this for data. Comparisons yield 0 or -1.
        $crate::__branch_with!([
            "2:",
            ".org 2b + ((({other} - 2b <= 2046) & ({other} - 2b >= -2048) & (.Lhodo_keys_nop_end - .Lhodo_keys_nop < 4)) & 1), 0x01",
            ".org 2b + ((({other} - 2b <= 2046) & ({other} - 2b >= -2048) & (.Lhodo_keys_nop_end - .Lhodo_keys_nop < 4)) & 2), 0",
            ".org 2b + ((({other} - 2b <= 2046) & ({other} - 2b >= -2048) & (.Lhodo_keys_nop_end - .Lhodo_keys_nop < 4)) & 1) + 1, 0x13",
            ".org 2b + (~(({other} - 2b <= 2046) & ({other} - 2b >= -2048) & (.Lhodo_keys_nop_end - .Lhodo_keys_nop < 4)) & 2) + 2, 0"
        ], $key, $offset, $likely, $label)
    };
}

const NOP: [u8; 4] = [0x13, 0, 0, 0];
const LUI: u8 = 0x37;
const JAL: u8 = 0x6F;
const C_NOP: [u8; 2] = [0x01, 0];
/// The second byte of `c.nop …`, whose first byte has bit 7 clear.
const C_HINT: u8 = 0;
/// The second byte of `c.addi x31, …`, whose first byte has bit 7 set, and of `c.addi x30, 0`.
const C_ADDI: u8 = 0x0F;
/// The upper three bits of the second byte.
const C_J: u8 = 0b101;

/// How many steps a change has.
pub const STEPS: usize = 3;

/// How much of a branch is written as it is to see whether code can be written, in bytes.
pub const FIRST: usize = 1;

/// The longest branch, in bytes.
pub const LONGEST: usize = 4;

/// Whether bytes are something that a branch can be, also while it is changed.
pub fn is_branch(bytes: &[u8; LONGEST]) -> bool {
    match *bytes {
        [first, second, ..] if first & 3 == 1 => match second {
            C_HINT => first & 0x80 == 0,
            C_ADDI => first & 0x80 != 0 || first == C_NOP[0],
            _ => second >> 5 == C_J,
        },
        [LUI | JAL, second, ..] => second & 0xF == 0,
        _ => *bytes == NOP,
    }
}

/// How many bytes a branch has that begins with this one.
pub fn length(first: u8) -> usize {
    if first & 3 == 3 { 4 } else { 2 }
}

/// `c.j`, for a distance.
fn short_jump(distance: u32) -> [u8; 2] {
    // CJ-type: bits 11, 4, 9 to 8, 10, 6, 7, 3 to 1, 5.
    let half = u32::from(C_J) << 13
        | (distance >> 11 & 1) << 12
        | (distance >> 4 & 1) << 11
        | (distance >> 8 & 3) << 9
        | (distance >> 10 & 1) << 8
        | (distance >> 6 & 1) << 7
        | (distance >> 7 & 1) << 6
        | (distance >> 1 & 7) << 3
        | (distance >> 5 & 1) << 2
        | 1;
    (half as u16).to_le_bytes()
}

/// `jal x0`, for a distance.
fn long_jump(distance: u32) -> [u8; 4] {
    // J-type: bits 20, 10 to 1, 11, 19 to 12.
    let word = u32::from(JAL)
        | (distance >> 20 & 1) << 31
        | (distance >> 1 & 0x3FF) << 21
        | (distance >> 11 & 1) << 20
        | (distance >> 12 & 0xFF) << 12;
    word.to_le_bytes()
}

/// What is to be written at a branch in one of the steps to a jump or to a nop; none if nothing is. What is there must
/// be one of the forms.
pub fn step(
    number: usize,
    branch: &Branch,
    bytes: &[u8; LONGEST],
    jump: bool,
    _: bool,
) -> Option<Step> {
    let distance = branch.target.wrapping_sub(branch.code) as u32;
    if length(bytes[0]) == 4 {
        let wanted = if jump { long_jump(distance) } else { NOP };
        return step_by_way_of((0, LUI), number, bytes, wanted);
    }
    let short = short_jump(distance);
    // The same for all changes of a branch, so what one of them has left behind does not matter.
    let between = if short[0] & 0x80 == 0 { C_HINT } else { C_ADDI };
    let mut wanted = [0; LONGEST];
    wanted[..2].copy_from_slice(if jump { &short } else { &C_NOP });
    step_by_way_of((1, between), number, &bytes[..2], wanted)
}
