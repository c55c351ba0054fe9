//! Threads execute all kinds of branches while the main thread switches their keys. Arguments: milliseconds, minimum
//! number of switches.

use std::arch::asm;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{env, hint, thread};

use hodo_keys::{
    define_static_key_array_false, define_static_key_false, define_static_key_true,
    static_branch_likely, static_branch_unlikely, switch,
};

define_static_key_false!(OFF);
define_static_key_true!(ON);
define_static_key_array_false!(SOME[5]);

mod inner {
    hodo_keys::define_static_key_false!(pub(crate) GENERIC);
}

/// Code that is longer than a short jump reaches.
macro_rules! much {
    ($x:expr) => {{
        // SAFETY: these are nops.
        unsafe { asm!(".skip 300, 0x90", options(nomem, nostack, preserves_flags)) };
        hint::black_box($x)
    }};
}

#[inline(never)]
fn near(seed: u64) -> (u64, u64) {
    let mut x = seed;
    let mut bits = 0;
    if static_branch_unlikely!(OFF) {
        x = x.wrapping_mul(3);
        bits |= 1;
    }
    if static_branch_likely!(OFF) {
        x = x.wrapping_mul(5);
        bits |= 2;
    }
    if static_branch_unlikely!(ON) {
        x = x.wrapping_mul(7);
    } else {
        bits |= 4;
    }
    if !static_branch_likely!(ON) {
        x = x.wrapping_mul(11);
        bits |= 8;
    }
    (x, bits)
}

#[inline(never)]
fn far(seed: u64) -> (u64, u64) {
    let mut x = seed;
    let mut bits = 0;
    if static_branch_unlikely!(OFF) {
        x = much!(x.wrapping_mul(3));
        bits |= 1;
    } else {
        x = much!(x);
    }
    if static_branch_likely!(SOME[2]) {
        x = much!(x.wrapping_mul(5));
        bits |= 2;
    } else {
        x = much!(x);
    }
    if static_branch_unlikely!(ON) {
        x = much!(x.wrapping_mul(7));
    } else {
        x = much!(x);
        bits |= 4;
    }
    if static_branch_likely!(ON) {
        x = much!(x);
    } else {
        x = much!(x.wrapping_mul(11));
        bits |= 8;
    }
    (x, bits)
}

#[inline]
fn generic<T: Copy + Into<u64>>(seed: T) -> (u64, u64) {
    if static_branch_unlikely!(inner::GENERIC) {
        (seed.into().wrapping_mul(3), 15)
    } else {
        (seed.into(), 0)
    }
}

/// Returns whether value and bits describe the same branches.
fn agree((x, bits): (u64, u64), seed: u64) -> bool {
    let factors = [3, 5, 7, 11];
    let mut expected = seed;
    for (bit, factor) in factors.iter().enumerate() {
        // The third one multiplies while its key is on.
        if (bits >> bit & 1 != 0) != (bit == 2) {
            expected = expected.wrapping_mul(*factor);
        }
    }
    x == expected
}

/// Odd while keys are being switched; otherwise, half of it is the number of switches, which says how the branches go.
static PHASE: AtomicU64 = AtomicU64::new(0);
static STOP: AtomicBool = AtomicBool::new(false);

/// How often each thread has seen branches off, and on.
static SEEN: [[AtomicU64; 2]; 2] = [const { [const { AtomicU64::new(0) }; 2] }; 2];

fn execute(number: usize) {
    let mut round = number as u64;
    while !STOP.load(Ordering::Relaxed) {
        let seed = hint::black_box(round | 1);
        let before = PHASE.load(Ordering::Acquire);
        let near = near(seed);
        let far = far(seed);
        let small = generic(seed as u32);
        let large = generic(seed);
        std::sync::atomic::fence(Ordering::AcqRel);
        let after = PHASE.load(Ordering::Acquire);
        assert!(agree(near, seed), "near: {near:?} {seed}");
        assert!(agree(far, seed), "far: {far:?} {seed}");
        let on = large.1 & 1;
        assert!(
            large.0 == if on == 1 { seed.wrapping_mul(3) } else { seed },
            "generic: {large:?} {seed}"
        );
        if before == after && before & 1 == 0 {
            let switched = before >> 1 & 1;
            let all = if switched == 1 { 15 } else { 0 };
            assert_eq!([near.1, far.1, small.1, large.1], [all, all, all, all]);
            SEEN[number][switched as usize].fetch_add(1, Ordering::Relaxed);
        }
        round = round.wrapping_add(2);
    }
}

/// Waits until all threads have seen the branches as they are now.
fn wait_for_threads(on: bool) {
    let seen = || [0, 1].map(|thread| SEEN[thread][usize::from(on)].load(Ordering::Relaxed));
    let before = seen();
    let begin = Instant::now();
    while seen()
        .iter()
        .zip(before)
        .any(|(now, before)| *now == before)
    {
        assert!(begin.elapsed() < Duration::from_secs(60), "a thread hangs");
        thread::yield_now();
    }
}

fn main() {
    let arguments: Vec<u64> = env::args()
        .skip(1)
        .map(|text| text.parse().expect("a number"))
        .collect();
    let duration = Duration::from_millis(arguments[0]);
    let mut switches = 0;
    thread::scope(|scope| {
        for number in 0..2 {
            scope.spawn(move || execute(number));
        }
        let begin = Instant::now();
        while begin.elapsed() < duration || switches < arguments[1] {
            PHASE.fetch_add(1, Ordering::AcqRel);
            if switches % 2 == 0 {
                OFF.enable().expect("switched");
                ON.disable().expect("switched");
                switch(&[SOME[2].incrementing(), inner::GENERIC.enabling()]).expect("switched");
            } else {
                switch(&[OFF.disabling(), ON.enabling(), SOME[2].decrementing()])
                    .expect("switched");
                inner::GENERIC.disable().expect("switched");
            }
            switches += 1;
            let on = switches % 2 == 1;
            assert_eq!(near(1).1, if on { 15 } else { 0 });
            PHASE.fetch_add(1, Ordering::AcqRel);
            if switches % 8 < 2 {
                wait_for_threads(on);
            }
        }
        STOP.store(true, Ordering::Relaxed);
    });
    println!("{switches} switches, {SEEN:?}");
}
