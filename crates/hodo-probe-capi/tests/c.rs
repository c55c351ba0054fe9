//! A C program that uses the library, linked with each of its two forms.

use std::path::{Path, PathBuf};
use std::process::Command;

fn library(name: &str) -> PathBuf {
    let mut directory = std::env::current_exe().expect("a test has a file");
    while directory.pop() {
        let library = directory.join(name);
        if library.is_file() {
            return library;
        }
    }
    panic!("{name} is not built");
}

/// The compiler for programs of this instruction set.
const COMPILER: &str = if cfg!(target_arch = "riscv64") {
    "riscv64-linux-gnu-gcc"
} else if cfg!(target_arch = "aarch64") {
    "aarch64-linux-gnu-gcc"
} else {
    "gcc"
};

/// The command that runs a program: under the emulator, if this test runs under one.
fn command(program: &Path) -> Command {
    if std::env::var_os("HODO_EMULATED").is_none() {
        return Command::new(program);
    }
    let arch = std::env::consts::ARCH;
    let mut command = Command::new(format!("qemu-{arch}"));
    command
        .args(["-L", &format!("/usr/{arch}-linux-gnu")])
        .arg(program);
    command
}

/// What the program says of a probe on the library's own code.
const OWN: &str = "the code belongs to the engine of probes\n";

fn run(name: &str, more: &[&str], own: usize) {
    let crate_directory = Path::new(env!("CARGO_MANIFEST_DIR"));
    let library = library(name);
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("example-{name}"));
    let compiled = Command::new(COMPILER)
        .args([
            "-O2",
            "-fasynchronous-unwind-tables",
            "-Wall",
            "-Werror",
            "-I",
        ])
        .arg(crate_directory.join("include"))
        .arg("-o")
        .arg(&program)
        .arg(crate_directory.join("tests/example.c"))
        .arg(&library)
        .arg(format!(
            "-Wl,-rpath,{}",
            library.parent().expect("a directory").display()
        ))
        .args(more)
        .status()
        .expect("gcc runs");
    assert!(compiled.success());
    let output = command(&program).output().expect("the program runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{} {text}", output.status);
    let expected = format!("there is no code at this address\n{}", OWN.repeat(own));
    assert_eq!(text, expected);
}

#[test]
fn a_c_program_with_the_shared_library() {
    run("libhodo_probe_c.so", &["-ldl"], 2);
}

#[test]
fn a_c_program_with_the_static_library() {
    run(
        "libhodo_probe_c.a",
        &["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl"],
        1,
    );
}
