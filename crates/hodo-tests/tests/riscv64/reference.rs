//! Counts of a probe on every instruction of RISC-V programs, compared with qemu's user mode emulator, which reports
//! each instruction that it executes.
//!
//! `HODO_RISCV64` is the path of a `hodo` for RISC-V, which runs in a real Linux (`scripts/linux.sh riscv64`); it is
//! empty if `scripts/cross.sh` runs this in addition.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use hodo_tests::{has_tool, skip};
use serde_json::Value;

const COMPILER: &str = "riscv64-linux-gnu-gcc";
const EMULATOR: &str = "qemu-riscv64";
/// Where the compiler's libraries are.
const ROOT: &str = "/usr/riscv64-linux-gnu";
/// The end of the programs, which are not position-independent; libraries are far above.
const END: u64 = 0x100_0000;

fn tree() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn run(command: &mut Command) -> Output {
    let output = command.output().expect("a program that can be run");
    assert!(output.status.success(), "{command:?}: {output:?}");
    output
}

/// A program in the source tree, which the RISC-V machine can see.
fn build(name: &str, flags: &[&str]) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("riscv64-reference");
    std::fs::create_dir_all(&directory).expect("a directory for tests");
    let program = directory.join(format!("{name}{}", flags.concat()));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("programs/{name}.c"));
    run(Command::new(COMPILER)
        .args(["-no-pie", "-g", "-pthread"])
        .args(flags)
        .arg(source)
        .arg("-o")
        .arg(&program));
    program
}

/// How often each address of the program was executed, and its output.
fn emulated(program: &Path) -> (BTreeMap<u64, u64>, Vec<u8>) {
    let help = Command::new(EMULATOR).arg("--help").output().expect("qemu");
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    // Newer versions use this name for the same option.
    let single = match help.contains("-one-insn-per-tb") {
        true => "-one-insn-per-tb",
        false => "-singlestep",
    };
    let log = program.with_extension("log");
    let output = run(Command::new(EMULATOR)
        .args(["-L", ROOT, single, "-d", "exec,nochain", "-D"])
        .arg(&log)
        .arg(program));
    let mut counts = BTreeMap::new();
    let text = std::fs::read(&log).expect("qemu's log");
    for line in text.split(|byte| *byte == b'\n') {
        // Trace NUMBER: HOST [BASE/PC/FLAGS/…]
        let mut fields = line.split(|byte| *byte == b'/');
        let pc = fields.nth(1).and_then(|pc| str::from_utf8(pc).ok());
        let pc = pc.and_then(|pc| u64::from_str_radix(pc, 16).ok());
        if let Some(pc) = pc.filter(|pc| *pc < END) {
            *counts.entry(pc).or_default() += 1;
        }
    }
    let _ = std::fs::remove_file(log);
    (counts, output.stdout)
}

/// The counts of `hodo probe`, by address.
fn counted(hodo: &OsString, program: &Path) -> BTreeMap<u64, u64> {
    let every = format!("{}:*+* count", program.display());
    let output = run(Command::new(tree().join("scripts/linux.sh"))
        .args(["riscv64", "run"])
        .arg(hodo)
        .args([
            "probe",
            "--format",
            "json",
            "-e",
            &every,
            "-d",
            "/tmp/reference",
            "--",
        ])
        .arg(program));
    let text = String::from_utf8(output.stdout).expect("text");
    let counts = text.lines().filter_map(|line| {
        let count: Value = serde_json::from_str(line).ok()?;
        Some((count["addr"].as_u64()?, count["hits"].as_u64()?))
    });
    counts.collect()
}

#[test]
fn counts_agree_with_an_emulator() {
    let Some(hodo) = std::env::var_os("HODO_RISCV64") else {
        return skip(
            "HODO_RISCV64 does not name a hodo for RISC-V: scripts/cross.sh machine runs this",
        );
    };
    if hodo.is_empty() {
        return;
    }
    if let Some(missing) = [COMPILER, EMULATOR]
        .into_iter()
        .find(|tool| !has_tool(tool))
    {
        return skip(&format!("{missing} is not installed"));
    }
    for (name, flags) in [
        ("calls", "-O2"),
        ("jumps", "-O0"),
        ("jumps", "-O2"),
        ("tail_calls", "-O2"),
    ] {
        let program = build(name, &[flags]);
        let (reference, _) = emulated(&program);
        let counts = counted(&hodo, &program);
        assert!(counts.len() > 90, "{name}: {} probes", counts.len());
        let hit = counts.values().filter(|hits| **hits > 0).count();
        assert!(hit > 50, "{name}: {hit} instructions with hits");
        for (addr, hits) in counts {
            let expected = reference.get(&addr).copied().unwrap_or(0);
            assert_eq!(hits, expected, "{name} {flags} at {addr:#x}");
        }
    }
}
