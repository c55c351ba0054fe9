//! Compiles the traced C functions, and tells the linker where things are.

use std::env;
use std::path::PathBuf;
use std::process::Command;

/// The C files, each with its options.
const FILES: [(&str, &[&str]); 3] = [
    // Each function calls `_mcount`. Tracing returns needs a frame pointer.
    ("traced", &["-pg", "-fno-omit-frame-pointer"]),
    // Each function begins with eight bytes of instructions that do nothing.
    ("patched", &["-fpatchable-function-entry=4"]),
    ("livepatched", &["-fpatchable-function-entry=4"]),
];

const OPTIONS: [&str; 14] = [
    "-c",
    "-O1",
    "-g",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-ffreestanding",
    "-fno-pie",
    "-mcmodel=medany",
    "-march=rv64gc",
    "-mabi=lp64d",
    // No register points to small data.
    "-msmall-data-limit=0",
    "-fno-stack-protector",
    // Functions have the order of the source.
    "-fno-toplevel-reorder",
];

fn main() {
    let directory = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let compiler = env::var_os("RISCV64_CC").unwrap_or_else(|| "riscv64-linux-gnu-gcc".into());
    for (name, options) in FILES {
        let source = directory.join(format!("src/{name}.c"));
        let object = out.join(format!("{name}.o"));
        let mut command = Command::new(&compiler);
        command.args(OPTIONS).arg("-fno-optimize-sibling-calls");
        command.args(options).arg(&source).arg("-o").arg(&object);
        match command.status() {
            Ok(status) if status.success() => {}
            Ok(status) => panic!(
                "{} cannot compile {}: {status}",
                compiler.display(),
                source.display()
            ),
            Err(error) => panic!(
                "{} cannot be started: {error}. Install gcc-riscv64-linux-gnu, or name another compiler in RISCV64_CC",
                compiler.display()
            ),
        }
        println!("cargo::rustc-link-arg={}", object.display());
        println!("cargo::rerun-if-changed=src/{name}.c");
    }
    let script = directory.join("kernel.ld");
    println!("cargo::rustc-link-arg=-T{}", script.display());
    println!("cargo::rerun-if-changed=kernel.ld");
    println!("cargo::rerun-if-env-changed=RISCV64_CC");
}
