//! Very many branches on a few keys: 10,000, or 100,000 with `--cfg all_blocks`. Prints their number, and the
//! microseconds it takes to switch them all.

use std::time::{Duration, Instant};
use std::{env, hint, thread};

use hodo_keys::{
    Key, define_static_key_array_false, define_static_key_array_true, static_branch_likely,
    static_branch_unlikely, switch,
};

/// Keys of each kind. Not a power of two, so that each block has different branches on each key.
const KEYS: usize = 7;
define_static_key_array_false!(OFF[KEYS]);
define_static_key_array_true!(ON[KEYS]);

/// What a branch adds while its key is enabled: no two sums of these are equal by chance.
const fn weight(number: u64) -> u64 {
    let x = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (x ^ x >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

/// Branch 0 of 4 is on `OFF[number % KEYS]`, and so on: the kind depends on the place in the block.
macro_rules! four {
    ($sum:ident, $number:expr) => {
        if static_branch_unlikely!(OFF[($number) as usize % KEYS]) {
            $sum = $sum.wrapping_add(weight($number));
        }
        if static_branch_likely!(OFF[($number + 1) as usize % KEYS]) {
            $sum = $sum.wrapping_add(weight($number + 1));
        }
        if static_branch_unlikely!(ON[($number + 2) as usize % KEYS]) {
            $sum = $sum.wrapping_add(weight($number + 2));
        }
        if static_branch_likely!(ON[($number + 3) as usize % KEYS]) {
            $sum = $sum.wrapping_add(weight($number + 3));
        }
    };
}

macro_rules! twenty {
    ($sum:ident, $number:expr) => {
        four!($sum, $number);
        four!($sum, $number + 4);
        four!($sum, $number + 8);
        four!($sum, $number + 12);
        four!($sum, $number + 16);
    };
}

macro_rules! hundred {
    ($sum:ident, $number:expr) => {
        twenty!($sum, $number);
        twenty!($sum, $number + 20);
        twenty!($sum, $number + 40);
        twenty!($sum, $number + 60);
        twenty!($sum, $number + 80);
    };
}

/// Short enough for two-byte branches.
#[inline(never)]
fn short<const BLOCK: u64, const PART: u64>() -> u64 {
    let mut sum = 0_u64;
    four!(sum, BLOCK * 1000 + PART * 4);
    sum
}

/// 1000 branches, most of them five bytes long.
#[inline(never)]
fn block<const BLOCK: u64>() -> u64 {
    let mut sum = 0_u64;
    macro_rules! shorts {
        ($($part:literal)*) => {
            $(sum = sum.wrapping_add(short::<BLOCK, $part>());)*
        };
    }
    shorts!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24);
    shorts!(25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49);
    hundred!(sum, BLOCK * 1000 + 200);
    hundred!(sum, BLOCK * 1000 + 300);
    hundred!(sum, BLOCK * 1000 + 400);
    hundred!(sum, BLOCK * 1000 + 500);
    hundred!(sum, BLOCK * 1000 + 600);
    hundred!(sum, BLOCK * 1000 + 700);
    hundred!(sum, BLOCK * 1000 + 800);
    hundred!(sum, BLOCK * 1000 + 900);
    sum
}

macro_rules! blocks {
    ($($ten:literal)*) => {
        [$(
            block::<{ $ten * 10 }>,
            block::<{ $ten * 10 + 1 }>,
            block::<{ $ten * 10 + 2 }>,
            block::<{ $ten * 10 + 3 }>,
            block::<{ $ten * 10 + 4 }>,
            block::<{ $ten * 10 + 5 }>,
            block::<{ $ten * 10 + 6 }>,
            block::<{ $ten * 10 + 7 }>,
            block::<{ $ten * 10 + 8 }>,
            block::<{ $ten * 10 + 9 }>,
        )*]
    };
}

type Block = fn() -> u64;

#[cfg(not(all_blocks))]
static BLOCKS: [Block; 10] = blocks!(0);
#[cfg(all_blocks)]
static BLOCKS: [Block; 100] = blocks!(0 1 2 3 4 5 6 7 8 9);

/// The expected sum of the blocks.
fn expected() -> u64 {
    (0..BLOCKS.len() as u64 * 1000)
        .filter(|number| {
            let key = *number as usize % KEYS;
            if number % 4 < 2 {
                OFF[key].is_enabled()
            } else {
                ON[key].is_enabled()
            }
        })
        .map(weight)
        .fold(0, u64::wrapping_add)
}

#[track_caller]
fn check() {
    let sum = BLOCKS
        .iter()
        .map(|block| block())
        .fold(0, u64::wrapping_add);
    assert_eq!(sum, expected());
}

unsafe extern "C" {
    fn fork() -> i32;
    fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
    fn _exit(status: i32) -> !;
}

/// Runs something in a child; returns whether it succeeded there.
fn in_child(work: impl FnOnce()) -> bool {
    // SAFETY: the child needs nothing that threads of the parent might hold.
    let pid = unsafe { fork() };
    if pid == 0 {
        work();
        // SAFETY: ends the child.
        unsafe { _exit(0) };
    }
    let mut status = 0;
    // SAFETY: our child.
    assert_eq!(unsafe { waitpid(pid, &raw mut status, 0) }, pid);
    status == 0
}

/// Forks while another thread switches the first key of the process, which is when the table is sorted.
fn fork_while_sorting() {
    for round in 0..100 {
        let right = in_child(|| {
            let thread = thread::spawn(|| OFF[0].enable().expect("switched"));
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_micros(round * 20) {
                hint::spin_loop();
            }
            assert!(in_child(|| {
                OFF[1].enable().expect("switched");
                check();
                ON[0].disable().expect("switched");
                check();
            }));
            thread.join().expect("it is not hurt");
            check();
        });
        assert!(right, "round {round}");
    }
}

fn main() {
    check();
    if env::args().nth(1).is_some_and(|mode| mode == "fork") {
        return fork_while_sorting();
    }
    // All at once, then each alone, then in groups, then all back.
    let all: Vec<&'static Key> = OFF.iter().chain(ON.iter()).collect();
    let toggle = |key: &'static Key| {
        if key.is_enabled() {
            key.disabling()
        } else {
            key.enabling()
        }
    };
    let toggle_all = || {
        let changes: Vec<_> = all.iter().map(|key| toggle(key)).collect();
        let begin = Instant::now();
        switch(&changes).expect("switched");
        let time = begin.elapsed().as_micros();
        check();
        time
    };
    let time = toggle_all();
    for key in &all {
        switch(&[toggle(key)]).expect("switched");
        check();
    }
    for step in 2..6 {
        let changes: Vec<_> = all.iter().step_by(step).map(|key| toggle(key)).collect();
        switch(&changes).expect("switched");
        check();
    }
    let again = toggle_all();
    // One entry per key: the table is sorted.
    let mut keys = Vec::new();
    let mut branches = 0;
    hodo_keys::for_each(|found| {
        keys.push(&raw const *found.key);
        branches += found.branches;
    })
    .expect("the table can be read");
    assert_eq!(keys.len(), 2 * KEYS);
    assert!(keys.is_sorted());
    println!("{branches} branches, switched in {time} µs, again in {again} µs");
}
