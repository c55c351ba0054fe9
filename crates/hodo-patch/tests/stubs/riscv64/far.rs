//! Stubs that no two-instruction jump reaches.

use std::ops::Range;

use hodo_isa::Via;
use hodo_plan::model::{Extra, Far, Spare, Tactic};

use crate::code::{fib, fibonacci, leaf, outer, room, room8, room16, room24, room32, tail, tiny};
use crate::world::{Site, World, address, follow, site, timed};

type Function = extern "C-unwind" fn(u64, u64) -> u64;

/// How to get a register for the jump there, and for the jump back.
const WAYS: [Via; 2] = [Via::Free(6), Via::Kept(6)];

/// A function with this many bytes of nops, whose jump loads the address of its stub from among them.
fn with_literal(
    name: &'static str,
    function: Function,
    nops: u64,
    via: Via,
    literal: Option<u64>,
) -> Site {
    let at = address(function as *const ());
    let mut site = site(name, at, 8, via);
    let start = at as u64;
    site.plan.tactic = Tactic::Site;
    site.plan.far = Some(Box::new(Far {
        patch_len: far_len(via) as u8,
        literal,
        displaced: start..start + nops,
        spare: Spare {
            dead: Vec::new(),
            back: via,
            pads: Vec::new(),
        },
    }));
    site.free(1 << 14 | 1 << 15, 1 << 15)
}

/// The first address for a literal after the jump.
fn after(function: Function, via: Via) -> u64 {
    let at = address(function as *const ()) as u64;
    (at + far_len(via)).next_multiple_of(8)
}

fn far(sites: &[Site], has_places: bool) -> World {
    let mut world = World::far(timed(), 2);
    world.enter(1);
    world.has_places = has_places;
    world.trace(sites);
    follow(&world.patches);
    world
}

/// Returns whether a write goes there.
fn writes(world: &World, range: &Range<u64>) -> bool {
    let mut starts = world.patches.writes.iter().map(|write| write.0);
    starts.any(|at| range.contains(&at))
}

#[test]
fn the_room_that_compilers_leave_holds_the_address_of_the_stub() {
    for via in WAYS {
        // A register that was saved is restored at the end.
        let functions: [(&str, Function, u64); 2] =
            [("room24", room24, 24), ("room32", room32, 32)];
        for (name, function, nops) in functions {
            if via == WAYS[1] && nops == 24 {
                continue;
            }
            let literal = after(function, via);
            let site = with_literal(name, function, nops, via, Some(literal));
            let at = site.plan.patch;
            let mut world = far(&[site], false);
            assert_eq!(world.patches.traps, [], "{name} {via:?}");
            assert!(writes(&world, &(at..at + 1)) && writes(&world, &(literal..literal + 1)));
            assert_eq!(function(3, 4), 14);
            assert_eq!(function(5, 6), 22);
            let text = format!("+{name} -{name} +{name} -{name}");
            assert_eq!(world.text(1), text, "{via:?}");
            // Nothing of it is left.
            world.restore();
            assert_eq!(function(5, 6), 22);
            assert_eq!(world.text(1), text);
        }
    }
}

#[test]
fn padding_or_memory_nearby_holds_the_address_of_the_stub() {
    let padding = (address(room as *const ()) as u64).next_multiple_of(8);
    for (literal, has_places) in [(Some(padding), false), (None, true)] {
        let mut site = with_literal("room16", room16, 16, Via::Free(6), literal);
        site.plan.patch_len = 8;
        let mut world = far(&[site], has_places);
        assert_eq!(world.patches.traps, []);
        assert_eq!(room16(3, 4), 14);
        assert_eq!(world.text(1), "+room16 -room16");
        world.restore();
        assert_eq!(room16(3, 4), 14);
        assert_eq!(world.text(1), "+room16 -room16");
    }
}

