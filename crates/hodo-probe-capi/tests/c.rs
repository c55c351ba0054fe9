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

fn run(name: &str, more: &[&str]) {
    let crate_directory = Path::new(env!("CARGO_MANIFEST_DIR"));
    let library = library(name);
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("example-{name}"));
    let compiled = Command::new("gcc")
        .args(["-O2", "-Wall", "-Werror", "-I"])
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
    let output = Command::new(&program).output().expect("the program runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{} {text}", output.status);
    assert_eq!(text, "there is no code at this address\n");
}

#[test]
fn a_c_program_with_the_shared_library() {
    run("libhodo_probe_c.so", &[]);
}

#[test]
fn a_c_program_with_the_static_library() {
    run(
        "libhodo_probe_c.a",
        &["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl"],
    );
}
