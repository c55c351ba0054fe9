//! Files that are mapped into processes: their contents, and how files are identified.

use std::cell::{Cell, OnceCell};
use std::fs::{File, Metadata};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use anyhow::{Context, Result, bail};
use hodo_abi::{Isa, Span};
use hodo_ptrace::maps::Mapping;
use hodo_symbols::{Debug, DebugError, Frames, SymbolError, Symbols, Unwinder};
use memmap2::Mmap;
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader};
use object::{File as ObjectFile, Object, ObjectSection};
use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_128;

/// A loadable segment: its link-time address and its place in the file.
#[derive(Debug, Clone, Copy)]
pub struct Segment {
    /// Link-time address.
    pub addr: u64,
    /// Offset in the file.
    pub offset: u64,
    /// Its size in the file in bytes.
    pub size: u64,
    /// Whether it is code.
    pub executable: bool,
}

/// A mapped file, parsed as far as loading requires.
#[derive(Debug)]
pub struct Image {
    /// Its path.
    pub path: PathBuf,
    /// Where separate files are searched for: the file's path, or, if its process has a root or mounts of its own,
    /// where the file is among these.
    place: PathBuf,
    /// Its contents.
    pub bytes: Mmap,
    /// Its loadable segments.
    pub segments: Vec<Segment>,
    /// The highest link-time address in memory.
    pub end: u64,
    /// The separate file with its symbol table, found on first use.
    separate: OnceCell<Option<(PathBuf, Mmap)>>,
    /// Its debugging information, loaded on first use.
    debug: OnceCell<Result<Debug, DebugError>>,
    /// Its unwind tables, read on first use.
    frames: OnceCell<Frames>,
    /// Its unwind tables in the form for walking stacks, read on first use.
    unwinder: OnceCell<Unwinder>,
    /// Whether it saves contexts, determined on first use.
    contexts: OnceCell<bool>,
    /// What identifies its content, computed on first use.
    content: OnceCell<Vec<u128>>,
    /// Whether an earlier recording cached a plan of it.
    pub planned_before: Cell<bool>,
}

impl Image {
    /// Opens a program or library for this machine. `real` is where to read it, `path` is its name.
    pub fn open(real: &Path, path: PathBuf) -> Result<Self> {
        let image = Self::read(real, path)?;
        if image.bytes[18..20] != Isa::NATIVE.elf_machine().to_le_bytes() {
            bail!(
                "{} is not a program for {}",
                image.path.display(),
                Isa::NATIVE.name()
            );
        }
        Ok(image)
    }

    /// Opens a 64-bit ELF file for any machine.
    pub fn read(real: &Path, path: PathBuf) -> Result<Self> {
        let file = File::open(real).with_context(|| format!("opening {}", path.display()))?;
        // SAFETY: others may change the file while it is mapped. Everything that is read from it is checked, or is code
        // that is compared with the target's memory before it is used.
        let bytes =
            unsafe { Mmap::map(&file) }.with_context(|| format!("reading {}", path.display()))?;
        if bytes.len() < 20 || bytes[..4] != *b"\x7fELF" {
            bail!("{} is not an ELF file", path.display());
        }
        if bytes[4] != 2 {
            bail!("{} is not a program of 64 bits", path.display());
        }
        let elf: ElfFile64 =
            ElfFile64::parse(&*bytes).with_context(|| format!("reading {}", path.display()))?;
        let endian = elf.endian();
        let mut segments = Vec::new();
        let mut end = 0;
        for header in elf
            .elf_header()
            .program_headers(endian, elf.data())
            .with_context(|| format!("reading {}", path.display()))?
        {
            if header.p_type(endian) == object::elf::PT_LOAD {
                end = end.max(header.p_vaddr(endian) + header.p_memsz(endian));
                segments.push(Segment {
                    addr: header.p_vaddr(endian),
                    offset: header.p_offset(endian),
                    size: header.p_filesz(endian),
                    executable: header.p_flags(endian) & object::elf::PF_X != 0,
                });
            }
        }
        Ok(Self {
            place: crate::root::place(real, &path),
            path,
            bytes,
            segments,
            end,
            separate: OnceCell::new(),
            debug: OnceCell::new(),
            frames: OnceCell::new(),
            unwinder: OnceCell::new(),
            contexts: OnceCell::new(),
            content: OnceCell::new(),
            planned_before: Cell::new(false),
        })
    }

    /// Returns the instruction set of its code, if hodo knows it.
    #[must_use]
    pub fn isa(&self) -> Option<Isa> {
        hodo_symbols::isa_of(&self.bytes)
    }

