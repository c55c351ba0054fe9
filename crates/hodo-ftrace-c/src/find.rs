//! Finds the places in a file at which its functions call `mcount` or `__fentry__`, or have room for a call.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;

use hodo_ftrace::dynamic::{Entry, Text};
use hodo_isa::code::{Flow, Reference};
use hodo_symbols::Function;
use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSection, ObjectSegment, ObjectSymbol, RelocationTarget};

use crate::arch;
use crate::host::Host;
use crate::kept;
use crate::loaded::Loaded;

/// What compilers call.
const CALLED: [(&str, Entry); 4] = [
    ("mcount", Entry::Framed),
    ("_mcount", Entry::Framed),
    ("__mcount", Entry::Framed),
    ("__fentry__", Entry::First),
];

/// How many instructions of a function are looked at. Prologues are shorter.
const PROLOGUE: usize = 200;

/// A place that may become a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub address: usize,
    pub entry: Entry,
    /// The function, as an index in [`Found::functions`].
    pub function: usize,
    /// A caller keeps something in the register that a site would change here.
    pub is_taken: bool,
    /// Its code, or what is shortly before it, is not as in the file: a breakpoint or a jump of somebody else may be
    /// there.
    pub is_changed: bool,
}

/// What was found in a file.
#[derive(Debug, Default)]
pub struct Found {
    /// By address.
    pub places: Vec<Place>,
    /// The functions, by address.
    pub functions: Vec<Function>,
}

type Elf<'a> = ElfFile64<'a, Endianness>;

/// Finds the places of a loaded file. Files that cannot be read have none.
pub fn find(loaded: &Loaded, host: &Host) -> Found {
    read(loaded, host).unwrap_or_default()
}

// The linker sets the symbol only in the shared library, see `build.rs`.
std::arch::global_asm!(
    ".pushsection .data.rel.ro.hodo_ftrace_mark, \"aw\"",
    ".balign 8",
    ".weak hodo_ftrace_has_no_other_code",
    ".hidden hodo_ftrace_has_no_other_code",
    ".globl hodo_ftrace_mark",
    ".hidden hodo_ftrace_mark",
    "hodo_ftrace_mark: .quad hodo_ftrace_has_no_other_code",
    ".popsection",
);

unsafe extern "C" {
    static hodo_ftrace_mark: usize;
}

/// Returns whether this library's file has no other code.
fn is_alone() -> bool {
    // SAFETY: the assembly above defines it, and nothing changes it.
    unsafe { hodo_ftrace_mark != 0 }
}

fn read(loaded: &Loaded, host: &Host) -> Option<Found> {
    let own = own_stubs(loaded);
    // To read all of its code would take most of the time that the library needs to start.
    if !own.is_empty() && is_alone() {
        return None;
    }
    let file = File::open(&loaded.file).ok()?;
    // SAFETY: whoever shortens a library that is in use ends the programs that use it anyway.
    let bytes = unsafe { memmap2::Mmap::map(&file) }.ok()?;
    let elf = Elf::parse(&*bytes).ok()?;
    let slots = slots(&elf, loaded.base);
    let tables = ["__mcount_loc", "__patchable_function_entries"];
    let [calls, rooms] = tables.map(|name| table(&elf, name, loaded, host));
    if slots.is_empty() && calls.is_empty() && rooms.is_empty() && own.is_empty() {
        return None;
    }
    let stubs = stubs(&bytes, loaded, host, &slots, own);
    // A file with this library in it has what compilers call, and seldom anybody who calls it.
    if calls.is_empty() && rooms.is_empty() && !may_call(loaded, host, &stubs, &slots) {
        return None;
    }
    let functions = hodo_symbols::functions(&bytes).ok()?;
    let mut places = BTreeMap::new();
    let taken = match arch::CHANGED {
        Some(register) if !rooms.is_empty() => taken(register, loaded, host, &functions),
        _ => HashSet::new(),
    };
    for address in rooms.into_iter().chain(calls.iter().copied()) {
        let at = (address - loaded.base) as u64;
        let Some(index) = owner(&functions, at) else {
            continue;
        };
        let function = &functions[index];
        let (address, entry) = room(loaded, host, function, at);
        places.insert(address, (entry, index, taken.contains(&index)));
    }
    if !stubs.is_empty() || !slots.is_empty() {
        for (index, function) in functions.iter().enumerate() {
            let call = call(loaded, host, function, &stubs, &slots);
            if let Some((address, entry)) = call {
                places.insert(address, (entry, index, false));
            }
        }
    }
    let places = places
        .into_iter()
        .map(|(address, (entry, function, is_taken))| Place {
            address,
            entry,
            function,
            is_taken,
            is_changed: is_changed(&elf, loaded, host, address),
        })
        .collect();
    Some(Found { places, functions })
}

