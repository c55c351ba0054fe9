//! RISC-V: a branch is a nop or a jump. It is two bytes long if the target is near and the program has compressed
//! instructions, and four bytes otherwise.
//!
//! # How a branch is changed while threads execute it
//!
//! A change goes by way of an instruction that has no effect whatever its operand is, and has the operand where the
//! jump has its distance. With four bytes this is `lui x0, …`, a HINT (RISC-V Unprivileged ISA, section 2.9). With two
//! bytes it depends on bit 6 of the distance, which is where the intermediate instructions have bit 0 of their
//! register: it is the HINT `c.nop …`, or `c.addi x31, …`; the `asm!` declares `x31` clobbered.
//!
//! ```text
//! 13 00 00 00   nop            01 00   c.nop            01 00   c.nop
//! 37 00 00 00   lui x0, 0      01 00   c.nop            01 0f   c.addi x30, 0    one byte is written
//! 37 .0 .. ..   lui x0, …      .. 00   c.nop …          .. 0f   c.addi x31, …    any of the bytes may be seen before the others
//! 6f .0 .. ..   jal x0, …      .. ..   c.j …            .. ..   c.j …            one byte is written
//! ```
//!
//! After each step every processor executes `fence.i`. So it does not matter that the kernel may write byte by byte
//! (`memcpy` in `arch/riscv/lib/memcpy.S` does, unless everything is aligned to four), or that a four-byte instruction
//! may be fetched as two halves.
//!
//! # Who decides the size
//!
//! The assembler does, for both forms: from distances before the linker's relaxation, which only makes them shorter.

use super::{Branch, Step, step_by_way_of};

/// A branch that is initially a jump, or a nop.
#[doc(hidden)]
#[macro_export]
macro_rules! __branch_asm {
    (jump, $key:path, $offset:expr, $likely:literal, $label:block) => {
        $crate::__branch_with!([".option push", ".option norelax", "2: j {other}", ".option pop"], $key, $offset, $likely, $label)
    };
    (nop, $key:path, $offset:expr, $likely:literal, $label:block) => {
        // `.org` is used because, unlike other data, it does not make disassemblers take this for data. Comparisons
        // yield 0 or -1.
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

/// The number of steps of a change.
pub const STEPS: usize = 3;

/// How many bytes of a branch are rewritten unchanged to find out whether code can be written.
pub const FIRST: usize = 1;

/// The longest branch, in bytes.
pub const LONGEST: usize = 4;

/// Returns whether the bytes may be a branch, also in the middle of a change.
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

/// The length in bytes of a branch that begins with this byte.
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

/// What must be written at a branch in one of the steps to a jump or to a nop; `None` if nothing. The bytes there must
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
    // It is the same for all changes of a branch, so whatever an earlier change left there does not matter.
    let between = if short[0] & 0x80 == 0 { C_HINT } else { C_ADDI };
    let mut wanted = [0; LONGEST];
    wanted[..2].copy_from_slice(if jump { &short } else { &C_NOP });
    step_by_way_of((1, between), number, &bytes[..2], wanted)
}
