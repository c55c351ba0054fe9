//! The call tree: what was called from where, how often and for how long.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use hodo_trace::{CallStep, Entered};

use crate::clip::Clipped;
use crate::costs::{Cost, Costs, parts, whole};
use crate::filter::{Gate, Verdict};
use crate::source::Source;

/// One place in the tree.
#[derive(Debug, Clone)]
pub struct Node {
    /// Function id; the root's is 0.
    pub id: u32,
    /// How often it was called from here.
    pub calls: u64,
    /// Time in it and in what it called, in [`parts`] of a unit of the counter.
    total: i64,
    /// Indices of the nodes below it, in the order of their first call.
    pub children: Vec<u32>,
    /// Index of the node above it.
    pub parent: u32,
    /// When it was first called, in units of the counter; [`NEVER`]: only its callees were, or are still to be.
    first: u64,
    /// How many of the calls were jumps.
    pub jumps: u64,
    /// The callee that was asked for last, and its node: most calls are the same as the one before. (0, 0): none yet.
    last: (u32, u32),
}

/// No point in time.
const NEVER: u64 = u64::MAX;

/// Node numbers and function ids need no better hash than this.
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
    /// The node of function `id` below `parent`, made if there is none.
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

    /// Adds a tree, its root at `at`.
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

    /// A copy of what is below `from`, as a tree of its own: its root stands for `from`.
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

    /// Time in a node's function and in what it called, in units of the counter.
    pub fn total(&self, node: u32) -> u64 {
        whole(self.nodes[node as usize].total)
    }

    /// Time in a node's function itself, in units of the counter.
    pub fn own(&self, node: u32) -> u64 {
        whole(
            self.nodes[node as usize]
                .total
                .saturating_sub(self.below_total(node)),
        )
    }

    /// Time in all that a node's function called.
    fn below_total(&self, node: u32) -> i64 {
        let children = self.nodes[node as usize].children.iter();
        let totals = children.map(|&child| self.nodes[child as usize].total);
        totals.fold(0, i64::saturating_add)
    }

    /// Function ids from the outermost call to this node.
    pub fn path(&self, mut node: u32) -> Vec<u32> {
        let mut path = Vec::new();
        while node != 0 {
            path.push(node);
            node = self.nodes[node as usize].parent;
        }
        path.reverse();
        path
    }

    /// When a node's function was first called.
    pub fn first(&self, node: u32) -> u64 {
        self.nodes[node as usize].first
    }

    /// Puts the children in the order of their first call.
    pub fn sort(&mut self) {
        for index in 0..self.nodes.len() {
            let mut children = std::mem::take(&mut self.nodes[index].children);
            children.sort_by_key(|&child| self.nodes[child as usize].first);
            self.nodes[index].children = children;
        }
    }

    /// Completes the tree: gives the root the time of all that is below it, drops what was not called, and puts the
    /// children in the order of their first call. `corrected`: the cost of recording was taken off.
    fn close(&mut self, corrected: bool) {
        let mut called: Vec<bool> = self.nodes.iter().map(|n| n.first != NEVER).collect();
        for index in (1..self.nodes.len()).rev() {
            let node = &self.nodes[index];
            let (parent, first) = (node.parent as usize, node.first);
            if called[index] {
                called[parent] = true;
                // What was entered before there was anything to see comes where it is seen first.
                self.nodes[parent].first = self.nodes[parent].first.min(first);
            }
        }
        for node in &mut self.nodes {
            node.children.retain(|&child| called[child as usize]);
        }
        self.sort();
        if corrected {
            // Whatever was taken off, a function takes no less time than what it called, and none takes less than no
            // time.
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

/// An open frame: its place in the tree, and when it was entered.
#[derive(Debug, Clone, Copy)]
struct Open {
    /// The node of the innermost frame that is shown.
    node: u32,
    verdict: Verdict,
    start: u64,
    /// What recording its callees cost, and all that they called.
    spent: i64,
    /// What recording its own call cost.
    cost: Cost,
}

/// The tree of one task that is being made.
struct Growing<'a> {
    tree: Tree,
    stack: Vec<Open>,
    source: &'a Source,
    costs: Costs,
    /// Whether every call is seen.
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
            let (from, to) = self.source.range;
            if start < from || start > to || end.saturating_sub(start) < least {
                return;
            }
            // It is seen that it was called, but not how long it took.
            took = took.filter(|_| end <= to);
        }
        let node = &mut self.tree.nodes[open.node as usize];
        node.calls += 1;
        node.total = node.total.saturating_add(took.unwrap_or(0));
        node.first = node.first.min(open.start);
    }

    /// `gate` gets the function that is entered and the one that is left, and says what of it is shown.
    #[inline]
    fn step(&mut self, step: CallStep, mut gate: impl FnMut(Option<u32>, bool) -> Verdict) {
        match step {
            CallStep::Enter {
                id, time, entered, ..
            } => {
                let cost = match entered {
                    Entered::Jumped => self.costs.jump,
                    Entered::Called | Entered::Before => self.costs.call,
                };
                self.enter((id, cost), gate(Some(id), false), time);
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

/// The tree of one task.
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
    // What was called in the parent is not called again here.
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

/// A program's run: the task that began it, and its tree.
#[derive(Debug)]
pub struct Session {
    /// Index of the task that began it.
    pub task: usize,
    /// All calls.
    pub tree: Tree,
}

/// The task that executed the program in which each task is: itself, or one before it.
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

/// The call trees of a trace, one for each program that was executed.
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
