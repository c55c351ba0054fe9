//! Probes on functions in guarded pages, which sign their return addresses (`guarded.c`).

use core::ffi::c_void;
use core::hint::black_box;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use hodo_probe::{Engine, Execution, Registers, Request};

use crate::{hart, probes};

unsafe extern "C" {
    safe fn guarded_leaf(x: i32) -> i32;
    safe fn guarded_sum(x: i32) -> i32;
    safe fn guarded_last();
}

/// The range of a function.
pub fn range(name: &str) -> Range<usize> {
    let [leaf, sum] = [guarded_leaf, guarded_sum].map(|function| function as *const () as usize);
    match name {
        "guarded_leaf" => leaf..sum,
        _ => sum..guarded_last as *const () as usize,
    }
}

/// Hits, and the sum of results.
static HITS: AtomicUsize = AtomicUsize::new(0);
static SUM: AtomicU64 = AtomicU64::new(0);

extern "C" fn before(_: &mut Registers, _: *mut c_void) {
    HITS.fetch_add(1, Ordering::Relaxed);
}

extern "C" fn returned(registers: &mut Registers, _: *mut c_void) {
    SUM.fetch_add(hart::result(registers), Ordering::Relaxed);
}

/// Calls both functions through registers, and returns whether the results are right. Afterwards, this is what the
/// probes have seen.
fn run() -> (bool, usize, u64) {
    HITS.store(0, Ordering::Relaxed);
    SUM.store(0, Ordering::Relaxed);
    let leaf = black_box(guarded_leaf as extern "C" fn(i32) -> i32)(5);
    let sum = black_box(guarded_sum as extern "C" fn(i32) -> i32)(1);
    let seen = (HITS.load(Ordering::Relaxed), SUM.load(Ordering::Relaxed));
    (leaf == 15 && sum == 9, seen.0, seen.1)
}

/// Sets probes where calls through registers arrive, where none does, on all instructions, and at returns. The first
/// are breakpoints, as a jump must not be there.
pub fn demonstrate() {
    let engine = Engine::new().expect("nothing is missing");
    for name in ["guarded_leaf", "guarded_sum"] {
        let range = range(name);
        let at = |addr: usize| {
            let range = range.start as u64..range.end as u64;
            Request::at(addr as u64).function(range).before(before)
        };
        let calls = if name == "guarded_leaf" { 3 } else { 1 };
        for (addr, way) in [
            (range.start, Execution::Boosted),
            (range.start, Execution::OutOfLine),
            (range.start + 4, Execution::Optimized),
        ] {
            let probe = probes::set(engine, &at(addr).execution(way));
            assert_eq!(probe.execution(), way);
            assert_eq!(run(), (true, calls, 0));
        }
        let addresses = range.clone().step_by(4);
        let all: alloc::vec::Vec<_> = addresses
            .map(|addr| probes::set(engine, &at(addr)))
            .collect();
        assert_eq!(run(), (true, calls * all.len(), 0));
        drop(all);
        let probe = probes::set(engine, &at(range.start).returning(returned));
        // Of the leaf, 15, 3 and 6.
        let results = if name == "guarded_leaf" { 24 } else { 9 };
        assert_eq!(run(), (true, calls, results));
        assert_eq!(probe.missed_returns(), 0);
    }
    assert_eq!(run(), (true, 0, 0));
}