    /// Returns what identifies its content, as far as plans depend on it.
    pub fn content(&self) -> &[u128] {
        self.content.get_or_init(|| self.content_now())
    }

    fn content_now(&self) -> Vec<u128> {
        let mut hashes = hashes(&self.bytes);
        hashes.extend(self.separate().map(symbol_table_hash));
        hashes
    }

    /// Returns whether its content has not changed.
    pub fn is_as_it_was(&self) -> bool {
        self.content_now() == self.content()
    }

    /// Returns the content of the separate file with its symbol table, if it was stripped and there is one.
    pub fn separate(&self) -> Option<&[u8]> {
        let read = || {
            let path = hodo_symbols::symbol_file(&self.place, &self.bytes)?;
            let file = File::open(&path).ok()?;
            // SAFETY: others may change the file while it is mapped. Only names and addresses are read from it, and
            // they are checked.
            let bytes = unsafe { Mmap::map(&file) }.ok()?;
            Some((path, bytes))
        };
        let separate = self.separate.get_or_init(read).as_ref();
        separate.map(|(_, bytes)| &**bytes)
    }

    /// Returns the separate file with its symbol table.
    pub fn symbol_file(&self) -> Option<&Path> {
        self.separate()?;
        let separate = self.separate.get()?.as_ref();
        separate.map(|(path, _)| path.as_path())
    }

    /// Returns everything that it and its separate file say about its code.
    ///
    /// # Errors
    /// If it is damaged.
    pub fn code_symbols(&self) -> Result<Symbols, SymbolError> {
        hodo_symbols::symbols_with(&self.bytes, self.separate())
    }

    /// Returns its debugging information.
    ///
    /// # Errors
    /// If there is none, or it is damaged.
    pub fn debug(&self) -> Result<&Debug, &DebugError> {
        let debug = self
            .debug
            .get_or_init(|| Debug::open(&self.place, &self.bytes));
        debug.as_ref()
    }

    /// Returns what its unwind tables say.
    pub fn frames(&self) -> &Frames {
        let read = || hodo_symbols::symbols(&self.bytes).map(|symbols| symbols.frames);
        self.frames.get_or_init(|| read().unwrap_or_default())
    }

    /// Returns the unwinder for walking stacks.
    pub fn unwinder(&self) -> &Unwinder {
        self.unwinder.get_or_init(|| Unwinder::new(&self.bytes))
    }

    /// Returns whether it calls `getcontext` or `swapcontext`, as far as its symbols show.
    pub fn saves_contexts(&self) -> bool {
        const NAMES: [&str; 2] = ["getcontext", "swapcontext"];
        *self.contexts.get_or_init(|| {
            let imports = self.imports();
            match imports.is_empty() {
                true => self.symbols(&NAMES).iter().any(Option::is_some),
                false => imports.iter().any(|name| NAMES.contains(&name.as_str())),
            }
        })
    }

    /// Returns the bytes at link-time addresses.
    pub fn at(&self, range: Range<u64>) -> Option<&[u8]> {
        let segment = self
            .segments
            .iter()
            .find(|s| s.addr <= range.start && range.end <= s.addr + s.size)?;
        let start = usize::try_from(segment.offset + (range.start - segment.addr)).ok()?;
        let len = usize::try_from(range.end.checked_sub(range.start)?).ok()?;
        self.bytes.get(start..start.checked_add(len)?)
    }

    /// Returns the difference between runtime and link-time addresses, if file offset `offset` is mapped at `start`.
    pub fn bias(&self, offset: u64, start: u64) -> Option<u64> {
        let page = |a: u64| a & !4095;
        self.segments
            .iter()
            .find(|s| s.executable && page(s.offset) <= offset && offset < s.offset + s.size)
            .map(|s| start.wrapping_sub(page(s.addr) + (offset - page(s.offset))))
    }

    /// Returns the link-time addresses of symbols, dynamic or static.
    pub fn symbols<const N: usize>(&self, names: &[&str; N]) -> [Option<Span>; N] {
        use object::read::elf::Sym;
        use object::{Object, ObjectSection};
        let mut found = [None; N];
        let Ok(elf) = ElfFile64::<object::Endianness>::parse(&*self.bytes) else {
            return found;
        };
        let endian = elf.endian();
        for table in [elf.elf_dynamic_symbol_table(), elf.elf_symbol_table()] {
            let strings = elf.section_by_index(table.string_section());
            let Ok(strings) = strings.and_then(|section| section.data()) else {
                continue;
            };
            // There are many symbols. Most names differ from these in the first bytes, so their ends are not searched
            // for.
            for symbol in table.iter() {
                let name = strings.get(symbol.st_name(endian) as usize..);
                let name = name.unwrap_or_default();
                let is_it = |wanted: &&str| {
                    name.get(wanted.len()) == Some(&0) && name.starts_with(wanted.as_bytes())
                };
                if let Some(index) = names.iter().position(is_it)
                    && symbol.st_value(endian) != 0
                    && !symbol.is_undefined(endian)
                {
                    let span = Span::at(symbol.st_value(endian), symbol.st_size(endian));
                    found[index] = Some(span);
                }
            }
        }
        found
    }

