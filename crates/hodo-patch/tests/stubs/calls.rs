//! Calls, jumps and recursion, with everything that stubs can do, with and without free registers.

use hodo_isa::Via;
use hodo_patch::Recording;
use hodo_plan::model::{EntryOnlyReason, Mode};
use hodo_trace::format::{CHUNK_HEADER_SIZE, CHUNK_SIZE, RECORD_SIZE, record, tcb};
use hodo_trace::{CallStep, Left};

use crate::code::{fib, fibonacci, fibonacci_calls, leaf, outer, tail, tail2};
use crate::isa::{AFTER, BEFORE, FREE, KEPT, SETS, room};
use crate::world::{Record, Site, World, address, site, timed};

/// All functions; their jumps and stubs use these registers.
fn all(via: Via, before: u32, after: u32) -> [Site; 5] {
    let site = |name, function| site(name, function, room(via), via).free(before, after);
    [
        site("leaf", address(leaf as *const ())),
        site("outer", address(outer as *const ())),
        site("tail", address(tail as *const ())),
        site("tail2", address(tail2 as *const ())),
        site("fib", address(fib as *const ())),
    ]
}

/// Calls all functions.
fn run() {
    assert_eq!(leaf(3, 4), 14);
    assert_eq!(outer(3, 4), 15);
    assert_eq!(tail2(3, 4), 18);
    assert_eq!(fib(2), 1);
}

/// What is recorded then.
const RUN: &str =
    "+leaf -leaf +outer +leaf -leaf -outer +tail2 >tail >leaf -tail2 +fib +fib -fib +fib -fib -fib";

/// Sets of registers that are free before the body and after it.
pub fn registers() -> impl Iterator<Item = (Via, u32, u32)> {
    [FREE, KEPT].into_iter().flat_map(|via| {
        SETS.into_iter()
            .map(move |(before, after)| (via, before, after))
    })
}

#[test]
fn calls_have_entries_and_exits_with_any_registers() {
    for (via, before, after) in registers() {
        let mut world = World::new(timed(), 4);
        world.enter(1);
        world.trace(&all(via, before, after));
        run();
        assert_eq!(world.text(1), RUN, "{via:?} {before:#x} {after:#x}");
    }
}

#[test]
fn all_options_can_be_combined() {
    let bits = |number: u32| move |bit: u32| number >> bit & 1 != 0;
    for (via, before, after) in registers().step_by(2) {
        for set in (0..64).map(bits) {
            let recording = Recording {
                timed: set(0),
                filtered: set(1),
                depth: set(2).then_some(3),
                check_frames: set(3),
                shortest: set(4).then_some(1),
                switch: set(5).then_some(1024),
            };
            let mut world = World::new(recording, 4);
            let block = world.enter(1);
            world.switch(1024, true);
            let mut sites = all(via, before, after);
            sites[1].filter = true;
            sites[3].filter = true;
            world.trace(&sites);
            run();
            let text = match (set(1), set(2)) {
                (false, false) => RUN.to_owned(),
                // Filter functions, and what they call or jump to.
                (true, false) => "+outer +leaf -leaf -outer +tail2 >tail >leaf -tail2".to_owned(),
                (false, true) => RUN.to_owned(),
                (true, true) => "+outer +leaf -leaf -outer +tail2 >tail >leaf -tail2".to_owned(),
            };
            let what = format!("{via:?} {before:#x} {after:#x} {recording:?}");
            if recording.shortest.is_none() || !recording.timed {
                assert_eq!(world.text(1), text, "{what}");
            }
            for at in [tcb::INSIDE, tcb::DEPTH, tcb::BAD_FRAMES, tcb::UNSHADOWED] {
                assert_eq!(world.get(block + at), 0, "{at} {what}");
            }
        }
    }
}

#[test]
fn recursion_is_counted_and_read() {
    let mut world = World::new(timed(), 8);
    world.enter(1);
    world.trace(&all(FREE, BEFORE, AFTER));
    assert_eq!(fib(12), fibonacci(12));
    let trace = world.read("recursion", 1);
    let (mut entries, mut exits, mut depth, mut last) = (0, 0, 0usize, 0);
    let mut calls = trace.calls(Vec::new());
    for found in trace.records(&trace.tasks[0]) {
        assert!(found.time >= last, "time goes back");
        last = found.time;
        calls.feed(found, |step| match step {
            CallStep::Enter { .. } => {
                entries += 1;
                depth += 1;
            }
            CallStep::Leave {
                left: Left::Returned,
                ..
            } => {
                exits += 1;
                depth -= 1;
            }
            other => panic!("{other:?}"),
        });
    }
    let expected = fibonacci_calls(12);
    assert_eq!((entries, exits, depth), (expected, expected, 0));
}

#[test]
fn records_have_bits_of_the_stack_pointer() {
    let more = [0, 2100, 4090];
    for ((via, before, after), more) in registers().flat_map(|set| more.map(|more| (set, more))) {
        let mut world = World::new(timed(), 2);
        world.enter(1);
        // Small and large numbers are put into records in different ways.
        world.names((0..more).map(|name| format!("{name}")));
        world.trace(&all(via, before, after));
        outer(1, 2);
        assert_eq!(world.text(1), "+outer +leaf -leaf -outer", "{more}");
        let sp = |index: usize| world.records(1)[index].sp;
        // leaf is called with the stack pointer 16 bytes lower.
        assert_eq!((sp(0), sp(1)), (sp(3), sp(2)));
        assert_eq!(sp(0).wrapping_sub(sp(1)) & 1023, 1);
    }
}

