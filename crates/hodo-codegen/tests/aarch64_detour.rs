//! Runs detours of probes on random state, and compares what they count, write and leave with what is computed here.
//!
//! For AArch64 only: `scripts/cross.sh` runs it under an emulator.
#![cfg(target_arch = "aarch64")]

#[path = "../../hodo-isa/tests/aarch64/mod.rs"]
mod common;
#[path = "detour/mod.rs"]
mod detours;
#[path = "detour/aarch64.rs"]
mod isa;
#[path = "../../hodo-isa/tests/aarch64/machine.rs"]
mod machine;

use detours::{DISTANCE, Run, count, event, hit, model};
use hodo_codegen::detour::{Action, Counter, Fetch, Place, Source, When};
use hodo_isa::Signing;

/// The site is after `paciasp`, and the function authenticates its return address before it returns.
#[test]
fn signed_return_addresses_are_replaced() {
    let mut machine = machine::Machine::new();
    let mut random = common::Random(11);
    const AUTIASP: [u8; 4] = 0xD503_23BFu32.to_le_bytes();
    let code = [isa::ADD_FIRST, isa::ADD_SECOND, AUTIASP, isa::RET].concat();
    for round in 0..100 {
        let mut before = detours::with_shadow(detours::state(&mut random), round % 7 != 0);
        let (real, stack) = (before.x[isa::LINK], before.x[isa::STACK]);
        before.x[isa::LINK] = isa::signed(real, stack);
        let caller = Fetch::Word(Source::Caller(DISTANCE));
        let returned = Action::Record(event(vec![caller], false));
        let missed = Action::Count(Counter::Thread(detours::COUNTER + 8));
        let hits = count();
        let mut probes = vec![hit(0, &hits, &mut random)];
        for (when, action) in [(When::Return, &returned), (When::Missed, &missed)] {
            let mut probe = hit(0, action, &mut random);
            probe.when = when;
            probes.push(probe);
        }
        let free = probes
            .iter()
            .fold(u32::MAX, |free, probe| free & probe.free);
        probes.iter_mut().for_each(|probe| probe.free = free);
        let place = Place {
            signing: Signing::A,
            ..Place::new(&code, machine::HOME, machine::HOME + 16)
        };
        let (bytes, detour) = detours::detour(&place, machine::AWAY, &probes);
        machine.place(machine::AWAY, &bytes);
        let mut run = Run::follow(&mut machine, machine::AWAY, &before, &[&detour]);
        machine.clear(machine::AWAY, bytes.len());
        run.allow(free);
        run.allow_flags();
        let mut expected = before.clone();
        for register in [isa::RESULT, isa::SECOND] {
            expected.x[register] = expected.x[register].wrapping_add(1);
        }
        expected.x[isa::LINK] = real;
        expected.pc = real;
        let counter = detours::BLOCK.wrapping_add_signed(detours::COUNTER.into());
        model::add(&mut expected, counter, 1);
        if round % 7 == 0 {
            model::add(&mut expected, counter + 8, 1);
        } else {
            let mut words = detours::head(1, 0, 0);
            words.push(real);
            for (word, at) in words.iter().zip((detours::CHUNK..).step_by(8)) {
                model::set(&mut expected, at, *word);
            }
            model::add(&mut expected, detours::BLOCK, 8 * words.len() as u64);
            model::set(&mut expected, stack - DISTANCE, real);
        }
        run.check(&expected);
    }
}
