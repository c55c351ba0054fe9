//! The call tree: what was called from where, how often and for how long.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use hodo_trace::Step;

use crate::filter::Gate;
use crate::source::Source;

/// One place in the tree.
#[derive(Debug, Clone, Default)]
pub struct Node {
    /// Function id; the root's is 0.
    pub id: u32,
    /// How often it was called from here.
    pub calls: u64,
    /// Time in it and in what it called, in units of the counter.
    pub total: u64,
    /// Indices of the nodes below it, in the order of their first call.
    pub children: Vec<u32>,
    /// Index of the node above it.
    pub parent: u32,
}

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

impl Default for Tree {
    fn default() -> Self {
        Self {
            nodes: vec![Node::default()],
            index: HashMap::default(),
        }
    }
}

impl Tree {
    /// The node of function `id` below `parent`, made if there is none.
    pub fn child(&mut self, parent: u32, id: u32) -> u32 {
        let key = u64::from(parent) << 32 | u64::from(id);
        let new = self.nodes.len() as u32;
        let node = *self.index.entry(key).or_insert(new);
        if node == new {
            self.nodes.push(Node {
                id,
                parent,
                ..Node::default()
            });
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
            to.total += node.total;
        }
    }

    /// A copy of what is below `from`, as a tree of its own: its root stands for `from`.
    pub fn below(&self, from: u32) -> Self {
        let mut tree = Self::default();
        let mut todo = vec![(from, 0)];
        while let Some((old, new)) = todo.pop() {
            let node = &self.nodes[old as usize];
            tree.nodes[new as usize].calls += node.calls;
            tree.nodes[new as usize].total += node.total;
            let children: Vec<_> = node
                .children
                .iter()
                .map(|&child| (child, tree.child(new, self.nodes[child as usize].id)))
                .collect();
            todo.extend(children);
        }
        tree
    }

    /// Time in a node's function itself, in units of the counter.
    pub fn own(&self, node: u32) -> u64 {
        let node = &self.nodes[node as usize];
        let children: u64 = node
            .children
            .iter()
            .map(|&child| self.nodes[child as usize].total)
            .sum();
        node.total.saturating_sub(children)
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

    /// Gives the root the time of all that is below it.
    fn close(&mut self) {
        let children = self.nodes[0].children.clone();
        self.nodes[0].total = children
            .iter()
            .map(|&child| self.nodes[child as usize].total)
            .sum();
        self.nodes[0].calls = 1;
    }
}

/// The tree of one task.
fn of_task(source: &Source, index: usize) -> Tree {
    let task = source.task(index);
    let frames = &source.inherited[index];
    let mut tree = Tree::default();
    // Open frames: node, and when it was entered.
    let mut stack: Vec<(u32, u64)> = Vec::new();
    let mut calls = source.trace.calls(frames.clone());
    let mut gate = (!source.table.is_open()).then(|| Gate::new(&source.table, frames));
    let shown: Vec<bool> = match &gate {
        Some(gate) => gate.shown().collect(),
        None => vec![true; frames.len()],
    };
    // What was called in the parent is not called again here; its time here counts.
    for (frame, _) in frames.iter().zip(shown).filter(|(_, shown)| *shown) {
        let at = stack.last().map_or(0, |&(node, _)| node);
        stack.push((tree.child(at, frame.id), u64::MAX));
    }
    let mut last = task.began;
    let leave = |tree: &mut Tree, (node, start): (u32, u64), time: u64| {
        if start != u64::MAX {
            let node = &mut tree.nodes[node as usize];
            node.calls += 1;
            node.total += time.saturating_sub(start);
        }
    };
    let (from, to) = source.range;
    let ranged = source.timed() && source.range != (0, u64::MAX);
    let mut apply = |step: Step| {
        if ranged {
            let ns = source.scale.nanoseconds(step.time());
            if ns < from || ns > to {
                // Out of range: keep the stack, count nothing.
                match step {
                    Step::Enter { id, .. } => {
                        let at = stack.last().map_or(0, |&(node, _)| node);
                        stack.push((tree.child(at, id), u64::MAX));
                    }
                    Step::Leave { .. } => {
                        stack.pop();
                    }
                    _ => {}
                }
                return;
            }
        }
        match step {
            Step::Enter { id, time, .. } => {
                let at = stack.last().map_or(0, |&(node, _)| node);
                stack.push((tree.child(at, id), time));
            }
            Step::Leave { time, .. } => {
                if let Some(open) = stack.pop() {
                    leave(&mut tree, open, time);
                }
            }
            Step::Instant { id, .. } => {
                let at = stack.last().map_or(0, |&(node, _)| node);
                let node = tree.child(at, id);
                tree.nodes[node as usize].calls += 1;
            }
            Step::Lost { .. } => {}
        }
    };
    for record in source.trace.records(task) {
        last = record.time;
        match &mut gate {
            None => calls.feed(record, &mut apply),
            Some(gate) => calls.feed(record, |step| {
                gate.pass(&source.table, &source.scale, step, &mut apply);
            }),
        }
    }
    let end = task
        .ended
        .filter(|_| source.timed())
        .unwrap_or(last)
        .max(last);
    if let Some(gate) = &mut gate {
        gate.finish(&source.table, &source.scale, end, &mut apply);
    }
    while let Some(open) = stack.pop() {
        leave(&mut tree, open, end);
    }
    tree
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

/// The call trees of a trace, one for each program that was executed; or, `by_task`, one for each task.
pub fn sessions(source: &Source, by_task: bool) -> Vec<Session> {
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
        let of = if by_task { index } else { first[index] };
        match sessions.iter_mut().find(|session| session.task == of) {
            Some(session) => session.tree.join(&tree, 0),
            None => sessions.push(Session { task: of, tree }),
        }
    }
    for session in &mut sessions {
        session.tree.close();
    }
    sessions
}
