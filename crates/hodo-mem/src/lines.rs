//! Lines of memory: how many a program uses at a time, and which ones several threads write to.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use hodo_dbi::{Access, Block, Client, Event, Events, Kind};

use crate::hot::{Ended, Hot, Spot, What};
use crate::same::Same;
use crate::variables::Variable;

/// The lines of an access.
fn lines(access: &Access, shift: u32) -> std::ops::RangeInclusive<u64> {
    let end = access
        .address
        .wrapping_add(u64::from(access.size.max(1)) - 1);
    access.address >> shift..=end >> shift
}

/// How much memory was accessed in a part of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Instructions before it.
    pub start: u64,
    /// Lines of data that were accessed.
    pub lines: u64,
    /// Pages of 4 KiB.
    pub pages: u64,
}

/// The working set: lines and pages that are accessed in each part of a run, and in all.
#[derive(Debug)]
pub struct WorkingSet {
    shift: u32,
    /// Instructions of a part.
    window: u64,
    instructions: u64,
    start: u64,
    now: HashSet<u64>,
    all: HashSet<u64>,
    parts: Vec<Part>,
}

impl WorkingSet {
    /// `line`: bytes, a power of two up to 4096. `window`: instructions of a part.
    #[must_use]
    pub fn new(line: u32, window: u64) -> Self {
        Self {
            shift: line.trailing_zeros(),
            window: window.max(1),
            instructions: 0,
            start: 0,
            now: HashSet::new(),
            all: HashSet::new(),
            parts: Vec::new(),
        }
    }

    fn part(&self, start: u64, lines: &HashSet<u64>) -> Part {
        let pages: HashSet<u64> = lines.iter().map(|line| line << self.shift >> 12).collect();
        Part {
            start,
            lines: lines.len() as u64,
            pages: pages.len() as u64,
        }
    }

    fn end_part(&mut self) {
        self.parts.push(self.part(self.start, &self.now));
        self.all.extend(self.now.drain());
        self.start = self.instructions;
    }

    /// The parts, and the whole.
    #[must_use]
    pub fn parts(&self) -> (&[Part], Part) {
        (&self.parts, self.part(0, &self.all))
    }
}

impl Client for WorkingSet {
    fn executed(&mut self, _: u32, _: &Arc<Block>, upto: usize, accesses: &[Access]) {
        for access in accesses {
            self.now.extend(lines(access, self.shift));
        }
        self.instructions += upto as u64;
        if self.instructions - self.start >= self.window {
            self.end_part();
        }
    }

    fn end(&mut self) -> anyhow::Result<()> {
        if !self.now.is_empty() {
            self.end_part();
        }
        Ok(())
    }
}

/// What a thread does with a line.
#[derive(Debug, Clone)]
pub struct Use {
    /// The thread.
    pub thread: u32,
    /// Accesses that read.
    pub loads: u64,
    /// Accesses that wrote.
    pub stores: u64,
    /// The bytes that were accessed: a bit for each.
    pub bytes: u128,
    /// The instruction that accessed it first, as its number in a block.
    pub place: (Arc<Block>, u16),
}

/// Which threads use which lines.
#[derive(Debug)]
pub struct Sharing {
    shift: u32,
    processes: Vec<i32>,
    lines: HashMap<(i32, u64), Vec<Use>>,
    same: Same,
    memory: Hot,
    /// Shared lines of memory that was freed: the address, the uses, and where the memory was allocated.
    freed: Vec<(u64, Vec<Use>, u32)>,
}

/// A line that several threads of a process use, and that at least one of them writes to.
#[derive(Debug, Clone)]
pub struct Shared {
    /// Its address.
    pub address: u64,
    /// What threads do with it.
    pub uses: Vec<Use>,
    /// What it is.
    pub what: What,
    /// Parts of variables that each of the threads uses.
    pub parts: Vec<Vec<Variable>>,
}

fn is_shared(uses: &[Use]) -> bool {
    uses.len() > 1 && uses.iter().any(|used| used.stores > 0)
}

impl Use {
    /// Where bytes begin that were accessed, as distances from the beginning of the line.
    fn starts(&self) -> impl Iterator<Item = u64> {
        let begins = self.bytes & !(self.bytes << 1);
        (0..128).filter(move |byte| begins >> byte & 1 == 1)
    }
}

impl Sharing {
    /// `line`: bytes, a power of two up to 128.
    #[must_use]
    pub fn new(line: u32) -> Self {
        Self {
            shift: line.trailing_zeros(),
            processes: Vec::new(),
            lines: HashMap::new(),
            same: Same::default(),
            memory: Hot::with_ended(),
            freed: Vec::new(),
        }
    }

