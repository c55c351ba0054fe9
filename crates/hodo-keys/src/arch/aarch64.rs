//! AArch64: a branch is a `nop` or a `b`, of four bytes.
//!
//! These two may be exchanged while other processors execute them (Arm Architecture Reference Manual, section B2.3.4, "Concurrent
//! modification and execution of instructions"): each executes the old or the new one. Both are one aligned word, which is
//! written by one store.

use super::{Branch, Step};

/// What one branch puts into the program. `$jump` is the instruction, or the nop.
#[doc(hidden)]
#[macro_export]
macro_rules! __branch_asm {
    (jump, $key:path, $offset:expr, $likely:literal, $label:block) => {
        $crate::__branch_asm!(@ ["2: b {other}"], $key, $offset, $likely, $label)
    };
    (nop, $key:path, $offset:expr, $likely:literal, $label:block) => {
        $crate::__branch_asm!(@ ["2: nop"], $key, $offset, $likely, $label)
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
                ".xword {key}",
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
                ".xword __start_hodo_keys - .",
                ".xword __stop_hodo_keys - .",
                ".xword 0, 0",
                ".popsection",
                ".pushsection .text.hodo_keys_module,\"axG\",@progbits,hodo_keys_module,comdat",
                ".set .Lhodo_keys_load, .",
                "hint 34", // bti c
                "adrp x0, .Lhodo_keys_module",
                "add x0, x0, :lo12:.Lhodo_keys_module",
                "b {load}",
                ".set .Lhodo_keys_unload, .",
                "hint 34", // bti c
                "adrp x0, .Lhodo_keys_module",
                "add x0, x0, :lo12:.Lhodo_keys_module",
                "b {unload}",
                ".popsection",
                // The first of constructors and the last of destructors, for others may have branches in them.
                ".pushsection .init_array.00100,\"awG\",@init_array,hodo_keys_module,comdat",
                ".balign 8",
                ".xword .Lhodo_keys_load",
                ".popsection",
                ".pushsection .fini_array.00100,\"awG\",@fini_array,hodo_keys_module,comdat",
                ".balign 8",
                ".xword .Lhodo_keys_unload",
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

const NOP: [u8; 4] = 0xD503_201F_u32.to_le_bytes();
const B: u32 = 0b000101 << 26;

/// How many steps a change has.
pub const STEPS: usize = 1;

/// How much of a branch is written as it is to see whether code can be written, in bytes.
pub const FIRST: usize = 4;

/// The longest branch, in bytes.
pub const LONGEST: usize = 4;

/// Whether bytes are something that a branch can be, also while it is changed.
pub fn is_branch(bytes: &[u8; LONGEST]) -> bool {
    *bytes == NOP || u32::from_le_bytes(*bytes) >> 26 == B >> 26
}

/// How many bytes a branch has.
pub fn length(_: u8) -> usize {
    4
}

/// What is to be written at a branch to make it a jump or a nop; none if it is. What is there must be one of the forms.
pub fn step(_: usize, branch: &Branch, bytes: &[u8; LONGEST], jump: bool) -> Option<Step> {
    let distance = branch.target.wrapping_sub(branch.code) as u32;
    let jump = jump.then(|| (B | distance >> 2 & 0x3FF_FFFF).to_le_bytes());
    let wanted = jump.unwrap_or(NOP);
    (*bytes != wanted).then_some(Step {
        bytes: wanted,
        range: 0..LONGEST,
    })
}
