//! What recording a call costs on this machine, so that readers can subtract it from the times of functions.
//!
//! A stub as the recording has it, around a function that only returns, is called in a loop by hodo itself, and what it
//! records is read. Most of a cost is the reading of the clock, and most of the rest is done meanwhile, as is some of
//! the program's own work. So one number is right for no call: with those that were measured, shares of time are mostly
//! nearer to those that sampling shows than without (`benches/times.sh`). Where the program's code waits for memory it
//! pays less, where its caches are full it pays more.

use serde_json::{Value, json};

/// The cost of calls, in units of the time counter.
#[derive(Debug, Clone, Copy)]
pub struct Costs {
    /// Of a call, from the time of its entry to that of its exit.
    pub inside: f64,
    /// The rest: of a call, before the time of its entry and after that of its exit.
    pub outside: f64,
    /// Of a call of which only the entry is recorded, altogether.
    pub entry: f64,
    /// The time between two records with nothing in between.
    pub closest: f64,
}

impl Costs {
    /// As `info.json` has them.
    pub fn json(&self) -> Value {
        let short = |value: f64| (value * 100.0).round() / 100.0;
        json!({
            "inside": short(self.inside), "outside": short(self.outside), "entry": short(self.entry),
            "closest": short(self.closest),
        })
    }
}
