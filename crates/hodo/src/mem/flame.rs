//! Flame graphs of misses.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use anyhow::{Result, bail};
use hodo_mem::blame::{Blame, Stack};
use hodo_mem::places::places;

use super::objects::function;

/// Writes a flame graph: as SVG, or folded stacks if the name of the file says so.
pub fn write(out: &mut dyn Write, path: &Path, title: String, blame: &Blame) -> Result<()> {
    let lines = folded(blame);
    if path.extension().is_some_and(|end| end == "folded") {
        for line in lines {
            writeln!(out, "{line}")?;
        }
        return Ok(());
    }
    if lines.is_empty() {
        bail!("no access of data missed the first cache");
    }
    hodo_view::flame_graph(&lines, title, "misses", out)
}

/// Functions with semicolons between them, the outermost first, and how many misses there were.
fn folded(blame: &Blame) -> Vec<String> {
    let stacks: Vec<Stack> = blame.stacks().collect();
    let all = stacks.iter().flat_map(|stack| &stack.calls);
    let found = places(all.flatten());
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    for stack in &stacks {
        let names = stack.calls.iter().map(|call| {
            let place = call.as_ref().and_then(|call| found.get(call));
            // Semicolons separate functions.
            function(place).replace(';', ":")
        });
        let names: Vec<String> = names.collect();
        *sums.entry(names.join(";")).or_default() += stack.misses;
    }
    let lines = sums.into_iter();
    lines
        .map(|(names, misses)| format!("{names} {misses}"))
        .collect()
}
