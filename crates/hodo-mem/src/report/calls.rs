//! Calls, for people and for scripts.

use serde_json::{Value, json};

use crate::calls::{Edge, Function, Graph};

/// Functions and calls, those that cost most first.
fn sorted(graph: &Graph) -> (Vec<&Function>, Vec<&Edge>) {
    let mut functions: Vec<&Function> = graph.functions.iter().collect();
    functions.sort_by(|a, b| {
        let (costs, others) = ((b.inclusive, b.own), (a.inclusive, a.own));
        costs.cmp(&others).then_with(|| a.name.cmp(&b.name))
    });
    let mut edges: Vec<&Edge> = graph.edges.iter().collect();
    edges.sort_by_key(|edge| std::cmp::Reverse((edge.inclusive, edge.count)));
    (functions, edges)
}

fn file(function: &Function) -> Option<String> {
    let file = function.file.as_ref();
    file.map(|file| file.display().to_string())
}

/// Calls as JSON.
#[must_use]
pub fn as_json(graph: &Graph) -> Value {
    let (functions, edges) = sorted(graph);
    let functions = functions.into_iter().map(|function| {
        let (source, line) = function.line.clone().unzip();
        json!({
            "name": function.name,
            "file": file(function),
            "source": source,
            "line": line,
            "inclusive": function.inclusive,
            "self": function.own,
            "calls": function.calls,
        })
    });
    let end = |number: usize| {
        let function = &graph.functions[number];
        json!({"name": function.name, "file": file(function)})
    };
    let edges = edges.into_iter().map(|edge| {
        let (source, line) = edge.line.clone().unzip();
        json!({
            "caller": end(edge.caller),
            "callee": end(edge.callee),
            "source": source,
            "line": line,
            "calls": edge.count,
            "inclusive": edge.inclusive,
        })
    });
    json!({
        "instructions": graph.instructions,
        "functions": functions.collect::<Vec<_>>(),
        "calls": edges.collect::<Vec<_>>(),
    })
}

/// The functions and calls that cost most, as lines of text.
#[must_use]
pub fn as_text(graph: &Graph, top: usize) -> Vec<String> {
    let (functions, edges) = sorted(graph);
    let mut text = vec![
        format!("{:>16} instructions", graph.instructions),
        String::new(),
        "       inclusive             self        calls  function".to_owned(),
    ];
    text.extend(functions.into_iter().take(top).map(|function| {
        let file = function.file.as_deref().and_then(|file| file.file_name());
        let file = file.map(|file| format!(" ({})", file.to_string_lossy()));
        format!(
            "{:>16} {:>16} {:>12}  {}{}",
            function.inclusive,
            function.own,
            function.calls,
            function.name,
            file.unwrap_or_default()
        )
    }));
    text.extend([
        String::new(),
        "       inclusive        calls  call".to_owned(),
    ]);
    text.extend(edges.into_iter().take(top).map(|edge| {
        let [caller, callee] = [edge.caller, edge.callee].map(|one| &graph.functions[one].name);
        let line = edge.line.as_ref();
        let line = line.map(|(file, line)| format!(", {file}:{line}"));
        format!(
            "{:>16} {:>12}  {caller} > {callee}{}",
            edge.inclusive,
            edge.count,
            line.unwrap_or_default()
        )
    }));
    text
}
