//! What recording has cost, as far as known, and times without it.
//!
//! Costs are fractions of a unit of the counter, and a single time may be shorter than the mean cost. So times are kept
//! as signed numbers in parts of a unit until they are shown: what is too much in one call is too little in another.

use rustc_hash::FxHashMap;

use hodo_trace::meta;
use hodo_trace::{RecordKind, Task, Trace};

/// Parts of a unit of the counter.
const PARTS: i64 = 16;

/// A longer time, in units of the counter, is taken for this one.
const LONGEST: u64 = 1 << 58;

/// No call costs more, in units of the counter: what says so is damaged.
const MOST: f64 = 1e6;

/// A duration in parts of a unit.
#[inline]
pub fn parts(counter: u64) -> i64 {
    counter.min(LONGEST).cast_signed() * PARTS
}

/// A duration in units of the counter. None is below zero.
pub fn whole(parts: i64) -> u64 {
    (parts.saturating_add(PARTS / 2) / PARTS)
        .max(0)
        .cast_unsigned()
}

/// The machine may have been slower or faster while the program ran than when the costs were measured, at most by so
/// much: it shares processors with others. Records of which nearly nothing is in between show it.
const LEAST_RATIO: f64 = 0.25;
const MOST_RATIO: f64 = 3.0;

/// The number of chunks that are inspected for it.
const CHUNKS: usize = 256;
/// A pair of records counts that comes so often in one of them.
const OFTEN: u32 = 128;
/// What is longer than the measured time by so much has had to wait: mostly for a page of the trace, which is a cost of
/// recording, too.
const WAITED: f64 = 16.0;
/// What is longer by so much was interrupted, which is none.
const INTERRUPTED: f64 = 1000.0;
/// Nearly nothing is in between if one in fifty is hardly longer than the measured time.
const HARDLY: f64 = 1.25;
const ONE_IN: u32 = 50;
/// And if this many in a hundred are no longer than recording may take at most. A function that only sometimes returns
/// at once is none of these: what it does at other times is its own.
const NEAR: u64 = 90;

/// Times between two records of certain functions, one after the other.
#[derive(Debug, Default, Clone, Copy)]
struct Pair {
    count: u32,
    fast: u32,
    near: u32,
    sum: u64,
    /// Those that have waited, and how long.
    waited: u32,
    waits: u64,
}

/// What one chunk shows.
#[derive(Debug, Default, Clone, Copy)]
struct Shown {
    /// The mean time between two records where nearly nothing is in between.
    closest: f64,
    /// Of all pairs of which that is so: how many there were, and how long those of them waited that did.
    count: f64,
    waits: f64,
}

/// The mean time between two records where nearly nothing is in between, if there are such, and how long a record has
/// to wait in the mean. `measured`: the first of these when the recording began.
fn closest(trace: &Trace, measured: f64) -> Option<(f64, f64)> {
    let chunks = trace.tasks.iter().flat_map(|task| {
        let chunks = task.chunks.iter();
        chunks.map(move |&chunk| (task, chunk))
    });
    let step = chunks.clone().count().div_ceil(CHUNKS).max(1);
    // By chunks, for a machine is now slower and now faster, and the fastest moment is not what is asked for.
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

/// The same of one chunk.
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
    // Others do different things at different times: who knows what they have waited for.
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
    /// To that of the function itself.
    pub inside: i64,
    /// To that of its caller.
    pub outside: i64,
}

/// What recording has cost, by kinds of calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Costs {
    /// Of a call whose exit is recorded, too.
    pub call: Cost,
    /// Of a call of which only the entry is recorded.
    pub entry: Cost,
    /// Of a jump from one function to another one.
    pub jump: Cost,
}

impl Costs {
    /// What a trace says and shows. Nothing, if it does not say it.
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
            // The exit is that of the function that was called first: there is one more time in between, at the jump.
            jump: Cost {
                inside,
                outside: (entry - inside).max(0),
            },
        }
    }

    /// What recording a call costs, in nanoseconds.
    pub fn nanoseconds(&self, cost: Cost, trace: &Trace) -> f64 {
        // Of ten thousand calls, so that there are fractions.
        let many = whole((cost.inside + cost.outside) * 10_000);
        trace.scale().duration(many) as f64 / 1e4
    }

    /// Whether there is nothing to take off.
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
    fn what_cannot_be_is_not_taken_off() {
        let costs = Costs::new(meta::Costs {
            inside: -1.0,
            outside: 1e300,
            entry: f64::NAN,
            closest: 0.0,
        });
        assert!(costs.is_none());
    }
}
