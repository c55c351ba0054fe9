//! Ways from a site to its stub other than the long jump.

use hodo_isa::Via;
use hodo_plan::model::{Extra, Pad, Spare, Tactic};

use crate::code::{leaf, room, slot, tiny, tiny2};
use crate::world::{Site, World, address, follow, site, timed};

fn led(tactic: Tactic, len: u8, extra: Extra, mut site: Site) -> Site {
    site.plan.tactic = tactic;
    site.plan.patch_len = len;
    site.plan.extra = extra;
    site.free(1 << 14, 1 << 15)
}

/// This many bytes of `tiny` are displaced, and the register of its jumps is free.
fn of_tiny(tactic: Tactic, len: u8, extra: Extra) -> Site {
    let site = site("tiny", address(tiny as *const ()), 4, Via::Free(6));
    led(tactic, len, extra, site)
}

#[test]
fn breakpoints_lead_to_stubs() {
    for via in [Via::Nothing, Via::Free(6)] {
        let mut world = World::new(timed(), 2);
        world.enter(1);
        let mut traced = of_tiny(Tactic::Trap, 2, Extra::None);
        traced.plan.via = via;
        world.trace(&[traced]);
        assert_eq!(world.patches.traps.len(), 1);
        follow(&world.patches);
        assert_eq!(tiny(3), 4);
        assert_eq!(world.text(1), "+tiny -tiny");
    }
}

#[test]
fn short_jumps_lead_to_long_ones() {
    let far = address(slot as *const ()) as u64;
    let near = address(room as *const ()) as u64;
    for (len, at) in [(2, near), (4, near), (4, far)] {
        for via in [Via::Free(6), Via::Kept(5)] {
            let mut world = World::new(timed(), 2);
            world.enter(1);
            let mut traced = of_tiny(Tactic::Hop, len, Extra::HopSlot(at));
            traced.plan.via = via;
            world.trace(&[traced]);
            assert_eq!(tiny(3), 4);
            assert_eq!(world.text(1), "+tiny -tiny", "{len} {via:?}");
        }
    }
}

#[test]
fn memory_nearby_holds_long_jumps() {
    for via in [Via::Free(6), Via::Kept(5)] {
        for memory in [true, false] {
            let mut world = World::new(timed(), 2);
            world.enter(1);
            world.has_places = memory;
            let mut traced = of_tiny(Tactic::Hop, 4, Extra::Near);
            traced.plan.via = via;
            world.trace(&[traced]);
            // Otherwise a breakpoint, which leads to where the register is put on the stack.
            assert_eq!(world.patches.traps.is_empty(), memory);
            follow(&world.patches);
            assert_eq!(tiny(3), 4);
            assert_eq!(world.text(1), "+tiny -tiny", "{via:?}");
        }
    }
}

#[test]
fn code_without_a_free_register_continues_through_a_pad() {
    let near = address(room as *const ()) as u64;
    for at in [Some(near), None] {
        let mut world = World::new(timed(), 2);
        world.enter(1);
        let mut traced = of_tiny(Tactic::Trap, 2, Extra::None);
        traced.plan.via = Via::Nothing;
        let end = traced.plan.displaced.end;
        traced.plan.spare = Spare {
            dead: Vec::new(),
            back: Via::Kept(6),
            pads: vec![Pad {
                from: end,
                at,
                to: end,
            }],
        };
        world.has_places = at.is_none();
        world.trace(&[traced]);
        assert_eq!(world.patches.failed, []);
        follow(&world.patches);
        assert_eq!(tiny(3), 4);
        assert_eq!(world.text(1), "+tiny -tiny", "{at:x?}");
    }
}

#[test]
fn code_displaced_by_another_site_holds_long_jumps() {
    let host = address(leaf as *const ()) as u64;
    let after = Extra::HopDonor {
        slot: host + 8,
        host,
    };
    for with_host in [true, false] {
        let mut world = World::new(timed(), 2);
        world.enter(1);
        let mut sites = vec![of_tiny(Tactic::Hop, 4, after.clone())];
        if with_host {
            let site = site("leaf", host as usize, 16, Via::Free(6));
            sites.push(site.free(1 << 14, 1 << 15));
        }
        world.trace(&sites);
        assert_eq!(world.patches.traps, []);
        assert_eq!(tiny(3), 4);
        assert_eq!(leaf(1, 2), 6);
        let all = ["+tiny -tiny +leaf -leaf", "+tiny -tiny"];
        assert_eq!(world.text(1), all[usize::from(!with_host)]);
    }
}

#[test]
fn functions_of_one_instruction_are_traced() {
    let mut world = World::new(timed(), 2);
    world.enter(1);
    let near = address(room as *const ()) as u64;
    let mut traced = site("tiny2", address(tiny2 as *const ()), 2, Via::Free(6));
    traced = led(Tactic::Hop, 2, Extra::HopSlot(near), traced);
    world.trace(&[traced]);
    assert_eq!(tiny2(3), 3);
    assert_eq!(world.text(1), "+tiny2 -tiny2");
}
