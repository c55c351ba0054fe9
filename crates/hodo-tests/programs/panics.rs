//! Rust panics: caught, in threads, through Drop; uncaught if there is an argument.

use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicUsize, Ordering};

static DROPPED: AtomicUsize = AtomicUsize::new(0);

struct Guard;
impl Drop for Guard {
    #[inline(never)]
    fn drop(&mut self) {
        DROPPED.fetch_add(1, Ordering::Relaxed);
    }
}

#[inline(never)]
fn panics(n: usize) -> usize {
    let _guard = Guard;
    assert!(n % 2 == 1, "even number {n}");
    n
}

#[inline(never)]
fn deep(n: usize, depth: usize) -> usize {
    let _guard = Guard;
    if depth == 0 { panics(n) } else { deep(n, depth - 1) + 1 }
}

fn main() {
    panic::set_hook(Box::new(|_| {}));
    let sum: usize = (0..2000)
        .map(|n| panic::catch_unwind(AssertUnwindSafe(|| deep(n, 4))).unwrap_or(100_000))
        .sum();
    let failed = (0..8)
        .map(|n| std::thread::spawn(move || deep(n, 2)))
        .filter_map(|thread| thread.join().err())
        .count();
    println!("{sum} {failed} {}", DROPPED.load(Ordering::Relaxed));
    // The usual message has the thread's number in it.
    panic::set_hook(Box::new(|info| eprintln!("uncaught: {}", info.payload_as_str().unwrap_or("?"))));
    if let Some(n) = std::env::args().nth(1) {
        deep(n.parse().expect("a number"), 3);
    }
}
