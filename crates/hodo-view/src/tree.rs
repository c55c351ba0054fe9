//! The call tree: what was called from where, how often, and how long it took.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use hodo_trace::{CallStep, Entered};

use crate::clip::Clipped;
use crate::costs::{Cost, Costs, parts, whole};
use crate::filter::{Gate, Verdict};
use crate::source::Source;

/// A node of the tree.
#[derive(Debug, Clone)]
pub struct Node {
    /// The function's id; 0 for the root.
    pub id: u32,
    /// How often the function was called from here.
    pub calls: u64,
    /// The time in the function and its callees, in [`parts`] of a unit of the counter.
    total: i64,
    /// The indices of the children, in the order of their first call.
    pub children: Vec<u32>,
    /// The index of the parent.
    pub parent: u32,
    /// When the function was first called, in units of the counter. [`NEVER`]: only calls below it have been seen so
    /// far.
    first: u64,
    /// How many of these calls were jumps.
    pub jumps: u64,
    /// The callee that was looked up last, and its node: most calls repeat the previous one. (0, 0): none yet.
    last: (u32, u32),
}

/// Stands for no point in time.
const NEVER: u64 = u64::MAX;

/// A hash that is good enough for node numbers and function ids.
#[derive(Debug, Default, Clone, Copy)]
struct Quick(u64);

impl Hasher for Quick {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0 ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 ^= self.0 >> 32;
    }
}

/// A call tree. Node 0 is the root.
#[derive(Debug)]
pub struct Tree {
    /// The nodes; parents come before their children.
    pub nodes: Vec<Node>,
    index: HashMap<u64, u32, BuildHasherDefault<Quick>>,
}

impl Node {
    fn new(id: u32, parent: u32) -> Self {
        Self {
            id,
            calls: 0,
            total: 0,
            children: Vec::new(),
            parent,
            first: NEVER,
            jumps: 0,
            last: (0, 0),
        }
    }
}

impl Default for Tree {
    fn default() -> Self {
        Self {
            nodes: vec![Node::new(0, 0)],
            index: HashMap::default(),
        }
    }
}

impl Tree {
    /// Returns the node of function `id` below `parent`, and creates it if necessary.
    #[inline]
    pub fn child(&mut self, parent: u32, id: u32) -> u32 {
        let (last, node) = self.nodes[parent as usize].last;
        if last == id && node != 0 {
            return node;
        }
        let node = self.find(parent, id);
        self.nodes[parent as usize].last = (id, node);
        node
    }

    fn find(&mut self, parent: u32, id: u32) -> u32 {
        let key = u64::from(parent) << 32 | u64::from(id);
        let new = self.nodes.len() as u32;
        let node = *self.index.entry(key).or_insert(new);
        if node == new {
            self.nodes.push(Node::new(id, parent));
            self.nodes[parent as usize].children.push(new);
        }
        node
    }

    /// Adds another tree, with its root at `at`.
    pub fn join(&mut self, other: &Self, at: u32) {
        let mut places = vec![at; other.nodes.len()];
        for (index, node) in other.nodes.iter().enumerate() {
            if index > 0 {
                places[index] = self.child(places[node.parent as usize], node.id);
            }
            let to = &mut self.nodes[places[index] as usize];
            to.calls += node.calls;
            to.jumps += node.jumps;
            to.total = to.total.saturating_add(node.total);
            to.first = to.first.min(node.first);
        }
    }

    /// Copies what is below `from` into a new tree, whose root stands for `from`.
    pub fn below(&self, from: u32) -> Self {
        let mut tree = Self::default();
        let mut todo = vec![(from, 0)];
        while let Some((old, new)) = todo.pop() {
            let node = &self.nodes[old as usize];
            let to = &mut tree.nodes[new as usize];
            to.calls += node.calls;
            to.jumps += node.jumps;
            to.total = to.total.saturating_add(node.total);
            to.first = node.first.min(to.first);
            let children: Vec<_> = node
                .children
                .iter()
                .map(|&child| (child, tree.child(new, self.nodes[child as usize].id)))
                .collect();
            todo.extend(children);
        }
        tree
    }

    /// Returns the time in a node's function and its callees, in units of the counter.
    pub fn total(&self, node: u32) -> u64 {
        whole(self.nodes[node as usize].total)
    }

    /// Returns the time in a node's function itself, in units of the counter.
    pub fn own(&self, node: u32) -> u64 {
        whole(
            self.nodes[node as usize]
                .total
                .saturating_sub(self.below_total(node)),
        )
    }

