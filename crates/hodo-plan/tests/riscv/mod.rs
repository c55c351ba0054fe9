//! RISC-V files for tests.
#![allow(dead_code, reason = "each test program uses some of it")]

#[path = "../../../hodo-tests/src/skipped.rs"]
mod skipped;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use object::{Object, ObjectSymbol};
use skipped::skip;

const COMPILER: &str = "riscv64-linux-gnu-gcc";

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
