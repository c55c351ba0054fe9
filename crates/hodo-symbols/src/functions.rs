//! The functions of an ELF file.

use std::borrow::Cow;
use std::path::Path;

use crate::abi;
use crate::dwarf::find::symbol_file;
use crate::startup;
use crate::unwind::{Frames, Range, Tables};
use crate::{debugdata, lsda, unwind};
use hodo_abi::{Isa, Span};
use object::elf;
use object::read::elf::{ElfFile64, Sym};
use object::{Object, ObjectSection, ObjectSymbol, SectionFlags, SymbolFlags};

/// Why a file's symbols cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SymbolError {
    /// It is not an ELF file, or a damaged one.
    #[error("not a readable ELF file: {0}")]
    Elf(#[from] object::read::Error),
}

/// One function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// The raw symbol name, the best of its aliases. If there is none, the address in hex: `<1139>`.
    pub name: String,
    /// Link-time address.
    pub addr: u64,
    /// Its size in bytes; 0 if unknown.
    pub size: u64,
    /// Whether it returns the address of an implementation (`STT_GNU_IFUNC`).
    pub ifunc: bool,
    /// How it is known.
    pub nature: Nature,
    /// Whether it is not entered by a call, according to the unwind table: the stack is laid out differently.
    pub odd_entry: bool,
    /// Whether it is the code that signal handlers return to.
    pub signal: bool,
    /// Other names for the same address.
    pub aliases: Vec<String>,
}

/// How a function is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nature {
    /// It has a symbol.
    Named,
    /// Only the unwind table describes it. It may be a piece of a function, away from the function's entry.
    Anonymous,
    /// Its symbol names a piece of a function (`foo.cold`). Some compilers make functions of such pieces.
    Part,
}

/// A piece of a function, away from the function's entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fragment {
    /// Link-time address.
    pub addr: u64,
    /// Its size in bytes; 0 if unknown.
    pub size: u64,
}

/// What a file says about its code.
#[derive(Debug, Clone, Default)]
pub struct Symbols {
    /// The functions, sorted by address, one per address.
    pub functions: Vec<Function>,
    /// Pieces of functions, sorted by address.
    pub fragments: Vec<Fragment>,
    /// Other addresses in the code that have a symbol or begin a range of the unwind table. Sorted.
    pub labels: Vec<u64>,
    /// Global names in the code that have no type and are outside all functions. Assembly code may omit `.type`.
    /// Sorted.
    pub untyped: Vec<(u64, String)>,
    /// The same inside functions. Sorted.
    pub inner: Vec<(u64, String)>,
    /// The addresses where functions continue after an exception. Sorted.
    pub landing_pads: Vec<u64>,
    /// What the unwind tables say.
    pub frames: Frames,
}

/// Returns all functions of an image, sorted by address, one for each address.
///
/// # Errors
/// If the file is not a readable ELF file.
pub fn functions(bytes: &[u8]) -> Result<Vec<Function>, SymbolError> {
    symbols(bytes).map(|symbols| symbols.functions)
}

/// Names `main` if no symbol did.
fn name_main(file: &ElfFile64<'_>, symbols: &mut Symbols) {
    let find = |addr: u64| symbols.functions.binary_search_by_key(&addr, |f| f.addr);
    let main = startup::main(file, |addr| find(addr).is_ok());
    if let Some(at) = main.and_then(|main| find(main).ok())
        && symbols.functions[at].nature == Nature::Anonymous
        && !symbols.functions.iter().any(|f| f.name == "main")
    {
        symbols.functions[at].name = "main".to_owned();
    }
}

struct Found<'a> {
    addr: u64,
    rank: (bool, u8, usize, usize),
    name: Cow<'a, str>,
    size: u64,
    kind: u8,
}

/// Returns everything that an image says about its code.
///
/// # Errors
/// If the file is not a readable ELF file.
pub fn symbols(bytes: &[u8]) -> Result<Symbols, SymbolError> {
    symbols_with(bytes, None)
}

/// The same with the names in the separate file of an image that was stripped.
///
/// # Errors
/// If the file is not a readable ELF file.
pub fn symbols_of(path: &Path, bytes: &[u8]) -> Result<Symbols, SymbolError> {
    let separate = symbol_file(path, bytes).and_then(|path| std::fs::read(path).ok());
    symbols_with(bytes, separate.as_deref())
}

