//! Compiles the traced C functions, and tells the linker where things are.

#[path = "../bare/compile.rs"]
mod compile;

use compile::{Compiler, compile};

const COMPILER: Compiler = Compiler {
    variable: "X86_64_CC",
    name: "x86_64-linux-gnu-gcc",
    package: "gcc (on x86-64) or gcc-x86-64-linux-gnu",
    options: &[
        // Interrupts use the memory below the stack pointer.
        "-mno-red-zone",
        // The kernel is in the last two GiB of addresses.
        "-mcmodel=kernel",
        // Some distributions' compilers begin functions with `endbr64` by default.
        "-fcf-protection=none",
    ],
};

fn main() {
    compile(
        &COMPILER,
        &[
            // Each function calls `mcount`, which finds the caller by the frame pointer.
            ("traced", &["-pg", "-fno-omit-frame-pointer"]),
            // Each function begins with five bytes of instructions that do nothing.
            ("patched", &["-fpatchable-function-entry=5"]),
            ("livepatched", &["-fpatchable-function-entry=5"]),
            ("calls", &[]),
        ],
    );
}
