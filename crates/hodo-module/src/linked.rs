//! The libraries that a program is linked with.

use std::path::{Path, PathBuf};
use std::process::Command;

use object::read::elf::{ElfFile64, FileHeader, ProgramHeader};

/// Returns the libraries that the dynamic linker would load.
pub fn libraries(bytes: &[u8], program: &Path) -> Vec<PathBuf> {
    let Some(linker) = interpreter(bytes) else {
        return Vec::new();
    };
    let Ok(output) = Command::new(linker).arg("--list").arg(program).output() else {
        return Vec::new();
    };
    // `libc.so.6 => /lib/libc.so.6 (0x7f…)`, or only the path.
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')))
        .map(PathBuf::from)
        .collect()
}

/// Returns the dynamic linker that a program requests.
fn interpreter(bytes: &[u8]) -> Option<PathBuf> {
    let elf: ElfFile64 = ElfFile64::parse(bytes).ok()?;
    let endian = elf.endian();
    let headers = elf.elf_header().program_headers(endian, elf.data()).ok()?;
    let path = headers
        .iter()
        .find_map(|header| header.interpreter(endian, elf.data()).ok()?)?;
    Some(PathBuf::from(std::str::from_utf8(path).ok()?))
}
