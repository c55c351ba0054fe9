//! Which memory is accessed most: variables, stacks, allocations by the code that made them, and other memory by the
//! code that wrote it first.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hodo_dbi::{Access, Block, Client, Event, Events, Kind, Transfer};
use rustc_hash::FxHashMap;

use crate::heap::{self, Change, Heap};
use crate::places::{InFile, Place, places};
use crate::stacks::Stacks;
use crate::variables::{Data, Variable};

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
    counts: [u64; 2],
    /// Which instruction wrote it first: its number from one on. 0: none.
    writer: u32,
}

/// Memory that is allocated.
#[derive(Debug, Clone, Copy)]
struct Allocation {
    size: u64,
    /// Where it was allocated.
    context: u32,
    /// How many more times it will be reported that an allocation at this address is freed: those that other threads
    /// have freed before.
    late: u32,
}

/// What was done with memory, and how much that is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Sum {
    counts: [u64; 2],
    bytes: u64,
    allocations: u64,
    allocated: u64,
}

impl Sum {
    fn add(&mut self, other: Self) {
        self.counts[0] += other.counts[0];
        self.counts[1] += other.counts[1];
        self.bytes += other.bytes;
        self.allocations += other.allocations;
        self.allocated += other.allocated;
    }
}

impl From<Word> for Sum {
    fn from(word: Word) -> Self {
        Self {
            counts: word.counts,
            bytes: WORD,
            ..Self::default()
        }
    }
}

/// A place in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spot {
    /// An address in a process.
    Memory(i32, u64),
    /// In memory that was allocated in this context, and freed.
    Freed(u32),
}

/// An allocation that was freed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ended {
    pub(crate) process: i32,
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) context: u32,
}

/// What threads of a process have in common.
#[derive(Debug, Default)]
struct Process {
    pages: FxHashMap<u64, Box<[Word; WORDS]>>,
    /// By address.
    allocations: BTreeMap<u64, Allocation>,
    /// Blocks that were executed in it, by number.
    blocks: Vec<bool>,
    /// The file of code, and how far the code is from its place there. A file may be loaded again elsewhere.
    files: BTreeSet<(PathBuf, u64)>,
}

/// The stack of a thread that has executed another program.
#[derive(Debug, Clone, Copy)]
struct Stack {
    thread: u32,
    process: i32,
    addresses: (u64, u64),
}

#[derive(Debug, Clone, Copy)]
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
    /// Allocated memory: the call that has allocated it, and the calls in which that was.
    Allocated(Vec<Place>),
    /// Other memory: the instruction that has written it first, if one has.
    Written(Option<Place>),
    /// Other memory; nobody knows who has written it.
    Other,
}

/// The accesses of some memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// What it is.
    pub what: What,
    /// Accesses that read, and those that wrote; or what else was counted.
    pub counts: [u64; 2],
    /// Bytes that were accessed, in words of eight. They count for each allocation.
    pub bytes: u64,
    /// How often it was allocated.
    pub allocations: u64,
    /// Bytes that were allocated.
    pub allocated: u64,
}

/// Instructions that write.
#[derive(Debug, Default)]
struct Writers {
    /// By number, from 1 on: blocks, and the numbers of the instructions there.
    all: Vec<(Arc<Block>, u16)>,
    numbers: FxHashMap<(u32, u16), u32>,
}

impl Writers {
    /// The number of an instruction that writes.
    fn number(&mut self, block: &Arc<Block>, insn: u16) -> u32 {
        let all = &mut self.all;
        *self.numbers.entry((block.id, insn)).or_insert_with(|| {
            all.push((Arc::clone(block), insn));
            all.len() as u32
        })
    }
}

