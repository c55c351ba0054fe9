//! Functions and source lines of instructions.

use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};

use hodo_dbi::{Block, contents};
use hodo_symbols::{Debug, Function, Style, Symbols, demangle, symbols_of};
use object::Endianness;
use object::elf::{FileHeader64, PF_X, PT_LOAD};
use object::read::elf::{FileHeader, ProgramHeader};
use rustc_hash::FxHashMap;

/// An instruction in a file.
#[derive(Debug, Clone, PartialOrd, Ord)]
pub struct InFile {
    /// The file.
    pub file: PathBuf,
    /// Where the instruction is in the file.
    pub offset: u64,
}

// There are many, and they are looked up often: paths are compared as they are, not by their parts.
impl PartialEq for InFile {
    fn eq(&self, other: &Self) -> bool {
        self.offset == other.offset && self.file.as_os_str() == other.file.as_os_str()
    }
}

impl Eq for InFile {}

impl Hash for InFile {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Few files have an instruction at the same place.
        self.offset.hash(state);
    }
}

impl InFile {
    /// The place of an instruction of a block, by its number there, if that is from a file.
    #[must_use]
    pub fn of(block: &Block, insn: usize) -> Option<Self> {
        let (file, offset) = block.file.clone()?;
        let offset = offset + (block.insns[insn].pc - block.insns[0].pc);
        Some(Self { file, offset })
    }
}

/// Where an instruction is, for people.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Place {
    /// Its address in the file's own terms, where it is not moved.
    pub address: Option<u64>,
    /// Its function.
    pub function: Option<String>,
    /// The source file and the line.
    pub line: Option<(String, u32)>,
}

/// Finds the places of instructions. Instructions of files that cannot be read have none.
pub fn places<'p>(wanted: impl Iterator<Item = &'p InFile>) -> FxHashMap<InFile, Place> {
    let mut files: FxHashMap<&Path, Vec<&InFile>> = FxHashMap::default();
    for place in wanted {
        files.entry(&place.file).or_default().push(place);
    }
    let mut found = FxHashMap::default();
    for (path, places) in files {
        let Ok(bytes) = contents(path) else {
            continue;
        };
        let segments = segments(&bytes);
        let symbols = symbols_of(path, &bytes).unwrap_or_default();
        let addresses: FxHashMap<&InFile, u64> = places
            .into_iter()
            .filter_map(|place| Some((place, to_address(&segments, place.offset)?)))
            .collect();
        let set: BTreeSet<u64> = addresses.values().copied().collect();
        let debug = Debug::open(path, &bytes).ok();
        let lines = debug.map(|debug| debug.lines_of(&set)).unwrap_or_default();
        let mut names: FxHashMap<u64, String> = FxHashMap::default();
        for (place, address) in addresses {
            let line = lines.get(&address).cloned();
            let function = function(&symbols, address);
            let function = function.map(|function| {
                let name = || demangle(&function.name, Style::Simple);
                names.entry(function.addr).or_insert_with(name).clone()
            });
            let found_place = Place {
                address: Some(address),
                function,
                line,
            };
            found.insert(place.clone(), found_place);
        }
    }
    found
}

/// The functions of a file.
#[derive(Debug, Default)]
pub struct Functions {
    segments: Vec<(u64, u64, u64)>,
    symbols: Symbols,
}

impl Functions {
    /// Reads them. A file that cannot be read has none.
    #[must_use]
    pub fn of(path: &Path) -> Self {
        let Ok(bytes) = contents(path) else {
            return Self::default();
        };
        Self {
            segments: segments(&bytes),
            symbols: symbols_of(path, &bytes).unwrap_or_default(),
        }
    }

    /// The name of the function that has the instruction at this offset in the file, if one has it, and the offset up
    /// to which that is so.
    #[must_use]
    pub fn around(&self, offset: u64) -> (Option<String>, u64) {
        let Some(address) = to_address(&self.segments, offset) else {
            return (None, u64::MAX);
        };
        let functions = &self.symbols.functions;
        let next = functions.partition_point(|function| function.addr <= address);
        let next = functions.get(next).map_or(u64::MAX, |next| next.addr);
        let found = function(&self.symbols, address);
        let end = match found {
            Some(found) if found.size > 0 => next.min(found.addr + found.size),
            _ => next,
        };
        let name = found.map(|found| demangle(&found.name, Style::Simple));
        (name, offset.saturating_add(end - address))
    }
}

/// Segments that are executed: offset in the file, size there, and address.
pub(crate) fn segments(bytes: &[u8]) -> Vec<(u64, u64, u64)> {
    let Ok(header) = FileHeader64::<Endianness>::parse(bytes) else {
        return Vec::new();
    };
    let Ok(endian) = header.endian() else {
        return Vec::new();
    };
    let headers = header.program_headers(endian, bytes).unwrap_or_default();
    let is_code = |header: &&object::elf::ProgramHeader64<Endianness>| {
        header.p_type(endian) == PT_LOAD && header.p_flags(endian) & PF_X != 0
    };
    let parts = headers.iter().filter(is_code).map(|header| {
        (
            header.p_offset(endian),
            header.p_filesz(endian),
            header.p_vaddr(endian),
        )
    });
    parts.collect()
}

/// The address of what is at this offset in the file.
pub(crate) fn to_address(segments: &[(u64, u64, u64)], offset: u64) -> Option<u64> {
    let within = |&&(start, size, _): &&(u64, u64, u64)| {
        (start..start.saturating_add(size)).contains(&offset)
    };
    let (start, _, address) = segments.iter().find(within)?;
    address.checked_add(offset - start)
}

/// Where in the file the address is.
pub(crate) fn to_offset(segments: &[(u64, u64, u64)], wanted: u64) -> Option<u64> {
    let offset_in = |&(offset, size, address): &(u64, u64, u64)| {
        let distance = wanted.checked_sub(address)?;
        (distance < size).then_some(offset + distance)
    };
    segments.iter().find_map(offset_in)
}

/// The function that has the instruction at an address.
pub(crate) fn function(symbols: &Symbols, address: u64) -> Option<&Function> {
    let next = symbols
        .functions
        .partition_point(|function| function.addr <= address);
    let function = symbols.functions.get(next.checked_sub(1)?)?;
    let ends = function.size > 0 && address >= function.addr + function.size;
    (!ends).then_some(function)
}
