//! Which functions call which ones, and how many instructions that costs.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hodo_dbi::{Access, Accesses, Block, Client, Event, Events, Kind, Observe, Transfer, contents};
use hodo_symbols::{Debug, LineTable, Style, Symbols, demangle, linkage_tables, symbols_of};
use rustc_hash::FxHashMap;

use crate::executions::Executions;
use crate::places::{function, segments, to_address};

/// Where the stack has the return address of a frame that nothing has called.
const NOWHERE: u64 = u64::MAX;

/// A source file, and a line of it, if that is known.
pub type Line = Option<(String, u32)>;

/// A function of a file of code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// The file of code. `None`: it is in none.
    pub file: Option<PathBuf>,
    /// Its address in that file's own terms.
    pub address: u64,
    /// The source file and the line at which it begins.
    pub line: Line,
    /// How often it was called.
    pub calls: u64,
    /// Instructions that it has executed.
    pub own: u64,
    /// Instructions that it has executed, or what it has called. Those of a call within another one of the same
    /// function count once.
    pub inclusive: u64,
    /// By source file and line: instructions that it has executed. `None`: those are not known.
    pub lines: BTreeMap<Line, u64>,
}

/// Calls of a function from one place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edge {
    /// The function that calls: its place in [`Graph::functions`].
    pub caller: usize,
    /// The function that is called.
    pub callee: usize,
    /// The source file and the line of the call.
    pub line: Line,
    /// How many calls.
    pub count: u64,
    /// Instructions in these calls, without those of calls within another call of the same function.
    pub inclusive: u64,
}

/// What was called.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Graph {
    /// All functions that were executed.
    pub functions: Vec<Function>,
    /// All calls, by function and source line.
    pub edges: Vec<Edge>,
    /// All instructions.
    pub instructions: u64,
}

impl Graph {
    /// The part of it with these functions that were executed, and the calls that these make.
    #[must_use]
    pub fn only(self, wanted: impl Fn(&Function) -> bool) -> Self {
        let mut numbers = Vec::new();
        let mut functions = Vec::new();
        for function in self.functions {
            let is_wanted = (function.own > 0 || function.calls > 0) && wanted(&function);
            numbers.push(is_wanted.then_some(functions.len()));
            if is_wanted {
                functions.push(function);
            }
        }
        let edges = self.edges.into_iter().filter_map(|edge| {
            Some(Edge {
                caller: numbers[edge.caller]?,
                callee: numbers[edge.callee]?,
                ..edge
            })
        });
        Self {
            edges: edges.collect(),
            functions,
            instructions: self.instructions,
        }
    }
}

/// What is known of a block.
#[derive(Debug, Clone, Copy, Default)]
struct Known {
    /// Its function, by number.
    function: u32,
    /// It is where the function begins.
    begins: bool,
    /// It is of a linkage table: it leads to a function.
    links: bool,
    /// It is what signal handlers return to.
    ends_handler: bool,
}

/// A call that has not returned.
#[derive(Debug, Clone, Copy)]
struct Frame {
    /// Where the stack has the return address.
    stack: u64,
    function: u32,
    /// The block that has called. `None`: nothing has.
    caller: Option<u32>,
    /// How many instructions the thread had executed.
    begun: u64,
}

/// How control goes from a block to the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Passed {
    /// In the same function, mostly.
    #[default]
    On,
    /// By a call, whose return address is here on the stack.
    Called(u32, u64),
    /// By a jump from this block.
    Jumped(u32),
    /// By a return from this block. Whether that was of a known call.
    Returned(u32, bool),
}

#[derive(Debug, Clone, Default)]
struct Thread {
    frames: Vec<Frame>,
    /// Those of what signal handlers have interrupted.
    interrupted: Vec<Vec<Frame>>,
    /// How many frames a function has.
    active: FxHashMap<u32, u32>,
    passed: Passed,
    instructions: u64,
}

/// Sums of a function, or of calls.
#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    count: u64,
    inclusive: u64,
}

