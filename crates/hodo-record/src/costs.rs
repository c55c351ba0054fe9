//! The cost of recording a call on this machine, so that readers can subtract it from the times of functions.
//!
//! hodo itself calls, in a loop, a stub like those of the recording around a function that only returns, and then reads
//! the records. Reading the clock is most of the cost. The processor does most of the rest in parallel, together with
//! some of the program's own work. So no single number is right for all calls. With the measured ones, shares of time
//! are mostly closer to those that sampling shows than without (`benches/times.sh`). Code that waits for memory pays
//! less; code whose caches are full pays more.

use serde_json::{Value, json};

/// The cost of calls, in units of the time counter.
#[derive(Debug, Clone, Copy)]
pub struct Costs {
    /// Of a call, from the time in its entry record to that in its exit record.
    pub inside: f64,
    /// The rest of a call's cost: before the time of its entry, and after that of its exit.
    pub outside: f64,
    /// The whole cost of a call of which only the entry is recorded.
    pub entry: f64,
    /// The time between two records with nothing in between.
    pub closest: f64,
}

impl Costs {
    /// The costs in the form of `info.json`.
    pub fn json(&self) -> Value {
        let short = |value: f64| (value * 100.0).round() / 100.0;
        json!({
            "inside": short(self.inside), "outside": short(self.outside), "entry": short(self.entry),
            "closest": short(self.closest),
        })
    }
}
