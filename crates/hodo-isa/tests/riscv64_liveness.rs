//! Free registers in real code: compares the search from one instruction with the analysis of all code. Also compares
//! sequences of `lr` and `sc` with a search along every path.

#[path = "riscv64/mod.rs"]
mod common;

use std::collections::BTreeSet;

use common::{Random, library, samples, section};
use hodo_isa::riscv64::Part;
use hodo_isa::riscv64::liveness::{Convention, dead_registers, live_registers};
use hodo_isa::riscv64::scan::Flow;
use hodo_isa::riscv64::steps::{FIXED, Step, steps};

#[test]
fn both_ways_to_find_free_registers_agree() {
    let Some((code, base)) = library().and_then(|path| section(&path, ".text")) else {
        return;
    };
    let steps = steps(&code, base);
    for convention in [Convention::Unknown, Convention::Standard] {
        let live = live_registers(&steps, convention);
        let mut random = Random(7);
        let (mut same, mut some) = (0, 0);
        let all = 4000 * samples();
        for _ in 0..all {
            let index = random.below(steps.len() as u64) as usize;
            let addr = steps[index].addr;
            let dead = dead_registers(&code, base, addr, 400, convention);
            // The search from one instruction may find less: its length is limited, and it does not see the `auipc`
            // of a jump.
            assert_eq!(dead & live[index], 0, "{addr:#x}, {convention:?}");
            assert_eq!(dead & FIXED, 0);
            same += u64::from(!dead == live[index]);
            some += u64::from(dead != 0);
        }
        println!("{convention:?}: {same} of {all} the same, {some} with a free register");
        assert!(same * 100 > all * 80, "{same} of {all}");
        assert!(some * 100 > all * 80, "{some} of {all}");
    }
}

/// Finds all instructions between this one and an `sc`, if a path leads to one.
fn between(steps: &[Step], at: usize, path: &mut Vec<usize>, found: &mut BTreeSet<usize>) {
    for next in after(steps, at) {
        match steps[next].part {
            Part::Last => found.extend(path.iter().copied()),
            Part::First => {}
            // Paths that are longer than any sequence have left it.
            _ if path.len() > 12 || path.contains(&next) => {}
            _ => {
                path.push(next);
                between(steps, next, path, found);
                path.pop();
            }
        }
    }
}

fn after(steps: &[Step], at: usize) -> Vec<usize> {
    let step = &steps[at];
    let mut all = Vec::new();
    if !step.flow.is_end() && at + 1 < steps.len() {
        all.push(at + 1);
    }
    if let Flow::Branch(to) | Flow::Jump(to) = step.flow {
        all.extend(steps.binary_search_by_key(&to, |step| step.addr).ok());
    }
    all
}

#[test]
fn sequences_in_real_code() {
    let Some((code, base)) = library().and_then(|path| section(&path, ".text")) else {
        return;
    };
    let steps = steps(&code, base);
    let mut expected = BTreeSet::new();
    let mut sequences = 0;
    for (index, step) in steps.iter().enumerate() {
        if step.part == Part::First {
            sequences += 1;
            between(&steps, index, &mut Vec::new(), &mut expected);
        }
    }
    let found: BTreeSet<usize> = (0..steps.len())
        .filter(|&index| steps[index].part == Part::Between)
        .collect();
    println!("{sequences} sequences, {} between", found.len());
    let addrs = |indexes: &BTreeSet<usize>| -> Vec<String> {
        let addr = |index: &usize| format!("{:#x}", steps[*index].addr);
        indexes.iter().map(addr).collect()
    };
    assert_eq!(addrs(&found), addrs(&expected));
    assert!(sequences > 100);
}