/// How much code is read at a time. The processor's caches have it while it is looked at.
const PIECE: usize = 64 << 10;

/// Returns whether a file may have calls of functions, or through slots.
fn may_call(
    loaded: &Loaded,
    host: &Host,
    called: &BTreeMap<u64, Entry>,
    slots: &BTreeMap<u64, Entry>,
) -> bool {
    // Most addresses are not between the first and the last one.
    let [is_called, is_slot] = [called, slots].map(|all| {
        let first = all.keys().next().map_or(u64::MAX, |first| *first);
        let last = all.keys().next_back().map_or(0, |last| *last);
        move |address: usize| {
            (first..=last).contains(&(address as u64)) && all.contains_key(&(address as u64))
        }
    });
    let mut piece = vec![0; PIECE];
    loaded.code.iter().any(|range| {
        // A call may be in two pieces.
        range.clone().step_by(PIECE - arch::LONGEST_CALL).any(|at| {
            let wanted = PIECE.min(range.end - at);
            let length = Text::read(host, at, &mut piece[..wanted]);
            arch::may_call(&piece[..length], at, is_called, !slots.is_empty(), is_slot)
        })
    })
}

/// The functions that are called while a register is in use.
fn taken(register: u8, loaded: &Loaded, host: &Host, functions: &[Function]) -> HashSet<usize> {
    kept::called_with(register, functions, loaded.base as u64, |function| {
        let start = loaded.base + function.addr as usize;
        match loaded.contains(start) {
            true => host.read(start, function.size as usize),
            false => Vec::new(),
        }
    })
}

/// Returns whether code is not as in the file, from where a jump over a place would begin to the first bytes of the
/// place. (What comes after them may have been relocated.)
fn is_changed(elf: &Elf<'_>, loaded: &Loaded, host: &Host, place: usize) -> bool {
    const BEFORE: u64 = 16;
    const FIRST: u64 = 2;
    let at = (place - loaded.base) as u64;
    let mut segments = elf.segments();
    let segment = segments.find(|segment| {
        let start = segment.address();
        (start..start + segment.size()).contains(&at)
    });
    let Some(segment) = segment else { return true };
    let start = at.saturating_sub(BEFORE).max(segment.address());
    let size = at + FIRST - start;
    let there = host.read(loaded.base + start as usize, size as usize);
    segment.data_range(start, size) != Ok(Some(&there[..]))
}

/// The addresses in a table that the compiler has made, as the dynamic linker has relocated it.
fn table(elf: &Elf<'_>, name: &str, loaded: &Loaded, host: &Host) -> Vec<usize> {
    const WORD: usize = size_of::<usize>();
    let sections = elf.sections().filter(|section| section.name() == Ok(name));
    let mut addresses = Vec::new();
    for section in sections {
        let bytes = host.read(
            loaded.base + section.address() as usize,
            section.size() as usize,
        );
        let words = bytes.chunks_exact(WORD).map(|word| {
            let word = word.try_into().unwrap_or_default();
            usize::from_le_bytes(word)
        });
        addresses.extend(words.filter(|address| loaded.contains(*address)));
    }
    addresses
}

/// The function in which an address is, or shortly before which: room for calls may begin before the function.
fn owner(functions: &[Function], at: u64) -> Option<usize> {
    let next = functions.partition_point(|function| function.addr <= at);
    let before = next.checked_sub(1);
    let inside = before.filter(|index| at < functions[*index].addr + functions[*index].size.max(1));
    let after = || {
        let function = functions.get(next)?;
        (function.addr - at < arch::ROOM).then_some(next)
    };
    inside.or_else(after)
}