    /// Returns whether the dynamic linker calls functions of this file while loading it, to resolve addresses.
    pub fn has_resolvers(&self) -> bool {
        use object::{Object, RelocationFlags, elf};
        let Ok(file) = ElfFile64::<object::Endianness>::parse(&*self.bytes) else {
            return true;
        };
        let mut relocations = file.dynamic_relocations().into_iter().flatten();
        relocations.any(|(_, relocation)| {
            let RelocationFlags::Elf { r_type } = relocation.flags() else {
                return false;
            };
            [elf::R_X86_64_IRELATIVE, elf::R_RISCV_IRELATIVE].contains(&r_type)
        })
    }

    /// Returns the names of the USDT probes of a provider, and the offsets of their instructions in the file.
    pub fn probes_of(&self, provider: &str) -> Vec<(String, u64)> {
        let probes = hodo_symbols::usdt(&self.bytes).into_iter();
        let place = |addr: u64| {
            let mut segments = self.segments.iter();
            let of = segments
                .find(|segment| (segment.addr..segment.addr + segment.size).contains(&addr));
            of.map(|segment| segment.offset + (addr - segment.addr))
        };
        probes
            .filter(|probe| probe.provider == provider)
            .filter_map(|probe| Some((probe.name, place(probe.addr)?)))
            .collect()
    }

    /// Returns whether it has restartable sequences (librseq, tcmalloc): a section with descriptors of them.
    pub fn has_sequences(&self) -> bool {
        use object::{Object, ObjectSection};
        let file = ElfFile64::<object::Endianness>::parse(&*self.bytes);
        let section = file
            .ok()
            .and_then(|file| Some(file.section_by_name("__rseq_cs")?.size()));
        section.is_some_and(|size| size > 0)
    }

    /// Returns the link-time address of the symbol with this name, if all symbols with the name have the same address.
    pub fn only_symbol(&self, name: &str) -> Option<u64> {
        use object::{Object, ObjectSymbol};
        let elf = ElfFile64::<object::Endianness>::parse(&*self.bytes).ok()?;
        let named = elf
            .dynamic_symbols()
            .chain(elf.symbols())
            .filter(|symbol| !symbol.is_undefined() && symbol.name_bytes() == Ok(name.as_bytes()));
        let mut places: Vec<u64> = named.map(|symbol| symbol.address()).collect();
        places.dedup();
        match places[..] {
            [at] if at != 0 => Some(at),
            _ => None,
        }
    }

    /// Returns the link-time address of a dynamic symbol that the file defines.
    pub fn dynamic_symbol(&self, name: &str) -> Option<u64> {
        use object::{Object, ObjectSymbol};
        let elf = ElfFile64::<object::Endianness>::parse(&*self.bytes).ok()?;
        let mut symbols = elf.dynamic_symbols();
        let found = symbols
            .find(|symbol| !symbol.is_undefined() && symbol.name_bytes() == Ok(name.as_bytes()))?;
        Some(found.address())
    }

    /// Returns the names of the dynamic symbols that it imports.
    pub fn imports(&self) -> Vec<String> {
        use object::{Object, ObjectSymbol};
        let Ok(elf) = ElfFile64::<object::Endianness>::parse(&*self.bytes) else {
            return Vec::new();
        };
        elf.dynamic_symbols()
            .filter(|symbol| symbol.is_undefined())
            .filter_map(|symbol| symbol.name().ok().map(str::to_owned))
            .collect()
    }

    /// Returns the link-time addresses of the dynamic section.
    pub fn dynamic(&self) -> Option<Span> {
        let elf = ElfFile64::<object::Endianness>::parse(&*self.bytes).ok()?;
        let endian = elf.endian();
        let headers = elf.elf_header().program_headers(endian, elf.data()).ok()?;
        let header = headers
            .iter()
            .find(|header| header.p_type(endian) == object::elf::PT_DYNAMIC)?;
        Some(Span::at(header.p_vaddr(endian), header.p_memsz(endian)))
    }

