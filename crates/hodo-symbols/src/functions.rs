//! The functions of an ELF file.

use object::elf;
use object::read::elf::{ElfFile64, FileHeader, Sym};
use object::{Object, ObjectSymbol, SymbolFlags};

/// Why a file's symbols cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SymbolError {
    /// Not an ELF file, or a broken one.
    #[error("not a readable ELF file: {0}")]
    Elf(#[from] object::read::Error),
}

/// One function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// Raw symbol name, the best of its aliases; made of the address where there is none.
    pub name: String,
    /// Link-time address.
    pub addr: u64,
    /// Bytes; 0 where unknown.
    pub size: u64,
    /// It returns the address of an implementation (`STT_GNU_IFUNC`).
    pub ifunc: bool,
    /// Other names of the same address.
    pub aliases: Vec<String>,
}

/// All functions of an image, sorted by address, one per address.
///
/// # Errors
/// If the file is not a readable ELF file.
pub fn functions(bytes: &[u8]) -> Result<Vec<Function>, SymbolError> {
    let file: ElfFile64<'_> = ElfFile64::parse(bytes)?;
    let _ = file.elf_header().e_type(file.endian());
    let mut found = Vec::new();
    for symbol in file.symbols().chain(file.dynamic_symbols()) {
        let SymbolFlags::Elf { st_info, .. } = symbol.flags() else {
            continue;
        };
        let kind = st_info & 15;
        if !matches!(kind, elf::STT_FUNC | elf::STT_GNU_IFUNC) || symbol.is_undefined() {
            continue;
        }
        let Ok(name) = symbol.name_bytes() else {
            continue;
        };
        let name = String::from_utf8_lossy(name);
        let name = name.split('@').next().unwrap_or_default();
        if name.is_empty() || symbol.elf_symbol().st_value(file.endian()) == 0 {
            continue;
        }
        found.push((
            symbol.address(),
            name_rank(name, st_info >> 4),
            name.to_owned(),
            symbol.size(),
            kind == elf::STT_GNU_IFUNC,
        ));
    }
    found.sort();
    let mut functions: Vec<Function> = Vec::new();
    for (addr, _, name, size, ifunc) in found {
        match functions.last_mut() {
            Some(last) if last.addr == addr => {
                last.size = last.size.max(size);
                last.ifunc |= ifunc;
                if last.name != name && !last.aliases.contains(&name) {
                    last.aliases.push(name);
                }
            }
            _ => functions.push(Function {
                name,
                addr,
                size,
                ifunc,
                aliases: Vec::new(),
            }),
        }
    }
    functions.retain(|f| !is_fragment(&f.name));
    Ok(functions)
}

/// Lower is better: global names before weak and local ones, fewer leading underscores, shorter.
fn name_rank(name: &str, bind: u8) -> (u8, usize, usize) {
    let bind = match bind {
        elf::STB_GLOBAL | elf::STB_GNU_UNIQUE => 0,
        elf::STB_WEAK => 1,
        _ => 2,
    };
    let underscores = name.bytes().take_while(|&b| b == b'_').count();
    (bind, underscores, name.len())
}

/// Whether a name is that of a piece of a function which is never called.
fn is_fragment(name: &str) -> bool {
    name.ends_with(".cold") || name.contains(".cold.")
}