/// The same with the names in this separate file, if there is one. A separate file that cannot be read has no names.
///
/// # Errors
/// If the file is not a readable ELF file.
pub fn symbols_with(bytes: &[u8], separate: Option<&[u8]>) -> Result<Symbols, SymbolError> {
    let file: ElfFile64<'_> = ElfFile64::parse(bytes)?;
    let code = code_ranges(&file);
    let is_code = |addr: u64| {
        let next = code.partition_point(|range| range.start <= addr);
        next > 0 && addr < code[next - 1].end
    };
    let extracted = debugdata::extract(&file);
    let extracted = extracted.as_deref();
    let other = extracted.and_then(|bytes| ElfFile64::parse(bytes).ok());
    let separate = separate.and_then(|bytes| ElfFile64::parse(bytes).ok());
    let mut found = Vec::new();
    let mut labels = Vec::new();
    let mut untyped = Vec::new();
    let mut mapping = Vec::new();
    let mapped = abi::of_file(&file).is_some_and(abi::has_mapping_symbols);
    for file in std::iter::once(&file).chain(&other).chain(&separate) {
        from_table(
            file,
            &mut found,
            &mut labels,
            &mut untyped,
            mapped.then_some(&mut mapping),
        );
    }
    labels.extend(bounds(mapping).map(|addr| (addr, String::new())));
    found.retain(|f| is_code(f.addr));
    found.sort_unstable_by(|a, b| {
        (a.addr, a.rank, &a.name, a.size).cmp(&(b.addr, b.rank, &b.name, b.size))
    });
    let mut tables = unwind::tables(&file);
    tables.ranges.retain(|r| is_code(r.addr));

    let mut symbols = Symbols::default();
    for symbol in found {
        match symbols.functions.last_mut() {
            Some(last) if last.addr == symbol.addr => {
                last.size = last.size.max(symbol.size);
                last.ifunc |= symbol.kind == elf::STT_GNU_IFUNC;
                let is_it = |name: &String| *name == symbol.name;
                if !is_it(&last.name) && !last.aliases.iter().any(is_it) {
                    last.aliases.push(symbol.name.into_owned());
                }
            }
            _ => symbols.functions.push(Function {
                name: symbol.name.into_owned(),
                addr: symbol.addr,
                size: symbol.size,
                ifunc: symbol.kind == elf::STT_GNU_IFUNC,
                nature: Nature::Named,
                odd_entry: false,
                signal: false,
                aliases: Vec::new(),
            }),
        }
    }
    labels.retain(|(addr, _)| is_code(*addr));
    labels.sort_unstable();
    symbols.landing_pads = landing_pads(&file, &mut tables.ranges);
    merge(&mut symbols, &tables, &labels);
    name_main(&file, &mut symbols);
    let is_inside = |addr: u64| {
        let before = symbols.functions.partition_point(|f| f.addr <= addr);
        let function = before.checked_sub(1).map(|at| &symbols.functions[at]);
        function.is_some_and(|f| f.addr == addr || addr - f.addr < f.size)
    };
    untyped.retain(|(addr, _)| is_code(*addr));
    untyped.sort_unstable();
    untyped.dedup();
    let (inner, untyped) = untyped.into_iter().partition(|(addr, _)| is_inside(*addr));
    (symbols.inner, symbols.untyped) = (inner, untyped);
    let mut labels: Vec<u64> = labels.into_iter().map(|(addr, _)| addr).collect();
    let ranges = &tables.ranges;
    labels.extend(ranges.iter().map(|r| r.addr));
    labels.sort_unstable();
    labels.dedup();
    symbols.labels = labels;
    symbols.frames = tables.into_frames();
    Ok(symbols)
}

/// Merges the symbols with the unwind table. Ranges without a symbol become functions or fragments.
fn merge(symbols: &mut Symbols, tables: &Tables, labels: &[(u64, String)]) {
    let named = std::mem::take(&mut symbols.functions);
    let mut named = named.into_iter().peekable();
    let mut ranges = tables.ranges.iter().peekable();
    // The end of the last function with a symbol. Ranges inside it are its parts.
    let mut covered = 0;
    loop {
        let symbol = named.peek().map_or(u64::MAX, |f| f.addr);
        let range = ranges.peek().map_or(u64::MAX, |r| r.addr);
        if symbol == u64::MAX && range == u64::MAX {
            break;
        }
        if symbol <= range {
            let Some(mut function) = named.next() else {
                break;
            };
            if symbol == range
                && let Some(range) = ranges.next()
            {
                if function.size == 0 {
                    function.size = range.size;
                }
                function.odd_entry = !tables.is_entry_like(range);
                function.signal = range.signal;
            }
            covered = covered.max(function.addr.saturating_add(function.size));
            let names = || std::iter::once(&function.name).chain(&function.aliases);
            if names().all(|name| is_part(name)) {
                function.nature = Nature::Part;
            }
            symbols.functions.push(function);
        } else if let Some(range) = ranges.next() {
            if range.addr < covered {
                continue;
            }
            if tables.is_entry_like(range) && !range.signal && !range.part {
                // Hand-written functions may have a name but no type.
                let at = labels.partition_point(|(addr, _)| *addr < range.addr);
                let label = labels
                    .get(at)
                    .filter(|(addr, name)| *addr == range.addr && !name.is_empty())
                    .map(|(_, name)| name);
                symbols.functions.push(Function {
                    name: label.map_or_else(|| format!("<{:x}>", range.addr), Clone::clone),
                    addr: range.addr,
                    size: range.size,
                    ifunc: false,
                    nature: match label {
                        Some(_) => Nature::Named,
                        None => Nature::Anonymous,
                    },
                    odd_entry: false,
                    signal: false,
                    aliases: Vec::new(),
                });
            } else {
                symbols.fragments.push(Fragment {
                    addr: range.addr,
                    size: range.size,
                });
            }
        }
    }
}

