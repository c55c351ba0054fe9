//! Compiles the traced C functions, and tells the linker where things are.

#[path = "../bare/compile.rs"]
mod compile;

use compile::{Compiler, compile};

const COMPILER: Compiler = Compiler {
    variable: "AARCH64_CC",
    name: "aarch64-linux-gnu-gcc",
    package: "gcc-aarch64-linux-gnu",
    // No functions of a library for atomic operations.
    options: &["-march=armv8-a", "-mno-outline-atomics"],
};

/// Functions begin with an instruction that calls may lead to, and sign their return addresses. `kernel.ld` puts them
/// in guarded pages.
const PROTECTED: &str = "-mbranch-protection=standard";

fn main() {
    compile(
        &COMPILER,
        &[
            // Each function calls `_mcount`. Tracing returns needs a frame pointer.
            ("traced", &["-pg", "-fno-omit-frame-pointer"]),
            // Each function begins with eight bytes of instructions that do nothing.
            ("patched", &["-fpatchable-function-entry=2", PROTECTED]),
            ("livepatched", &["-fpatchable-function-entry=2", PROTECTED]),
            ("calls", &[]),
            ("../bare-aarch64/guarded", &[PROTECTED]),
        ],
    );
}
