//! Which memory is accessed most: variables, stacks, and other memory by the code that wrote it first.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hodo_dbi::{Access, Block, Client, Flow, Kind};
use hodo_symbols::{Style, demangle};
use object::{Object as _, ObjectSection, ObjectSymbol, SymbolKind};

use crate::places::{InFile, Place, places, segments};

const PAGE: u64 = 4096;
const WORD: u64 = 8;
const WORDS: usize = (PAGE / WORD) as usize;
/// Bytes below the lowest address of a stack that a function may use without moving the stack pointer (System V ABI for
/// AMD64, section 3.2.2).
const RED_ZONE: u64 = 128;
/// A call that is further than this from a stack is on another one: that of a signal handler, or of a coroutine.
const FAR: u64 = 1 << 20;

/// What was done with a word of memory.
#[derive(Debug, Clone, Copy, Default)]
struct Word {
    loads: u64,
    stores: u64,
    /// Which instruction wrote it first: its number from one on. 0: none.
    writer: u32,
}

/// What threads of a process have in common.
#[derive(Debug, Default)]
struct Process {
    pages: HashMap<u64, Box<[Word; WORDS]>>,
    /// Blocks that were executed in it, by number.
    blocks: Vec<bool>,
    /// The file of code, and how far the code is from its place there. A file may be loaded again elsewhere.
    files: BTreeSet<(PathBuf, u64)>,
}

#[derive(Debug, Clone)]
struct Thread {
    process: i32,
    /// The addresses at which calls and returns have accessed its stack.
    stack: Option<(u64, u64)>,
}

/// What memory is.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum What {
    /// A variable, or a section if no variable is known there, and the name of its file.
    Variable(String, String),
    /// The stack of a thread.
    Stack(u32),
    /// Other memory: the instruction that has written it first, if one has.
    Written(Option<Place>),
}

/// The accesses of some memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// What it is.
    pub what: What,
    /// Accesses that read.
    pub loads: u64,
    /// Accesses that wrote.
    pub stores: u64,
    /// Bytes that were accessed, in words of eight.
    pub bytes: u64,
}

/// Counts the accesses of each word. An access that spans several is counted at its first one.
#[derive(Debug, Default)]
pub struct Hot {
    threads: Vec<Thread>,
    processes: BTreeMap<i32, Process>,
    writers: Vec<(Arc<Block>, u16)>,
    /// The numbers of writers, by blocks and instructions.
    numbers: HashMap<(u32, u16), u32>,
}

impl Hot {
    fn thread(&mut self, thread: u32) -> &mut Thread {
        let index = thread as usize;
        if self.threads.len() <= index {
            let new = Thread {
                process: 0,
                stack: None,
            };
            self.threads.resize(index + 1, new);
        }
        &mut self.threads[index]
    }

    /// What was accessed, the most accessed first.
    #[must_use]
    pub fn objects(&self) -> Vec<Object> {
        let mut sums: HashMap<Found<'_>, (u64, u64, u64)> = HashMap::new();
        let mut known: HashMap<&Path, Option<Data>> = HashMap::new();
        for process in self.processes.values() {
            for (path, _) in &process.files {
                known.entry(path).or_insert_with(|| Data::read(path));
            }
        }
        for (&pid, process) in &self.processes {
            let modules: Vec<(&Data, u64)> = process
                .files
                .iter()
                .filter_map(|(path, distance)| {
                    let data = known.get(path.as_path())?.as_ref()?;
                    let &(offset, _, address) = data.code.first()?;
                    let start = distance.wrapping_add(offset);
                    Some((data, start.wrapping_sub(address)))
                })
                .collect();
            for (&page, words) in &process.pages {
                let used = words
                    .iter()
                    .zip(0..)
                    .filter(|(word, _)| word.loads + word.stores > 0);
                for (word, index) in used {
                    let address = page + WORD * index;
                    let found = self.find(pid, address, word.writer, &modules);
                    let sum = sums.entry(found).or_default();
                    sum.0 += word.loads;
                    sum.1 += word.stores;
                    sum.2 += WORD;
                }
            }
        }
        self.named(sums)
    }

    fn find<'d>(
        &self,
        process: i32,
        address: u64,
        writer: u32,
        modules: &[(&'d Data, u64)],
    ) -> Found<'d> {
        let is_here = |thread: &Thread| {
            let within = |(low, high): (u64, u64)| (low - RED_ZONE..=high).contains(&address);
            thread.process == process && thread.stack.is_some_and(within)
        };
        if let Some(thread) = self.threads.iter().position(is_here) {
            return Found::Stack(thread as u32);
        }
        let variable = modules.iter().find_map(|&(data, bias)| {
            let name = data.name(address.wrapping_sub(bias))?;
            Some(Found::Variable(name, &data.file))
        });
        variable.unwrap_or(Found::Written(writer))
    }