/// Where the call of a function can be that a table names at `at`.
fn room(loaded: &Loaded, host: &Host, function: &Function, at: u64) -> (usize, Entry) {
    let start = loaded.base + function.addr as usize;
    let at = loaded.base + at as usize;
    // Where calls may land, there may be an instruction that says so.
    let landing = arch::landing(&host.read(start, 4));
    if at <= start + landing {
        return ((start + landing).max(at), Entry::First);
    }
    (at, Entry::Framed)
}

/// The slots through which a file calls what is in [`CALLED`].
fn slots(elf: &Elf<'_>, base: usize) -> BTreeMap<u64, Entry> {
    let Some(symbols) = elf.dynamic_symbol_table() else {
        return BTreeMap::new();
    };
    let relocations = elf.dynamic_relocations().into_iter().flatten();
    let called = relocations.filter_map(|(at, relocation)| {
        let RelocationTarget::Symbol(index) = relocation.target() else {
            return None;
        };
        use object::ObjectSymbolTable;
        let symbol = symbols.symbol_by_index(index).ok()?;
        let name = symbol.name().ok()?;
        let (_, entry) = CALLED.iter().find(|(called, _)| *called == name)?;
        Some((base as u64 + at, *entry))
    });
    called.collect()
}

/// Our own stubs, if the library is part of this file.
fn own_stubs(loaded: &Loaded) -> BTreeMap<u64, Entry> {
    let stubs = arch::stubs();
    let inside = stubs
        .iter()
        .filter(|(address, _)| loaded.contains(*address));
    inside
        .map(|(address, entry)| (*address as u64, *entry))
        .collect()
}

/// What the functions of a file call directly: our own stubs, and what its linkage table has for them.
fn stubs(
    bytes: &[u8],
    loaded: &Loaded,
    host: &Host,
    slots: &BTreeMap<u64, Entry>,
    own: BTreeMap<u64, Entry>,
) -> BTreeMap<u64, Entry> {
    let mut stubs = own;
    // The decoder needs longer to start than all else that is done for a program without a site.
    if slots.is_empty() {
        return stubs;
    }
    for table in hodo_symbols::linkage_tables(bytes) {
        let start = loaded.base as u64 + table.start;
        let code = host.read(start as usize, (table.end - table.start) as usize);
        for (jump, slot, _) in arch::INSTRUCTIONS.got_jumps(&code, start) {
            let Some(entry) = slots.get(&slot) else {
                continue;
            };
            stubs.insert(jump, *entry);
            // Calls may have to land at an instruction that says so.
            let before = (jump - start) as usize;
            let landing = before
                .checked_sub(4)
                .map_or(0, |at| arch::landing(&code[at..before]));
            stubs.insert(jump - landing as u64, *entry);
        }
    }
    stubs
}

/// The first call in a function of one of these.
fn call(
    loaded: &Loaded,
    host: &Host,
    function: &Function,
    stubs: &BTreeMap<u64, Entry>,
    slots: &BTreeMap<u64, Entry>,
) -> Option<(usize, Entry)> {
    const LONGEST: usize = 8;
    let start = loaded.base as u64 + function.addr;
    if !loaded.contains(start as usize) {
        return None;
    }
    let unknown = if function.size == 0 {
        u64::MAX
    } else {
        function.size
    };
    let size = unknown.min((PROLOGUE * LONGEST) as u64) as usize;
    let code = host.read(start as usize, size);
    let instructions = arch::INSTRUCTIONS.sweep(&code, start).take(PROLOGUE);
    for instruction in instructions {
        let found = match (instruction.flow, instruction.reference) {
            (Flow::Call(to), _) => stubs.get(&to),
            (Flow::IndirectCall, Reference::Memory(slot)) => slots.get(&slot),
            (Flow::Invalid, _) => return None,
            _ => None,
        };
        if let Some(entry) = found {
            let at = arch::call_start(&code, (instruction.addr - start) as usize);
            return Some((start as usize + at, *entry));
        }
    }
    None
}
