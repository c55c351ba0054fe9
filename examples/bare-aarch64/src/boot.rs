//! Where processors begin, at EL1 and without paging.

use core::arch::naked_asm;

use crate::hart::Hart;

/// Lets floating-point and vector registers be used at EL1 (`FPEN` of `CPACR_EL1`): C functions do. SVE stays off.
const VECTORS: usize = 3 << 20;

/// qemu starts the first processor here.
#[unsafe(naked)]
#[unsafe(no_mangle)]
#[unsafe(link_section = ".text.start")]
unsafe extern "C" fn _start() -> ! {
    naked_asm!(
        "mov x0, {vectors}",
        "msr cpacr_el1, x0",
        "isb",
        "adrp x0, __bss_start",
        "add x0, x0, :lo12:__bss_start",
        "adrp x1, __bss_end",
        "add x1, x1, :lo12:__bss_end",
        "1: cmp x0, x1",
        "b.hs 2f",
        "str xzr, [x0], #8",
        "b 1b",
        // The first processor has the first stack, after a page that is not mapped.
        "2: adrp x0, __stacks_start",
        "add x0, x0, :lo12:__stacks_start",
        "mov x1, {stack}",
        "add x0, x0, x1",
        "add sp, x0, 4096",
        "adrp x0, {first}",
        "add x0, x0, :lo12:{first}",
        "msr tpidr_el0, x0",
        "mov x29, xzr",
        "mov x30, xzr",
        "b {main}",
        vectors = const VECTORS,
        stack = const crate::hart::STACK,
        first = sym crate::hart::HARTS,
        main = sym crate::main_first,
    )
}

/// The other processor begins here, with its [`Hart`] in `x0`.
#[unsafe(naked)]
pub unsafe extern "C" fn start_other() -> ! {
    naked_asm!(
        "mov x1, {vectors}",
        "msr cpacr_el1, x1",
        "isb",
        "msr tpidr_el0, x0",
        "ldr x1, [x0, {stack}]",
        "mov sp, x1",
        "mov x29, xzr",
        "mov x30, xzr",
        "b {main}",
        vectors = const VECTORS,
        stack = const core::mem::offset_of!(Hart, stack_top),
        main = sym crate::main_other,
    )
}