/// Follows calls.
#[derive(Debug)]
pub struct Calls {
    threads: Vec<Thread>,
    blocks: Vec<Known>,
    executions: Executions,
    functions: Functions,
    sums: Vec<Sum>,
    /// By the number of the block that calls, and of the function.
    edges: FxHashMap<(u32, u32), Sum>,
    /// Instructions of linkage tables, by the function that has called.
    linking: FxHashMap<u32, u64>,
}

impl Default for Calls {
    fn default() -> Self {
        Self {
            threads: Vec::new(),
            blocks: Vec::new(),
            executions: Executions::new(Observe::Accesses),
            functions: Functions::default(),
            sums: Vec::new(),
            edges: FxHashMap::default(),
            linking: FxHashMap::default(),
        }
    }
}

/// Functions by number.
#[derive(Debug, Default)]
struct Functions {
    files: HashMap<PathBuf, InFile>,
    /// The file, and the name and the address of the function there.
    all: Vec<(Option<PathBuf>, String, u64)>,
    numbers: HashMap<(Option<PathBuf>, u64), u32>,
}

/// What is known of a file of code.
#[derive(Debug, Default)]
struct InFile {
    segments: Vec<(u64, u64, u64)>,
    symbols: Symbols,
    tables: Vec<Range<u64>>,
}

impl InFile {
    fn of(path: &Path) -> Self {
        let Ok(bytes) = contents(path) else {
            return Self::default();
        };
        Self {
            segments: segments(&bytes),
            symbols: symbols_of(path, &bytes).unwrap_or_default(),
            tables: linkage_tables(&bytes),
        }
    }
}

impl Functions {
    fn of(&mut self, block: &Block) -> Known {
        let Some((path, offset)) = &block.file else {
            return self.number(None, 0, "?", Known::default());
        };
        let new = || InFile::of(path);
        let file = self.files.entry(path.clone()).or_insert_with(new);
        let Some(address) = to_address(&file.segments, *offset) else {
            return self.number(Some(path), 0, "?", Known::default());
        };
        let links = file.tables.iter().any(|table| table.contains(&address));
        let Some(found) = function(&file.symbols, address).filter(|_| !links) else {
            let known = Known {
                links,
                ..Known::default()
            };
            return self.number(Some(path), 0, "?", known);
        };
        // Parts of a function that are elsewhere are its own.
        let name = found.name.split_once(".cold").map(|(name, _)| name);
        let whole = name.and_then(|name| file.symbols.functions.iter().find(|f| f.name == name));
        let known = Known {
            begins: found.addr == address && whole.is_none(),
            ends_handler: found.signal,
            ..Known::default()
        };
        let (address, name) = match whole {
            Some(whole) => (whole.addr, whole.name.clone()),
            None => (found.addr, found.name.clone()),
        };
        self.number(Some(path), address, &name, known)
    }

    fn number(&mut self, path: Option<&PathBuf>, address: u64, name: &str, known: Known) -> Known {
        let all = &mut self.all;
        let key = (path.cloned(), address);
        let number = *self.numbers.entry(key).or_insert_with_key(|(path, _)| {
            all.push((path.clone(), name.to_owned(), address));
            all.len() as u32 - 1
        });
        Known {
            function: number,
            ..known
        }
    }
}

impl Calls {
    fn thread_at(&mut self, thread: u32) -> &mut Thread {
        let index = thread as usize;
        if self.threads.len() <= index {
            self.threads.resize_with(index + 1, Thread::default);
        }
        &mut self.threads[index]
    }