    /// Returns the time in all callees of a node's function.
    fn below_total(&self, node: u32) -> i64 {
        let children = self.nodes[node as usize].children.iter();
        let totals = children.map(|&child| self.nodes[child as usize].total);
        totals.fold(0, i64::saturating_add)
    }

    /// Returns the function ids from the outermost call to this node.
    pub fn path(&self, mut node: u32) -> Vec<u32> {
        let mut path = Vec::new();
        while node != 0 {
            path.push(node);
            node = self.nodes[node as usize].parent;
        }
        path.reverse();
        path
    }

    /// Returns when a node's function was first called.
    pub fn first(&self, node: u32) -> u64 {
        self.nodes[node as usize].first
    }

    /// Sorts the children by their first call.
    pub fn sort(&mut self) {
        for index in 0..self.nodes.len() {
            let mut children = std::mem::take(&mut self.nodes[index].children);
            children.sort_by_key(|&child| self.nodes[child as usize].first);
            self.nodes[index].children = children;
        }
    }

    /// Completes the tree: gives the root the time of everything below it, drops what was not called, and sorts the
    /// children by their first call. `corrected`: the cost of recording was subtracted.
    fn close(&mut self, corrected: bool) {
        let mut called: Vec<bool> = self.nodes.iter().map(|n| n.first != NEVER).collect();
        for index in (1..self.nodes.len()).rev() {
            let node = &self.nodes[index];
            let (parent, first) = (node.parent as usize, node.first);
            if called[index] {
                called[parent] = true;
                // A function entered before the shown range is placed where something below it first appears.
                self.nodes[parent].first = self.nodes[parent].first.min(first);
            }
        }
        for node in &mut self.nodes {
            node.children.retain(|&child| called[child as usize]);
        }
        self.sort();
        if corrected {
            // Whatever was subtracted, a function takes at least as long as its callees, and no time is negative.
            for index in (1..self.nodes.len()).rev() {
                let below = self.below_total(index as u32).max(0);
                let node = &mut self.nodes[index];
                node.total = node.total.max(below);
            }
        }
        self.nodes[0].total = self.below_total(0);
        self.nodes[0].calls = 1;
    }
}

/// An open frame: its node in the tree, and the time of its entry.
#[derive(Debug, Clone, Copy)]
struct Open {
    /// The node of the innermost frame that is shown.
    node: u32,
    verdict: Verdict,
    start: u64,
    /// Whether it was counted before its stack was left.
    again: bool,
    /// What it cost to record its callees, and everything they called.
    spent: i64,
    /// What it cost to record its own call.
    cost: Cost,
}

/// The tree of one task while it is built.
struct Growing<'a> {
    tree: Tree,
    stack: Vec<Open>,
    source: &'a Source,
    costs: Costs,
    /// Whether every call is counted.
    all: bool,
}

impl Growing<'_> {
    #[inline]
    fn enter(&mut self, (id, cost): (u32, Cost), verdict: Verdict, start: u64) {
        let above = self.stack.last().map_or(0, |open| open.node);
        let node = match verdict {
            Verdict::Shown => self.tree.child(above, id),
            Verdict::Hidden | Verdict::Merged => above,
        };
        self.stack.push(Open {
            node,
            verdict,
            start,
            again: false,
            spent: 0,
            cost,
        });
    }

    #[inline]
    fn leave(&mut self, end: u64) {
        let Some(open) = self.stack.pop() else { return };
        let spent = open.spent.saturating_add(open.cost.inside);
        if let Some(above) = self.stack.last_mut() {
            above.spent = above
                .spent
                .saturating_add(spent)
                .saturating_add(open.cost.outside);
        }
        if open.verdict != Verdict::Shown || open.start == NEVER {
            return;
        }
        let mut took = Some(parts(end.saturating_sub(open.start)).saturating_sub(spent));
        if !self.all {
            let scale = &self.source.scale;
            let least = self.source.table.time(open.start, end);
            let (start, end) = (scale.nanoseconds(open.start), scale.nanoseconds(end));
            let shown = self.source.range;
            if !shown.contains(start) || end.saturating_sub(start) < least {
                return;
            }
            // The call was seen, but not how long it took.
            took = took.filter(|_| end <= shown.last);
        }
        let node = &mut self.tree.nodes[open.node as usize];
        node.calls += u64::from(!open.again);
        node.total = node.total.saturating_add(took.unwrap_or(0));
        node.first = node.first.min(open.start);
    }

    /// Takes a step. `gate` is called with the function that is entered, and whether one is left. It returns what the
    /// filters decide.
    #[inline]
    fn step(&mut self, step: CallStep, mut gate: impl FnMut(Option<u32>, bool) -> Verdict) {
        match step {
            CallStep::Enter {
                id, time, entered, ..
            } => {
                let cost = match entered {
                    Entered::Jumped => self.costs.jump,
                    Entered::Called | Entered::Before => self.costs.call,
                    Entered::Resumed => Cost::default(),
                };
                self.enter((id, cost), gate(Some(id), false), time);
                if entered == Entered::Resumed
                    && let Some(open) = self.stack.last_mut()
                {
                    open.again = true;
                }
                if entered == Entered::Jumped
                    && let Some(open) = self.stack.last()
                    && open.verdict == Verdict::Shown
                {
                    self.tree.nodes[open.node as usize].jumps += 1;
                }
            }
            CallStep::Leave { time, .. } => {
                gate(None, true);
                self.leave(time);
            }
            CallStep::Instant { id, .. } if self.source.is_probe(id) => {}
            CallStep::Instant { id, time, .. } => {
                self.enter((id, self.costs.entry), gate(Some(id), true), time);
                self.leave(time);
            }
            CallStep::Lost { .. } => {}
        }
    }
}

