//! The functions of `traced.c`.

use core::hint::black_box;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

unsafe extern "C" {
    safe fn leaf(x: i32) -> i32;
    safe fn middle(x: i32) -> i32;
    safe fn outer(x: i32) -> i32;
    safe fn fibonacci(n: i32) -> i32;
    fn both();
    /// In `calls.c`.
    fn call_both_by(x: &f64, results: &mut [f64; 2]);
    safe fn work(rounds: i32) -> i64;
    fn timer_tick(ticks: *mut u64);
    fn last();
}

/// All of them, with their names.
fn all() -> [(usize, &'static str); 7] {
    [
        (leaf as *const () as usize, "leaf"),
        (middle as *const () as usize, "middle"),
        (outer as *const () as usize, "outer"),
        (fibonacci as *const () as usize, "fibonacci"),
        (both as *const () as usize, "both"),
        (work as *const () as usize, "work"),
        (timer_tick as *const () as usize, "timer_tick"),
    ]
}

/// Their ranges. They follow one another in the text.
pub fn ranges() -> [(&'static str, Range<usize>); 7] {
    let mut all = all();
    all.sort();
    let end = |at: usize| {
        all.get(at + 1)
            .map_or(last as *const () as usize, |next| next.0)
    };
    core::array::from_fn(|at| (all[at].1, all[at].0..end(at)))
}

/// The range of a function.
pub fn range(name: &str) -> Range<usize> {
    let found = ranges().into_iter().find(|(other, _)| *other == name);
    found.expect("it is one of them").1
}

/// The name of the function in which an address is. Functions are small.
pub fn name(address: usize) -> &'static str {
    let before = all().into_iter().filter(|(start, _)| *start <= address);
    before.max().map_or("?", |(_, name)| name)
}

pub fn call_outer(x: i32) -> i32 {
    black_box(outer as extern "C" fn(i32) -> i32)(x)
}

pub fn call_fibonacci(n: i32) -> i32 {
    black_box(fibonacci as extern "C" fn(i32) -> i32)(n)
}

/// Calls `both`. Rust code may have another convention for floating-point values than C code: where it is compiled
/// without the registers for them.
pub fn call_both(x: f64) -> (f64, f64) {
    let mut results = [0.0; 2];
    // SAFETY: it reads the one, and writes the others.
    unsafe { call_both_by(&x, &mut results) };
    results.into()
}

/// Calls all of them, and returns whether their results are right.
pub fn check_results() -> bool {
    call_outer(3) == 3 && fibonacci(6) == 8 && call_both(2.0) == (4.0, 6.0) && work(10) == 30
}

/// How often the second hart has run `work`.
pub static ROUNDS: AtomicUsize = AtomicUsize::new(0);
/// Whether all its results were right.
pub static RIGHT: AtomicBool = AtomicBool::new(true);

/// What the second hart does for ever.
pub fn work_for_ever() -> ! {
    loop {
        if work(100) != 300 || !crate::patching::run() || call_both(0.5) != (1.0, 1.5) {
            RIGHT.store(false, Ordering::Relaxed);
        }
        crate::keys::pass(1);
        crate::livepatch::pass();
        ROUNDS.fetch_add(1, Ordering::Relaxed);
    }
}
