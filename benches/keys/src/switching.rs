//! The cost of switching.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use hodo_keys::{Key, define_static_key_array_false, define_static_key_false, switch};

use crate::measure::{processor_time, quartiles};

define_static_key_false!(ONE; LARGE);
define_static_key_array_false!(MANY[1000]);

static_keys::define_static_key_false!(THEIR_ONE);
static_keys::define_static_key_false!(THEIR_LARGE);

#[inline(never)]
fn one() -> u64 {
    u64::from(hodo_keys::static_branch_unlikely!(ONE))
}

#[inline(never)]
fn their_one() -> u64 {
    u64::from(static_keys::static_branch_unlikely!(THEIR_ONE))
}

macro_rules! ten {
    ($macro:ident, $sum:ident, $number:expr) => {
        $macro!($sum, $number * 10);
        $macro!($sum, $number * 10 + 1);
        $macro!($sum, $number * 10 + 2);
        $macro!($sum, $number * 10 + 3);
        $macro!($sum, $number * 10 + 4);
        $macro!($sum, $number * 10 + 5);
        $macro!($sum, $number * 10 + 6);
        $macro!($sum, $number * 10 + 7);
        $macro!($sum, $number * 10 + 8);
        $macro!($sum, $number * 10 + 9);
    };
}

/// Code between branches, as in real programs: about one branch in 64 bytes.
macro_rules! work {
    ($sum:ident, $number:expr) => {
        $sum = black_box($sum).wrapping_mul($number as u64 | 1) ^ $sum >> 7;
    };
}

macro_rules! ours_large {
    ($sum:ident, $number:expr) => {
        work!($sum, $number);
        if hodo_keys::static_branch_unlikely!(LARGE) {
            $sum ^= $number as u64;
        }
    };
}
macro_rules! ours_many {
    ($sum:ident, $number:expr) => {
        work!($sum, $number);
        if hodo_keys::static_branch_unlikely!(MANY[$number]) {
            $sum ^= $number as u64;
        }
    };
}
macro_rules! theirs_large {
    ($sum:ident, $number:expr) => {
        work!($sum, $number);
        if static_keys::static_branch_unlikely!(THEIR_LARGE) {
            $sum ^= $number as u64;
        }
    };
}
macro_rules! blocks {
    ($name:ident, $macro:ident) => {
        #[inline(never)]
        fn $name<const BLOCK: usize>() -> u64 {
            let mut sum = 0_u64;
            ten!($macro, sum, (BLOCK * 10));
            ten!($macro, sum, (BLOCK * 10 + 1));
            ten!($macro, sum, (BLOCK * 10 + 2));
            ten!($macro, sum, (BLOCK * 10 + 3));
            ten!($macro, sum, (BLOCK * 10 + 4));
            ten!($macro, sum, (BLOCK * 10 + 5));
            ten!($macro, sum, (BLOCK * 10 + 6));
            ten!($macro, sum, (BLOCK * 10 + 7));
            ten!($macro, sum, (BLOCK * 10 + 8));
            ten!($macro, sum, (BLOCK * 10 + 9));
            sum
        }
    };
}
blocks!(large, ours_large);
blocks!(many, ours_many);
blocks!(their_large, theirs_large);

/// Returns the functions of the blocks 0 to 99, or 0 to 9.
macro_rules! all {
    ($name:ident, $($ten:literal)*) => {
        [$(
            $name::<{ $ten * 10 }> as fn() -> u64,
            $name::<{ $ten * 10 + 1 }>,
            $name::<{ $ten * 10 + 2 }>,
            $name::<{ $ten * 10 + 3 }>,
            $name::<{ $ten * 10 + 4 }>,
            $name::<{ $ten * 10 + 5 }>,
            $name::<{ $ten * 10 + 6 }>,
            $name::<{ $ten * 10 + 7 }>,
            $name::<{ $ten * 10 + 8 }>,
            $name::<{ $ten * 10 + 9 }>,
        )*]
    };
}
static LARGE_BLOCKS: [fn() -> u64; 100] = all!(large, 0 1 2 3 4 5 6 7 8 9);
static MANY_BLOCKS: [fn() -> u64; 10] = all!(many, 0);
static THEIR_BLOCKS: [fn() -> u64; 100] = all!(their_large, 0 1 2 3 4 5 6 7 8 9);

