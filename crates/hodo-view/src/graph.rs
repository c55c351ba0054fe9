//! `graph`: the call tree.

use std::io::Write;

use anyhow::{Result, bail};

use crate::format::{Color, duration};
use crate::source::{Source, SourceOptions};
use crate::tasks;
use crate::tree::{Session, Tree, sessions};

/// What `graph` shows.
#[derive(Debug, Clone, Default)]
pub struct GraphOptions {
    /// Which trace, and which part of it.
    pub source: SourceOptions,
    /// Only this function, its callers and its callees.
    pub function: Option<String>,
    /// `-f`: `total`, `self`, `addr`, separated by commas, or `all` or `none`.
    pub fields: Option<String>,
    /// `--task`: the tree of tasks instead. Its columns are `total`, `self` and `tid`.
    pub task: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Total,
    Own,
    Addr,
}

const FIELDS: [(Field, &str, &str); 3] = [
    (Field::Total, "total", "TOTAL TIME"),
    (Field::Own, "self", " SELF TIME"),
    (Field::Addr, "addr", "   ADDRESS  "),
];

fn fields(text: Option<&str>) -> Result<Vec<Field>> {
    let (mut chosen, text) = match text {
        None => (vec![Field::Total], ""),
        Some(text) => match text.strip_prefix('+') {
            Some(rest) => (vec![Field::Total], rest),
            None => (Vec::new(), text),
        },
    };
    for name in text.split(',').map(str::trim).filter(|n| !n.is_empty()) {
        match name {
            "all" => chosen.extend(FIELDS.map(|f| f.0)),
            "none" => return Ok(Vec::new()),
            _ => match FIELDS.iter().find(|f| f.1 == name) {
                Some(field) => chosen.push(field.0),
                None => {
                    bail!("there is no field {name:?}; the fields are total, self, addr, all, none")
                }
            },
        }
    }
    Ok(FIELDS
        .iter()
        .map(|f| f.0)
        .filter(|f| chosen.contains(f))
        .collect())
}

struct Printer<'a> {
    source: &'a Source,
    fields: Vec<Field>,
    color: Color,
}

impl Printer<'_> {
    fn address(&self, id: u32) -> u64 {
        self.source.trace.function(id).map_or(0, |f| f.addr)
    }

    /// Writes the columns of a node, or blanks.
    fn columns(&self, out: &mut dyn Write, tree: &Tree, node: Option<u32>) -> Result<()> {
        for field in &self.fields {
            let scale = &self.source.scale;
            let text = match (field, node) {
                (Field::Total, Some(node)) => {
                    duration(scale.duration(tree.total(node)), self.color)
                }
                (Field::Own, Some(node)) => duration(scale.duration(tree.own(node)), self.color),
                (Field::Addr, Some(node)) => {
                    format!("{:>12x}", self.address(tree.nodes[node as usize].id))
                }
                (Field::Addr, None) => " ".repeat(12),
                (_, None) => " ".repeat(10),
            };
            write!(out, "  {text}")?;
        }
        if !self.fields.is_empty() {
            write!(out, " : ")?;
        }
        Ok(())
    }

    /// Writes a tree. `name` is shown as its root.
    fn tree(&self, out: &mut dyn Write, tree: &Tree, name: &str) -> Result<()> {
        if !self.fields.is_empty() {
            let titles: Vec<_> = self
                .fields
                .iter()
                .map(|field| FIELDS.iter().find(|f| f.0 == *field).map_or("", |f| f.2))
                .collect();
            writeln!(out, "# {}   FUNCTION", titles.join("  "))?;
        }
        // What is left to print: a node with the bars before it, and whether it has siblings; or a bar.
        enum Item {
            Node(u32, String, bool, bool),
            Bar(String),
        }
        let mut todo = vec![Item::Node(0, String::new(), false, true)];
        while let Some(item) = todo.pop() {
            match item {
                Item::Bar(bars) => {
                    self.columns(out, tree, None)?;
                    writeln!(out, "{bars}")?;
                }
                Item::Node(index, bars, several, last) => {
                    let node = &tree.nodes[index as usize];
                    self.columns(out, tree, Some(index))?;
                    let name = if index == 0 {
                        name
                    } else {
                        self.source.label(node.id)
                    };
                    let branch = if several { " +-" } else { "" };
                    let jumped = match node.jumps {
                        0 => "",
                        _ => " /* tail call */",
                    };
                    writeln!(out, "{bars}{branch}({}) {name}{jumped}", node.calls)?;
                    let bars = match (several, last) {
                        (false, _) => bars,
                        (true, false) => bars + " | ",
                        (true, true) => bars + "   ",
                    };
                    let many = node.children.len() > 1;
                    for (place, &child) in node.children.iter().enumerate().rev() {
                        let last = place + 1 == node.children.len();
                        if many && !last {
                            todo.push(Item::Bar(format!("{bars} | ")));
                        }
                        todo.push(Item::Node(child, bars.clone(), many, last));
                    }
                }
            }
        }
        writeln!(out)?;
        Ok(())
    }

    /// Writes who called a function: a list of distinct stacks.
    fn backtraces(&self, out: &mut dyn Write, tree: &Tree, nodes: &[u32]) -> Result<()> {
        writeln!(out, "=============== BACKTRACE ===============")?;
        for (number, &node) in nodes.iter().rev().enumerate() {
            let time = self.source.scale.duration(tree.total(node));
            let hits = tree.nodes[node as usize].calls;
            writeln!(
                out,
                " backtrace #{number}: hit {hits}, time {}",
                duration(time, self.color)
            )?;
            for (depth, &node) in tree.path(node).iter().enumerate() {
                let id = tree.nodes[node as usize].id;
                writeln!(
                    out,
                    "   [{depth}] {} ({:#x})",
                    self.source.label(id),
                    self.address(id)
                )?;
            }
            writeln!(out)?;
        }
        Ok(())
    }
}

