//! Where the code of a function is.

use std::fs::File;
use std::ops::Range;

use hodo_isa::code::Flow;
use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSymbol, SymbolKind};

use crate::arch;
use crate::loaded::Loaded;

/// What compilers append to the name of a function for the code that they put elsewhere: gcc's and clang's cold parts,
/// gcc's outlined parts, and clang's sections for basic blocks.
const PARTS: [&str; 3] = [".cold", ".part.", ".__part."];

/// A function of a loaded file.
#[derive(Debug)]
pub struct Parts {
    pub name: String,
    /// The range of the function itself, and those of its parts.
    pub ranges: Vec<Range<usize>>,
}

/// The function in which an address is. The error says what is wrong with it.
pub fn find(loaded: &[Loaded], address: usize) -> Result<Parts, String> {
    let file = loaded
        .iter()
        .find(|file| file.contains(address))
        .ok_or_else(|| format!("{address:#x} is not in the code of a loaded file"))?;
    let path = file.path.display();
    let unreadable = |error: &dyn std::fmt::Display| format!("{path} cannot be read: {error}");
    let open = File::open(&file.file).map_err(|error| unreadable(&error))?;
    // SAFETY: whoever shortens a library that is in use ends the programs that use it anyway.
    let bytes = unsafe { memmap2::Mmap::map(&open) }.map_err(|error| unreadable(&error))?;
    let elf = ElfFile64::<Endianness>::parse(&*bytes).map_err(|error| unreadable(&error))?;
    let link_time = (address - file.base) as u64;
    let all: Vec<(&str, u64, u64)> = elf
        .symbols()
        .filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.is_definition())
        .filter_map(|symbol| Some((symbol.name().ok()?, symbol.address(), symbol.size())))
        .collect();
    if all.is_empty() {
        return Err(format!(
            "{path} has no symbol table, so the parts of its functions cannot be found; do not strip it"
        ));
    }
    let inside =
        |(_, start, size): &&(&str, u64, u64)| *start <= link_time && link_time < start + size;
    let Some((name, start, size)) = all.iter().find(inside) else {
        return Err(format!(
            "{path} has no symbol with a size for the function at {address:#x}; its code cannot be told from that of others"
        ));
    };
    let at = |start: u64, size: u64| {
        let start = file.base + start as usize;
        let end = start + size as usize;
        // The address after a call that never returns.
        start..end + usize::from(ends_with_call(start, end))
    };
    let mut ranges = vec![at(*start, *size)];
    for (other, start, size) in &all {
        let rest = other.strip_prefix(name);
        if rest.is_some_and(|rest| PARTS.iter().any(|part| rest.starts_with(part))) {
            ranges.push(at(*start, *size));
        }
    }
    Ok(Parts {
        name: (*name).to_owned(),
        ranges,
    })
}

/// Returns whether the last instruction of a piece of code is a call, or may be one.
fn ends_with_call(start: usize, end: usize) -> bool {
    // SAFETY: it is code of a loaded file.
    let code = unsafe { std::slice::from_raw_parts(start as *const u8, end - start) };
    let instructions = arch::INSTRUCTIONS.sweep(code, start as u64);
    let last = instructions.last();
    last.is_none_or(|last| {
        matches!(
            last.flow,
            Flow::Call(_) | Flow::IndirectCall | Flow::Invalid
        )
    })
}
