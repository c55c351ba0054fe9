//! A program says which parts of its run `hodo mem TOOL --marked` observes.
//!
//! ```
//! use hodo_mem_marks::{hodo_mem_start, hodo_mem_stop};
//!
//! # fn work() {}
//! hodo_mem_start();
//! work();
//! hodo_mem_stop();
//! ```
//!
//! Each function is a `nop` and a return. The file lists the `nop` as a USDT probe (`hodo_mem:start`, `hodo_mem:stop`),
//! so hodo finds it also in a program without symbols, and other tools do, too. Outside of Linux, and on machines of
//! 32 bits, the functions are empty.
//!
//! Programs in C and C++ include `hodo-mem.h`. Parts may be begun in one language and ended in the other.
#![no_std]

/// A `nop` that the file lists as a probe. The section of the note is kept or dropped together with the function
/// (`SHF_LINK_ORDER`).
macro_rules! marker {
    ($name:literal) => {
        #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
        // SAFETY: the instruction does nothing; the rest is data in its own sections. It may have an effect on memory
        // as far as the compiler knows, so no access is moved over it.
        unsafe {
            core::arch::asm!(
                "2:",
                "nop",
                concat!(".set .Lhodo_mem_", $name, ", 2b"),
                concat!(".pushsection .note.stapsdt,\"o\",@note,.Lhodo_mem_", $name),
                ".balign 4",
                ".4byte 8, 4f - 3f, 3",
                ".asciz \"stapsdt\"",
                "3:",
                ".8byte 2b",
                ".8byte _.stapsdt.base",
                ".8byte 0",
                ".asciz \"hodo_mem\"",
                concat!(".asciz \"", $name, "\""),
                ".asciz \"\"",
                "4:",
                ".balign 4",
                ".popsection",
                ".ifndef _.stapsdt.base",
                ".pushsection .stapsdt.base,\"aG\",@progbits,.stapsdt.base,comdat",
                ".weak _.stapsdt.base",
                ".hidden _.stapsdt.base",
                "_.stapsdt.base: .space 1",
                ".size _.stapsdt.base, 1",
                ".popsection",
                ".endif",
                options(nostack, preserves_flags),
            );
        }
    };
}

/// From here on, `hodo mem TOOL --marked` observes the process: all of its threads, and the children that it makes.
///
/// Starts are counted: as many calls of [`hodo_mem_stop`] end the part.
#[inline(never)]
pub extern "C" fn hodo_mem_start() {
    marker!("start");
}

/// Ends what [`hodo_mem_start`] has begun. If nothing was begun, this is nothing.
#[inline(never)]
pub extern "C" fn hodo_mem_stop() {
    marker!("stop");
}

#[cfg(test)]
mod tests {
    use super::{hodo_mem_start, hodo_mem_stop};

    #[test]
    fn they_do_nothing() {
        hodo_mem_stop();
        hodo_mem_start();
        hodo_mem_start();
        hodo_mem_stop();
    }
}
