//! What of a program was executed: source lines, functions, and blocks of code.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use hodo_dbi::contents;
use hodo_symbols::{Debug, Function, Nature, Symbols, symbols_of};
use object::Endianness;
use object::elf::{FileHeader64, PT_LOAD};
use object::read::elf::{FileHeader, ProgramHeader};

use crate::executions::Executions;
use crate::places::{function, segments, to_address, to_offset};

/// What of a program was executed, and what of it is known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Coverage {
    /// By the names of source files.
    pub sources: BTreeMap<String, Source>,
    /// By the files of code.
    pub modules: BTreeMap<PathBuf, Module>,
}

/// A source file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Source {
    /// Lines that have code, and how often each was executed.
    pub lines: BTreeMap<u32, u64>,
    /// Functions that begin in it, by the names of their symbols.
    pub functions: BTreeMap<String, Covered>,
}

/// A function.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Covered {
    /// The line at which it begins.
    pub line: u32,
    /// How often it was executed.
    pub count: u64,
    /// Lines that have code in it, of any source file, and whether each was executed. Empty if that is not known.
    pub lines: BTreeMap<(String, u32), bool>,
}

impl Covered {
    /// How many of its lines were executed.
    #[must_use]
    pub fn hit(&self) -> usize {
        self.lines.values().filter(|&&hit| hit).count()
    }
}

/// A file of code. Addresses are those in the file's own terms.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Module {
    /// The first address.
    pub base: u64,
    /// The address after the last one.
    pub end: u64,
    /// Where it begins to be executed.
    pub entry: u64,
    /// Blocks of code that were executed: how far from the first address, and bytes.
    pub blocks: BTreeSet<(u64, u16)>,
    /// How many functions it has.
    pub functions: usize,
    /// How many of these were executed.
    pub executed: usize,
}

/// Chooses code by its file, and where it is in that.
pub type Choose<'c> = &'c dyn Fn(&Path, u64) -> bool;

impl Coverage {
    /// What these executions are. Only chosen code is known.
    #[must_use]
    pub fn of(executions: &Executions, choose: Choose<'_>) -> Self {
        // By file: by the offset there, how often each instruction was executed. It may be in several blocks.
        let mut files: HashMap<&Path, BTreeMap<u64, u64>> = HashMap::new();
        for (block, counts) in executions.blocks() {
            let Some((path, offset)) = &block.file else {
                continue;
            };
            let file = files.entry(path).or_default();
            for (insn, count) in block.insns.iter().zip(counts) {
                if count > 0 {
                    *file
                        .entry(offset + (insn.pc - block.insns[0].pc))
                        .or_default() += count;
                }
            }
        }
        let mut coverage = Self::default();
        for (path, counts) in files {
            coverage.add_file(path, &counts, choose);
        }
        coverage.add_blocks(executions);
        coverage
            .modules
            .retain(|_, module| !module.blocks.is_empty());
        coverage
    }

    /// Adds a file of code. A file that cannot be read is not known.
    fn add_file(&mut self, path: &Path, counts: &BTreeMap<u64, u64>, choose: Choose<'_>) {
        let Ok(bytes) = contents(path) else {
            return;
        };
        let Some(mut module) = Module::of(&bytes) else {
            return;
        };
        let segments = segments(&bytes);
        let counts = counts.iter();
        let at = |(&offset, &count)| Some((to_address(&segments, offset)?, count));
        let counts: BTreeMap<u64, u64> = counts.filter_map(at).collect();
        let symbols = symbols_of(path, &bytes).unwrap_or_default();
        let is_chosen =
            |address| to_offset(&segments, address).is_some_and(|offset| choose(path, offset));
        for one in &symbols.functions {
            if one.nature != Nature::Part && is_chosen(one.addr) {
                module.functions += 1;
                let end = one.addr + one.size.max(1);
                module.executed += usize::from(counts.range(one.addr..end).next().is_some());
            }
        }
        self.modules.insert(path.to_owned(), module);
        if let Ok(debug) = Debug::open(path, &bytes) {
            self.add_lines(&debug, &symbols, &counts, &is_chosen);
        }
    }

    fn add_lines(
        &mut self,
        debug: &Debug,
        symbols: &Symbols,
        counts: &BTreeMap<u64, u64>,
        is_chosen: &dyn Fn(u64) -> bool,
    ) {
        let table = debug.line_table();
        let mut functions: BTreeMap<u64, (Option<&str>, Covered)> = BTreeMap::new();
        let parents = Parents::of(symbols);
        for range in table.ranges.iter().filter(|range| range.line > 0) {
            if !is_chosen(range.start) {
                continue;
            }
            let executed = counts.range(range.start..range.end);
            // A line is executed as often as the instruction of it that is executed most often.
            let count = executed.map(|(_, &count)| count).max().unwrap_or(0);
            let file = &table.files[range.file as usize];
            let source = self.sources.entry(file.clone()).or_default();
            let line = source.lines.entry(range.line).or_default();
            *line = (*line).max(count);
            let Some(found) = function(symbols, range.start) else {
                continue;
            };
            let found = parents.whole(found);
            let (begins, covered) = functions.entry(found.addr).or_default();
            if range.start == found.addr {
                *begins = Some(file);
                covered.line = range.line;
                covered.count = counts.get(&found.addr).copied().unwrap_or(0);
            }
            *covered.lines.entry((file.clone(), range.line)).or_default() |= count > 0;
        }
        for (address, (file, covered)) in functions {
            if let Some(found) = function(symbols, address)
                && let Some(source) = file.and_then(|file| self.sources.get_mut(file))
            {
                source.add_function(&found.name, covered);
            }
        }
    }