    /// Returns the link-time address of the entry point.
    pub fn entry(&self) -> u64 {
        use object::Object;
        ElfFile64::<object::Endianness>::parse(&*self.bytes).map_or(0, |elf| elf.entry())
    }
}

/// Identifies one content of a file. Inode numbers are reused, and files rewritten, several times in a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Version {
    /// The device, and the file's number there.
    file: [u64; 2],
    size: u64,
    /// Seconds and nanoseconds.
    modified: [i64; 2],
    changed: [i64; 2],
}

impl From<&Metadata> for Version {
    fn from(meta: &Metadata) -> Self {
        Self {
            file: [meta.dev(), meta.ino()],
            size: meta.size(),
            modified: [meta.mtime(), meta.mtime_nsec()],
            changed: [meta.ctime(), meta.ctime_nsec()],
        }
    }
}

impl Version {
    /// Returns the identity of the file as it is now.
    pub fn of(path: &Path) -> std::io::Result<Self> {
        std::fs::metadata(path).map(|meta| Self::from(&meta))
    }
}

/// Hashes what plans depend on in a file: everything except the large sections for debuggers.
pub fn hashes(bytes: &[u8]) -> Vec<u128> {
    let mut left_out = Vec::new();
    if let Ok(object) = ObjectFile::parse(bytes) {
        let debug = |name: &str| name.starts_with(".debug_") && name != ".debug_frame";
        let sections = object.sections();
        let debug = sections.filter(|section| section.name().is_ok_and(debug));
        left_out.extend(debug.filter_map(|section| section.file_range()));
    }
    left_out.sort_unstable();
    let mut hashes = Vec::new();
    let mut rest = 0;
    for (start, len) in left_out {
        let range = usize::try_from(start).ok().zip(usize::try_from(len).ok());
        let end = range.and_then(|(start, len)| start.checked_add(len));
        if let Some(((start, _), end)) = range.zip(end)
            && let Some(before) = bytes.get(rest..start)
            && end <= bytes.len()
        {
            hashes.push(XxHash3_128::oneshot(before));
            rest = end;
        }
    }
    hashes.push(XxHash3_128::oneshot(&bytes[rest..]));
    hashes
}

/// Hashes the symbol table of a separate file, which is all that plans need of it.
fn symbol_table_hash(bytes: &[u8]) -> u128 {
    let mut hashes = Vec::new();
    if let Ok(object) = ObjectFile::parse(bytes) {
        let sections = [".symtab", ".strtab"].map(|name| object.section_by_name(name));
        let data = sections
            .into_iter()
            .flatten()
            .filter_map(|section| section.data().ok());
        hashes.extend(data.map(XxHash3_128::oneshot));
    }
    let words: Vec<u8> = hashes.into_iter().flat_map(u128::to_le_bytes).collect();
    XxHash3_128::oneshot(&words)
}

/// A file's code in the memory of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// First address.
    pub start: u64,
    /// Address after the last.
    pub end: u64,
    /// Inode.
    pub inode: u64,
}

impl From<&Mapping> for Seen {
    fn from(mapping: &Mapping) -> Self {
        Self {
            start: mapping.start,
            end: mapping.end,
            inode: mapping.inode,
        }
    }
}

/// A file whose code has been changed.
#[derive(Debug, Clone)]
pub struct Placed {
    /// The addresses of its code.
    pub range: std::ops::Range<u64>,
    /// The difference between runtime and link-time addresses.
    pub bias: u64,
    /// The file.
    pub image: Rc<Image>,
}

/// Returns a file's path as the kernel reports it.
pub fn canonical(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_that_plans_depend_on_identifies_a_content() {
        let bytes = std::fs::read("/proc/self/exe").expect("this test");
        let object = ObjectFile::parse(&*bytes).expect("an ELF file");
        let first = |name: &str| {
            let section = object.section_by_name(name)?;
            usize::try_from(section.file_range()?.0).ok()
        };
        let known = hashes(&bytes);
        let changed = |at: usize| {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1;
            hashes(&bytes) != known
        };
        for name in [".text", ".eh_frame", ".dynsym", ".symtab", ".strtab"] {
            assert!(changed(first(name).expect(name) + 1), "{name}");
        }
        assert!(changed(16));
        assert!(changed(bytes.len() - 1));
        if let Some(debug) = first(".debug_info") {
            assert!(!changed(debug + 1));
        }
        // Files other than ELF files have a content, too.
        assert_ne!(hashes(b"one"), hashes(b"two"));
        for len in (1..bytes.len()).step_by(bytes.len() / 4) {
            assert_ne!(hashes(&bytes[..len]), known, "{len} bytes");
        }
    }
}
