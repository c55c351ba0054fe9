//! What of a program was executed, for people and for scripts.

use hodo_symbols::{Style, demangle};
use serde_json::{Value, json};

use crate::coverage::{Coverage, Source};

/// Of these, the first were executed.
type Share = (usize, usize);

/// Coverage as JSON.
#[must_use]
pub fn as_json(coverage: &Coverage) -> Value {
    let [lines, functions] = coverage.totals();
    let files = coverage.sources.iter();
    let files = files.map(|(name, source)| source_as_json(name, source));
    let modules = coverage.modules.iter().map(|(path, module)| {
        json!({
            "file": path.display().to_string(),
            "blocks": module.blocks.len(),
            "functions": share((module.executed, module.functions)),
        })
    });
    json!({
        "lines": share(lines),
        "functions": share(functions),
        "files": files.collect::<Vec<_>>(),
        "modules": modules.collect::<Vec<_>>(),
    })
}

fn share((hit, known): Share) -> Value {
    json!({"hit": hit, "known": known})
}

fn source_as_json(name: &str, source: &Source) -> Value {
    let [lines, functions] = source.totals();
    let rows = source.lines.iter();
    let rows = rows.map(|(line, count)| json!({"line": line, "count": count}));
    let each = source.functions.iter().map(|(name, function)| {
        json!({
            "name": demangle(name, Style::Simple),
            "line": function.line,
            "count": function.count,
            "lines": share((function.hit(), function.lines.len())),
        })
    });
    json!({
        "file": name,
        "lines": share(lines),
        "functions": share(functions),
        "line_counts": rows.collect::<Vec<_>>(),
        "function_counts": each.collect::<Vec<_>>(),
    })
}

/// A number of hundred.
fn percent((hit, known): Share) -> String {
    match known {
        0 => "-".to_owned(),
        _ => format!("{:.1}%", hit as f64 * 100.0 / known as f64),
    }
}

fn numbers(share: Share) -> String {
    format!("{:>8} {:>8} {:>7}", share.0, share.1, percent(share))
}

/// Coverage as lines of text: the source files and functions of which most lines were executed, and the files of code
/// of which most functions were.
#[must_use]
pub fn as_text(coverage: &Coverage, top: usize) -> Vec<String> {
    let [lines, functions] = coverage.totals();
    let head = |what: &str| format!("executed       of          {what}");
    let mut text = vec![
        head("in all"),
        format!("{}  lines", numbers(lines)),
        format!("{}  functions", numbers(functions)),
    ];
    let files = coverage.sources.iter();
    let files = files.map(|(name, source)| (source.totals()[0], name.clone()));
    table(&mut text, &head("lines of the source file"), files, top);
    let sources = coverage.sources.iter();
    let functions = sources.flat_map(|(file, source)| {
        source.functions.iter().map(move |(name, one)| {
            let name = demangle(name, Style::Simple);
            let share = (one.hit(), one.lines.len());
            (share, format!("{name}, {file}:{}", one.line))
        })
    });
    table(&mut text, &head("lines of the function"), functions, top);
    let modules = coverage.modules.iter().map(|(path, module)| {
        let share = (module.executed, module.functions);
        (share, path.display().to_string())
    });
    table(&mut text, &head("functions of the file"), modules, top);
    text
}

/// Adds a table of what was executed, if there is any: that of which most was, first.
fn table(
    text: &mut Vec<String>,
    head: &str,
    rows: impl Iterator<Item = (Share, String)>,
    top: usize,
) {
    let mut rows: Vec<(Share, String)> = rows.filter(|row| row.0.0 > 0).collect();
    if rows.is_empty() {
        return;
    }
    rows.sort_by(|a, b| b.0.0.cmp(&a.0.0).then_with(|| a.1.cmp(&b.1)));
    text.extend([String::new(), head.to_owned()]);
    let rows = rows.iter().take(top);
    text.extend(rows.map(|(share, name)| format!("{}  {name}", numbers(*share))));
}
