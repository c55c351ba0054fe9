//! What `hodo` tells of files for other machines than this one.

use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Two USDT probes as `sys/sdt.h` makes them, one with a semaphore.
const PROBES: &str = r#"
    .text
    .globl work
    .type work, @function
work:
0:  nop
1:  nop
    ret
    .size work, . - work
    .section .note.stapsdt, "", @note
    .macro probe at, semaphore, name, arguments
    .balign 4
    .long 8, 7f - 6f, 3
    .asciz "stapsdt"
6:  .quad \at, base, \semaphore
    .asciz "server"
    .asciz "\name"
    .asciz "\arguments"
7:
    .endm
    probe 0b, 0, begin, "8@a0 -4@-20(s0)"
    probe 1b, asked, done, "4@5"
    .section .stapsdt.base, "aG", @progbits, .stapsdt.base, comdat
base: .space 1
    .data
    .globl asked
asked: .short 0
"#;

fn hodo(arguments: &[&str], file: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hodo"));
    command.args(arguments).arg(file).stdin(Stdio::null());
    command.output().expect("hodo starts")
}

/// A library for RISC-V, if there is a compiler.
fn library(directory: &Path) -> Option<std::path::PathBuf> {
    let (source, file) = (directory.join("probes.s"), directory.join("probes.so"));
    std::fs::write(&source, PROBES).expect("a source");
    let mut gcc = Command::new("riscv64-linux-gnu-gcc");
    gcc.args(["-nostdlib", "-shared", "-o"])
        .arg(&file)
        .arg(&source);
    let output = gcc
        .output()
        .inspect_err(|error| eprintln!("not done: riscv64-linux-gnu-gcc: {error}"))
        .ok()?;
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    Some(file)
}

#[test]
fn probes_of_programmers_are_listed() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let Some(file) = library(directory.path()) else {
        return;
    };
    let output = hodo(&["probe", "--usdt", "--json"], &file);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let text = String::from_utf8_lossy(&output.stdout);
    let listed: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let probes = listed.as_array().unwrap_or_else(|| panic!("{text}"));
    let told = |at: usize, key: &str| probes[at][key].as_str().unwrap_or_default();
    assert_eq!((told(0, "name"), told(1, "name")), ("begin", "done"));
    assert_eq!(told(0, "arguments"), "8@a0 -4@-20(s0)");
    let output = hodo(&["list-events"], &file);
    assert!(output.status.success());
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        text.contains("server:begin") && text.contains("server:done"),
        "{text}"
    );
}