fn is_linkage_table(section: &str) -> bool {
    section.starts_with(".plt") || section == ".iplt"
}

/// Returns the code of a file's linkage tables (`.plt` and related sections, found by name), as link-time addresses.
/// This code belongs to no function and leads to functions in other files. The result is empty if the file cannot be
/// read.
#[must_use]
pub fn linkage_tables(bytes: &[u8]) -> Vec<std::ops::Range<u64>> {
    let Ok(file): Result<ElfFile64<'_>, _> = ElfFile64::parse(bytes) else {
        return Vec::new();
    };
    let tables = (file.sections()).filter(|section| section.name().is_ok_and(is_linkage_table));
    tables
        .map(|section| section.address()..section.address().saturating_add(section.size()))
        .collect()
}

/// Returns the executable sections except the PLT, or the executable segments if there are no sections.
fn code_ranges(file: &ElfFile64<'_>) -> Vec<Span> {
    let mut ranges = Vec::new();
    for section in file.sections() {
        let SectionFlags::Elf { sh_flags } = section.flags() else {
            continue;
        };
        let wanted = u64::from(elf::SHF_EXECINSTR | elf::SHF_ALLOC);
        if sh_flags & wanted == wanted && !section.name().is_ok_and(is_linkage_table) {
            let end = section.address().saturating_add(section.size());
            ranges.push(Span::from(section.address()..end));
        }
    }
    if ranges.is_empty() {
        ranges.push(Span::from(1..u64::MAX));
    }
    ranges.sort_unstable();
    ranges
}

/// Returns where data begins and ends in code, according to the mapping symbols (address, whether data begins there).
/// A symbol that begins code inside code only says that the assembler's options change.
fn bounds(mut mapping: Vec<(u64, bool)>) -> impl Iterator<Item = u64> {
    // Empty data comes before the code that begins at the same address.
    mapping.sort_unstable_by_key(|&(addr, data)| (addr, !data));
    let mut within = false;
    mapping.into_iter().filter_map(move |(addr, data)| {
        let bound = data != within;
        within = data;
        bound.then_some(addr)
    })
}

/// Returns `None` if a name is not that of a mapping symbol, and otherwise whether the symbol marks data.
fn mapping_symbol(name: &str) -> Option<bool> {
    let rest = name.strip_prefix('$')?;
    if rest == "d" || rest.starts_with("d.") {
        return Some(true);
    }
    // `$xrv64i2p1_m2p0`: followed by the extensions in use.
    let code = rest == "x" || rest.starts_with("x.") || rest.starts_with("xrv");
    code.then_some(false)
}

