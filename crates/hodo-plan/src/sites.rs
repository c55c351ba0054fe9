//! What compilers leave in code for tracers: calls of profiling functions, nops at entries, sleds, and their tables.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;

use hodo_isa::code::{Reference, Relocation};
use hodo_symbols::{Function, Symbols};
use object::{Object, ObjectSection, ObjectSymbol, RelocationFlags, RelocationTarget};

use crate::image::Image;
use crate::libcalls;
use crate::pieces::{Piece, is_padding};
use crate::sweep::{Swept, To};

/// Functions that compilers call at entries and exits.
const NAMES: [&str; 6] = [
    "mcount",
    "_mcount",
    "__mcount",
    "__fentry__",
    "__cyg_profile_func_enter",
    "__cyg_profile_func_exit",
];

/// Signs of the C library's own profiling functions in a static program: the function that does the work of those that
/// save all registers (x86-64), and the variable with which the others work.
const HELPER: &str = "__mcount_internal";
const COUNTS: &str = "_gmonparam";

/// The tables of calls of these functions, of nops at entries, and of sleds.
const MCOUNTS: &str = "__mcount_loc";
const PATCHABLE: &str = "__patchable_function_entries";
const XRAY: &str = "xray_instr_map";

/// The maximum number of nop bytes before a function that belong to it (`-fpatchable-function-entry=N,M`).
const NOPS_BEFORE: u64 = 256;

/// Where the profiling functions are that the image imports from a library. If a program defines one itself, that one
/// is still called.
#[derive(Debug, Default)]
pub(crate) struct Profilers {
    /// Addresses of their PLT entries, or of libc's own in a static program.
    pub addresses: HashSet<u64>,
    /// GOT slots that hold them.
    pub slots: HashSet<u64>,
}

/// Finds the profiling functions.
pub(crate) fn profilers(
    image: &Image<'_>,
    symbols: &Symbols,
    slots: &HashMap<u64, String>,
) -> Profilers {
    let is = |name: &str| NAMES.contains(&name);
    let mut found = Profilers::default();
    if slots.values().any(|name| is(name)) {
        found.slots = glibc_slots(image);
        found
            .slots
            .retain(|slot| slots.get(slot).is_some_and(|name| is(name)));
    }
    if !found.slots.is_empty() {
        for (entry, slot) in libcalls::plt_entries(image) {
            if found.slots.contains(&slot) {
                found.addresses.insert(entry);
            }
        }
    }
    let of_libc = |name: &String| is(name) && !name.starts_with("__cyg");
    let mut own = (symbols.functions.iter())
        .filter(|f| of_libc(&f.name) || f.aliases.iter().any(of_libc))
        .peekable();
    if own.peek().is_some() {
        let counts = counts(image);
        let helped = symbols.functions.iter().any(|f| f.name == HELPER);
        let is_libcs = |f: &&Function| helped || refers_to(image, f, &counts);
        found
            .addresses
            .extend(own.filter(is_libcs).map(|function| function.addr));
    }
    found
}

/// Where libc keeps what its profiling functions count; empty if it is not in the program.
fn counts(image: &Image<'_>) -> Range<u64> {
    let symbol = (image.file.symbols()).find(|symbol| symbol.name() == Ok(COUNTS));
    symbol.map_or(0..0, |symbol| {
        symbol.address()..symbol.address().saturating_add(symbol.size())
    })
}

/// Whether an instruction of a function has an address in this range.
fn refers_to(image: &Image<'_>, function: &Function, data: &Range<u64>) -> bool {
    let Some(text) = image.text_at(function.addr) else {
        return false;
    };
    let code = text.slice(
        function.addr,
        function.addr.saturating_add(function.size).min(text.end()),
    );
    let mut insns = (image.isa).sweep_with(code, function.addr, image.globals);
    insns.any(|insn| match insn.reference {
        Reference::Forms(addr) | Reference::Memory(addr) => data.contains(&addr),
        Reference::Constant(addr) => image.fixed && data.contains(&addr),
        Reference::Table(_) | Reference::None => false,
    })
}

/// By what the compiler has prepared functions: the profiling functions that are called, and the tables of their sites.
pub(crate) fn prepared_by(
    image: &Image<'_>,
    symbols: &Symbols,
    slots: &HashMap<u64, String>,
    profilers: &Profilers,
) -> BTreeSet<String> {
    let imported = profilers.slots.iter().filter_map(|slot| slots.get(slot));
    let own = (symbols.functions.iter())
        .filter(|function| profilers.addresses.contains(&function.addr))
        .flat_map(|function| std::iter::once(&function.name).chain(&function.aliases));
    let called = imported
        .chain(own)
        .filter(|name| NAMES.contains(&name.as_str()));
    let mut all: BTreeSet<String> = called.cloned().collect();
    for section in [MCOUNTS, PATCHABLE, XRAY] {
        if image.file.section_by_name(section).is_some() {
            all.insert(section.to_owned());
        }
    }
    all
}