    /// Adds blocks to modules that are known.
    fn add_blocks(&mut self, executions: &Executions) {
        let mut bases: HashMap<PathBuf, Vec<(u64, u64, u64)>> = HashMap::new();
        for part in executions.basic_blocks() {
            let Some((path, offset)) = &part.block.file else {
                continue;
            };
            let Some(module) = self.modules.get_mut(path) else {
                continue;
            };
            let read = || contents(path).map(|bytes| segments(&bytes));
            let segments = bases
                .entry(path.clone())
                .or_insert_with(|| read().unwrap_or_default());
            let insns = &part.block.insns[part.first..part.first + part.instructions];
            let offset = offset + (insns[0].pc - part.block.insns[0].pc);
            let size: u16 = insns.iter().map(|insn| u16::from(insn.len)).sum();
            if let Some(address) = to_address(segments, offset)
                && let Some(distance) = address.checked_sub(module.base)
            {
                module.blocks.insert((distance, size));
            }
        }
    }

    /// Adds what was executed in other runs.
    pub fn add(&mut self, other: Self) {
        for (file, source) in other.sources {
            self.sources.entry(file).or_default().add(source);
        }
        for (path, module) in other.modules {
            let known = self.modules.entry(path);
            let known = known.or_insert_with(|| Module {
                blocks: BTreeSet::new(),
                ..module.clone()
            });
            known.blocks.extend(module.blocks);
            known.end = (known.end).max(known.base.saturating_add(module.end - module.base));
        }
    }

    /// How many lines and functions of source files were executed, and how many are known.
    #[must_use]
    pub fn totals(&self) -> [(usize, usize); 2] {
        let sources = self.sources.values();
        sources.map(Source::totals).fold([(0, 0); 2], |sum, next| {
            [0, 1].map(|which| (sum[which].0 + next[which].0, sum[which].1 + next[which].1))
        })
    }
}

impl Source {
    /// How many lines and functions were executed, and how many are known.
    #[must_use]
    pub fn totals(&self) -> [(usize, usize); 2] {
        let hit = self.lines.values().filter(|&&count| count > 0).count();
        let functions = self.functions.values();
        let called = functions.filter(|function| function.count > 0).count();
        [(hit, self.lines.len()), (called, self.functions.len())]
    }

    /// Adds how often its lines and functions were executed otherwise.
    pub fn add(&mut self, other: Self) {
        for (line, count) in other.lines {
            let known = self.lines.entry(line).or_default();
            *known = known.saturating_add(count);
        }
        for (name, function) in other.functions {
            self.add_function(&name, function);
        }
    }

    /// Adds what is known of a function. Several files of code may have the same one.
    pub fn add_function(&mut self, name: &str, covered: Covered) {
        let known = self.functions.entry(name.to_owned()).or_default();
        known.line = covered.line;
        known.count = known.count.saturating_add(covered.count);
        for (line, hit) in covered.lines {
            *known.lines.entry(line).or_default() |= hit;
        }
    }
}

impl Module {
    /// The module that a file is, without blocks.
    fn of(bytes: &[u8]) -> Option<Self> {
        let header = FileHeader64::<Endianness>::parse(bytes).ok()?;
        let endian = header.endian().ok()?;
        let headers = header.program_headers(endian, bytes).ok()?;
        let loaded = headers
            .iter()
            .filter(|header| header.p_type(endian) == PT_LOAD);
        let ends = loaded.map(|header| {
            let start = header.p_vaddr(endian);
            (start, start.saturating_add(header.p_memsz(endian)))
        });
        let (base, end) = ends.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))?;
        Some(Self {
            // The loader maps whole pages.
            base: base & !0xFFF,
            end,
            entry: header.e_entry(endian),
            ..Self::default()
        })
    }
}

/// Functions by name, for the parts of them that are elsewhere.
struct Parents<'s>(HashMap<&'s str, &'s Function>);

impl<'s> Parents<'s> {
    fn of(symbols: &'s Symbols) -> Self {
        let whole = symbols.functions.iter();
        let whole = whole.filter(|function| function.nature == Nature::Named);
        Self(whole.map(|one| (&*one.name, one)).collect())
    }

    /// The function that this one is a part of, such as `foo.cold`.
    fn whole(&self, part: &'s Function) -> &'s Function {
        let name = part.name.split_once(".cold").map(|(name, _)| name);
        let found = name.and_then(|name| self.0.get(name));
        found.copied().unwrap_or(part)
    }
}
