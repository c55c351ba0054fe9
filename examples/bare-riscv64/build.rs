//! Compiles the traced C functions, and tells the linker where things are.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    let directory = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let compiler = env::var_os("RISCV64_CC").unwrap_or_else(|| "riscv64-linux-gnu-gcc".into());
    let source = directory.join("src/traced.c");
    let object = out.join("traced.o");
    let mut command = Command::new(&compiler);
    // `-pg` makes each function call `_mcount`. Tracing returns needs a frame pointer.
    command.args([
        "-c",
        "-O1",
        "-g",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-pg",
        "-fno-omit-frame-pointer",
    ]);
    command.args([
        "-ffreestanding",
        "-fno-pie",
        "-mcmodel=medany",
        "-march=rv64gc",
        "-mabi=lp64d",
        // No register points to small data.
        "-msmall-data-limit=0",
        "-fno-stack-protector",
        "-fno-optimize-sibling-calls",
        // Functions have the order of the source.
        "-fno-toplevel-reorder",
    ]);
    let status = command.arg(&source).arg("-o").arg(&object).status();
    match status {
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
    println!(
        "cargo::rustc-link-arg=-T{}",
        directory.join("kernel.ld").display()
    );
    println!("cargo::rerun-if-changed=src/traced.c");
    println!("cargo::rerun-if-changed=kernel.ld");
    println!("cargo::rerun-if-env-changed=RISCV64_CC");
}
