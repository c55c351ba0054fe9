//! The libraries from which a program imports functions.

use std::collections::HashMap;

use object::elf::FileHeader64;
use object::read::elf::{ElfFile64, FileHeader as _, Sym as _};
use object::{Endianness, Object};

/// Returns the functions that an ELF file imports, by name, with the file name of the library (`libc.so.6`). The
/// library is known only for symbols with a version (`.gnu.version_r`; Drepper, "ELF Symbol Versioning").
///
/// The result is empty if this is not such an ELF file, or if it is damaged.
#[must_use]
pub fn imports(bytes: &[u8]) -> HashMap<String, String> {
    read(bytes).unwrap_or_default()
}

fn read(bytes: &[u8]) -> Option<HashMap<String, String>> {
    let file = ElfFile64::<Endianness>::parse(bytes).ok()?;
    let endian = file.endian();
    let header = FileHeader64::<Endianness>::parse(bytes).ok()?;
    let sections = header.sections(endian, bytes).ok()?;
    let versions = sections.versions(endian, bytes).ok()??;
    let symbols = sections
        .symbols(endian, bytes, object::elf::SHT_DYNSYM)
        .ok()?;
    let mut imports = HashMap::new();
    for (index, symbol) in symbols.enumerate() {
        if !symbol.is_undefined(endian) {
            continue;
        }
        let version = versions.version(versions.version_index(endian, index));
        if let Ok(name) = symbols.symbol_name(endian, symbol)
            && let Ok(Some(version)) = version
            && let Some(library) = version.file()
        {
            let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
            imports.insert(text(name), text(library));
        }
    }
    Some(imports)
}

/// Returns the build id of an ELF file, in hex.
#[must_use]
pub fn build_id(bytes: &[u8]) -> Option<String> {
    let file = ElfFile64::<Endianness>::parse(bytes).ok()?;
    let id = file.build_id().ok()??;
    Some(id.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_names_the_library_of_its_functions() {
        let bytes = std::fs::read("/bin/sh").expect("a shell");
        let imports = imports(&bytes);
        assert_eq!(imports.get("fork").map(String::as_str), Some("libc.so.6"));
        assert!(build_id(&bytes).is_some_and(|id| id.len() >= 16));
    }

    #[test]
    fn damage_imports_nothing() {
        assert!(imports(b"\x7fELF").is_empty());
        assert!(imports(&[0; 4096]).is_empty());
    }
}