    fn named(&self, sums: HashMap<Found<'_>, (u64, u64, u64)>) -> Vec<Object> {
        let place = |number: u32| {
            let (block, insn) = self.writers.get((number as usize).checked_sub(1)?)?;
            InFile::of(block, usize::from(*insn))
        };
        let written = sums.keys().filter_map(|found| match found {
            Found::Written(number) => place(*number),
            _ => None,
        });
        let wanted: Vec<InFile> = written.collect();
        let found_places = places(wanted.iter());
        let mut objects: HashMap<What, Object> = HashMap::new();
        for (found, (loads, stores, bytes)) in sums {
            let what = match found {
                Found::Stack(thread) => What::Stack(thread),
                Found::Variable(name, file) => What::Variable(name.to_owned(), file.to_owned()),
                Found::Written(number) => {
                    let found = place(number).and_then(|place| found_places.get(&place).cloned());
                    // Writers on the same line are one.
                    What::Written(found.map(|place| Place {
                        address: place.address.filter(|_| place.line.is_none()),
                        ..place
                    }))
                }
            };
            let object = objects.entry(what.clone()).or_insert(Object {
                what,
                loads: 0,
                stores: 0,
                bytes: 0,
            });
            object.loads += loads;
            object.stores += stores;
            object.bytes += bytes;
        }
        let mut objects: Vec<Object> = objects.into_values().collect();
        objects.sort_by(|a, b| {
            let accesses = |object: &Object| object.loads + object.stores;
            accesses(b)
                .cmp(&accesses(a))
                .then_with(|| a.what.cmp(&b.what))
        });
        objects
    }
}

/// What memory is, before names are known.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Found<'d> {
    Stack(u32),
    Variable(&'d str, &'d str),
    Written(u32),
}

/// The data of a file.
#[derive(Debug)]
struct Data {
    file: String,
    code: Vec<(u64, u64, u64)>,
    /// Variables: address, size, name. In ascending order.
    variables: Vec<(u64, u64, String)>,
    /// The same for sections that are not code.
    sections: Vec<(u64, u64, String)>,
}

impl Data {
    fn read(path: &Path) -> Option<Self> {
        let bytes = std::fs::read(path).ok()?;
        let file = object::File::parse(&*bytes).ok()?;
        let symbols = file.symbols().chain(file.dynamic_symbols());
        let data = symbols.filter(|symbol| symbol.kind() == SymbolKind::Data && symbol.size() > 0);
        let mut variables: Vec<(u64, u64, String)> = data
            .filter_map(|symbol| {
                let name = demangle(symbol.name().ok()?, Style::Simple);
                Some((symbol.address(), symbol.size(), name))
            })
            .collect();
        variables.sort();
        let mut sections: Vec<(u64, u64, String)> = file
            .sections()
            .filter(|section| section.address() != 0)
            .filter_map(|section| {
                let name = section.name().ok()?.to_owned();
                Some((section.address(), section.size(), name))
            })
            .collect();
        sections.sort();
        let name = path.file_name().unwrap_or_default();
        Some(Self {
            file: name.to_string_lossy().into_owned(),
            code: segments(&bytes),
            variables,
            sections,
        })
    }

    fn name(&self, address: u64) -> Option<&str> {
        let in_list = |list: &'_ [(u64, u64, String)]| {
            let next = list.partition_point(|&(start, ..)| start <= address);
            let (start, size, _) = list.get(next.checked_sub(1)?)?;
            (address - start < *size).then(|| next - 1)
        };
        match in_list(&self.variables) {
            Some(index) => Some(&self.variables[index].2),
            None => in_list(&self.sections).map(|index| &*self.sections[index].2),
        }
    }
}

impl Client for Hot {
    fn thread(&mut self, thread: u32, process: i32, _: i32) {
        Self::thread(self, thread).process = process;
    }

    fn executed(&mut self, thread: u32, block: &Arc<Block>, _: usize, accesses: &[Access]) {
        let known = Self::thread(self, thread);
        let pid = known.process;
        for access in accesses {
            let flow = block.insns[usize::from(access.insn)].flow;
            if matches!(flow, Flow::Call | Flow::Return) {
                let at = access.address;
                let (low, high) = known.stack.unwrap_or((at, at));
                if (low.saturating_sub(FAR)..=high.saturating_add(FAR)).contains(&at) {
                    known.stack = Some((low.min(at), high.max(at)));
                }
            }
        }
        let process = self.processes.entry(pid).or_default();
        let number = block.id as usize;
        if !process.blocks.get(number).is_some_and(|&known| known) {
            let len = process.blocks.len().max(number + 1);
            process.blocks.resize(len, false);
            process.blocks[number] = true;
            if let Some((path, offset)) = &block.file {
                let distance = block.insns[0].pc.wrapping_sub(*offset);
                process.files.insert((path.clone(), distance));
            }
        }
        for access in accesses {
            let page = access.address & !(PAGE - 1);
            let words = process
                .pages
                .entry(page)
                .or_insert_with(|| Box::new([Word::default(); WORDS]));
            let word = &mut words[((access.address - page) / WORD) as usize];
            match access.kind {
                Kind::Load => word.loads += 1,
                Kind::Store => {
                    word.stores += 1;
                    if word.writer == 0 {
                        let next = self.writers.len() as u32 + 1;
                        let key = (block.id, access.insn);
                        word.writer = *self.numbers.entry(key).or_insert_with(|| {
                            self.writers.push((Arc::clone(block), access.insn));
                            next
                        });
                    }
                }
            }
        }
    }
}