    /// A thread executes the first `upto` instructions of a block. `address` is that of the stack that it uses at the
    /// end, if that is a call or a return.
    fn follow(
        &mut self,
        thread: u32,
        block: &Block,
        upto: usize,
        address: impl FnOnce(Kind) -> Option<u64>,
    ) {
        let Some(last) = upto.checked_sub(1) else {
            return;
        };
        let known = self
            .blocks
            .get(block.id as usize)
            .copied()
            .unwrap_or_default();
        let mut state = std::mem::take(self.thread_at(thread));
        if known.links {
            if let Passed::On = state.passed {
                state.passed = Passed::Jumped(block.id);
            }
            // The function that calls pays for it.
            let caller = match state.passed {
                Passed::Called(caller, _) | Passed::Jumped(caller) => caller,
                _ => block.id,
            };
            let caller = self.blocks[caller as usize].function;
            *self.linking.entry(caller).or_default() += upto as u64;
            state.instructions += upto as u64;
            self.threads[thread as usize] = state;
            return;
        }
        self.enter(&mut state, known);
        state.instructions += upto as u64;
        state.passed = match block.insns[last].transfer {
            Transfer::Call | Transfer::IndirectCall => match address(Kind::Store) {
                Some(stack) => {
                    self.leave(&mut state, stack);
                    Passed::Called(block.id, stack)
                }
                None => Passed::On,
            },
            Transfer::Return => {
                let stack = address(Kind::Load).unwrap_or(0);
                let left = self.leave(&mut state, stack);
                Passed::Returned(block.id, left)
            }
            Transfer::Jump | Transfer::IndirectJump | Transfer::Branch => Passed::Jumped(block.id),
            Transfer::Next | Transfer::SystemCall => Passed::On,
        };
        self.threads[thread as usize] = state;
    }

    /// A thread comes to a block that is no linkage table.
    fn enter(&mut self, state: &mut Thread, known: Known) {
        if known.ends_handler
            && let Some(frames) = state.interrupted.pop()
        {
            self.end_frames(state);
            state.frames = frames;
            state.passed = Passed::On;
            return;
        }
        let top = state.frames.last().copied();
        let is_other = top.is_none_or(|top| top.function != known.function);
        match state.passed {
            Passed::Called(caller, stack) => self.push(state, known.function, Some(caller), stack),
            Passed::Jumped(caller) | Passed::Returned(caller, _) if is_other && known.begins => {
                // It is called by the function that jumps, and returns to where that was called. Functions that jump to
                // each other do not pile up.
                let stack = top.map_or(NOWHERE, |top| top.stack);
                let same = state.frames.iter().rev();
                let mut same = same.take_while(|frame| frame.stack == stack);
                if let Some(depth) = same.position(|frame| frame.function == known.function) {
                    for _ in 0..=depth {
                        self.pop(state);
                    }
                }
                let caller = top.map(|_| caller);
                self.push(state, known.function, caller, stack);
            }
            // It returns to what was called before it was observed.
            Passed::Returned(_, false) if is_other => {
                self.end_frames(state);
                state.frames = state.interrupted.pop().unwrap_or_default();
                if !state.frames.is_empty() {
                    return;
                }
                self.push(state, known.function, None, NOWHERE);
            }
            _ if top.is_none() => self.push(state, known.function, None, NOWHERE),
            _ => {}
        }
    }

    fn push(&mut self, state: &mut Thread, function: u32, caller: Option<u32>, stack: u64) {
        *state.active.entry(function).or_default() += 1;
        state.frames.push(Frame {
            stack,
            function,
            caller,
            begun: state.instructions,
        });
        if let Some(caller) = caller {
            self.edges.entry((caller, function)).or_default().count += 1;
            self.sum(function).count += 1;
        }
    }

    fn sum(&mut self, function: u32) -> &mut Sum {
        let index = function as usize;
        if self.sums.len() <= index {
            self.sums.resize(index + 1, Sum::default());
        }
        &mut self.sums[index]
    }

    /// Ends the innermost call.
    fn pop(&mut self, state: &mut Thread) {
        let Some(frame) = state.frames.pop() else {
            return;
        };
        let active = state.active.entry(frame.function).or_default();
        *active = active.saturating_sub(1);
        if *active > 0 {
            return;
        }
        let cost = state.instructions - frame.begun;
        self.sum(frame.function).inclusive += cost;
        if let Some(caller) = frame.caller
            && let Some(edge) = self.edges.get_mut(&(caller, frame.function))
        {
            edge.inclusive += cost;
        }
    }

