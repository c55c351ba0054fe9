//! Stacks of calls that miss, as flame graphs are drawn from.

use std::collections::BTreeMap;

use crate::blame::{Blame, Stack};
use crate::places::places;

use super::objects::function;

/// Functions with semicolons between them, the outermost first, and how many misses there were.
#[must_use]
pub fn folded(blame: &Blame) -> Vec<String> {
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
