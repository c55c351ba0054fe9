//! The cost of single instructions, many in a row. The idea of static keys came from this table.

use std::arch::asm;
use std::hint;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use crate::measure::{Row, compare};

/// A round of a loop contains this many instructions.
const UNITS: u64 = 16;

/// A flag, and in the same cache line a word that another thread writes.
#[repr(align(128))]
struct Shared {
    flag: AtomicU64,
    beside: AtomicU64,
}

static ALONE: Shared = Shared {
    flag: AtomicU64::new(0),
    beside: AtomicU64::new(0),
};
static DISPUTED: Shared = Shared {
    flag: AtomicU64::new(0),
    beside: AtomicU64::new(0),
};

macro_rules! units {
    ($name:ident, $place:expr, $($unit:literal),+) => {
        #[inline(never)]
        fn $name(rounds: u64) {
            // SAFETY: the code jumps to the next instruction, or reads a flag.
            unsafe {
                asm!(
                    "clc",
                    ".p2align 6",
                    "2:",
                    ".rept 16",
                    $($unit,)+
                    ".endr",
                    "dec {rounds}",
                    "jnz 2b",
                    "/* {place} */",
                    rounds = inout(reg) rounds => _,
                    place = in(reg) &raw const $place.flag,
                    options(nostack, readonly),
                );
            }
        }
    };
}

// `dec` does not change the carry flag.
units!(nop, ALONE, ".byte 0x66, 0x90");
units!(long_nop, ALONE, ".byte 0x0f, 0x1f, 0x44, 0x00, 0x00");
units!(jump, ALONE, "jmp 3f", "3:");
units!(not_taken, ALONE, "jc 3f", "3:");
units!(taken, ALONE, "jnc 3f", "3:");
units!(load, ALONE, "cmp dword ptr [{place}], 0", "jne 3f", "3:");
units!(
    missing,
    DISPUTED,
    "cmp dword ptr [{place}], 0",
    "jne 3f",
    "3:"
);

/// Prints the table.
pub fn table(rounds: usize) {
    let loops = 200_000;
    let rows = [
        Row::new("nop (2 bytes)", move || nop(loops)),
        Row::new("nop (5 bytes)", move || long_nop(loops)),
        Row::new("unconditional branch", move || jump(loops)),
        Row::new("branch, not taken", move || not_taken(loops)),
        Row::new("branch, taken", move || taken(loops)),
        Row::new("load + branch", move || load(loops)),
        Row::new("load + branch + cache miss", move || {
            let stop = AtomicBool::new(false);
            let started = AtomicBool::new(false);
            thread::scope(|scope| {
                scope.spawn(|| {
                    started.store(true, Ordering::Release);
                    while !stop.load(Ordering::Relaxed) {
                        DISPUTED.beside.fetch_add(1, Ordering::Relaxed);
                    }
                });
                while !started.load(Ordering::Acquire) {
                    hint::spin_loop();
                }
                missing(loops);
                stop.store(true, Ordering::Relaxed);
            });
        }),
    ];
    compare(
        "== instructions, 16 in a row (the last one: another thread writes beside the flag)",
        &rows,
        rounds,
        loops * UNITS,
    );
}