    /// Lines that several threads of a process use, and that at least one of them writes to. Those with the most stores
    /// come first: what is only read disturbs nobody. `most`: there are not more. Calls that have allocated them are
    /// shown with this number of callers.
    #[must_use]
    pub fn shared(&self, most: usize, callers: usize) -> Vec<Shared> {
        let freed = self.freed.iter();
        let freed = freed.map(|(address, uses, context)| (*address, uses, Spot::Freed(*context)));
        let lines = self.lines.iter().filter(|(_, uses)| is_shared(uses));
        let lines = lines.map(|(&(process, line), uses)| {
            let address = line << self.shift;
            (address, uses, Spot::Memory(process, address))
        });
        let mut all: Vec<(u64, &Vec<Use>, Spot)> = lines.chain(freed).collect();
        all.sort_by_cached_key(|(address, uses, _)| {
            let stores: u64 = uses.iter().map(|used| used.stores).sum();
            let loads: u64 = uses.iter().map(|used| used.loads).sum();
            (Reverse((stores, loads)), *address)
        });
        all.truncate(most);
        let wanted = all.iter().flat_map(|(_, uses, spot)| {
            let starts = uses.iter().flat_map(Use::starts);
            starts.map(|byte| match *spot {
                Spot::Memory(process, address) => Spot::Memory(process, address + byte),
                freed => freed,
            })
        });
        let wanted: Vec<Spot> = wanted.collect();
        let mut found = self.memory.memory(&wanted, callers).into_iter();
        let named = all.into_iter().map(|(address, uses, _)| {
            let mut what = None;
            let parts = uses.iter().map(|used| {
                let own = found.by_ref().take(used.starts().count());
                let own = own.filter_map(|(known, variable)| {
                    what.get_or_insert(known);
                    variable
                });
                own.collect()
            });
            let parts: Vec<Vec<Variable>> = parts.collect();
            Shared {
                address,
                uses: uses.clone(),
                what: match what {
                    None | Some(What::Written(None)) => What::Other,
                    Some(what) => what,
                },
                parts,
            }
        });
        named.collect()
    }

    /// Memory was freed: what threads do with it afterward is not sharing.
    fn end(&mut self, ended: Ended) {
        let size = 1u64 << self.shift;
        let first = ended.address.div_ceil(size);
        let after = ended.address.saturating_add(ended.size) >> self.shift;
        let lines = first..after.max(first);
        let is_gone =
            |&(process, line): &(i32, u64)| process == ended.process && lines.contains(&line);
        let gone: Vec<(i32, u64)> = match lines.end - lines.start > self.lines.len() as u64 {
            true => self.lines.keys().copied().filter(is_gone).collect(),
            false => lines.clone().map(|line| (ended.process, line)).collect(),
        };
        for key in gone {
            let uses = self.lines.remove(&key).unwrap_or_default();
            if is_shared(&uses) {
                self.freed.push((key.1 << self.shift, uses, ended.context));
            }
        }
    }
}

/// Whether the threads that use a line use different bytes of it: they would not wait for each other if these were in
/// different lines. Threads with less than a hundredth of the accesses do not matter.
#[must_use]
pub fn is_false_sharing(uses: &[Use]) -> bool {
    let accesses = |used: &Use| used.loads + used.stores;
    let all: u64 = uses.iter().map(accesses).sum();
    let often = || uses.iter().filter(|used| accesses(used) * 100 >= all);
    let overlap = |a: &Use, b: &Use| a.thread != b.thread && a.bytes & b.bytes != 0;
    let apart = !often().any(|a| often().any(|b| overlap(a, b)));
    apart && often().count() > 1 && often().any(|used| used.stores > 0)
}

impl Client for Sharing {
    fn thread(&mut self, thread: u32, process: i32, tid: i32) {
        let index = thread as usize;
        if self.processes.len() <= index {
            self.processes.resize(index + 1, 0);
        }
        self.processes[index] = process;
        self.same.add(thread, process, tid);
        self.memory.thread(thread, process, tid);
    }

    fn events(&self) -> Events {
        self.memory.events()
    }

    fn event(&mut self, thread: u32, event: &Event<'_>) {
        self.memory.event(thread, event);
        for ended in self.memory.take_ended() {
            self.end(ended);
        }
    }

    fn executed(&mut self, thread: u32, block: &Arc<Block>, upto: usize, accesses: &[Access]) {
        self.memory.follow(thread, block, upto, accesses);
        let process = self.processes.get(thread as usize).copied().unwrap_or(0);
        let thread = self.same.first(thread);
        for access in accesses {
            for line in lines(access, self.shift) {
                let uses = self.lines.entry((process, line)).or_default();
                let index = uses.iter().position(|used| used.thread == thread);
                let index = index.unwrap_or_else(|| {
                    uses.push(Use {
                        thread,
                        loads: 0,
                        stores: 0,
                        bytes: 0,
                        place: (Arc::clone(block), access.insn),
                    });
                    uses.len() - 1
                });
                let used = &mut uses[index];
                match access.kind {
                    Kind::Load => used.loads += 1,
                    Kind::Store => used.stores += 1,
                }
                let start = access.address.max(line << self.shift) - (line << self.shift);
                let end = access.address.saturating_add(access.size.into());
                let end = end.min((line + 1) << self.shift) - (line << self.shift);
                used.bytes |= (start..end).fold(0, |bytes, byte| bytes | 1 << byte);
            }
        }
    }
}
