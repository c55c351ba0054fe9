//! Files that are mapped into targets: read once, planned once, numbered once.

use std::cell::{Cell, OnceCell};
use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use anyhow::{Context, Result, bail};
use hodo_plan::model::{Mode, Plan};
use hodo_symbols::{Debug, DebugError, Frames, Unwinder};
use hodo_trace::format::record;
use memmap2::Mmap;
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::cache;
use crate::machine::{ELF_MACHINE, NAME};
use crate::probes::{Probed, Probes};
use crate::reach;
use crate::select::Selection;
use crate::session::Session;

/// Functions that are not traced because they are hooked, whatever other names they have.
pub const HOOKED: [&str; 8] = [
    "_dl_find_object",
    "dl_iterate_phdr",
    "_Unwind_Backtrace",
    "_dl_debug_state",
    "mlockall",
    "setrlimit",
    "getrlimit",
    "prlimit",
];

/// One loadable segment: link-time addresses and place in the file.
#[derive(Debug, Clone, Copy)]
pub struct Segment {
    /// Link-time address.
    pub addr: u64,
    /// Offset in the file.
    pub offset: u64,
    /// Bytes in the file.
    pub size: u64,
    /// Whether it is code.
    pub executable: bool,
}

/// A file, mapped and parsed as far as loading goes.
#[derive(Debug)]
pub struct Image {
    /// Where it is.
    pub path: PathBuf,
    /// Its contents.
    pub bytes: Mmap,
    /// Its loadable segments.
    pub segments: Vec<Segment>,
    /// Highest link-time address in memory.
    pub end: u64,
    /// Its debugging information, once it was asked for.
    debug: OnceCell<Result<Debug, DebugError>>,
    /// Its unwind tables, once they were asked for.
    frames: OnceCell<Frames>,
    /// The same, for whoever goes from frame to frame.
    unwinder: OnceCell<Unwinder>,
    /// Whether it saves contexts, once that was asked.
    contexts: OnceCell<bool>,
    /// What tells its content from others, once that was asked.
    content: OnceCell<Vec<u128>>,
    /// Whether a plan of it was kept by an earlier recording.
    pub planned_before: Cell<bool>,
}

/// A module with its plan and numbers.
#[derive(Debug)]
pub struct Module {
    /// The file.
    pub image: Rc<Image>,
    /// Its plan.
    pub plan: Rc<Plan>,
    /// The functions that are to be traced.
    pub functions: Vec<Chosen>,
    /// The libcalls that are to be traced.
    pub libcalls: Vec<Chosen>,
    /// Its probes.
    pub probed: Probed,
    number: Number,
}

/// How a module is numbered.
#[derive(Debug, Clone)]
struct Number {
    id: u32,
    /// Its first function id.
    first: u32,
    /// Whether it is a program.
    main: bool,
    /// Of each id, what the file of symbols says.
    kinds: Vec<char>,
}

impl Module {
    /// Whether it is a program, not a library.
    pub fn is_main(&self) -> bool {
        self.number.main
    }

    /// Its first id.
    pub fn first_id(&self) -> u32 {
        self.number.first
    }
}

/// A function that is to be traced.
#[derive(Debug, Clone, Copy)]
pub struct Chosen {
    /// Index in the plan.
    pub index: usize,
    /// Id in the trace.
    pub id: u32,
    /// Whether it is a filter function (`-F`).
    pub filter: bool,
}

impl Image {
    /// Opens a program or library for this machine. `real` is where to read it, `path` what it is called.
    pub fn open(real: &Path, path: PathBuf) -> Result<Self> {
        let image = Self::read(real, path)?;
        if image.bytes[18..20] != ELF_MACHINE.to_le_bytes() {
            bail!("{} is not a program for {NAME}", image.path.display());
        }
        Ok(image)
    }

