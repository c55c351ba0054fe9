//! Branches whose jumps have all kinds of distances; a thread executes them while the main thread switches their keys.
//! Argument: how often.

#[path = "../emulator/mod.rs"]
mod emulator;

use std::arch::asm;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::{env, hint, panic, process, thread};

use hodo_keys::{
    define_static_key_false, define_static_key_true, static_branch_likely, static_branch_unlikely,
    switch,
};
#[cfg(shared)]
use shared::{COMMON as OFF, USUAL as ON};

#[cfg(not(shared))]
define_static_key_false!(OFF);
#[cfg(not(shared))]
define_static_key_true!(ON);
define_static_key_false!(OWN_OFF);
define_static_key_true!(OWN_ON);

/// Branches of all four kinds around this many nops. Half of them are on keys of a library, if there is one.
#[inline(never)]
fn branches<const NOPS: usize>(seed: u64) -> u64 {
    macro_rules! multiply {
        ($x:ident, $by:literal) => {{
            // SAFETY: these are nops.
            unsafe {
                asm!(".rept {}", "nop", ".endr", const NOPS, options(nomem, nostack, preserves_flags))
            };
            $x = hint::black_box($x.wrapping_mul($by));
        }};
    }
    let mut x = seed;
    if static_branch_unlikely!(OFF) {
        multiply!(x, 3);
    }
    if static_branch_likely!(OFF) {
        multiply!(x, 5);
    }
    if static_branch_unlikely!(ON) {
        multiply!(x, 7);
    }
    if static_branch_likely!(ON) {
        multiply!(x, 11);
    }
    if !static_branch_unlikely!(OWN_OFF) {
        multiply!(x, 13);
    }
    if !static_branch_likely!(OWN_OFF) {
        multiply!(x, 17);
    }
    if !static_branch_unlikely!(OWN_ON) {
        multiply!(x, 19);
    }
    if !static_branch_likely!(OWN_ON) {
        multiply!(x, 23);
    }
    x
}

/// One per range of distances: with and without the bits that RISC-V's short jump scatters, and out of its reach.
const ALL: [fn(u64) -> u64; 12] = [
    branches::<0>,
    branches::<1>,
    branches::<9>,
    branches::<16>,
    branches::<25>,
    branches::<33>,
    branches::<50>,
    branches::<100>,
    branches::<250>,
    branches::<505>,
    branches::<1100>,
    branches::<5000>,
];

const FACTORS: [u64; 8] = [3, 5, 7, 11, 13, 17, 19, 23];
/// The product of the initial factors, and the product with all keys switched.
const BEFORE: u64 = 7 * 11 * 13 * 17;
const AFTER: u64 = 3 * 5 * 19 * 23;

static STOP: AtomicBool = AtomicBool::new(false);
static SEEN: AtomicU64 = AtomicU64::new(0);

/// While keys are switched any mixture of branches is right, but nothing else is.
fn execute() {
    while !STOP.load(Ordering::Relaxed) {
        for function in ALL {
            let mut rest = function(1);
            for factor in FACTORS {
                if rest % factor == 0 {
                    rest /= factor;
                }
            }
            if rest != 1 {
                eprintln!("{} is not a product of the factors", function(1));
                process::abort();
            }
        }
        SEEN.fetch_add(1, Ordering::Relaxed);
    }
}

fn main() {
    let hook = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        hook(info);
        // The other thread would keep running.
        process::abort();
    }));
    let rounds: u64 = env::args().nth(1).expect("a number").parse().expect("a number");
    thread::scope(|scope| {
        scope.spawn(execute);
        let mut round = 0;
        while round < rounds || SEEN.load(Ordering::Relaxed) < rounds {
            for (index, function) in ALL.iter().enumerate() {
                assert_eq!(function(1), BEFORE, "branches {index}");
            }
            switch(&[OFF.enabling(), ON.disabling(), OWN_OFF.enabling(), OWN_ON.disabling()])
                .expect("switched");
            for (index, function) in ALL.iter().enumerate() {
                assert_eq!(function(1), AFTER, "switched branches {index}");
            }
            switch(&[OFF.disabling(), ON.enabling()]).expect("switched");
            switch(&[OWN_OFF.disabling(), OWN_ON.enabling()]).expect("switched");
            round += 1;
        }
        STOP.store(true, Ordering::Relaxed);
    });
    let mut branches = 0;
    hodo_keys::for_each(|found| branches += found.branches).expect("the list can be read");
    println!("{branches} branches");
}