/// Counts the accesses of each word. An access that spans several is counted at its first one.
#[derive(Debug, Default)]
pub struct Hot {
    threads: Vec<Thread>,
    processes: BTreeMap<i32, Process>,
    /// Stacks of threads before they have executed another program.
    former: Vec<Stack>,
    writers: Writers,
    heap: Heap,
    stacks: Stacks,
    /// What was freed, by the context in which it was allocated.
    freed: HashMap<u32, Sum>,
    /// What was freed of late, if that is wanted.
    ended: Option<Vec<Ended>>,
    /// Accesses of memory before it was allocated, by the number of the writer.
    unallocated: HashMap<u32, Sum>,
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

    /// A thread has executed the first `upto` instructions of a block. Follows its calls, but counts nothing.
    pub(crate) fn follow(
        &mut self,
        thread: u32,
        block: &Arc<Block>,
        upto: usize,
        accesses: &[Access],
    ) {
        self.stacks.executed(thread, block, upto, accesses);
        let known = Self::thread(self, thread);
        let pid = known.process;
        if let Some(access) = accesses.last()
            && matches!(
                block.insns[usize::from(access.insn)].transfer,
                Transfer::Call | Transfer::IndirectCall | Transfer::Return
            )
        {
            let at = access.address;
            let (low, high) = known.stack.unwrap_or((at, at));
            if (low.saturating_sub(FAR)..=high.saturating_add(FAR)).contains(&at) {
                known.stack = Some((low.min(at), high.max(at)));
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
    }

    /// Counts something at an address. `number`: what is counted.
    pub(crate) fn count(&mut self, thread: u32, address: u64, number: usize) {
        let pid = Self::thread(self, thread).process;
        let process = self.processes.entry(pid).or_default();
        process.word(address).counts[number] += 1;
    }

    /// The calls in which threads are.
    pub(crate) fn stacks(&self) -> &Stacks {
        &self.stacks
    }

    /// A thread is the first one of a process that another one has made: memory is there what it was for that.
    fn forked(&mut self, thread: u32, maker: u32) {
        let Thread { process, stack } = *Self::thread(self, maker);
        let known = Self::thread(self, thread);
        known.stack = stack;
        let pid = known.process;
        if let Some(process) = self.processes.get(&process).filter(|_| process != pid) {
            let copy = Process {
                allocations: process.allocations.clone(),
                files: process.files.clone(),
                ..Process::default()
            };
            self.processes.insert(pid, copy);
        }
        self.stacks.forked(thread, maker);
    }

    /// A thread has executed another program: the memory of its process gets another number.
    fn executed_program(&mut self, thread: u32) {
        let known = Self::thread(self, thread);
        let (pid, stack) = (known.process, known.stack.take());
        let before = self
            .processes
            .keys()
            .next()
            .map_or(0, |&least| least.min(0));
        let former = before - 1;
        if let Some(process) = self.processes.remove(&pid) {
            self.processes.insert(former, process);
        }
        self.former.extend(stack.map(|addresses| Stack {
            thread,
            process: former,
            addresses,
        }));
        self.stacks.executed_program(thread, pid);
    }

    /// Memory was allocated or freed.
    fn change(&mut self, pid: i32, change: Change) {
        let (address, size, context) = match change {
            Change::Freed { address } => return self.free(pid, address),
            Change::Allocated {
                address,
                size,
                context,
            } => (address, size, context),
            Change::Moved {
                from,
                to,
                size,
                context,
            } => {
                if from != 0 {
                    self.free(pid, from);
                }
                (to, size, context)
            }
        };
        let process = self.processes.entry(pid).or_default();
        let before = process.allocations.remove(&address);
        let range = (address, size.max(before.map_or(0, |before| before.size)));
        let sums = process.take(range);
        let mut late = 0;
        match before {
            // Another thread has freed it, which is received later.
            Some(before) => {
                late = before.late + 1;
                self.freed.entry(before.context).or_default().add(sums.1);
            }
            None => {
                for (writer, sum) in sums.0 {
                    self.unallocated.entry(writer).or_default().add(sum);
                }
            }
        }
        let allocation = Allocation {
            size,
            context,
            late,
        };
        process.allocations.insert(address, allocation);
        if let Some(before) = before {
            self.end(pid, address, before);
        }
        self.freed.entry(context).or_default().add(Sum {
            allocations: 1,
            allocated: size,
            ..Sum::default()
        });
    }

    fn free(&mut self, pid: i32, address: u64) {
        let process = self.processes.entry(pid).or_default();
        let Some(allocation) = process.allocations.get_mut(&address) else {
            return;
        };
        if allocation.late > 0 {
            allocation.late -= 1;
            return;
        }
        let allocation = *allocation;
        process.allocations.remove(&address);
        let (_, sum) = process.take((address, allocation.size));
        self.freed.entry(allocation.context).or_default().add(sum);
        self.end(pid, address, allocation);
    }

    fn end(&mut self, process: i32, address: u64, allocation: Allocation) {
        let Allocation { size, context, .. } = allocation;
        if let Some(ended) = &mut self.ended {
            ended.push(Ended {
                process,
                address,
                size,
                context,
            });
        }
    }

    /// One whose freed memory will be taken.
    pub(crate) fn with_ended() -> Self {
        Self {
            ended: Some(Vec::new()),
            ..Self::default()
        }
    }

    /// Takes what was freed since this was done last.
    pub(crate) fn take_ended(&mut self) -> Vec<Ended> {
        self.ended.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// What was accessed, the most accessed first. Calls that allocate are shown with this number of callers.
    #[must_use]
    pub fn objects(&self, callers: usize) -> Vec<Object> {
        let mut sums: HashMap<Found<'_>, Sum> = HashMap::new();
        for (&context, &sum) in &self.freed {
            sums.insert(Found::Allocated(context), sum);
        }
        for (&writer, &sum) in &self.unallocated {
            sums.insert(Found::Written(writer), sum);
        }
        let known = self.data();
        for (&pid, process) in &self.processes {
            let modules = process.modules(&known);
            for (&page, words) in &process.pages {
                let used = words
                    .iter()
                    .zip(0..)
                    .filter(|(word, _)| word.counts != [0; 2]);
                for (word, index) in used {
                    let address = page + WORD * index;
                    let found = self.find(pid, address, word.writer, &modules);
                    sums.entry(found).or_default().add((*word).into());
                }
            }
        }
        self.named(sums, callers)
    }

    /// The data of all files.
    fn data(&self) -> HashMap<&Path, Option<Data>> {
        let mut known = HashMap::new();
        for process in self.processes.values() {
            for (path, _) in &process.files {
                known.entry(&**path).or_insert_with(|| Data::read(path));
            }
        }
        known
    }

    /// What is in these places, and the parts of variables that are there, if that is known.
    #[must_use]
    pub(crate) fn memory(&self, wanted: &[Spot], callers: usize) -> Vec<(What, Option<Variable>)> {
        let known = self.data();
        let processes = self.processes.iter();
        let modules = processes.map(|(&pid, process)| (pid, process.modules(&known)));
        let modules: HashMap<i32, Vec<(&Data, u64)>> = modules.collect();
        let founds = wanted.iter().map(|spot| match *spot {
            Spot::Freed(context) => (Found::Allocated(context), None),
            Spot::Memory(pid, address) => {
                let modules = modules.get(&pid).map_or(&[][..], |modules| modules);
                let found = self.find(pid, address, 0, modules);
                let at = |(data, bias): &(&Data, u64)| data.at(address.wrapping_sub(*bias));
                let variable = match found {
                    Found::Variable(..) => modules.iter().find_map(at),
                    _ => None,
                };
                (found, variable)
            }
        });
        let founds: Vec<(Found<'_>, Option<Variable>)> = founds.collect();
        let different: HashSet<&Found<'_>> = founds.iter().map(|(found, _)| found).collect();
        let whats = self.whats(different.iter().copied(), callers);
        let all = founds.iter();
        all.map(|(found, variable)| (whats[found].clone(), variable.clone()))
            .collect()
    }

    fn find<'d>(
        &self,
        process: i32,
        address: u64,
        writer: u32,
        modules: &[(&'d Data, u64)],
    ) -> Found<'d> {
        let within =
            |(low, high): (u64, u64)| (low.saturating_sub(RED_ZONE)..=high).contains(&address);
        let is_here =
            |thread: &Thread| thread.process == process && thread.stack.is_some_and(within);
        if let Some(thread) = self.threads.iter().position(is_here) {
            return Found::Stack(thread as u32);
        }
        let was_here = |stack: &&Stack| stack.process == process && within(stack.addresses);
        if let Some(stack) = self.former.iter().find(was_here) {
            return Found::Stack(stack.thread);
        }
        let process = self.processes.get(&process);
        let allocation = process.and_then(|process| process.allocation_at(address));
        if let Some(allocation) = allocation {
            return Found::Allocated(allocation.context);
        }
        let variable = modules.iter().find_map(|&(data, bias)| {
            let name = data.name(address.wrapping_sub(bias))?;
            Some(Found::Variable(name, &data.file))
        });
        variable.unwrap_or(Found::Written(writer))
    }

    fn whats<'f, 'd: 'f>(
        &self,
        founds: impl Iterator<Item = &'f Found<'d>> + Clone,
        callers: usize,
    ) -> HashMap<&'f Found<'d>, What> {
        let place = |number: u32| {
            let (block, insn) = self.writers.all.get((number as usize).checked_sub(1)?)?;
            InFile::of(block, usize::from(*insn))
        };
        let written = founds.clone().filter_map(|found| match found {
            Found::Written(number) => place(*number),
            _ => None,
        });
        let calls = |context: u32| self.stacks.calls(context).take(callers + 1);
        let allocated = founds.clone().flat_map(|found| match found {
            Found::Allocated(context) => calls(*context).flatten().collect(),
            _ => Vec::new(),
        });
        let wanted: Vec<InFile> = written.chain(allocated).collect();
        let found_places = places(wanted.iter());
        // Those on the same line are one.
        let of_line = |place: Option<InFile>| {
            let place = found_places.get(&place?)?.clone();
            Some(Place {
                address: None,
                ..place
            })
        };
        let whats = founds.map(|found| {
            let what = match *found {
                Found::Stack(thread) => What::Stack(thread),
                Found::Variable(name, file) => What::Variable(name.to_owned(), file.to_owned()),
                Found::Allocated(context) => {
                    let calls = calls(context).map(|call| of_line(call).unwrap_or_default());
                    What::Allocated(calls.collect())
                }
                Found::Written(number) => {
                    let found = place(number).and_then(|place| found_places.get(&place).cloned());
                    What::Written(found.map(|place| Place {
                        address: place.address.filter(|_| place.line.is_none()),
                        ..place
                    }))
                }
            };
            (found, what)
        });
        whats.collect()
    }

    fn named(&self, sums: HashMap<Found<'_>, Sum>, callers: usize) -> Vec<Object> {
        let whats = self.whats(sums.keys(), callers);
        let mut objects: HashMap<What, Sum> = HashMap::new();
        for (found, &sum) in &sums {
            objects.entry(whats[found].clone()).or_default().add(sum);
        }
        let objects = objects.into_iter().map(|(what, sum)| Object {
            what,
            counts: sum.counts,
            bytes: sum.bytes,
            allocations: sum.allocations,
            allocated: sum.allocated,
        });
        let mut objects: Vec<Object> = objects.collect();
        objects.sort_by(|a, b| {
            let accesses = |object: &Object| object.counts[0] + object.counts[1];
            accesses(b)
                .cmp(&accesses(a))
                .then_with(|| a.what.cmp(&b.what))
        });
        objects
    }
}

impl Process {
    /// The data of its files, and how far that is from where it is in the file's own terms.
    fn modules<'d>(&self, known: &'d HashMap<&Path, Option<Data>>) -> Vec<(&'d Data, u64)> {
        let modules = self.files.iter().filter_map(|(path, distance)| {
            let data = known.get(path.as_path())?.as_ref()?;
            Some((data, data.bias(*distance)?))
        });
        modules.collect()
    }

    #[inline]
    fn word(&mut self, address: u64) -> &mut Word {
        let page = address & !(PAGE - 1);
        let new = || Box::new([Word::default(); WORDS]);
        let words = self.pages.entry(page).or_insert_with(new);
        &mut words[((address - page) / WORD) as usize]
    }

    /// What has an address.
    fn allocation_at(&self, address: u64) -> Option<&Allocation> {
        let (start, allocation) = self.allocations.range(..=address).next_back()?;
        // Its last word may be a part of one.
        let size = allocation.size.next_multiple_of(WORD);
        (address - start < size).then_some(allocation)
    }

    /// Takes what is known of the words of memory away. Returns it by writer, and in all.
    fn take(&mut self, (address, size): (u64, u64)) -> (Vec<(u32, Sum)>, Sum) {
        let end = address.saturating_add(size);
        let mut all = Sum::default();
        let mut by_writer: Vec<(u32, Sum)> = Vec::new();
        let mut take = |page: u64, words: &mut [Word; WORDS]| {
            let first = address.saturating_sub(page) / WORD;
            let last = (end - page).div_ceil(WORD).min(WORDS as u64);
            for word in &mut words[first as usize..last as usize] {
                if word.counts == [0; 2] {
                    continue;
                }
                let word = std::mem::take(word);
                all.add(word.into());
                match by_writer.last_mut().filter(|last| last.0 == word.writer) {
                    Some((_, sum)) => sum.add(word.into()),
                    None => by_writer.push((word.writer, word.into())),
                }
            }
        };
        let pages = (address & !(PAGE - 1)..end).step_by(PAGE as usize);
        if size / PAGE < self.pages.len() as u64 {
            for page in pages {
                if let Some(words) = self.pages.get_mut(&page) {
                    take(page, words);
                }
            }
        } else {
            for (&page, words) in &mut self.pages {
                if page < end && page + PAGE > address {
                    take(page, words);
                }
            }
        }
        (by_writer, all)
    }
}

/// What memory is, before names are known.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Found<'d> {
    Stack(u32),
    Variable(&'d str, &'d str),
    Allocated(u32),
    Written(u32),
}

impl Client for Hot {
    fn thread(&mut self, thread: u32, process: i32, _: i32) {
        Self::thread(self, thread).process = process;
        self.stacks.thread(thread, process);
    }

    fn events(&self) -> Events {
        heap::events()
    }

    fn event(&mut self, thread: u32, event: &Event<'_>) {
        match *event {
            Event::Executed => self.executed_program(thread),
            Event::Forked { maker } => self.forked(thread, maker),
            _ => {}
        }
        let stacks = &mut self.stacks;
        let context = |stack| stacks.at(thread, stack);
        if let Some(change) = self.heap.event(thread, event, context) {
            let pid = Self::thread(self, thread).process;
            self.change(pid, change);
        }
    }

    fn executed(&mut self, thread: u32, block: &Arc<Block>, upto: usize, accesses: &[Access]) {
        self.follow(thread, block, upto, accesses);
        let pid = Self::thread(self, thread).process;
        let process = self.processes.entry(pid).or_default();
        for access in accesses {
            let number = match access.kind {
                Kind::Load => 0,
                Kind::Store => 1,
            };
            let word = process.word(access.address);
            word.counts[number] += 1;
            if access.kind == Kind::Store && word.writer == 0 {
                word.writer = self.writers.number(block, access.insn);
            }
        }
    }
}
