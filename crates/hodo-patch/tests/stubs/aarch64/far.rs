//! Stubs and detours that no jump of the program reaches.

use std::sync::atomic::AtomicU64;

use hodo_codegen::native::detour::When;
use hodo_isa::{Signing, Via};
use hodo_patch::{Region, Sites, Traced};
use hodo_trace::format::counters::CHAIN_SIZE;
use hodo_trace::format::tcb;

use crate::code::{body, fib, fibonacci, leaf, outer, registers, tail, tail2};
use crate::isa::{FIXED, FREE, SETS};
use crate::landings::{count, landing, traced};
use crate::signed::{hodo_test_signed, hodo_test_signed_jump, signed};
use crate::world::{Site, World, address, site, timed};

/// Their displaced instructions go on, branch away, call and jump.
fn sites() -> [Site; 5] {
    [
        site("leaf", address(leaf as *const ()), 4, FREE),
        site("fib", address(fib as *const ()), 8, FREE),
        site("outer", address(outer as *const ()), 20, FREE),
        site("tail", address(tail as *const ()), 20, FREE),
        site("tail2", address(tail2 as *const ()), 8, FREE),
    ]
}

fn run() {
    assert_eq!(fib(5), fibonacci(5));
    assert_eq!(outer(1, 2), 7);
    assert_eq!((tail(1, 2), tail2(1, 2)), (10, 10));
}

#[test]
fn displaced_instructions_lead_back_from_far_away() {
    for (before, after) in SETS {
        let mut world = World::far(timed(), 2);
        world.enter(1);
        world.trace(&sites().map(|site| site.free(before, after)));
        assert_eq!(world.patches.traps, []);
        // One jump from each site, and one back from each place where control leaves its instructions.
        let outside = |way: &&hodo_abi::Span| !world.islands()[0].contains(&way.start);
        let outside = world.patches.ways.iter().filter(outside);
        // Sites are changed, jumps nearby load an address, and displaced instructions end or lead to elsewhere: one
        // branches, one calls and one jumps.
        assert_eq!(outside.count(), 5 * 3 + 5 + 3);
        assert_eq!(world.patches.leaving.len(), 5);
        run();
        let text = world.text(1);
        let rest = "+outer +leaf -leaf -outer +tail >leaf -tail +tail2 >tail >leaf -tail2";
        assert!(text.ends_with(rest), "{text}");
        assert!(text.starts_with("+fib +fib +fib"), "{text}");
        world.restore();
        run();
        assert_eq!(world.text(1), text);
    }
}

#[test]
fn without_memory_nearby_functions_are_left_alone() {
    let mut world = World::far(timed(), 2);
    world.enter(1);
    world.has_places = false;
    world.try_trace(&sites());
    assert_eq!(world.patches.failed.len(), 5);
    let (_, reason) = &world.patches.failed[0];
    assert!(reason.to_string().contains("no memory is near"), "{reason}");
    assert_eq!(world.patches.writes, []);
    run();
    assert_eq!(world.text(1), "");
}

/// Neither the registers with which a function is entered nor those with which it returns are changed.
#[test]
fn jumps_to_far_stubs_and_back_change_no_register() {
    for displaced in [4, 8] {
        let mut world = World::far(timed(), 2);
        world.enter(1);
        world.trace(&[site("body", address(body as *const ()), displaced, FREE)]);
        let mut state = [[0; 32]; 8];
        for (index, set) in (1..).zip(&mut state) {
            for (number, word) in (1..).zip(set.iter_mut()) {
                *word = index * 0x1_0001_0001 + number;
            }
        }
        registers(&mut state);
        // The register that far jumps save, too.
        let looked_at = (0..31).filter(|&number| number == 16 || FIXED >> number & 1 == 0);
        for number in looked_at {
            assert_eq!(state[1][number], state[0][number], "x{number}");
        }
        assert_eq!(state[3][..=16], state[2][..=16]);
        assert_eq!(state[5], state[4]);
        assert_eq!(world.text(1), "+body -body");
    }
}

