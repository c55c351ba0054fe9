//! Sorts two lists. Only the second time is observed: `hodo mem stat --marked -- marked`.

use std::hint::black_box;

use hodo_mem_marks::{hodo_mem_start, hodo_mem_stop};

/// Numbers without an order.
fn numbers(count: u32) -> Vec<u32> {
    let mixed = |number: u32| number.wrapping_mul(0x9E37_79B9) ^ number >> 3;
    (0..count).map(mixed).collect()
}

fn main() {
    let count = |word: String| word.parse().expect("how many numbers to sort");
    let count = std::env::args().nth(1).map_or(10_000, count);
    let mut first = numbers(1_000_000);
    first.sort_unstable();
    let mut second = numbers(count);
    hodo_mem_start();
    black_box(&mut second).sort_unstable();
    hodo_mem_stop();
    println!("{} {}", first.is_sorted(), second.is_sorted());
}
