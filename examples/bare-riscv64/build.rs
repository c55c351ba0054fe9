//! Compiles the traced C functions, and tells the linker where things are.

#[path = "../bare/compile.rs"]
mod compile;

use compile::{Compiler, compile};

const COMPILER: Compiler = Compiler {
    variable: "RISCV64_CC",
    name: "riscv64-linux-gnu-gcc",
    package: "gcc-riscv64-linux-gnu",
    options: &[
        "-mcmodel=medany",
        "-march=rv64gc",
        "-mabi=lp64d",
        // No register points to small data.
        "-msmall-data-limit=0",
    ],
};

fn main() {
    compile(
        &COMPILER,
        &[
            // Each function calls `_mcount`. Tracing returns needs a frame pointer.
            ("traced", &["-pg", "-fno-omit-frame-pointer"]),
            // Each function begins with eight bytes of instructions that do nothing.
            ("patched", &["-fpatchable-function-entry=4"]),
            ("livepatched", &["-fpatchable-function-entry=4"]),
            ("calls", &[]),
        ],
    );
}