/// Builds the tree of one task.
fn of_task(source: &Source, index: usize) -> Tree {
    let task = source.task(index);
    let frames = &source.inherited[index];
    let mut gate = (!source.table.is_open()).then(|| Gate::new(&source.table, frames));
    let mut growing = Growing {
        tree: Tree::default(),
        stack: Vec::new(),
        source,
        costs: *source.costs(),
        all: !source.table.has_time() && !source.is_ranged(),
    };
    // The frames inherited from the parent are not counted again.
    for (depth, frame) in frames.iter().enumerate() {
        let verdict = match &gate {
            Some(gate) if !gate.is_shown(depth) => Verdict::Hidden,
            _ => Verdict::Shown,
        };
        growing.enter((frame.id, Cost::default()), verdict, NEVER);
    }
    let mut calls = Clipped::new(source, index);
    let mut last = task.began;
    let mut each = |step: CallStep| match &mut gate {
        None => growing.step(step, |_, _| Verdict::Shown),
        Some(gate) => {
            let time = step.time();
            growing.step(step, |id, leave| {
                let enter = |id| gate.enter(&source.table, id, time);
                let verdict = id.map_or(Verdict::Hidden, enter);
                if leave {
                    gate.leave();
                }
                verdict
            });
        }
    };
    for record in source.trace.records(task) {
        last = record.time;
        if !calls.feed(record, &mut each) {
            break;
        }
    }
    let end = calls.finish(source.ended(index, last), &mut each);
    while !growing.stack.is_empty() {
        growing.leave(end);
    }
    growing.tree
}

/// One run of a program: the task that began it, and its tree.
#[derive(Debug)]
pub struct Session {
    /// The index of the task that began it.
    pub task: usize,
    /// All calls.
    pub tree: Tree,
}

/// Returns, by task, the task that executed the program that it runs: itself or an earlier one.
pub fn programs(source: &Source) -> Vec<usize> {
    let mut first: Vec<usize> = Vec::new();
    for (index, task) in source.trace.tasks.iter().enumerate() {
        let new = task.parent == 0 || task.kind == "exec";
        first.push(if new {
            index
        } else {
            first[task.parent as usize - 1]
        });
    }
    first
}

/// Returns the call trees of a trace, one for each program that was executed.
pub fn sessions(source: &Source) -> Vec<Session> {
    let next = AtomicUsize::new(0);
    let trees = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads.min(source.tasks.len()) {
            scope.spawn(|| {
                while let Some(&index) = source.tasks.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let tree = of_task(source, index);
                    trees.lock().expect("no panics").push((index, tree));
                }
            });
        }
    });
    let mut trees = trees.into_inner().expect("no panics");
    trees.sort_by_key(|(index, _)| *index);
    let first = programs(source);
    let mut sessions: Vec<Session> = Vec::new();
    for (index, tree) in trees {
        let of = first[index];
        match sessions.iter_mut().find(|session| session.task == of) {
            Some(session) => session.tree.join(&tree, 0),
            None => sessions.push(Session { task: of, tree }),
        }
    }
    for session in &mut sessions {
        session.tree.close(!source.costs().is_none());
    }
    sessions
}