    /// Opens an ELF file of 64 bits, for whatever machine.
    pub fn read(real: &Path, path: PathBuf) -> Result<Self> {
        let file = File::open(real).with_context(|| format!("opening {}", path.display()))?;
        // SAFETY: the file may be changed by others while it is mapped; all that is read from it is checked or is code
        // bytes that are compared with the target's memory before they are used.
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
            path,
            bytes,
            segments,
            end,
            debug: OnceCell::new(),
            frames: OnceCell::new(),
            unwinder: OnceCell::new(),
            contexts: OnceCell::new(),
            content: OnceCell::new(),
            planned_before: Cell::new(false),
        })
    }

    /// What tells its content from others, as far as plans depend on it.
    pub fn content(&self) -> &[u128] {
        self.content.get_or_init(|| cache::hashes(&self.bytes))
    }

    /// Does it have the same content still?
    pub fn is_as_it_was(&self) -> bool {
        cache::hashes(&self.bytes) == self.content()
    }

    /// Its debugging information.
    ///
    /// # Errors
    /// If there is none, or it is damaged.
    pub fn debug(&self) -> Result<&Debug, &DebugError> {
        let debug = self
            .debug
            .get_or_init(|| Debug::open(&self.path, &self.bytes));
        debug.as_ref()
    }

    /// What its unwind tables tell.
    pub fn frames(&self) -> &Frames {
        let read = || hodo_symbols::symbols(&self.bytes).map(|symbols| symbols.frames);
        self.frames.get_or_init(|| read().unwrap_or_default())
    }

    /// What leads from frame to frame.
    pub fn unwinder(&self) -> &Unwinder {
        self.unwinder.get_or_init(|| Unwinder::new(&self.bytes))
    }

    /// Does it call `getcontext` or `swapcontext`, as far as symbols tell?
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

    /// The bytes at link-time addresses.
    pub fn at(&self, range: Range<u64>) -> Option<&[u8]> {
        let segment = self
            .segments
            .iter()
            .find(|s| s.addr <= range.start && range.end <= s.addr + s.size)?;
        let start = usize::try_from(segment.offset + (range.start - segment.addr)).ok()?;
        let len = usize::try_from(range.end.checked_sub(range.start)?).ok()?;
        self.bytes.get(start..start.checked_add(len)?)
    }

    /// Runtime minus link-time address, when file offset `offset` is mapped at `start`.
    pub fn bias(&self, offset: u64, start: u64) -> Option<u64> {
        let page = |a: u64| a & !4095;
        self.segments
            .iter()
            .find(|s| s.executable && page(s.offset) <= offset && offset < s.offset + s.size)
            .map(|s| start.wrapping_sub(page(s.addr) + (offset - page(s.offset))))
    }

    /// Link-time address and size of symbols, dynamic or static.
    pub fn symbols<const N: usize>(&self, names: &[&str; N]) -> [Option<(u64, u64)>; N] {
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
            // There are many symbols, and most names differ from these in a few bytes: no other's end is looked for.
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
                    found[index] = Some((symbol.st_value(endian), symbol.st_size(endian)));
                }
            }
        }
        found
    }

    /// Does the dynamic linker call functions of this file while it loads it, to ask for addresses?
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

    /// Link-time address of the symbol with a name, if all that have this name are in one place.
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

    /// Link-time address of a dynamic symbol that it defines.
    pub fn dynamic_symbol(&self, name: &str) -> Option<u64> {
        use object::{Object, ObjectSymbol};
        let elf = ElfFile64::<object::Endianness>::parse(&*self.bytes).ok()?;
        let mut symbols = elf.dynamic_symbols();
        let found = symbols
            .find(|symbol| !symbol.is_undefined() && symbol.name_bytes() == Ok(name.as_bytes()))?;
        Some(found.address())
    }

    /// Names of the dynamic symbols that it has from elsewhere.
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

    /// Link-time address and size of the dynamic section.
    pub fn dynamic(&self) -> Option<(u64, u64)> {
        let elf = ElfFile64::<object::Endianness>::parse(&*self.bytes).ok()?;
        let endian = elf.endian();
        let headers = elf.elf_header().program_headers(endian, elf.data()).ok()?;
        let header = headers
            .iter()
            .find(|header| header.p_type(endian) == object::elf::PT_DYNAMIC)?;
        Some((header.p_vaddr(endian), header.p_memsz(endian)))
    }

    /// Link-time address of the entry point.
    pub fn entry(&self) -> u64 {
        use object::Object;
        ElfFile64::<object::Endianness>::parse(&*self.bytes).map_or(0, |elf| elf.entry())
    }
}

