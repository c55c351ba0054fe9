//! Runs `hodo probe` and reads its output.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::{hodo, temporary};

/// Registers in which a function gets its arguments, as definitions name them.
pub const ARGUMENTS: [&str; 6] = match () {
    () if cfg!(target_arch = "riscv64") => ["%a0", "%a1", "%a2", "%a3", "%a4", "%a5"],
    () if cfg!(target_arch = "aarch64") => ["%x0", "%x1", "%x2", "%x3", "%x4", "%x5"],
    () => ["%di", "%si", "%dx", "%cx", "%r8", "%r9"],
};
/// The low bits of some of them, which have their own names where these exist: 8 bits of the second and third, 32 of
/// the second and fourth, 16 of the fifth.
pub const PARTS: [&str; 5] = match () {
    () if cfg!(target_arch = "riscv64") => ["%a1", "%a2", "%a1", "%a3", "%a4"],
    () if cfg!(target_arch = "aarch64") => ["%x1", "%x2", "%x1", "%x3", "%x4"],
    () => ["%sil", "%dl", "%esi", "%ecx", "%r8w"],
};
/// The return address at a function's first instruction.
pub const RETURN_ADDRESS: &str = match () {
    () if cfg!(target_arch = "riscv64") => "%ra",
    () if cfg!(target_arch = "aarch64") => "%x30",
    () => "+0(%sp)",
};
/// How many bytes a call pushes onto the stack.
pub const PUSHED: u64 = if cfg!(target_arch = "x86_64") { 8 } else { 0 };
/// Compiler options for unwind tables. Compilers for RISC-V make none for C by default.
pub const UNWOUND: &[&str] = &["-fasynchronous-unwind-tables"];
/// The file name of the dynamic linker.
pub const LINKER: &str = match () {
    () if cfg!(target_arch = "riscv64") => "ld-linux-riscv64-lp64d.so.1",
    () if cfg!(target_arch = "aarch64") => "ld-linux-aarch64.so.1",
    () => "ld-linux-x86-64.so.2",
};

/// Runs `hodo probe` with these arguments; it is killed after five minutes, or `HODO_TEST_TIMEOUT` if that is longer.
pub fn probe_words(words: &[&str]) -> Output {
    let limit = std::env::var("HODO_TEST_TIMEOUT").ok();
    let limit = limit.and_then(|limit| limit.parse().ok()).unwrap_or(0);
    Command::new("timeout")
        .args(["-s", "KILL", &*300_u64.max(limit).to_string()])
        .arg(hodo())
        .arg("probe")
        .args(words)
        .env("LC_ALL", "C")
        // Some programs create files.
        .current_dir(temporary())
        .output()
        .expect("hodo can be run")
}

/// Runs a command under `hodo probe`.
pub fn probe(options: &[&str], command: &[&str]) -> Output {
    probe_words(&[options, &["--"], command].concat())
}

/// A program's output as text.
pub fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("text")
}

/// The path of a program, as an argument.
pub fn path(program: &Path) -> &str {
    program.to_str().expect("a path of text")
}

/// The lines of a run with `--format json` after the `own` lines of the program.
pub fn objects(output: &Output, own: usize) -> Vec<Value> {
    let lines = text(&output.stdout).lines().skip(own);
    lines
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}")))
        .collect()
}

/// Runs a command with probes, which must succeed, and returns what [`objects`] does.
pub fn probed(definitions: &[String], command: &[&str], own: usize) -> Vec<Value> {
    let mut options = vec!["--format", "json"];
    for definition in definitions {
        options.extend(["-e", definition]);
    }
    let output = probe(&options, command);
    assert_eq!(output.status.code(), Some(0), "{definitions:?}: {output:?}");
    objects(&output, own)
}
