//! Calls as a file of callgrind, which `callgrind_annotate` and KCachegrind read: "Callgrind Format Specification", in
//! valgrind's manual.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write;

use anyhow::Result;

use crate::calls::{Edge, Function, Graph};

/// What is not known.
const UNKNOWN: &str = "???";

/// Writes the file.
///
/// # Errors
/// If it cannot be written.
pub fn write(out: &mut dyn Write, graph: &Graph, command: &[OsString]) -> Result<()> {
    let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
    let own: u64 = graph.functions.iter().map(|function| function.own).sum();
    writeln!(out, "# callgrind format\nversion: 1\ncreator: hodo")?;
    writeln!(out, "cmd: {}", line(&words.join(" ")))?;
    writeln!(out, "positions: line\nevents: Ir\nsummary: {own}")?;
    let mut edges: BTreeMap<usize, Vec<&Edge>> = BTreeMap::new();
    for edge in &graph.edges {
        edges.entry(edge.caller).or_default().push(edge);
    }
    for (number, function) in graph.functions.iter().enumerate() {
        let own = edges.get(&number).map_or(&[][..], |edges| edges);
        write_function(out, graph, function, own)?;
    }
    writeln!(out, "\ntotals: {own}")?;
    Ok(out.flush()?)
}

/// The file of code, the source file and the line of a function.
fn place(function: &Function) -> (String, String, u32) {
    let file = function.file.as_ref();
    let file = file.map_or_else(|| UNKNOWN.to_owned(), |file| file.display().to_string());
    let (source, number) = match &function.line {
        Some((source, number)) => (source.as_str(), *number),
        None => (UNKNOWN, 0),
    };
    (line(&file), line(source), number)
}

fn write_function(
    out: &mut dyn Write,
    graph: &Graph,
    function: &Function,
    edges: &[&Edge],
) -> Result<()> {
    let (file, source, first) = place(function);
    writeln!(out, "\nob={file}\nfl={source}\nfn={}", line(&function.name))?;
    let mut open = source.clone();
    // Code of another source file was inlined.
    let mut turn = |out: &mut dyn Write, wanted: &Option<(String, u32)>| -> Result<u32> {
        let (wanted, number) = match wanted {
            Some((wanted, number)) => (line(wanted), *number),
            None => (source.clone(), first),
        };
        if wanted != open {
            let key = if wanted == source { "fe" } else { "fi" };
            writeln!(out, "{key}={wanted}")?;
            open = wanted;
        }
        Ok(number)
    };
    for (at, count) in &function.lines {
        let number = turn(out, at)?;
        writeln!(out, "{number} {count}")?;
    }
    for edge in edges {
        let number = turn(out, &edge.line)?;
        let callee = &graph.functions[edge.callee];
        let (file, source, first) = place(callee);
        writeln!(
            out,
            "cob={file}\ncfi={source}\ncfn={}\ncalls={} {first}",
            line(&callee.name),
            edge.count
        )?;
        writeln!(out, "{number} {}", edge.inclusive)?;
    }
    Ok(())
}

/// A name without line feeds, which would end it, and not as one that stands for another.
fn line(text: &str) -> String {
    let text = text.replace('\n', " ");
    let mut begin = text.chars();
    match (begin.next(), begin.next()) {
        (Some('('), Some('0'..='9')) => format!(" {text}"),
        _ => text,
    }
}
