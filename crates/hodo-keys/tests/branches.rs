//! Branches of all four kinds, and what switching does to them.

mod emulator;

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use hodo_keys::{
    Error, define_static_key_array_false, define_static_key_array_true, define_static_key_false,
    define_static_key_true, static_branch_likely, static_branch_unlikely, switch,
};

#[test]
fn all_kinds_of_branches_follow_their_key() {
    define_static_key_false!(OFF);
    define_static_key_true!(ON);
    fn four() -> [bool; 4] {
        [
            static_branch_unlikely!(OFF),
            static_branch_likely!(OFF),
            static_branch_unlikely!(ON),
            static_branch_likely!(ON),
        ]
    }
    for _ in 0..100 {
        assert_eq!(four(), [false, false, true, true]);
        OFF.enable().expect("switched");
        assert_eq!(four(), [true, true, true, true]);
        ON.disable().expect("switched");
        assert_eq!(four(), [true, true, false, false]);
        assert!(OFF.is_enabled() && !ON.is_enabled());
        switch(&[OFF.disabling(), ON.enabling()]).expect("switched");
    }
    assert!(ON.initially_enabled() && !OFF.initially_enabled());
    assert_eq!(OFF.name(), "branches::OFF");
    assert_eq!((OFF.to_string().as_str(), OFF.index()), (OFF.name(), None));
}

#[test]
fn elements_of_arrays_are_independent_keys() {
    define_static_key_array_false!(NONE[4]);
    define_static_key_array_true!(ALL[3]);
    fn seen() -> [bool; 5] {
        [
            static_branch_unlikely!(NONE[0]),
            static_branch_unlikely!(NONE[3]),
            static_branch_likely!(NONE[1 + 1]),
            static_branch_likely!(ALL[2]),
            static_branch_unlikely!(ALL[0]),
        ]
    }
    assert_eq!(seen(), [false, false, false, true, true]);
    NONE[3].enable().expect("switched");
    assert_eq!(seen(), [false, true, false, true, true]);
    ALL[0].disable().expect("switched");
    NONE[2].inc().expect("switched");
    assert_eq!(seen(), [false, true, true, true, false]);
    assert_eq!((NONE.len(), ALL.iter().count()), (4, 3));
    assert_eq!((NONE[3].index(), ALL[0].index()), (Some(3), Some(0)));
    assert_eq!(NONE[3].to_string(), "branches::NONE[3]");
}

#[test]
fn users_and_the_switch_do_not_mix() {
    define_static_key_false!(KEY);
    let seen = || (static_branch_unlikely!(KEY), KEY.is_enabled(), KEY.users());
    KEY.inc().expect("switched");
    KEY.inc().expect("counted");
    assert_eq!(seen(), (true, true, 2));
    KEY.enable().expect("counted");
    KEY.dec().expect("counted");
    KEY.disable().expect("counted");
    assert_eq!(seen(), (true, true, 1));
    KEY.dec().expect("switched");
    assert_eq!(seen(), (false, false, 0));
    let error = KEY.dec().expect_err("there is no user");
    assert_eq!(
        error,
        Error::NoUser {
            key: "branches::KEY"
        }
    );
    assert_eq!(
        error.to_string(),
        "static key branches::KEY has no user: dec without inc"
    );
    // All or nothing, and in order.
    switch(&[KEY.enabling(), KEY.decrementing()]).expect_err("there is no user");
    assert_eq!(seen(), (false, false, 0));
    switch(&[
        KEY.incrementing(),
        KEY.decrementing(),
        KEY.enabling(),
        KEY.disabling(),
    ])
    .expect("in this order it can be");
    assert_eq!(seen(), (false, false, 0));
}

define_static_key_false!(GENERIC);

#[inline(always)]
fn generic<T: std::fmt::Display>(value: T) -> String {
    if static_branch_unlikely!(GENERIC) {
        return format!("on {value}");
    }
    value.to_string()
}

