//! Tests of what is kept for each thread, in an environment in which nothing is traced.

extern crate std;

use std::vec::Vec;

use crate::thread::{Open, Thread};
use crate::{Call, Counts, Environment};

struct Nothing;

// SAFETY: no thread is traced.
unsafe impl Environment for Nothing {
    fn thread() -> Option<&'static Thread> {
        None
    }

    fn prepare(_: &'static Thread, _: usize) -> bool {
        false
    }

    fn frame_mismatch(_: &Call, _: usize, _: usize, _: bool) {}
}

crate::set_environment!(Nothing);

fn thread() -> Thread {
    // SAFETY: all zeros is a thread.
    unsafe { std::mem::zeroed() }
}

#[test]
fn calls_whose_frames_are_gone_are_dropped() {
    let thread = thread();
    // SAFETY: all zeros are calls.
    let mut calls: Vec<Open> = (0..4).map(|_| unsafe { std::mem::zeroed() }).collect();
    // SAFETY: they outlive their use here.
    unsafe { thread.set_open_calls(calls.as_mut_ptr(), calls.len()) };
    assert!(thread.has_open_calls() && !thread.is_full(3) && thread.is_full(4));
    let relaxed = std::sync::atomic::Ordering::Relaxed;
    for (number, slot) in [0x4000, 0x3000, 0x2000, 0x1000].into_iter().enumerate() {
        // SAFETY: there are four.
        unsafe { thread.call(number) }.slot.store(slot, relaxed);
    }
    thread.depth.store(4, relaxed);
    thread.drop_below(0x1000);
    assert_eq!(thread.depth.load(relaxed), 4);
    thread.drop_below(0x3000);
    assert_eq!(thread.depth.load(relaxed), 2);
    thread.drop_below(0x9000);
    assert_eq!(thread.depth.load(relaxed), 0);
    let counts = Counts {
        dropped: 4,
        ..Counts::default()
    };
    assert_eq!(thread.counts(), counts);
}

#[test]
fn a_hook_is_not_entered_from_inside() {
    let thread = thread();
    assert!(thread.start_hook(0x2000));
    assert!(!thread.start_hook(0x1000));
    // It is not inside the hook, which was left by a jump.
    assert!(thread.start_hook(0x3000));
    assert!(!thread.start_hook(0x2000));
    thread.end_hook();
    assert!(thread.start_hook(0x1000));
    assert_eq!(thread.counts().missed, 2);
}
