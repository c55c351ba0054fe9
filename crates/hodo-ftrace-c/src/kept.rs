//! Finds functions whose callers keep something in a register across the call because the function leaves that register
//! alone (gcc's `-fipa-ra`, which `-O2` includes). A site that changes the register must not be there.

use std::collections::{BTreeMap, HashSet};

use hodo_isa::code::{Flow, Step};
use hodo_symbols::Function;

use crate::arch::INSTRUCTIONS;

/// Indices of the functions that are called, also by others, while the register is in use. `code` returns the code of a
/// function; `base` is how far it is from where it was linked.
pub fn called_with(
    register: u8,
    functions: &[Function],
    base: u64,
    code: impl Fn(&Function) -> Vec<u8>,
) -> HashSet<usize> {
    let bit = 1 << register;
    let starts: BTreeMap<u64, usize> = functions
        .iter()
        .enumerate()
        .map(|(index, function)| (base + function.addr, index))
        .collect();
    let owner = |address: u64| {
        let (start, index) = starts.range(..=address).next_back()?;
        (address < start + functions[*index].size.max(1)).then_some(*index)
    };
    let mut calls: Vec<Vec<usize>> = vec![Vec::new(); functions.len()];
    let mut waiting = Vec::new();
    for (index, function) in functions.iter().enumerate() {
        let start = base + function.addr;
        let code = code(function);
        let steps: Vec<Step> = INSTRUCTIONS.steps(&code, start).collect();
        let live = live(&steps, bit);
        for (place, step) in steps.iter().enumerate() {
            let (Flow::Call(to) | Flow::Jump(to) | Flow::Branch(to)) = step.flow else {
                continue;
            };
            let Some(called) = owner(to).filter(|called| *called != index || to == start) else {
                continue;
            };
            calls[index].push(called);
            if matches!(step.flow, Flow::Call(_)) && live[place + 1] {
                waiting.push(called);
            }
        }
    }
    let mut found = HashSet::new();
    while let Some(index) = waiting.pop() {
        if found.insert(index) {
            waiting.extend(&calls[index]);
        }
    }
    found
}

/// Whether a register is in use before each instruction, and after the last one. A call within the file may leave it
/// alone; others do not.
fn live(steps: &[Step], bit: u32) -> Vec<bool> {
    let mut live = vec![false; steps.len() + 1];
    let mut has_changed = steps.iter().any(|step| step.reads & bit != 0);
    while has_changed {
        has_changed = false;
        for (place, step) in steps.iter().enumerate().rev() {
            let target = match step.flow {
                Flow::Branch(to) | Flow::Jump(to) => {
                    steps.binary_search_by_key(&to, |step| step.addr).ok()
                }
                _ => None,
            };
            let goes_on = !step.flow.is_end() && live[place + 1];
            let is_set = step.writes & bit != 0 || step.flow == Flow::IndirectCall;
            let after = goes_on || target.is_some_and(|place| live[place]);
            let is_live = step.reads & bit != 0 || after && !is_set;
            has_changed |= is_live && !live[place];
            live[place] |= is_live;
        }
    }
    live
}
