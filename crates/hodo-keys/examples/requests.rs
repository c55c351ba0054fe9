//! Threads handle requests while the main thread switches logging and a faster algorithm on and off.
//!
//!     cargo run --release -p hodo-keys --example requests

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use hodo_keys::{
    define_static_key_false, define_static_key_true, static_branch_likely, static_branch_unlikely,
};

define_static_key_false! {
    /// Whether requests are counted for the log.
    LOGGING;
}
define_static_key_true! {
    /// Whether sums are computed by formula instead of by a loop.
    FORMULA;
}

static LOGGED: AtomicU64 = AtomicU64::new(0);

/// The sum of the numbers up to `n`.
#[inline(never)]
fn handle(request: u64) -> u64 {
    if static_branch_unlikely!(LOGGING) {
        LOGGED.fetch_add(1, Ordering::Relaxed);
    }
    if static_branch_likely!(FORMULA) {
        request * (request + 1) / 2
    } else {
        (1..=request).map(black_box).sum()
    }
}

fn main() -> Result<(), hodo_keys::Error> {
    let stop = AtomicBool::new(false);
    let handled = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    for request in 0..100 {
                        assert_eq!(handle(black_box(request)), request * (request + 1) / 2);
                    }
                    handled.fetch_add(100, Ordering::Relaxed);
                }
            });
        }
        let result = show(&handled);
        stop.store(true, Ordering::Relaxed);
        result
    })
}

fn show(handled: &AtomicU64) -> Result<(), hodo_keys::Error> {
    let phase = |name: &str| {
        LOGGED.store(0, Ordering::Relaxed);
        let before = handled.load(Ordering::Relaxed);
        thread::sleep(Duration::from_millis(200));
        let handled = handled.load(Ordering::Relaxed) - before;
        let logged = LOGGED.load(Ordering::Relaxed);
        println!("{name:20} {handled:>12} requests, {logged:>12} of them logged");
    };
    phase("as it starts");
    LOGGING.enable()?;
    phase("logging");
    hodo_keys::switch(&[LOGGING.disabling(), FORMULA.disabling()])?;
    phase("by loops, no logging");
    FORMULA.enable()?;
    phase("as it started");
    Ok(())
}
