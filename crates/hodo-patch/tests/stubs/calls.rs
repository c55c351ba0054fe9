//! Calls, jumps and recursion.

use hodo_arch::Via;
use hodo_patch::Recording;

use crate::code::{fib, leaf, outer, tail, tail2};
use crate::world::{Site, World, site};

/// `t1`
const T1: Via = Via::Free(6);
/// What is free at the entry of all these functions, and behind them: `a2`–`a7`, `t0`–`t6` behind, less before.
const BEFORE: u32 = 0xF000_0040 | 1 << 15 | 1 << 14;
const BEHIND: u32 = 0xF003_F0E0;

fn timed() -> Recording {
    Recording {
        timed: true,
        ..Recording::default()
    }
}

fn all() -> [Site; 5] {
    [
        site("leaf", leaf as *const () as usize, 8, T1).free(BEFORE, BEHIND),
        site("outer", outer as *const () as usize, 8, T1).free(BEFORE, BEHIND),
        site("tail", tail as *const () as usize, 8, T1).free(BEFORE, BEHIND),
        site("tail2", tail2 as *const () as usize, 8, T1).free(BEFORE, BEHIND),
        site("fib", fib as *const () as usize, 8, T1).free(BEFORE, BEHIND),
    ]
}

#[test]
fn calls_have_entries_and_exits() {
    let mut world = World::new(timed(), 4);
    world.enter(1);
    world.trace(&all());
    assert_eq!(leaf(3, 4), 14);
    assert_eq!(outer(3, 4), 15);
    assert_eq!(world.text(1), "+leaf -leaf +outer +leaf -leaf -outer");
}