#[test]
fn generic_and_inlined_functions_have_their_own_branches() {
    let all = || {
        [
            generic(black_box(1)),
            generic(black_box("a")),
            generic(black_box('c')),
            generic(black_box(2)),
        ]
    };
    assert_eq!(all(), ["1", "a", "c", "2"]);
    GENERIC.enable().expect("switched");
    assert_eq!(all(), ["on 1", "on a", "on c", "on 2"]);
    GENERIC.disable().expect("switched");
    assert_eq!(all(), ["1", "a", "c", "2"]);
    let mut branches = 0;
    hodo_keys::for_each(|found| {
        if std::ptr::eq(found.key, &raw const *GENERIC) {
            branches += found.branches;
        }
    })
    .expect("the list can be read");
    assert!(branches >= 3, "{branches}");
}

#[test]
fn threads_execute_branches_while_they_are_switched() {
    define_static_key_false!(KEY);
    #[inline(never)]
    fn work(far: &AtomicU64, rounds: u64) -> (u64, u64) {
        let (mut near, mut off) = (0, 0);
        for round in 0..rounds {
            if static_branch_unlikely!(KEY) {
                near += 1;
            } else {
                off += 1;
            }
            if static_branch_likely!(KEY) {
                // Enough code for a branch of five bytes.
                for _ in 0..black_box(1) {
                    far.fetch_add(black_box(round).wrapping_mul(3) % 7, Ordering::Relaxed);
                    far.fetch_sub(black_box(round).wrapping_mul(3) % 7, Ordering::Relaxed);
                    far.fetch_add(black_box(round).wrapping_mul(5) % 11, Ordering::Relaxed);
                    far.fetch_sub(black_box(round).wrapping_mul(5) % 11, Ordering::Relaxed);
                    far.fetch_add(black_box(round).wrapping_mul(7) % 13, Ordering::Relaxed);
                    far.fetch_sub(black_box(round).wrapping_mul(7) % 13, Ordering::Relaxed);
                }
            }
        }
        (near, off)
    }
    let stop = AtomicBool::new(false);
    let far = AtomicU64::new(0);
    let seen_both = AtomicU64::new(0);
    let toggles = thread::scope(|scope| {
        let threads: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let mut sum = (0, 0);
                    while !stop.load(Ordering::Relaxed) {
                        let (near, off) = work(&far, 1000);
                        assert_eq!(near + off, 1000);
                        let new = (sum.0 + near, sum.1 + off);
                        if sum.0.min(sum.1) == 0 && new.0.min(new.1) > 0 {
                            seen_both.fetch_add(1, Ordering::Relaxed);
                        }
                        sum = new;
                    }
                    sum
                })
            })
            .collect();
        let begin = Instant::now();
        let mut toggles = 0_u64;
        // Often enough even on slow processors: emulated ones, or busy ones.
        let enough = |toggles| {
            begin.elapsed() > Duration::from_secs(2)
                && toggles >= 100
                && seen_both.load(Ordering::Relaxed) == 3
        };
        while !enough(toggles) && begin.elapsed() < Duration::from_secs(60) {
            KEY.enable().expect("switched");
            assert!(static_branch_unlikely!(KEY));
            KEY.disable().expect("switched");
            assert!(!static_branch_unlikely!(KEY));
            toggles += 2;
        }
        stop.store(true, Ordering::Relaxed);
        for thread in threads {
            let (near, off) = thread.join().expect("no thread is hurt");
            assert!(near > 0 && off > 0, "{near} {off}");
        }
        toggles
    });
    assert!(toggles >= 100, "{toggles}");
    assert_eq!(far.load(Ordering::Relaxed), 0);
}

#[test]
fn two_threads_that_switch_lose_nothing() {
    define_static_key_false!(FIRST; SECOND);
    thread::scope(|scope| {
        for key in [&FIRST, &SECOND] {
            scope.spawn(move || {
                for round in 0..2000 {
                    key.enable().expect("switched");
                    let seen = if std::ptr::eq(key, &FIRST) {
                        static_branch_unlikely!(FIRST)
                    } else {
                        static_branch_unlikely!(SECOND)
                    };
                    assert!(seen, "round {round}");
                    key.disable().expect("switched");
                }
            });
        }
    });
    assert!(!static_branch_unlikely!(FIRST) && !static_branch_unlikely!(SECOND));
}
