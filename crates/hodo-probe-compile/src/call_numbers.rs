//! Which system call an instruction makes, where the code always loads the same number.

use std::collections::{HashMap, HashSet};

use anyhow::Result;
use hodo_isa::code::Flow;
use hodo_isa::native::syscalls::{Number, number};
use hodo_module::Image;

use super::arch::reader;
use super::named::{Named, functions};
use super::wanted::Places;

/// The numbers of the system calls at places of a file, as far as each of them has only one.
pub(super) fn found(image: &Image, places: &Places) -> Result<HashMap<u64, u64>> {
    let functions = functions(image)?;
    let entered = entered(image, &functions);
    let wanted: HashSet<u64> = places.addresses().into_iter().collect();
    let mut found = HashMap::new();
    for function in &functions {
        if wanted.iter().any(|&addr| function.holds(addr)) {
            look(image, function, &entered, (&wanted, &mut found));
        }
    }
    Ok(found)
}

/// The addresses that branches lead to, and the beginnings of functions.
fn entered(image: &Image, functions: &[Named]) -> HashSet<u64> {
    let mut entered = HashSet::new();
    for function in functions {
        entered.insert(function.addr);
        let code = image.at(function.addr..function.end).unwrap_or_default();
        for insn in reader(image).sweep(code, function.addr) {
            if let Flow::Branch(to) | Flow::Jump(to) | Flow::Call(to) = insn.flow {
                entered.insert(to);
            }
        }
    }
    entered
}

/// Follows the register with the number through a function.
fn look(
    image: &Image,
    function: &Named,
    entered: &HashSet<u64>,
    (wanted, found): (&HashSet<u64>, &mut HashMap<u64, u64>),
) {
    let code = image.at(function.addr..function.end).unwrap_or_default();
    let mut known = None;
    for insn in reader(image).sweep(code, function.addr) {
        if entered.contains(&insn.addr) {
            known = None;
        }
        if let Some(number) = known.filter(|_| wanted.contains(&insn.addr)) {
            found.insert(insn.addr, number);
        }
        let start = (insn.addr - function.addr) as usize;
        let bytes = code.get(start..start + usize::from(insn.len));
        known = match (insn.flow, number(bytes.unwrap_or_default())) {
            (Flow::Next, Number::Loaded(number)) => Some(number),
            (Flow::Next | Flow::Branch(_), Number::Kept) => known,
            _ => None,
        };
    }
}
