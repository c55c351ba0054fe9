//! Runs instructions of real programs at their own address and moved, on the same random state, and compares all
//! results: general registers, flags, vector and floating-point registers, memory, the final address, and faults.
//! `riscv64_run.rs` does this for RISC-V.
#![cfg(target_arch = "x86_64")]

mod machine;

use std::collections::HashMap;

use hodo_isa::x86_64::relocate::{RelocateError, relocate_mapped};
use iced_x86::FlowControl;
use machine::samples::{Random, adapt, collect, forms, state, windows};
use machine::{HOME, HOME_SIZE, Machine, Outcome};

/// The number of samples of each form.
const SAMPLES: usize = 2;
/// The number of the stack pointer.
const RSP: usize = 4;
/// The number of random states on which each sample runs.
const STATES: u64 = 4;

/// Returns where the moved code should have stopped, given where the original stopped.
fn expected(
    rip: u64,
    len: usize,
    home: u64,
    away: u64,
    moved_len: usize,
    map: &HashMap<usize, usize>,
) -> u64 {
    let offset = rip.wrapping_sub(home);
    match usize::try_from(offset) {
        Ok(offset) if offset == len => away + moved_len as u64,
        Ok(offset) => map.get(&offset).map_or(rip, |new| away + *new as u64),
        Err(_) => rip,
    }
}

/// Runs code at its own address and moved, and compares the results. Returns whether it can be moved.
fn compare(machine: &mut Machine, code: &[u8], random: &mut Random) -> bool {
    let mut code = code.to_vec();
    let home = HOME + HOME_SIZE / 2 + 1024;
    let away = machine::AWAY + HOME_SIZE / 2;
    let Some(instructions) = adapt(&mut code, home, random) else {
        return false;
    };
    let moved = match relocate_mapped(&code, home, away) {
        Ok(moved) => moved,
        Err(RelocateError::Unsupported { .. } | RelocateError::CallInside { .. }) => return false,
        Err(error) => panic!("{code:02x?}: {error}"),
    };
    let map: HashMap<usize, usize> = moved.map.iter().map(|m| (m.old, m.new)).collect();
    machine.place(home, &code);
    machine.place(away, &moved.bytes);
    for _ in 0..STATES {
        let state = state(&instructions, random);
        let mut original = machine.run(home, &state);
        let mut got = machine.run(away, &state);
        if got.rip == home + code.len() as u64 {
            // A branch to just after the code leads to the original place.
            got.rip = away + moved.bytes.len() as u64;
        }
        let calls = instructions
            .iter()
            .any(|i| i.flow_control() == FlowControl::IndirectCall);
        if calls && original.signal == libc::SIGSEGV && original.fault == 0 {
            // The target of the call is an address that no processor can have. The moved form faults when it jumps.
            assert_eq!(original.signal, got.signal, "{code:02x?}");
            continue;
        }
        if calls {
            // A moved call through memory leaves its target below the return address, where no code expects a value.
            let below = original.registers[RSP].wrapping_sub(8);
            original.forget(below);
            got.forget(below);
        }
        original.rip = expected(
            original.rip,
            code.len(),
            home,
            away,
            moved.bytes.len(),
            &map,
        );
        assert!(
            original == got,
            "{code:02x?} moved to {:02x?}:\n{}",
            moved.bytes,
            Outcome::difference(&original, &got, &state)
        );
    }
    machine.clear(home, code.len());
    machine.clear(away, moved.bytes.len());
    true
}

#[test]
fn moved_instructions_do_what_the_originals_do() {
    let mut machine = Machine::new();
    let mut random = Random(1);
    let forms = forms(SAMPLES);
    let mut moved = 0;
    for (_, samples) in &forms {
        let mut any = false;
        for code in samples {
            any |= compare(&mut machine, code, &mut random);
        }
        moved += usize::from(any);
    }
    println!("{moved} of {} forms ran", forms.len());
    assert!(moved * 10 > forms.len() * 9, "{moved} of {}", forms.len());
}

#[test]
fn moved_windows_do_what_the_originals_do() {
    let mut machine = Machine::new();
    let mut random = Random(2);
    let mut moved = 0;
    for code in windows() {
        moved += usize::from(compare(&mut machine, &code, &mut random));
    }
    assert!(moved > 3000, "{moved}");
}

/// Rewrites the files of samples.
#[test]
#[ignore = "changes files of the tree"]
fn samples_are_collected() {
    collect(SAMPLES);
}
