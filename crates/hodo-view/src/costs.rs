//! What recording cost, as far as known, and times without this cost.
//!
//! Costs are fractions of a unit of the counter, and a single time may be shorter than the mean cost. So times are kept
//! as signed numbers in parts of a unit until they are shown: if too much is subtracted from one call, too little is
//! subtracted from another.

use rustc_hash::FxHashMap;

use hodo_trace::meta;
use hodo_trace::{RecordKind, Task, Trace};

/// Parts of a unit of the counter.
const PARTS: i64 = 16;

/// The longest duration, in units of the counter. Longer ones are cut to this.
const LONGEST: u64 = 1 << 58;

/// The highest cost of a call, in units of the counter. A trace that states a higher one is damaged.
const MOST: f64 = 1e6;

/// Converts a duration from units of the counter to parts.
#[inline]
pub fn parts(counter: u64) -> i64 {
    counter.min(LONGEST).cast_signed() * PARTS
}

/// Converts a duration from parts to units of the counter. A negative duration becomes 0.
pub fn whole(parts: i64) -> u64 {
    (parts.saturating_add(PARTS / 2) / PARTS)
        .max(0)
        .cast_unsigned()
}

/// The bounds of the costs while the program ran, relative to those that were measured. The machine may have become
/// slower or faster, because others share its processors. Records with almost nothing in between show the ratio.
const LEAST_RATIO: f64 = 0.25;
const MOST_RATIO: f64 = 3.0;

/// The number of chunks that are examined to find the ratio.
const CHUNKS: usize = 256;
/// A pair of records counts if it occurs at least this often in a chunk.
const OFTEN: u32 = 128;
/// A time that is this many times the measured one includes a wait, mostly for a page of the trace. Waits are a cost of
/// recording, too.
const WAITED: f64 = 16.0;
/// A time that is this many times the measured one was interrupted. Interruptions are not a cost of recording.
const INTERRUPTED: f64 = 1000.0;
/// A pair of records has almost nothing in between if one in [`ONE_IN`] of its times is at most this many times the
/// measured one,
const HARDLY: f64 = 1.25;
const ONE_IN: u32 = 50;
/// and if at least this percentage of its times is at most [`MOST_RATIO`] times the measured one. A function that only
/// sometimes returns at once does not qualify: its other times are its own work.
const NEAR: u64 = 90;

/// The times between consecutive records of two functions.
#[derive(Debug, Default, Clone, Copy)]
struct Pair {
    count: u32,
    fast: u32,
    near: u32,
    sum: u64,
    /// The number of times that include a wait. `waits` is their sum.
    waited: u32,
    waits: u64,
}

/// What one chunk shows about the cost of recording.
#[derive(Debug, Default, Clone, Copy)]
struct Shown {
    /// The shortest mean time of a pair with almost nothing in between.
    closest: f64,
    /// For the pairs that are nearly as fast: the number of their times, and the sum of those that include a wait.
    count: f64,
    waits: f64,
}

/// Returns the mean time between two records with almost nothing in between, if there are any, and the mean wait of a
/// record. `measured` is the former as measured when the recording began.
fn closest(trace: &Trace, measured: f64) -> Option<(f64, f64)> {
    let chunks = trace.tasks.iter().flat_map(|task| {
        let chunks = task.chunks.iter();
        chunks.map(move |&chunk| (task, chunk))
    });
    let step = chunks.clone().count().div_ceil(CHUNKS).max(1);
    // Each chunk is examined separately: the machine's speed varies, and the fastest moment is not typical.
    let shown = chunks.step_by(step).filter_map(|(task, chunk)| {
        let one = Task {
            chunks: vec![chunk],
            ..task.clone()
        };
        closest_in(trace, &one, measured)
    });
    let mut chunks = 0.0;
    let sum = shown.fold(Shown::default(), |sum, shown| {
        chunks += 1.0;
        Shown {
            closest: sum.closest + shown.closest,
            count: sum.count + shown.count,
            waits: sum.waits + shown.waits,
        }
    });
    (chunks > 0.0).then(|| {
        let wait = sum.waits / sum.count.max(1.0);
        (sum.closest / chunks, wait.min(measured))
    })
}

