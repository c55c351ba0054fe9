//! Where harts begin, in supervisor mode and without paging.

use core::arch::naked_asm;

use crate::hart::Hart;

/// The firmware starts one of the harts here, with its number in `a0`.
#[unsafe(naked)]
#[unsafe(no_mangle)]
#[unsafe(link_section = ".text.start")]
unsafe extern "C" fn _start() -> ! {
    naked_asm!(
        "la t0, __bss_start",
        "la t1, __bss_end",
        "1: bgeu t0, t1, 2f",
        "sd zero, 0(t0)",
        "addi t0, t0, 8",
        "j 1b",
        // The first hart has the first stack, after a page that is not mapped.
        "2: la sp, __stacks_start",
        "li t0, 4096 + {stack}",
        "add sp, sp, t0",
        "la tp, {first}",
        "li s0, 0",
        "tail {main}",
        stack = const crate::hart::STACK,
        first = sym crate::hart::HARTS,
        main = sym crate::main_first,
    )
}

/// The other hart begins here, with its [`Hart`] in `a1`.
#[unsafe(naked)]
pub unsafe extern "C" fn start_other() -> ! {
    naked_asm!(
        "mv tp, a1",
        "ld sp, {stack}(a1)",
        "li s0, 0",
        "tail {main}",
        stack = const core::mem::offset_of!(Hart, stack_top),
        main = sym crate::main_other,
    )
}
