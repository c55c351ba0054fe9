//! Compares the cost of branches on static keys, and of switching them, with that of alternatives. Prints tables;
//! asserts nothing about times.
//!
//!     hodo-keys-bench [ROUNDS]

mod loops;
mod measure;
mod switching;

fn main() {
    let rounds = std::env::args()
        .nth(1)
        .map_or(21, |text| text.parse().expect("a number of rounds"));
    static_keys::global_init();
    println!("medians of {rounds} interleaved rounds, ratios within one round");
    loops::tables(rounds);
    switching::table(rounds);
}