/// Writes the call graph.
///
/// # Errors
/// If the trace cannot be read, has no such function, or `out` cannot be written.
pub fn graph(options: &GraphOptions, out: &mut dyn Write) -> Result<()> {
    if options.task {
        return tasks::graph(&options.source, options.fields.as_deref(), out);
    }
    let fields = fields(options.fields.as_deref())?;
    let mut source = Source::open(&options.source)?;
    if let Some(function) = &options.function {
        source.restart_at(function);
    }
    let printer = Printer {
        source: &source,
        fields,
        color: Color(options.source.color),
    };
    let sessions = sessions(&source);
    let mut found = false;
    // As in uftrace, the last program comes first.
    for session in sessions.iter().rev() {
        found |= one(&printer, options, session, out)?;
    }
    if let Some(function) = &options.function
        && !found
    {
        bail!("cannot find graph for '{function}': no such function was called");
    }
    Ok(())
}

fn one(
    printer: &Printer<'_>,
    options: &GraphOptions,
    session: &Session,
    out: &mut dyn Write,
) -> Result<bool> {
    let task = printer.source.task(session.task);
    let tree = &session.tree;
    let header = |out: &mut dyn Write, name: &str| {
        writeln!(
            out,
            "# Function Call Graph for '{name}' (session: {:016x})",
            task.id
        )
    };
    let Some(function) = &options.function else {
        if tree.nodes.len() == 1 {
            return Ok(false);
        }
        header(out, &task.comm)?;
        writeln!(out, "========== FUNCTION CALL GRAPH ==========")?;
        printer.tree(out, tree, &task.comm)?;
        return Ok(true);
    };
    let is = |node: u32| {
        node != 0
            && printer
                .source
                .is_called(tree.nodes[node as usize].id, function)
    };
    // A recursive call is already counted in the outermost one.
    let outermost = |node: u32| {
        let path = tree.path(node);
        !path[..path.len() - 1].iter().any(|&above| is(above))
    };
    let mut nodes: Vec<u32> = (1..tree.nodes.len() as u32)
        .filter(|&node| tree.nodes[node as usize].calls > 0 && is(node) && outermost(node))
        .collect();
    if nodes.is_empty() {
        return Ok(false);
    }
    nodes.sort_by_key(|&node| tree.first(node));
    let mut below = Tree::default();
    for &node in &nodes {
        below.join(&tree.below(node), 0);
    }
    below.sort();
    below.nodes[0].id = tree.nodes[nodes[0] as usize].id;
    header(out, function)?;
    printer.backtraces(out, tree, &nodes)?;
    writeln!(out, "========== FUNCTION CALL GRAPH ==========")?;
    printer.tree(out, &below, function)?;
    Ok(true)
}