/// Examines one chunk.
fn closest_in(trace: &Trace, chunk: &Task, measured: f64) -> Option<Shown> {
    let mut pairs: FxHashMap<(bool, u32, bool, u32), Pair> = FxHashMap::default();
    let mut last = None;
    for record in trace.records(chunk) {
        let kind = match record.kind {
            RecordKind::Entry => false,
            RecordKind::Exit => true,
            RecordKind::Tail | RecordKind::Lost(_) => {
                last = None;
                continue;
            }
        };
        let Some((before, id, time)) = last.replace((kind, record.id, record.time)) else {
            continue;
        };
        let took = record.time.saturating_sub(time);
        let pair = pairs.entry((before, id, kind, record.id)).or_default();
        if (took as f64) < measured * WAITED {
            pair.count += 1;
            pair.sum += took;
            pair.fast += u32::from(took as f64 <= measured * HARDLY);
            pair.near += u32::from(took as f64 <= measured * MOST_RATIO);
        } else if (took as f64) < measured * INTERRUPTED {
            pair.waited += 1;
            pair.waits += took;
        }
    }
    let often = pairs.values().filter(|pair| pair.count >= OFTEN);
    let is_tight = |pair: &&Pair| {
        pair.fast >= pair.count.div_ceil(ONE_IN)
            && u64::from(pair.near) * 100 >= u64::from(pair.count) * NEAR
    };
    let tight = often.filter(is_tight);
    let means = tight
        .clone()
        .map(|pair| pair.sum as f64 / f64::from(pair.count));
    let closest = means.min_by(f64::total_cmp)?;
    // Slower pairs do different work at different times, so it is unknown what they waited for.
    let tightest = tight.filter(|pair| pair.sum as f64 <= closest * HARDLY * f64::from(pair.count));
    let waits = tightest.fold((0.0, 0.0), |(count, waits), pair| {
        (
            count + f64::from(pair.count + pair.waited),
            waits + pair.waits as f64,
        )
    });
    Some(Shown {
        closest,
        count: waits.0,
        waits: waits.1,
    })
}

/// What recording a call adds to times, in parts of a unit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cost {
    /// What it adds to the time of the function itself.
    pub inside: i64,
    /// What it adds to the time of its caller.
    pub outside: i64,
}

/// What recording cost, by kind of call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Costs {
    /// The cost of a call whose exit is recorded, too.
    pub call: Cost,
    /// The cost of a call of which only the entry is recorded.
    pub entry: Cost,
    /// The cost of a jump from one function to another.
    pub jump: Cost,
}

impl Costs {
    /// Returns the costs that a trace states, adjusted to what its records show. None if it does not state them.
    pub fn of(trace: &Trace) -> Self {
        let Some(mut costs) = trace.info.costs.filter(|_| trace.info.timed) else {
            return Self::default();
        };
        if costs.closest > 0.0
            && let Some((closest, wait)) = closest(trace, costs.closest)
        {
            let ratio = (closest / costs.closest).clamp(LEAST_RATIO, MOST_RATIO);
            // A call whose exit is recorded has a record for the function's own time, and one for its caller's.
            for cost in [&mut costs.inside, &mut costs.outside, &mut costs.entry] {
                *cost = *cost * ratio + wait;
            }
        }
        Self::new(costs)
    }

    fn new(costs: meta::Costs) -> Self {
        let parts = |cost: f64| match (0.0..MOST).contains(&cost) {
            true => (cost * PARTS as f64).round() as i64,
            false => 0,
        };
        let (inside, outside) = (parts(costs.inside), parts(costs.outside));
        let entry = parts(costs.entry);
        Self {
            call: Cost { inside, outside },
            entry: Cost {
                inside: 0,
                outside: entry,
            },
            // The exit record is that of the function that was called first. The jump adds one more time before it.
            jump: Cost {
                inside,
                outside: (entry - inside).max(0),
            },
        }
    }

    /// Returns what recording a call costs, in nanoseconds.
    pub fn nanoseconds(&self, cost: Cost, trace: &Trace) -> f64 {
        // Ten thousand calls are converted, to keep fractions.
        let many = whole((cost.inside + cost.outside) * 10_000);
        trace.scale().duration(many) as f64 / 1e4
    }

    /// Returns whether there is nothing to subtract.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_whole_and_never_negative() {
        assert_eq!(whole(parts(7)), 7);
        assert_eq!(whole(parts(7) - 7), 7);
        assert_eq!(whole(parts(7) - 9), 6);
        assert_eq!(whole(-1), 0);
        assert_eq!(whole(-100), 0);
        assert_eq!(whole(parts(u64::MAX)), LONGEST);
        assert!(whole(i64::MAX) > LONGEST);
    }

    #[test]
    fn impossible_costs_are_not_subtracted() {
        let costs = Costs::new(meta::Costs {
            inside: -1.0,
            outside: 1e300,
            entry: f64::NAN,
            closest: 0.0,
        });
        assert!(costs.is_none());
    }
}
