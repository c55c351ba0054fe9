//! A program in Rust and C.

use std::process::Command;

use crate::build::{Compiled, Form, Isa, checked, home, libraries, place};

/// Builds it with one copy of the library, which has the functions for C, or with Rust's copy and the shared library.
fn mixed(copies: &str) {
    let (isa, directory) = (Isa::X86, place().join(format!("mixed-{copies}")));
    let object = Compiled {
        isa,
        with: "gcc",
        files: &["mixed.c"],
        flags: "-O2 -c",
        form: Form::None,
    };
    let object = object.build(&format!("mixed-{copies}.o"));
    let object = object.expect("gcc is there");
    let mut library = Command::new(env!("CARGO"));
    library
        .args(["build", "--quiet", "--release", "--package", "hodo-keys"])
        .arg("--target-dir")
        .arg(&directory)
        .current_dir(home())
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("CARGO_BUILD_TARGET");
    if copies == "1" {
        library.args(["--features", "c"]);
    }
    checked(&mut library);
    let built = directory.join("release");
    let program = directory.join("mixed");
    let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    rustc
        .args(["--edition", "2024", "-O", "--extern"])
        .arg(format!("hodo_keys={}/libhodo_keys.rlib", built.display()))
        .arg("-L")
        .arg(format!("dependency={}/deps", built.display()))
        .arg(format!("-Clink-arg={}", object.display()))
        .arg("-o")
        .arg(&program)
        .arg(home().join("tests/programs/mixed.rs"));
    if copies == "2" {
        let shared = libraries(isa);
        rustc
            .arg(format!("-Clink-arg={}/libhodo_keys.so", shared.display()))
            .arg(format!("-Clink-arg=-Wl,-rpath,{}", shared.display()));
    }
    checked(&mut rustc);
    let output = checked(isa.command(&program).arg(copies));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "ok\n");
}

#[test]
fn rust_and_c_share_a_copy() {
    mixed("1");
}

#[test]
fn rust_and_c_have_their_own_copies_in_one_program() {
    mixed("2");
}
