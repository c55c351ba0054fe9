//! A probe on every instruction of real code: the standard library's code that prints numbers.

use std::fmt::Write;

use hodo_probe::Execution;
use object::{Object, ObjectSymbol, SymbolKind};

use crate::code::{alone, bytes, engine, request};

/// Some real work.
fn work() -> String {
    let mut out = String::new();
    let mut value = 1.0e-9_f64;
    for round in 0..8u64 {
        value *= -7.123_456_789;
        let text = format!("{value:?} {value:.3} {value:e}");
        write!(
            out,
            "{text} {round:#x} {:>7} {:+} ",
            round * round,
            round as i64 - 20
        )
        .expect("room");
        for word in text.split(' ') {
            let number: f64 = word.parse().expect("a number");
            write!(out, "{:x} ", number.to_bits()).expect("room");
        }
        out.push('\n');
    }
    out
}

/// This program's functions that do the work: address and size. The engine uses none of them at a hit.
fn functions() -> Vec<(u64, u64)> {
    let file = std::fs::read("/proc/self/exe").expect("the program");
    let file = object::File::parse(&*file).expect("an ELF file");
    let own = file
        .symbols()
        .find(|symbol| symbol.name() == Ok("test_state"))
        .expect("a function of the tests");
    let here = super::survive::start();
    let bias = here.wrapping_sub(own.address());
    let wanted = ["3num7flt2dec8strategy5grisu", "3fmt5float"];
    let mut found: Vec<(u64, u64)> = file
        .symbols()
        .filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.size() > 0)
        .filter(|symbol| {
            let name = symbol.name().unwrap_or_default();
            wanted.iter().any(|wanted| name.contains(wanted))
        })
        .map(|symbol| (symbol.address().wrapping_add(bias), symbol.size()))
        .collect();
    found.sort_unstable();
    found.dedup_by_key(|(address, _)| *address);
    found
}

#[test]
fn every_instruction_of_real_code() {
    let _alone = alone();
    let expected = work();
    let functions = functions();
    let mut requests = Vec::new();
    for (start, size) in &functions {
        let code = bytes(*start, *size as usize);
        for step in hodo_isa::native::steps::steps(&code, *start) {
            if step.immovable.is_none() {
                let range = *start..*start + *size;
                requests.push(request(step.addr).count().function(range));
            }
        }
    }
    let before: Vec<Vec<u8>> = functions
        .iter()
        .map(|(start, size)| bytes(*start, *size as usize))
        .collect();
    let total = requests.len();
    assert!(
        total > 1000,
        "{total} instructions in {} functions",
        functions.len()
    );
    // Probes on every seventh instruction get jumps. Probes on all of them are in each other's way.
    for apart in [7, 1] {
        let mut hits = 0;
        let mut ways = [0; 5];
        for first in 0..apart.min(2) {
            let some: Vec<_> = requests
                .iter()
                .skip(first)
                .step_by(apart)
                .cloned()
                .collect();
            // SAFETY: there are no handlers.
            let probes: Vec<_> = unsafe { engine().register_all(&some) }
                .into_iter()
                .map(|probe| probe.expect("it can be probed"))
                .collect();
            assert!(work() == expected);
            for probe in &probes {
                ways[probe.execution() as usize] += 1;
                hits += probe.count();
            }
            engine().unregister_all(probes).expect("unregistered");
        }
        println!("{total} instructions, every {apart}th: {ways:?}, {hits} hits");
        assert!(hits > 1000);
        if apart > 1 {
            assert!(ways[Execution::Optimized as usize] * 10 > ways.iter().sum::<usize>() * 7);
        }
    }
    let after: Vec<Vec<u8>> = functions
        .iter()
        .map(|(start, size)| bytes(*start, *size as usize))
        .collect();
    assert!(before == after);
    assert!(work() == expected);
}