fn from_table<'a>(
    file: &ElfFile64<'a>,
    found: &mut Vec<Found<'a>>,
    labels: &mut Vec<(u64, String)>,
    untyped: &mut Vec<(u64, String)>,
    mut mapping: Option<&mut Vec<(u64, bool)>>,
) {
    for symbol in file.symbols().chain(file.dynamic_symbols()) {
        let SymbolFlags::Elf { st_info, .. } = symbol.flags() else {
            continue;
        };
        let kind = st_info & 15;
        let addr = symbol.address();
        if symbol.is_undefined() || addr == 0 {
            continue;
        }
        if !matches!(kind, elf::STT_FUNC | elf::STT_GNU_IFUNC) {
            if kind == elf::STT_NOTYPE {
                let name = symbol.name().unwrap_or_default();
                if let Some(mapping) = &mut mapping
                    && let Some(data) = mapping_symbol(name)
                {
                    mapping.push((addr, data));
                    continue;
                }
                // If the linker may change distances, the assembler keeps the labels that addresses are computed from,
                // or where unwind tables change. LLVM's labels have no names.
                if mapping.is_some() && (name.is_empty() || name.starts_with(".L")) {
                    continue;
                }
                let local = name.starts_with(".L") || is_part(name);
                // Local symbols are mostly labels of loops in a function.
                if !local && !name.is_empty() && st_info >> 4 != elf::STB_LOCAL {
                    untyped.push((addr, base(name).to_owned()));
                }
                labels.push((
                    addr,
                    if local {
                        String::new()
                    } else {
                        name.to_owned()
                    },
                ));
            }
            continue;
        }
        let Ok(name) = symbol.name_bytes() else {
            continue;
        };
        let name = match String::from_utf8_lossy(name) {
            Cow::Borrowed(name) => Cow::Borrowed(base(name)),
            Cow::Owned(name) => Cow::Owned(base(&name).to_owned()),
        };
        if name.is_empty() {
            continue;
        }
        let bind = match st_info >> 4 {
            elf::STB_GLOBAL | elf::STB_GNU_UNIQUE => 0,
            elf::STB_WEAK => 1,
            _ => 2,
        };
        let underscores = name.bytes().take_while(|&b| b == b'_').count();
        found.push(Found {
            addr,
            rank: (is_part(&name), bind, underscores, name.len()),
            name,
            size: symbol.elf_symbol().st_size(file.endian()),
            kind,
        });
    }
}

/// Returns a name without its version.
fn base(name: &str) -> &str {
    name.split('@').next().unwrap_or_default()
}

/// Returns whether a name is that of a piece of a function that is never called.
fn is_part(name: &str) -> bool {
    name.ends_with(".cold") || name.contains(".cold.")
}

/// Reads all landing pads. Ranges that begin with one, or contain those of other ranges, are marked as parts of
/// functions.
fn landing_pads(file: &ElfFile64<'_>, ranges: &mut [Range]) -> Vec<u64> {
    let mut tables: Vec<(u64, &[u8])> = Vec::new();
    for section in file.sections() {
        if section
            .name()
            .is_ok_and(|name| name.starts_with(".gcc_except_table"))
            && let Ok(data) = section.data()
        {
            tables.push((section.address(), data));
        }
    }
    // The possible sizes of the nop described below, in bytes.
    let nops: &[u64] = match abi::of_file(file) {
        Some(Isa::Riscv64) => &[2, 4],
        Some(Isa::Aarch64) => &[4],
        _ => &[1],
    };
    let mut all = Vec::new();
    let mut parts = Vec::new();
    let mut pads = Vec::new();
    for range in ranges.iter() {
        let Some(addr) = range.lsda else { continue };
        for &(start, data) in &tables {
            if let Some(data) = addr
                .checked_sub(start)
                .and_then(|offset| data.get(usize::try_from(offset).ok()?..))
            {
                lsda::landing_pads(data, addr, range.addr, &mut pads);
                break;
            }
        }
        for pad in pads.drain(..) {
            all.push(pad);
            // A part that begins with a landing pad has a nop before it, because an offset of zero means that there is
            // no landing pad.
            let from_start = pad.wrapping_sub(range.addr);
            if from_start >= range.size || nops.contains(&from_start) {
                parts.push(pad);
            }
        }
    }
    for pad in parts {
        let at = ranges.partition_point(|range| range.addr <= pad);
        if let Some(range) = at.checked_sub(1).map(|at| &mut ranges[at])
            && pad - range.addr < range.size
        {
            range.part = true;
        }
    }
    all.sort_unstable();
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapping_symbols_are_not_names() {
        for (name, kind) in [
            ("$x", Some(false)),
            ("$xrv64i2p1_m2p0_c2p0", Some(false)),
            ("$x.3", Some(false)),
            ("$d", Some(true)),
            ("$d.12", Some(true)),
            ("$xylophone", None),
            ("$dollar", None),
            ("x", None),
            ("$", None),
        ] {
            assert_eq!(mapping_symbol(name), kind, "{name}");
        }
    }

    #[test]
    fn data_in_code_has_bounds() {
        let found = |mapping: &[(u64, bool)]| bounds(mapping.to_vec()).collect::<Vec<_>>();
        assert_eq!(found(&[(0, false), (8, false), (40, false)]), []);
        let mixed = [(24, false), (0, false), (16, true), (32, false), (20, true)];
        assert_eq!(found(&mixed), [16, 24]);
        assert_eq!(found(&[(16, false), (16, true), (0, false)]), [16, 16]);
    }
}
