//! x86-64: a branch is a nop or a `jmp`. It is two bytes long if the target is near, and five bytes otherwise.
//!
//! # How a branch is changed while threads execute it
//!
//! The opcodes of `jmp` and of `test` with an immediate operand (`al`: two bytes; `eax`: five bytes) are followed by
//! the same number of bytes, and `test` changes only flags, which the branch's `asm!` declares clobbered. So a nop
//! becomes a jump in three steps, none of which can harm a thread, wherever it is:
//!
//! ```text
//! 0f 1f 44 00 00   nop                 66 90   nop
//! a9 1f 44 00 00   test eax, …         a8 90   test al, …      one byte is written
//! a9 <distance>    test eax, …         a8 <d>  test al, …      any of the bytes may be seen before the others
//! e9 <distance>    jmp                 eb <d>  jmp             one byte is written
//! ```
//!
//! After each step every processor executes a serializing instruction, so none combines the opcode of one step with the
//! distance of another. The kernel's `text_poke_bp` takes as many steps for instructions in general, but uses a
//! breakpoint. Here there is none: no signal is needed, none can be blocked, and a debugger notices nothing.

use super::{Branch, Step, step_by_way_of};

/// A branch that is initially a jump, or a nop.
#[doc(hidden)]
#[macro_export]
macro_rules! __branch_asm {
    (jump, $key:path, $offset:expr, $likely:literal, $label:block) => {
        $crate::__branch_with!(["2: jmp {other}"], $key, $offset, $likely, $label)
    };
    // The assembler decides how long the jump would be. Each line emits one byte of one of the two nops, or nothing.
    (nop, $key:path, $offset:expr, $likely:literal, $label:block) => {
        $crate::__branch_with!(
            [
                "2:",
                ".skip ((({other} - 2b - 2) <= 127) & (({other} - 2b - 2) >= -128)) & 1, 0x66",
                ".skip ((({other} - 2b - 2) <= 127) & (({other} - 2b - 2) >= -128)) & 1, 0x90",
                ".skip ((({other} - 2b - 2) > 127) | (({other} - 2b - 2) < -128)) & 1, 0x0f",
                ".skip ((({other} - 2b - 2) > 127) | (({other} - 2b - 2) < -128)) & 1, 0x1f",
                ".skip ((({other} - 2b - 2) > 127) | (({other} - 2b - 2) < -128)) & 1, 0x44",
                ".skip ((({other} - 2b - 2) > 127) | (({other} - 2b - 2) < -128)) & 2, 0x00"
            ],
            $key,
            $offset,
            $likely,
            $label
        )
    };
}

const NOP2: [u8; 2] = [0x66, 0x90];
const NOP5: [u8; 5] = [0x0F, 0x1F, 0x44, 0x00, 0x00];
const JMP8: u8 = 0xEB;
const JMP32: u8 = 0xE9;
const TEST_AL: u8 = 0xA8;
const TEST_EAX: u8 = 0xA9;

/// The number of steps of a change.
pub const STEPS: usize = 3;

/// How many bytes of a branch are rewritten unchanged to find out whether code can be written.
pub const FIRST: usize = 1;

/// The longest branch, in bytes.
pub const LONGEST: usize = 5;

/// Returns whether the bytes may be a branch, also in the middle of a change.
pub fn is_branch(bytes: &[u8; LONGEST]) -> bool {
    match bytes {
        [JMP8 | JMP32 | TEST_AL | TEST_EAX, ..] => true,
        bytes => *bytes == NOP5 || bytes[..2] == NOP2,
    }
}

/// The length in bytes of a branch that begins with this byte.
pub fn length(first: u8) -> usize {
    match first {
        0x66 | JMP8 | TEST_AL => 2,
        _ => 5,
    }
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
    let size = length(bytes[0]);
    let short = size == 2;
    let mut wanted = [0; LONGEST];
    if jump {
        let distance = branch.target.wrapping_sub(branch.code + size) as i32;
        wanted[0] = if short { JMP8 } else { JMP32 };
        wanted[1..size].copy_from_slice(&distance.to_le_bytes()[..size - 1]);
    } else {
        let nop: &[u8] = if short { &NOP2 } else { &NOP5 };
        wanted[..size].copy_from_slice(nop);
    }
    let between = if short { TEST_AL } else { TEST_EAX };
    step_by_way_of((0, between), number, &bytes[..size], wanted)
}
