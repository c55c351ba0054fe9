//! RISC-V: a branch is a nop or a `jal`, of four bytes.
//!
//! # How a branch is changed while threads execute it
//!
//! By way of `lui x0, …`, a HINT that does nothing whatever its operand is (RISC-V Unprivileged ISA, section 2.9), and has the
//! operand where `jal x0, …` has its distance. `nop`, which is `addi x0, x0, 0`, differs from `lui x0, 0` in the first byte, and so does
//! `jal x0` from `lui x0`, so each step may be seen by threads byte by byte, in any order, at any address:
//!
//! ```text
//! 13 00 00 00    nop
//! 37 00 00 00    lui x0, 0           one byte is written
//! 37 .0 .. ..    lui x0, …           any of the bytes may be seen before the others
//! 6f .0 .. ..    jal x0, …           one byte is written
//! ```
//!
//! After each step every processor executes `fence.i`.

use super::{Branch, Step, step_by_way_of};

/// What one branch puts into the program. `$jump` is the instruction, or the nop.
#[doc(hidden)]
#[macro_export]
macro_rules! __branch_asm {
    (jump, $key:path, $offset:expr, $likely:literal, $label:block) => {
        $crate::__branch_asm!(@ [".option push", ".option norvc", ".option norelax", "2: jal x0, {other}", ".option pop"], $key, $offset, $likely, $label)
    };
    (nop, $key:path, $offset:expr, $likely:literal, $label:block) => {
        $crate::__branch_asm!(@ [".option push", ".option norvc", ".option norelax", "2: nop", ".option pop"], $key, $offset, $likely, $label)
    };
    (@ [$($instruction:literal),*], $key:path, $offset:expr, $likely:literal, $label:block) => {
        // SAFETY: the instruction does nothing, or goes to the block; the rest is data in sections of its own.
        unsafe {
            ::core::arch::asm!(
                $($instruction,)*
                // The entry lives and dies with the code that it is about (SHF_LINK_ORDER), for which the section wants a
                // symbol: `\@` makes one that is used once.
                ".macro hodo_keys_entry",
                ".set .Lhodo_keys_branch\\@, 2b",
                ".pushsection hodo_keys,\"awo\",@progbits,.Lhodo_keys_branch\\@",
                ".balign 4",
                ".word 2b - .",
                ".word {other} - .",
                ".word .Lhodo_keys_slot_{key} - .",
                ".word {offset} + {likely}",
                ".popsection",
                ".endm",
                "hodo_keys_entry",
                ".purgem hodo_keys_entry",
                // The slot with the key's address, once for each key, which the key's own name is good for.
                ".ifndef .Lhodo_keys_slot_{key}",
                ".pushsection .data.rel.ro.hodo_keys.{key},\"aw\",@progbits",
                ".balign 8",
                ".Lhodo_keys_slot_{key}:",
                ".dword {key}",
                ".popsection",
                ".endif",
                // Once in each executable and library: the module tells of itself when it is loaded and unloaded.
                ".ifndef .Lhodo_keys_told",
                ".set .Lhodo_keys_told, 1",
                ".weak __start_hodo_keys",
                ".hidden __start_hodo_keys",
                ".weak __stop_hodo_keys",
                ".hidden __stop_hodo_keys",
                ".pushsection .data.hodo_keys_module,\"awG\",@progbits,hodo_keys_module,comdat",
                ".balign 8",
                ".set .Lhodo_keys_module, .",
                ".dword __start_hodo_keys - .",
                ".dword __stop_hodo_keys - .",
                ".dword 0, 0",
                ".popsection",
                ".pushsection .text.hodo_keys_module,\"axG\",@progbits,hodo_keys_module,comdat",
                ".set .Lhodo_keys_load, .",
                "lla a0, .Lhodo_keys_module",
                "tail {load}",
                ".set .Lhodo_keys_unload, .",
                "lla a0, .Lhodo_keys_module",
                "tail {unload}",
                ".popsection",
                // The first of constructors and the last of destructors, for others may have branches in them.
                ".pushsection .init_array.00100,\"awG\",@init_array,hodo_keys_module,comdat",
                ".balign 8",
                ".dword .Lhodo_keys_load",
                ".popsection",
                ".pushsection .fini_array.00100,\"awG\",@fini_array,hodo_keys_module,comdat",
                ".balign 8",
                ".dword .Lhodo_keys_unload",
                ".popsection",
                ".endif",
                key = sym $key,
                offset = const $offset,
                likely = const $likely as u32,
                load = sym $crate::__private::load,
                unload = sym $crate::__private::unload,
                other = label $label,
                options(nomem, nostack),
            )
        }
    };
}

const NOP: [u8; 4] = [0x13, 0, 0, 0];
const LUI: u8 = 0x37;
const JAL: u8 = 0x6F;

/// How many steps a change has.
pub const STEPS: usize = 3;

/// How much of a branch is written as it is to see whether code can be written, in bytes.
pub const FIRST: usize = 1;

/// The longest branch, in bytes.
pub const LONGEST: usize = 4;

/// Whether bytes are something that a branch can be, also while it is changed.
pub fn is_branch(bytes: &[u8; LONGEST]) -> bool {
    *bytes == NOP || matches!(bytes, [LUI | JAL, second, ..] if second & 0xF == 0)
}

/// How many bytes a branch has.
pub fn length(_: u8) -> usize {
    4
}

/// What is to be written at a branch in one of the steps to a jump or to a nop; none if nothing is. What is there must be one of
/// the forms.
pub fn step(number: usize, branch: &Branch, bytes: &[u8; LONGEST], jump: bool) -> Option<Step> {
    let wanted = if jump {
        let distance = branch.target.wrapping_sub(branch.code) as u32;
        // J-type: bits 20, 10 to 1, 11, 19 to 12.
        let word = u32::from(JAL)
            | (distance >> 20 & 1) << 31
            | (distance >> 1 & 0x3FF) << 21
            | (distance >> 11 & 1) << 20
            | (distance >> 12 & 0xFF) << 12;
        word.to_le_bytes()
    } else {
        NOP
    };
    step_by_way_of((0, LUI), number, bytes, wanted)
}