/// The GOT slots of functions from the GNU C library, whose profiling functions a tracer may replace. Those of another
/// library belong to somebody's profiler.
fn glibc_slots(image: &Image<'_>) -> HashSet<u64> {
    let endian = image.file.endian();
    let sections = image.file.elf_section_table();
    let Ok(Some(versions)) = sections.versions(endian, image.file.data()) else {
        return HashSet::new();
    };
    let relocations = image.file.dynamic_relocations().into_iter().flatten();
    relocations
        .filter_map(|(slot, relocation)| {
            let RelocationTarget::Symbol(index) = relocation.target() else {
                return None;
            };
            let version = versions.version(versions.version_index(endian, index));
            let file = version.ok()??.file()?;
            file.starts_with(b"libc.so.").then_some(slot)
        })
        .collect()
}

/// The compiler-made sites of an image.
#[derive(Debug, Default)]
pub(crate) struct Sites {
    /// Starts of functions that have one.
    pub functions: HashSet<u64>,
    /// The instructions that become nops.
    pub nops: Vec<(u64, Vec<u8>)>,
    dropped: HashSet<u64>,
}

impl Sites {
    /// Returns whether the instruction at this address becomes a nop.
    pub fn is_dropped(&self, addr: u64) -> bool {
        self.dropped.contains(&addr)
    }

    /// Returns whether one of them is in a range of addresses.
    pub fn has_dropped(&self, range: Range<u64>) -> bool {
        self.nops_in(range)
            .iter()
            .any(|(addr, _)| self.is_dropped(*addr))
    }

    /// The nops that begin in a range of addresses.
    pub fn nops_in(&self, range: Range<u64>) -> &[(u64, Vec<u8>)] {
        let from = self.nops.partition_point(|(addr, _)| *addr < range.start);
        let to = self.nops.partition_point(|(addr, _)| *addr < range.end);
        &self.nops[from..to]
    }

    /// Finds them, through the calls in the code and the tables in the file.
    pub fn find(image: &Image<'_>, profilers: &Profilers, pieces: &[Piece], swept: &Swept) -> Self {
        let mut sites = Self::default();
        let mut marks = Vec::new();
        for transfer in &swept.transfers {
            let ours = match transfer.to {
                To::Address(addr) => profilers.addresses.contains(&addr),
                To::Slot(slot) => profilers.slots.contains(&slot),
            };
            if !ours {
                continue;
            }
            let len = usize::from(transfer.len);
            let bytes = match transfer.call {
                true => image.isa.nops(len),
                // The last call of a function may be a jump.
                false => image.isa.ret(len),
            };
            sites.dropped.insert(transfer.addr);
            sites.nops.push((transfer.addr, bytes));
            marks.push(transfer.addr);
        }
        for section in [MCOUNTS, PATCHABLE] {
            marks.extend(table(image, section));
        }
        marks.extend(xray(image));
        sites.nops.sort();
        let functions: Vec<&Piece> = pieces.iter().filter(|p| p.function.is_some()).collect();
        for mark in marks {
            // A site is in the first bytes of its function, or its nops begin before the function.
            let at = functions.partition_point(|piece| piece.start <= mark);
            let inside = at
                .checked_sub(1)
                .map(|at| functions[at])
                .filter(|piece| mark < piece.end);
            let before = functions.get(at).copied().filter(|piece| {
                piece.start - mark <= NOPS_BEFORE
                    && image.text_at(mark).is_some_and(|text| {
                        piece.start < text.end() && is_padding(image.isa, text, mark, piece.start)
                    })
            });
            let owner = before.or(inside);
            sites.functions.extend(owner.map(|piece| piece.start));
        }
        sites
    }
}

/// Returns a table of addresses, as it is in the file or as relocations make it.
fn table(image: &Image<'_>, name: &str) -> Vec<u64> {
    let mut addresses = Vec::new();
    for section in image.file.sections().filter(|s| s.name() == Ok(name)) {
        let range = section.address()..section.address() + section.size();
        if let Ok(data) = section.data() {
            let words = data.as_chunks::<8>().0.iter();
            addresses.extend(
                words
                    .map(|word| u64::from_le_bytes(*word))
                    .filter(|&a| a != 0),
            );
        }
        for (addr, relocation) in image.file.dynamic_relocations().into_iter().flatten() {
            let relative = |flags| match flags {
                RelocationFlags::Elf { r_type } => {
                    image.isa.relocation(r_type) == Relocation::Relative
                }
                _ => false,
            };
            if relative(relocation.flags()) && range.contains(&addr) {
                addresses.push(relocation.addend().cast_unsigned());
            }
        }
    }
    addresses
}

/// The entry sleds of XRay: `xray_instr_map` has 32 bytes for each, version 2 with relative addresses.
fn xray(image: &Image<'_>) -> Vec<u64> {
    let mut addresses = Vec::new();
    let Some(section) = image.file.section_by_name(XRAY) else {
        return addresses;
    };
    let Ok(data) = section.data() else {
        return addresses;
    };
    for (index, entry) in data.as_chunks::<32>().0.iter().enumerate() {
        let at = section.address() + index as u64 * 32;
        let word = u64::from_le_bytes(entry[..8].try_into().expect("eight bytes"));
        let (kind, version) = (entry[16], entry[18]);
        if kind == 0 {
            addresses.push(if version >= 2 {
                at.wrapping_add(word)
            } else {
                word
            });
        }
    }
    addresses
}