    /// Ends the calls whose return addresses are here on the stack, or below. Returns whether there are any.
    fn leave(&mut self, state: &mut Thread, stack: u64) -> bool {
        let mut any = false;
        while state
            .frames
            .last()
            .is_some_and(|frame| frame.stack <= stack)
        {
            self.pop(state);
            any = true;
        }
        any
    }

    fn end_frames(&mut self, state: &mut Thread) {
        while !state.frames.is_empty() {
            self.pop(state);
        }
    }

    /// Ends all calls of a thread.
    fn end_thread(&mut self, thread: u32) {
        let mut state = std::mem::take(self.thread_at(thread));
        self.end_frames(&mut state);
        while let Some(frames) = state.interrupted.pop() {
            state.frames = frames;
            self.end_frames(&mut state);
        }
        state.passed = Passed::On;
        self.threads[thread as usize] = state;
    }

    /// What was called. All calls end.
    #[must_use]
    pub fn graph(&mut self) -> Graph {
        for thread in 0..self.threads.len() {
            self.end_thread(thread as u32);
        }
        let mut lines = Lines::default();
        let all = self.functions.all.iter().zip(0..);
        let functions = all.map(|((file, name, address), number)| {
            let sum = self.sums.get(number).copied().unwrap_or_default();
            Function {
                name: demangle(name, Style::Simple),
                address: *address,
                line: file.as_ref().and_then(|file| lines.of(file).at(*address)),
                file: file.clone(),
                calls: sum.count,
                own: 0,
                inclusive: sum.inclusive,
                lines: BTreeMap::new(),
            }
        });
        let mut graph = Graph {
            functions: functions.collect(),
            ..Graph::default()
        };
        self.add_lines(&mut graph, &mut lines);
        self.add_edges(&mut graph, &mut lines);
        graph
    }

    /// Adds what functions have executed themselves.
    fn add_lines(&self, graph: &mut Graph, lines: &mut Lines) {
        let mut add = |function: u32, line: Line, count: u64| {
            let function = &mut graph.functions[function as usize];
            function.own += count;
            *function.lines.entry(line).or_default() += count;
            graph.instructions += count;
        };
        for (&caller, &count) in &self.linking {
            add(caller, None, count);
        }
        for (block, counts) in self.executions.blocks() {
            let known = self.blocks[block.id as usize];
            if known.links {
                continue;
            }
            let mut sums: Vec<(Option<(u32, u32)>, u64)> = Vec::new();
            let file = block.file.as_ref();
            let file = file.map(|(path, offset)| (lines.of(path), offset));
            for (insn, count) in block.insns.iter().zip(counts) {
                let line = file.as_ref().and_then(|(file, offset)| {
                    let offset = *offset + (insn.pc - block.insns[0].pc);
                    file.number(to_address(&file.segments, offset)?)
                });
                match sums.last_mut() {
                    Some((last, sum)) if *last == line => *sum += count,
                    _ => sums.push((line, count)),
                }
            }
            for (line, count) in sums.into_iter().filter(|sum| sum.1 > 0) {
                let name = |(index, line): (u32, u32)| {
                    let (file, _) = file.as_ref()?;
                    Some((file.table.files[index as usize].clone(), line))
                };
                add(known.function, line.and_then(name), count);
            }
        }
    }

    /// Adds calls, by source line.
    fn add_edges(&self, graph: &mut Graph, lines: &mut Lines) {
        let blocks: HashMap<u32, &Arc<Block>> = self
            .executions
            .blocks()
            .map(|(block, _)| (block.id, block))
            .collect();
        let mut edges: BTreeMap<(usize, usize, Line), Sum> = BTreeMap::new();
        for (&(caller, callee), sum) in &self.edges {
            let line = blocks.get(&caller).and_then(|block| {
                let (path, offset) = block.file.as_ref()?;
                let last = block.insns.len() - 1;
                let offset = offset + (block.insns[last].pc - block.insns[0].pc);
                let file = lines.of(path);
                file.at(to_address(&file.segments, offset)?)
            });
            let caller = self.blocks[caller as usize].function as usize;
            let edge = edges.entry((caller, callee as usize, line)).or_default();
            edge.count += sum.count;
            edge.inclusive += sum.inclusive;
        }
        let edges = edges.into_iter();
        graph.edges = edges
            .map(|((caller, callee, line), sum)| Edge {
                caller,
                callee,
                line,
                count: sum.count,
                inclusive: sum.inclusive,
            })
            .collect();
    }
}