/// One content of a file: numbers of files are used again, and files are written again, several times in a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Version {
    file: (u64, u64),
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl From<&Metadata> for Version {
    fn from(meta: &Metadata) -> Self {
        Self {
            file: (meta.dev(), meta.ino()),
            size: meta.size(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
        }
    }
}

impl Version {
    /// That of the file as it is now.
    pub fn of(path: &Path) -> std::io::Result<Self> {
        std::fs::metadata(path).map(|meta| Self::from(&meta))
    }
}

/// All files seen in this recording.
#[derive(Debug)]
pub struct Modules {
    known: HashMap<Version, Rc<Module>>,
    next_id: u32,
    /// The probes of the recording.
    pub probes: Probes,
}

impl Modules {
    /// None yet.
    pub fn new(probes: Probes) -> Self {
        Self {
            known: HashMap::new(),
            next_id: 1,
            probes,
        }
    }

    /// The name of a function by its id.
    pub fn name(&self, id: u32) -> Option<&str> {
        self.known.values().find_map(|module| {
            let functions = module.functions.iter().find(|f| f.id == id);
            let function = functions.map(|f| module.plan.functions[f.index].name.as_str());
            let libcall = module.libcalls.iter().find(|call| call.id == id);
            function.or_else(|| libcall.map(|call| module.plan.libcalls[call.index].name.as_str()))
        })
    }

    /// The module of a file, planned if it is new.
    pub fn get(
        &mut self,
        real: &Path,
        path: &Path,
        selection: &Selection,
        main: bool,
        session: &mut Session,
    ) -> Result<Rc<Module>> {
        let key = Version::of(real).with_context(|| format!("reading {}", path.display()))?;
        if let Some(module) = self.known.get(&key) {
            return Ok(Rc::clone(module));
        }
        let image = Image::open(real, path.to_owned())?;
        let options = hodo_plan::PlanOptions {
            keep: self.probes.looked_at(&image),
            ..hodo_plan::PlanOptions::default()
        };
        let plan = cache::plan(&image, &options)?;
        let module = self.number(image, plan, selection, main, session)?;
        let module = Rc::new(module);
        self.known.insert(key, Rc::clone(&module));
        Ok(module)
    }

    fn number(
        &mut self,
        image: Image,
        plan: Plan,
        selection: &Selection,
        main: bool,
        session: &mut Session,
    ) -> Result<Module> {
        let id = u32::try_from(self.known.len()).context("too many modules")?;
        let first = self.next_id;
        let Choice {
            functions,
            libcalls,
            mut symbols,
            next,
        } = Choice::new(&image, &plan, first, selection, main);
        self.next_id = next;
        for remark in &plan.remarks {
            let text = format!("{}: {remark}", image.path.display());
            session.log(&json!({"remark": {"pid": 0, "text": text}}))?;
        }
        let mut hits = Vec::new();
        let probed = match self.probes.concern(&image) {
            true => self.probes.module(
                &image,
                (&plan, &functions),
                &mut self.next_id,
                &mut hits,
                session,
            )?,
            false => Probed::default(),
        };
        let hits = hits
            .iter()
            .map(|(addr, name)| (*addr, 0, 'B', name.as_str()));
        symbols.extend(hits);
        let kinds = symbols.iter().map(|symbol| symbol.2).collect();
        let count = symbols.len();
        let file = session.symbols(id, symbols.into_iter())?;
        session.log(&json!({"module": {
            "id": id, "path": image.path.to_string_lossy(), "build_id": plan.build_id,
            "first_id": first, "count": count, "file": file,
        }}))?;
        Ok(Module {
            image: Rc::new(image),
            plan: Rc::new(plan),
            functions,
            libcalls,
            probed,
            number: Number {
                id,
                first,
                main,
                kinds,
            },
        })
    }

    /// How many functions and calls are traced in all files.
    pub fn traced(&self) -> usize {
        let traced = |module: &Rc<Module>| module.functions.len() + module.libcalls.len();
        self.known.values().map(traced).sum()
    }

    /// All files.
    pub fn all(&self) -> impl Iterator<Item = &Rc<Module>> {
        self.known.values()
    }

    /// Chooses again what is traced of the files that are known. There must be no probes.
    ///
    /// # Errors
    /// If a file of symbols cannot be written.
    pub fn choose_again(&mut self, selection: &Selection, session: &mut Session) -> Result<()> {
        for module in self.known.values_mut() {
            let mut number = module.number.clone();
            let Choice {
                functions,
                libcalls,
                mut symbols,
                ..
            } = Choice::new(
                &module.image,
                &module.plan,
                number.first,
                selection,
                number.main,
            );
            // What was traced once is in the trace.
            for (symbol, kind) in symbols.iter_mut().zip(&number.kinds) {
                if symbol.2 == '-' {
                    symbol.2 = *kind;
                }
            }
            let kinds: Vec<char> = symbols.iter().map(|symbol| symbol.2).collect();
            if kinds != number.kinds {
                session.symbols(number.id, symbols.into_iter())?;
                number.kinds = kinds;
            }
            *module = Rc::new(Module {
                image: Rc::clone(&module.image),
                plan: Rc::clone(&module.plan),
                functions,
                libcalls,
                probed: Probed::default(),
                number,
            });
        }
        Ok(())
    }
}

/// What is traced of a file.
struct Choice<'p> {
    functions: Vec<Chosen>,
    libcalls: Vec<Chosen>,
    /// Address, size, kind and name of all that has an id, in their order.
    symbols: Vec<(u64, u64, char, &'p str)>,
    /// The id behind the last.
    next: u32,
}

impl<'p> Choice<'p> {
    /// The ids do not depend on what is chosen.
    fn new(image: &Image, plan: &'p Plan, first: u32, selection: &Selection, main: bool) -> Self {
        let mut next = first;
        let mut symbols = Vec::new();
        let mut functions = Vec::new();
        let mut libcalls = Vec::new();
        let left_out = left_out(image, plan, selection);
        let hooked = image.symbols(&HOOKED);
        let is_hooked = |at: u64| hooked.iter().flatten().any(|&(addr, _)| addr == at);
        for (index, function) in plan.functions.iter().enumerate() {
            let number = next;
            let name = function.name.as_str();
            let wanted = selection.function(&image.path, main, name, function.size)
                && !is_hooked(function.addr)
                && !left_out[index];
            let kind = match &function.outcome {
                _ if number > record::MAX_FUNCTION_ID => '-',
                Ok(site) if wanted && (site.mode == Mode::Call || selection.entries()) => {
                    functions.push(Chosen {
                        index,
                        id: number,
                        filter: selection.filter(&image.path, name, false),
                    });
                    if site.mode == Mode::Call { 'T' } else { 'E' }
                }
                _ => '-',
            };
            symbols.push((function.addr, function.size, kind, name));
            next = next.saturating_add(1);
        }
        // All sites that call one library function have one id.
        let mut by_name: HashMap<&str, (u32, usize)> = HashMap::new();
        for (index, libcall) in plan.libcalls.iter().enumerate() {
            let name = libcall.name.as_str();
            if !selection.lists_libcall(main, name) {
                continue;
            }
            let (number, symbol) = *by_name.entry(name).or_insert_with(|| {
                symbols.push((libcall.patch, 0, '-', name));
                next = next.saturating_add(1);
                (next - 1, symbols.len() - 1)
            });
            if !selection.libcall(main, name)
                || selection.notrace(&image.path, name, true)
                || (libcall.mode != Mode::Call && !selection.entries())
            {
                continue;
            }
            if symbols[symbol].2 == '-' {
                let kind = if libcall.mode == Mode::Call { 'P' } else { 'p' };
                symbols[symbol] = (libcall.patch, 0, kind, name);
            }
            if number <= record::MAX_FUNCTION_ID {
                libcalls.push(Chosen {
                    index,
                    id: number,
                    filter: selection.filter(&image.path, name, true),
                });
            }
        }
        Self {
            functions,
            libcalls,
            symbols,
            next,
        }
    }
}

/// The functions of which no call can pass the filters; the others are looked at when they are called, or by readers.
fn left_out(image: &Image, plan: &Plan, selection: &Selection) -> Vec<bool> {
    let names = || plan.functions.iter().map(|f| f.name.as_str()).enumerate();
    let mut out = vec![false; plan.functions.len()];
    if selection.is_filtered() && !selection.is_nested() {
        let roots: Vec<_> = names()
            .filter(|(_, name)| selection.filter(&image.path, name, false))
            .map(|(index, _)| index)
            .collect();
        if let Some(reached) = reach::reachable(image, plan, &roots) {
            out = reached.into_iter().map(|reached| !reached).collect();
        }
    }
    for (index, name) in names() {
        // One that calls others must be seen, for they are left out with it.
        if selection.notrace(&image.path, name, false) && reach::is_leaf(image, plan, index) {
            out[index] = true;
        }
    }
    out
}