fn sum(blocks: &[fn() -> u64]) -> u64 {
    blocks
        .iter()
        .map(|block| block())
        .fold(0, u64::wrapping_add)
}

/// Measures one switch in microseconds: the quartiles of the time until it returns, and of its CPU time.
struct Times {
    wall: [f64; 3],
    processor: [f64; 3],
}

fn time(rounds: usize, mut work: impl FnMut(bool)) -> Times {
    let (mut wall, mut processor) = (Vec::new(), Vec::new());
    for round in 0..rounds * 2 + 2 {
        let (begin, begin_processor) = (Instant::now(), processor_time());
        work(round % 2 == 0);
        let (time, processor_time) = (begin.elapsed(), processor_time() - begin_processor);
        if round > 1 {
            wall.push(time.as_nanos() as f64 / 1e3);
            processor.push(processor_time / 1e3);
        }
    }
    Times {
        wall: quartiles(wall),
        processor: quartiles(processor),
    }
}

fn set(key: &'static Key, on: bool) {
    if on { key.enable() } else { key.disable() }.expect("switched");
}

fn row(name: &str, times: &Times, branches: usize, goal: &str) {
    let [low, median, high] = times.wall;
    let [_, processor, _] = times.processor;
    println!(
        "{name:<46} {median:>9.1} {low:>9.1} {high:>9.1} {processor:>9.1} {:>8.2}  {goal}",
        processor / branches as f64
    );
}

/// Our keys, as they are switched now.
fn ours(rounds: usize) {
    let few = (rounds / 3).max(5);
    let single = time(rounds * 20, |on| set(&ONE, on));
    row("one branch", &single, 1, "goal: 50");
    assert_eq!(one(), 0);
    let large = time(few, |on| set(&LARGE, on));
    row("a key with 10,000 branches", &large, 10_000, "goal: 20000");
    let changes = |on: bool| -> Vec<_> {
        let change = |key: &'static Key| if on { key.enabling() } else { key.disabling() };
        MANY.iter().map(change).collect()
    };
    let (enable, disable) = (changes(true), changes(false));
    let batch = time(rounds, |on| {
        switch(if on { &enable } else { &disable }).expect("switched");
    });
    row(
        "1000 keys with one branch each, in one batch",
        &batch,
        1000,
        "",
    );
    let each = time(few, |on| MANY.iter().for_each(|key| set(key, on)));
    row("the same, one after the other", &each, 1000, "");
}

/// Prints the table.
pub fn table(rounds: usize) {
    black_box(sum(&LARGE_BLOCKS) ^ sum(&MANY_BLOCKS) ^ sum(&THEIR_BLOCKS));
    println!("\n== switching");
    println!(
        "{:<46} {:>9} {:>19} {:>9} {:>8}",
        "", "µs", "quartiles", "CPU µs", "/branch"
    );
    println!("no other thread:");
    ours(rounds);
    println!("two other threads execute these branches:");
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    black_box(one() ^ sum(&LARGE_BLOCKS[..10]) ^ sum(&MANY_BLOCKS[..1]));
                }
            });
        }
        ours(rounds);
        stop.store(true, Ordering::Relaxed);
    });
    println!("the crate static-keys, which requires that there is no other thread:");
    let single = time(rounds, |on| {
        // SAFETY: there is no other thread.
        unsafe {
            if on {
                THEIR_ONE.enable()
            } else {
                THEIR_ONE.disable()
            }
        }
    });
    row("one branch", &single, 1, "");
    assert_eq!(their_one(), 0);
    let large = time(3, |on| {
        // SAFETY: as above.
        unsafe {
            if on {
                THEIR_LARGE.enable()
            } else {
                THEIR_LARGE.disable()
            }
        }
    });
    row("a key with 10,000 branches", &large, 10_000, "");
}