#[test]
fn without_a_place_for_the_address_there_is_a_breakpoint() {
    for via in WAYS {
        let site = with_literal("room16", room16, 16, via, None);
        let at = site.plan.patch;
        let world = far(&[site], false);
        assert_eq!(world.patches.traps.len(), 1);
        assert_eq!(world.patches.traps[0].at, at);
        assert_eq!(room16(3, 4), 14);
        assert_eq!(world.text(1), "+room16 -room16", "{via:?}");
    }
}

#[test]
fn bytes_of_another_site_hold_no_address() {
    let via = Via::Free(6);
    let other = address(room8 as *const ()) as u64;
    let first = with_literal("room16", room16, 16, via, Some(other.next_multiple_of(8)));
    let mut second = site("room8", other as usize, 8, via);
    second.plan.tactic = Tactic::Trap;
    second.plan.patch = other.next_multiple_of(8);
    second.plan.displaced = second.plan.patch..other + 8;
    let world = far(&[first, second], false);
    assert_eq!(world.patches.traps.len(), 2);
    assert_eq!((room16(3, 4), room8(1, 1)), (14, 4));
    assert_eq!(world.text(1), "+room16 -room16 +room8 -room8");
}

#[test]
fn other_sites_jump_to_memory_nearby() {
    let slot = address(room as *const ()) as u64;
    for via in WAYS {
        for extra in [Extra::None, Extra::HopSlot(slot), Extra::Near] {
            for has_places in [true, false] {
                let at = address(room8 as *const ()) as u64;
                let mut eight = site("room8", at as usize, 12, via);
                if extra != Extra::None {
                    eight.plan.tactic = Tactic::Hop;
                    eight.plan.patch_len = 4;
                    eight.plan.displaced.end = at + 8;
                }
                eight.plan.extra = extra.clone();
                // The way back needs a register: it is put on the stack, and restored at the end of the displaced code.
                let kept = via == WAYS[1];
                if kept && extra == Extra::None {
                    eight.plan.displaced.end = at + 16;
                }
                let world = far(&[eight.free(1 << 14, 1 << 15)], has_places);
                assert_eq!(world.patches.traps.is_empty(), has_places);
                // Threads must leave the displaced code before it can go away.
                assert_eq!(world.patches.leaving.len(), usize::from(kept));
                assert_eq!(room8(3, 4), 14, "{via:?} {extra:?} {has_places}");
                assert_eq!(world.text(1), "+room8 -room8", "{via:?} {extra:?}");
            }
        }
    }
}

#[test]
fn displaced_branches_and_jumps_lead_back_from_far_away() {
    let sites = [
        site("fib", address(fib as *const ()), 8, Via::Free(31)),
        site("leaf", address(leaf as *const ()), 8, Via::Free(31)),
        site("outer", address(outer as *const ()), 8, Via::Free(31)),
        site("tail", address(tail as *const ()), 20, Via::Free(31)),
    ];
    let world = far(&sites, true);
    assert_eq!(world.patches.failed, []);
    assert_eq!(fib(5), fibonacci(5));
    assert_eq!(outer(1, 2), 7);
    assert_eq!(tail(1, 2), 10);
    let text = world.text(1);
    let rest = "+outer +leaf -leaf -outer +tail >leaf -tail";
    assert!(text.ends_with(rest), "{text}");
    assert!(text.starts_with("+fib +fib +fib"), "{text}");
}

#[test]
fn breakpoints_lead_anywhere() {
    let mut traced = site("tiny", address(tiny as *const ()), 4, Via::Free(6));
    traced.plan.tactic = Tactic::Trap;
    traced.plan.patch_len = 2;
    let world = far(&[traced.free(1 << 14, 1 << 15)], false);
    assert_eq!(world.patches.traps.len(), 1);
    assert_eq!(tiny(3), 4);
    assert_eq!(world.text(1), "+tiny -tiny");
}

/// Bytes of the jump to anywhere.
fn far_len(via: Via) -> u64 {
    let form = hodo_isa::NATIVE.far_jump(via);
    form.expect("a register").len
}