#[test]
fn functions_that_sign_return_to_far_stubs() {
    for (before, after) in SETS {
        let mut world = World::far(timed(), 4);
        let block = world.enter(1);
        let sites = [
            site("leaf", address(leaf as *const ()), 8, FREE),
            signed("signed", hodo_test_signed as *const (), Signing::A),
            signed("jump", hodo_test_signed_jump as *const (), Signing::B),
        ];
        world.trace(&sites.map(|site| site.free(before, after)));
        assert_eq!(hodo_test_signed(3, 4), 15);
        assert_eq!(hodo_test_signed_jump(3, 4), 17);
        let text = "+signed +leaf -leaf -signed +jump >signed +leaf -leaf -jump";
        assert_eq!(world.text(1), text);
        assert_eq!(world.get(block + tcb::BAD_FRAMES), 0);
    }
}

/// Entries, returns and instructions are counted, whether or not the function is traced.
#[test]
fn probes_lead_to_far_detours() {
    for is_traced in [false, true] {
        let counters = [const { AtomicU64::new(0) }; 3];
        let mut world = World::far(timed(), 4);
        let block = world.enter(1);
        world.put(
            block + tcb::FRAMES,
            counters.as_ptr().expose_provenance() as u64,
        );
        let entries = vec![0u64; CHAIN_SIZE as usize / 8];
        let list = entries.as_ptr().expose_provenance() as u64;
        world.put(block + tcb::CHAIN_LO, list);
        world.put(block + tcb::CHAIN_TOP, list);
        let at = address(hodo_test_signed as *const ()) as u64;
        let (plan, function) = (landing(at), traced(at, Signing::A, false));
        let id = world.names(["signed".to_owned()].into_iter()).start;
        let probes = [
            count(at, When::Hit, 0),
            count(at, When::Return, 1),
            count(at + 4, When::Hit, 2),
        ];
        let region = Region {
            site: &plan,
            probes: &probes,
            function: is_traced.then_some(Traced {
                function: &function,
                id,
                filter: false,
            }),
        };
        world.add_own(Sites {
            functions: &[],
            libcalls: &[],
            nops: &[],
            regions: &[region],
        });
        assert_eq!(world.patches.failed, []);
        assert_eq!(world.patches.traps, []);
        assert_eq!(hodo_test_signed(3, 4), 15);
        world.restore();
        assert_eq!(counters.map(AtomicU64::into_inner), [1; 3]);
        let text = if is_traced { "+signed -signed" } else { "" };
        assert_eq!(world.text(1), text);
    }
}

/// A call and a loop in the region, and probes on all of it.
#[test]
fn regions_with_calls_and_branches_are_moved_far_away() {
    let counters = [const { AtomicU64::new(0) }; 8];
    let mut world = World::far(timed(), 4);
    let block = world.enter(1);
    world.put(
        block + tcb::FRAMES,
        counters.as_ptr().expose_provenance() as u64,
    );
    let function = |name, at: *const (), length| site(name, address(at), length, Via::Nothing);
    let plans = [
        function("outer", outer as *const (), 20).plan,
        function("fib", fib as *const (), 12).plan,
    ];
    let probes: Vec<Vec<_>> = (0..)
        .zip(&plans)
        .map(|(region, plan)| {
            let all = plan.displaced.clone().step_by(4);
            let words = region * 5..;
            all.zip(words)
                .map(|(at, word)| count(at, When::Hit, word))
                .collect()
        })
        .collect();
    let regions: Vec<_> = plans
        .iter()
        .zip(&probes)
        .map(|(site, probes)| Region {
            site,
            probes,
            function: None,
        })
        .collect();
    world.add_own(Sites {
        functions: &[],
        libcalls: &[],
        nops: &[],
        regions: &regions,
    });
    assert_eq!(world.patches.failed, []);
    assert_eq!(world.patches.traps, []);
    assert_eq!((outer(1, 2), fib(1), fib(2)), (7, 1, 1));
    world.restore();
    // fib(2) calls itself twice, and only it branches.
    assert_eq!(
        counters.map(AtomicU64::into_inner),
        [1, 1, 1, 1, 1, 4, 4, 3]
    );
}