#[test]
fn entry_only_functions_have_no_exit() {
    for (via, before, after) in registers() {
        for timed in [false, true] {
            let recording = Recording {
                timed,
                ..Recording::default()
            };
            let mut world = World::new(recording, 2);
            world.enter(1);
            let mut sites = all(via, before, after);
            for site in &mut sites {
                site.plan.mode = Mode::EntryOnly(EntryOnlyReason::ReturnsTwice);
            }
            world.trace(&sites);
            run();
            assert_eq!(
                world.text(1),
                "+leaf +outer +leaf +tail2 +tail +leaf +fib +fib +fib"
            );
        }
    }
}

#[test]
fn what_gets_its_return_address_from_another_has_no_exit() {
    for (via, before, after) in registers() {
        let mut world = World::new(timed(), 2);
        let block = world.enter(1);
        let mut sites = all(via, before, after);
        for site in &mut sites[2..4] {
            site.plan.mode = Mode::EntryOnly(EntryOnlyReason::HandsReturnAddressOn);
        }
        world.trace(&sites);
        run();
        assert_eq!(
            world.text(1),
            "+leaf -leaf +outer +leaf -leaf -outer +tail2 +tail +leaf +fib +fib -fib +fib -fib -fib"
        );
        assert_eq!(world.get(block + tcb::HANDED_ON), 0);
        assert_eq!(world.get(block + tcb::UNSHADOWED), 0);
    }
}

#[test]
fn filters_leave_out() {
    let recording = Recording {
        filtered: true,
        depth: Some(2),
        ..timed()
    };
    let mut world = World::new(recording, 2);
    world.enter(1);
    let mut sites = all(FREE, BEFORE, AFTER);
    sites[1].filter = true;
    world.trace(&sites);
    run();
    assert_eq!(world.text(1), "+outer +leaf -leaf -outer");
    drop(world);

    let recording = Recording {
        depth: Some(3),
        ..timed()
    };
    let mut world = World::new(recording, 2);
    let block = world.enter(1);
    world.trace(&all(KEPT, 0, 0));
    fib(4);
    assert_eq!(
        world.text(1),
        "+fib +fib +fib -fib +fib -fib -fib +fib +fib -fib +fib -fib -fib -fib"
    );
    assert_eq!(world.get(block + tcb::DEPTH), 0);
}

#[test]
fn calls_are_not_recorded_while_switched_off() {
    for switch in [1024, 2047, 2048, 4095] {
        let recording = Recording {
            switch: Some(switch),
            ..timed()
        };
        let mut world = World::new(recording, 2);
        world.enter(1);
        world.trace(&all(FREE, BEFORE, AFTER));
        leaf(1, 2);
        world.switch(switch, true);
        leaf(1, 2);
        world.switch(switch, false);
        outer(1, 2);
        assert_eq!(world.text(1), "+leaf -leaf");
    }
}

#[test]
fn short_calls_are_removed() {
    for (via, before, after) in registers() {
        let recorded = |shortest: u32| {
            let recording = Recording {
                shortest: Some(shortest),
                ..timed()
            };
            let mut world = World::new(recording, 2);
            world.enter(1);
            world.trace(&all(via, before, after));
            run();
            let all = world.all_records(1);
            let new_epoch =
                |found: &Record| (found.kind, found.id) == (record::SPECIAL, record::SPECIAL_EPOCH);
            (!all.iter().any(new_epoch)).then(|| world.text(1))
        };
        // An epoch that begins during a call keeps that call.
        let text = |shortest| (0..9).find_map(|_| recorded(shortest));
        assert_eq!(text(i32::MAX as u32).as_deref(), Some(""), "{via:?}");
        // Nothing is shorter than this.
        assert_eq!(text(0).as_deref(), Some(RUN), "{via:?}");
    }
}

#[test]
fn chunks_are_followed_by_others_and_in_the_end_by_the_bucket() {
    let mut world = World::new(timed(), 2);
    let block = world.enter(7);
    world.trace(&all(FREE, BEFORE, AFTER));
    let n = 15;
    assert_eq!(fib(n), fibonacci(n));
    let room = (CHUNK_SIZE - CHUNK_HEADER_SIZE) / RECORD_SIZE - 8;
    let once = fibonacci_calls(n) * 2;
    assert_eq!(world.records(7).len() as u64, once);
    for _ in 0..2 * room / once {
        assert_eq!(fib(n), fibonacci(n));
    }
    assert_eq!(world.words(7).len() as u64, 2 * room);
    for _ in 0..2 {
        assert_eq!(fib(n), fibonacci(n));
    }
    assert!(world.get(block + tcb::LOST) > 0);
}

#[test]
fn a_new_epoch_is_recorded() {
    let mut world = World::new(timed(), 2);
    let block = world.enter(1);
    world.trace(&all(FREE, BEFORE, AFTER));
    leaf(1, 2);
    // As if the last record were from an earlier epoch.
    let epoch = world.get(block + tcb::EPOCH) as u32;
    let task = world.get(block + tcb::EPOCH) >> 32;
    world.put(block + tcb::EPOCH, u64::from(epoch - 1) | task << 32);
    world.put(block + tcb::EPOCH_END, u64::from(epoch) << 32);
    leaf(1, 2);
    assert_eq!(world.text(1), "+leaf -leaf +leaf -leaf");
    let records = world.all_records(1);
    let new = records
        .iter()
        .find(|found| found.kind == record::SPECIAL && found.time == epoch);
    assert_eq!(new.map(|found| found.id), Some(record::SPECIAL_EPOCH));
    assert_eq!(world.get(block + tcb::EPOCH) as u32, epoch);
    assert_eq!(
        world.get(block + tcb::EPOCH_END),
        u64::from(epoch + 1) << 32
    );
}