/// Source lines of files of code.
#[derive(Debug, Default)]
struct Lines(HashMap<PathBuf, LinesOf>);

#[derive(Debug, Default)]
struct LinesOf {
    segments: Vec<(u64, u64, u64)>,
    table: LineTable,
}

impl Lines {
    fn of(&mut self, path: &Path) -> &LinesOf {
        let new = || {
            let Ok(bytes) = contents(path) else {
                return LinesOf::default();
            };
            let debug = Debug::open(path, &bytes).ok();
            LinesOf {
                segments: segments(&bytes),
                table: debug.map(|debug| debug.line_table()).unwrap_or_default(),
            }
        };
        self.0.entry(path.to_owned()).or_insert_with(new)
    }
}

impl LinesOf {
    /// The number of the source file, and the line.
    fn number(&self, address: u64) -> Option<(u32, u32)> {
        let ranges = &self.table.ranges;
        let next = ranges.partition_point(|range| range.start <= address);
        let range = ranges.get(next.checked_sub(1)?)?;
        (address < range.end && range.line > 0).then_some((range.file, range.line))
    }

    fn at(&self, address: u64) -> Line {
        let (file, line) = self.number(address)?;
        Some((self.table.files[file as usize].clone(), line))
    }
}

/// The address of the access that the last of the first `upto` instructions makes with its stack.
fn stack_of(accesses: &[Access], upto: usize, kind: Kind) -> Option<u64> {
    let last = upto.checked_sub(1)? as u16;
    let mut all = accesses.iter().rev();
    let found = all.find(|access| access.insn == last && access.kind == kind);
    found.map(|access| access.address)
}

impl Client for Calls {
    fn block(&mut self, block: &Arc<Block>) {
        let number = block.id as usize;
        if self.blocks.len() <= number {
            self.blocks.resize(number + 1, Known::default());
        }
        self.blocks[number] = self.functions.of(block);
        self.executions.block(block);
    }

    fn thread(&mut self, thread: u32, _: i32, _: i32) {
        self.thread_at(thread);
    }

    fn events(&self) -> Events {
        // A process begins in the calls of the one that makes it.
        Events::default().in_order()
    }

    fn event(&mut self, thread: u32, event: &Event<'_>) {
        match *event {
            Event::Forked { maker } => {
                let mut state = self.thread_at(maker).clone();
                let interrupted = state.interrupted.iter_mut().flatten();
                for frame in state.frames.iter_mut().chain(interrupted) {
                    frame.begun = 0;
                }
                state.instructions = 0;
                *self.thread_at(thread) = state;
            }
            Event::Executed | Event::Lost { .. } => self.end_thread(thread),
            Event::Signal { .. } => {
                let state = self.thread_at(thread);
                let frames = std::mem::take(&mut state.frames);
                state.interrupted.push(frames);
                state.passed = Passed::On;
            }
            _ => {}
        }
    }

    fn executed(&mut self, thread: u32, block: &Arc<Block>, upto: usize, accesses: &[Access]) {
        self.executions.executed(thread, block, upto, accesses);
        self.follow(thread, block, upto, |kind| stack_of(accesses, upto, kind));
    }

    fn visit(&mut self, thread: u32, block: &Arc<Block>, upto: usize, accesses: Accesses<'_>) {
        self.executions.executed(thread, block, upto, &[]);
        self.follow(thread, block, upto, |kind| {
            stack_of(accesses.all(), upto, kind)
        });
    }
}
