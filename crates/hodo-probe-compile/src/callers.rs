//! Which function a tracepoint belongs to. In a Rust program, the probe of a tracepoint is in a function of the
//! library, one for each tracepoint, which is called out of line. Events are named after the function that has the
//! tracepoint.

use std::collections::{BTreeMap, BTreeSet};

use hodo_isa::code::Flow;
use hodo_symbols::{Branch, Style, demangle};

use super::arch::reader;
use super::named::Named;
use hodo_module::Image;

/// How many callers are named before the rest is left out.
const NAMED: usize = 3;

/// See [`callers`].
pub(super) type Callers = BTreeMap<u64, (String, u64)>;

/// By the address of each function that the tracepoints of a file call: the name of its caller, and how far from the
/// caller's beginning the branch is. Where several functions have the tracepoint (one that is generic, or inlined), all
/// their names, with the distance 0.
pub(super) fn callers(image: &Image, functions: &[Named]) -> Callers {
    // A damaged table has been reported by whoever switches its keys.
    let Ok(keys) = hodo_symbols::keys(&image.bytes) else {
        return BTreeMap::new();
    };
    let has_tracepoint = |branch: &Branch| {
        let hodo_symbols::KeyPlace::Here { addr, .. } = branch.key else {
            return false;
        };
        let key = keys.keys.binary_search_by_key(&addr, |key| key.addr);
        key.is_ok_and(|index| keys.keys[index].tracepoint)
    };
    let mut sorted = Vec::from_iter(functions);
    sorted.sort_by_key(|function| function.addr);
    let last_up_to = |addr: u64| {
        let after = sorted.partition_point(|function| function.addr <= addr);
        sorted[..after].last().copied()
    };
    let mut branches: BTreeMap<u64, (&Named, Vec<&Branch>)> = BTreeMap::new();
    for branch in keys.branches.iter().filter(|branch| has_tracepoint(branch)) {
        if let Some(function) = last_up_to(branch.code).filter(|last| last.holds(branch.code)) {
            let all = branches.entry(function.addr);
            all.or_insert_with(|| (function, Vec::new())).1.push(branch);
        }
    }
    let mut called: BTreeMap<u64, Vec<(&Named, u64)>> = BTreeMap::new();
    for (function, branches) in branches.into_values() {
        let code = image.at(function.addr..function.end).unwrap_or_default();
        let instructions: Vec<_> = reader(image).sweep(code, function.addr).collect();
        for branch in branches {
            // What the branch leads to evaluates the arguments, and calls then. What is after it may be that of others.
            let begin = instructions.partition_point(|insn| insn.addr < branch.target);
            let first = instructions[begin..]
                .iter()
                .find_map(|insn| match insn.flow {
                    Flow::Call(to) | Flow::Jump(to) => last_up_to(to)
                        .is_some_and(|function| function.addr == to && is_hit(&function.name))
                        .then_some(to),
                    _ => None,
                });
            if let Some(to) = first {
                let callers = called.entry(to).or_default();
                callers.push((function, branch.code - function.addr));
            }
        }
    }
    called
        .into_iter()
        .map(|(to, callers)| (to, name(&callers)))
        .collect()
}

/// Whether a name is that of a function of the library that has a tracepoint's probe.
fn is_hit(name: &str) -> bool {
    name.contains("hodo_keys") && demangle(name, Style::Simple).contains("::tracepoint::hit::hit")
}

fn name(callers: &[(&Named, u64)]) -> (String, u64) {
    let plain = |(caller, _): &(&Named, u64)| demangle(&caller.name, Style::Simple);
    let names: BTreeSet<_> = callers.iter().map(plain).collect();
    if names.len() == 1 {
        return (callers[0].0.name.clone(), callers[0].1);
    }
    let mut text = Vec::from_iter(names.iter().take(NAMED).map(AsRef::as_ref)).join("|");
    if names.len() > NAMED {
        text.push_str("|…");
    }
    (text, 0)
}
