//! Frames that are left in other ways than by their return.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use hodo_arch::Via;
use hodo_patch::Hook;
use hodo_trace::{Left, Step};

use crate::code::{call, catch, leaf, outer, throw};
use crate::world::{Site, World, address, site, timed};

fn sites() -> [Site; 4] {
    let site =
        |name, function| site(name, function, 8, Via::Free(6)).free(1 << 14 | 1 << 30, 1 << 14);
    [
        site("leaf", address(leaf as *const ())),
        site("outer", address(outer as *const ())),
        site("call", address(call as *const ())),
        site("catch", address(catch as *const ())),
    ]
}

thread_local! {
    static PLACE: Cell<*const [u64; 2]> = const { Cell::new(std::ptr::null()) };
}

extern "C-unwind" fn throws(x: u64) -> u64 {
    match x {
        // SAFETY: `catch` is further up, and nothing in between has something to clean up.
        0 => unsafe { throw(PLACE.get(), 77) },
        _ => call(throws, x - 1),
    }
}

#[test]
fn long_jumps_leave_frames_without_exits() {
    let mut world = World::new(timed(), 2);
    world.enter(1);
    world.trace(&sites());
    let mut place = [0; 2];
    PLACE.set(&raw const place);
    assert_eq!(catch(throws, 3, &mut place), 77);
    assert_eq!(outer(1, 2), 7);
    assert_eq!(
        world.text(1),
        "+catch +call +call +call -catch +outer +leaf -leaf -outer"
    );
    let trace = world.read("jumps", 1);
    let mut calls = trace.calls(Vec::new());
    let mut unwound = 0;
    for found in trace.records(&trace.tasks[0]) {
        calls.feed(found, |step| {
            unwound += usize::from(matches!(
                step,
                Step::Leave {
                    left: Left::Unwound,
                    ..
                }
            ));
        });
    }
    assert_eq!((unwound, calls.frames().len()), (3, 0));
}

extern "C-unwind" fn panics(x: u64) -> u64 {
    match x {
        0 => std::panic::resume_unwind(Box::new("found")),
        1 => {
            // One that is caught below the others.
            let caught = catch_unwind(AssertUnwindSafe(|| call(panics, 0)));
            assert!(caught.is_err());
            call(panics, 0)
        }
        _ => call(panics, x - 1),
    }
}

#[test]
fn unwinders_find_their_way_through_stubs() {
    let mut world = World::new(timed(), 2);
    world.enter(1);
    world.hook(Hook::FindObject, c"_dl_find_object", 0x100);
    world.trace(&sites());
    let caught = catch_unwind(AssertUnwindSafe(|| call(panics, 4)));
    let message = caught.expect_err("a panic");
    assert_eq!(message.downcast_ref::<&str>(), Some(&"found"));
    assert_eq!(outer(1, 2), 7);
    assert_eq!(
        world.text(1),
        "+call +call +call +call +call +call +outer +leaf -leaf -outer"
    );
}
