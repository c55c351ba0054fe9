//! What a function can call, judged by its code. Functions that can never pass a filter are not patched, and cost
//! nothing.

use std::ops::Range;

use hodo_isa::code::Flow;
use hodo_plan::model::Plan;

use hodo_module::Image;

/// Where control can go from a function.
#[derive(Debug, Default, PartialEq, Eq)]
struct Exits {
    /// Direct calls and jumps to other functions.
    to: Vec<u64>,
    /// It calls or jumps through pointers, or its code is not known.
    anywhere: bool,
}

fn exits(image: &Image, range: Range<u64>) -> Exits {
    let mut exits = Exits::default();
    let Some(code) = image.at(range.clone()).filter(|code| !code.is_empty()) else {
        exits.anywhere = true;
        return exits;
    };
    for insn in hodo_isa::NATIVE.sweep(code, range.start) {
        match insn.flow {
            Flow::Call(to) => exits.to.push(to),
            Flow::Branch(to) | Flow::Jump(to) if !range.contains(&to) => exits.to.push(to),
            Flow::IndirectCall | Flow::IndirectJump | Flow::Invalid => exits.anywhere = true,
            _ => {}
        }
    }
    exits
}

/// Whether the function with index `function` calls nothing at all.
pub fn is_leaf(image: &Image, plan: &Plan, function: usize) -> bool {
    let function = &plan.functions[function];
    exits(image, function.addr..function.addr + function.size) == Exits::default()
}

/// For each function of the plan, whether it is among `roots` or can be called from them, directly or not. `None`: any
/// function can be.
pub fn reachable(image: &Image, plan: &Plan, roots: &[usize]) -> Option<Vec<bool>> {
    let mut reached = vec![false; plan.functions.len()];
    let mut todo = roots.to_vec();
    while let Some(index) = todo.pop() {
        if std::mem::replace(&mut reached[index], true) {
            continue;
        }
        let function = &plan.functions[index];
        let exits = exits(image, function.addr..function.addr + function.size);
        if exits.anywhere {
            return None;
        }
        for to in exits.to {
            let at = plan.functions.partition_point(|f| f.addr <= to);
            let callee = at.checked_sub(1)?;
            let range = &plan.functions[callee];
            // An address outside this plan's functions may be a library's; it may call back.
            if to >= range.addr + range.size {
                return None;
            }
            todo.push(callee);
        }
    }
    Some(reached)
}
