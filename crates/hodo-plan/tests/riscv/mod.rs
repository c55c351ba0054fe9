//! RISC-V files for tests.
#![allow(dead_code, reason = "each test program uses some of it")]

#[path = "../../../hodo-tests/src/skipped.rs"]
mod skipped;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use hodo_plan::{PlanOptions, plan};
use object::{Object, ObjectSymbol};
use skipped::skip;

/// The compiler for RISC-V.
pub const COMPILER: &str = "riscv64-linux-gnu-gcc";

/// Compiles or assembles a program; `None` if there is no compiler.
pub fn compile(name: &str, source: &str, flags: &[&str]) -> Option<PathBuf> {
    compile_with(COMPILER, name, source, flags)
}

/// Like [`compile`], with another compiler.
pub fn compile_with(compiler: &str, name: &str, source: &str, flags: &[&str]) -> Option<PathBuf> {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("riscv64");
    std::fs::create_dir_all(&directory).expect("a directory for programs");
    let file = directory.join(format!("{name}-{}", std::process::id()));
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/programs")
        .join(source);
    let output = Command::new(compiler)
        .stdin(Stdio::null())
        .arg("-O2")
        .args(flags)
        .arg(source)
        .arg("-o")
        .arg(&file)
        .output();
    let output = match output {
        Ok(output) => output,
        Err(error) => {
            skip(&format!(
                "{compiler}: {error}; scripts/cross.sh installs it"
            ));
            return None;
        }
    };
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{flags:?}: {text}");
    Some(file)
}

/// The address of a symbol.
pub fn symbol(bytes: &[u8], name: &str) -> u64 {
    let file = object::File::parse(bytes).expect("an ELF file");
    let symbol = file.symbols().find(|symbol| symbol.name() == Ok(name));
    symbol.unwrap_or_else(|| panic!("no {name}")).address()
}

/// Checks that static programs lose their calls of `_mcount` if it is the C library's, and not if it is their own.
pub fn static_programs_of(compiler: &str) {
    let own = ["-pg", "-static", "-DOWN_MCOUNT=_mcount"];
    for (name, flags, is_libcs) in [("pg", &own[..2], true), ("pg-own", &own, false)] {
        let name = format!("{compiler}-{name}");
        let Some(file) = compile_with(compiler, &name, "functions.c", flags) else {
            return;
        };
        let bytes = std::fs::read(&file).expect("a program");
        let plan = plan(&file, &bytes, &PlanOptions::default()).expect("a plan");
        for wanted in ["leaf", "branches", "loop", "main"] {
            let function = plan.functions.iter().find(|f| f.name == wanted);
            let function = function.unwrap_or_else(|| panic!("no {wanted}"));
            let inside = function.addr..function.addr + function.size;
            let nops = plan.nops.iter().filter(|(addr, _)| inside.contains(addr));
            assert_eq!(nops.count(), usize::from(is_libcs), "{name}: {wanted}");
        }
    }
}

/// Libraries of the cross compiler; none if it is not installed.
pub fn libraries() -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = [
        "libc.so.6",
        "libm.so.6",
        "ld-linux-riscv64-lp64d.so.1",
        "libgcc_s.so.1",
        "libatomic.so.1.2.0",
    ]
    .iter()
    .map(|name| Path::new("/usr/riscv64-linux-gnu/lib").join(name))
    .collect();
    files.retain(|file| file.exists());
    if files.is_empty() {
        skip(&format!(
            "there is no library of {COMPILER}; scripts/cross.sh installs it"
        ));
    }
    files
}
