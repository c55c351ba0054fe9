//! The code of the library.

use std::process::Command;

use crate::build::libraries;
use crate::skipped::skip;

/// What runs before vector registers are saved: modules of `hodo-ftrace`, what finds the thread's data, and the hooks
/// that record calls.
const BEFORE: [&str; 15] = [
    "hodo_ftrace5entry",
    "hodo_ftrace5graph",
    "hodo_ftrace6shadow",
    "hodo_ftrace6thread",
    "hodo_ftrace11environment",
    "__hodo_ftrace_thread",
    "hodo_ftrace7dynamic4call",
    "hodo_ftrace7dynamic7modules7site_at",
    "hodo_ftrace7dynamic8tracers6tracer",
    "hodo_ftrace9livepatch8redirect",
    "hodo_ftrace9livepatch5Patch7is_used",
    "hodo_ftrace6record6thread5enter",
    "hodo_ftrace6record6thread5leave",
    "hodo_ftrace6record6thread6append",
    "hodo_ftrace6record6thread3put",
];

/// Returns whether an operand of an AArch64 instruction is a floating-point or vector register.
fn names_a_vector(instruction: &str) -> bool {
    let operands = instruction.split_once('\t').map_or("", |(_, rest)| rest);
    let operands = operands.split("//").next().unwrap_or("");
    operands
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .any(|word| {
            let number = word.strip_prefix(['v', 'q', 'd', 's', 'h', 'b']);
            number.is_some_and(|number| {
                !number.is_empty() && number.bytes().all(|c| c.is_ascii_digit())
            })
        })
}

#[test]
fn code_that_runs_before_vector_registers_are_saved_uses_none() {
    let objdump = if cfg!(target_arch = "riscv64") {
        "riscv64-linux-gnu-objdump"
    } else if cfg!(target_arch = "aarch64") {
        "aarch64-linux-gnu-objdump"
    } else {
        "objdump"
    };
    for profile in ["debug", "checked-release"] {
        let library = libraries(profile).join("libhodo_ftrace.so");
        let Ok(output) = Command::new(objdump)
            .args(["-d", "--no-show-raw-insn"])
            .arg(&library)
            .output()
        else {
            return skip(&format!("{objdump} is not installed"));
        };
        let text = String::from_utf8_lossy(&output.stdout);
        let mut function = "";
        let mut instructions = 0;
        for line in text.lines() {
            if let Some(name) = line
                .strip_suffix(">:")
                .and_then(|line| line.split('<').nth(1))
            {
                function = name;
                continue;
            }
            if !BEFORE.iter().any(|part| function.contains(part)) {
                continue;
            }
            let Some((_, instruction)) = line.split_once('\t') else {
                continue;
            };
            instructions += 1;
            let vectors = ["%xmm", "%ymm", "%zmm", "%st", "memcpy", "memset"];
            let wrong = vectors.iter().any(|part| instruction.contains(part))
                // RISC-V: floating-point registers in operands.
                || instruction.contains(",fa") || instruction.contains("\tfa") || instruction.contains("\tft")
                // AArch64: whole names of such registers, as in `{v0.16b}`.
                || (cfg!(target_arch = "aarch64") && names_a_vector(instruction));
            assert!(!wrong, "{profile}, {function}: {instruction}");
        }
        assert!(
            instructions > 100,
            "{profile}: only {instructions} instructions were found"
        );
    }
}
