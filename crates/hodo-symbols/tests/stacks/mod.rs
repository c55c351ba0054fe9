//! Follows the callers on a stack that a program has written.

use hodo_symbols::{Registers, Unwinder, symbols};

/// The functions from the innermost to the outermost, and whether the tables say that there is no caller after it.
/// `stack`: its words from the stack pointer upwards.
pub fn callers(bytes: &[u8], mut registers: Registers, stack: &[u64]) -> (Vec<String>, bool) {
    let bottom = registers.stack_pointer().expect("a stack");
    let read = |addr: u64| {
        let at = addr.checked_sub(bottom)? / 8;
        addr.is_multiple_of(8)
            .then(|| stack.get(at as usize).copied())?
    };
    let functions = symbols(bytes).expect("symbols").functions;
    let unwinder = Unwinder::new(bytes);
    let mut found = Vec::new();
    loop {
        let addr = registers.instruction();
        let addr = addr.unwrap_or_else(|| panic!("{found:?}"));
        let addr = addr - u64::from(!found.is_empty());
        let mut all = functions.iter();
        let function = all.find(|f| (f.addr..f.addr + f.size).contains(&addr));
        found.push(function.map_or_else(|| "?".to_owned(), |f| f.name.clone()));
        assert!(found.len() < 20, "{found:?}");
        match unwinder.caller(addr, &registers, &read) {
            Some(caller) if caller.none => return (found, true),
            Some(caller) => registers = caller.registers,
            None => return (found, false),
        }
    }
}
