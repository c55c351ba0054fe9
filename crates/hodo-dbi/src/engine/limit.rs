//! When threads have executed enough instructions.

use std::time::{Duration, Instant};

/// Waits for a number of instructions. Their counters are not looked at all the time: the less is left, the more often.
#[derive(Debug)]
pub(super) struct Limit {
    instructions: u64,
    /// When the counters were last looked at, and what they were.
    last: (Instant, u64),
    next: Instant,
}

impl Limit {
    const SHORTEST: Duration = Duration::from_micros(500);
    const LONGEST: Duration = Duration::from_millis(100);
    /// If nothing is executed.
    const IDLE: Duration = Duration::from_millis(2);
    /// Threads may become this many times as fast,
    const FASTER: f64 = 2.0;
    /// or execute this many instructions in a second.
    const FAST: f64 = 4e9;

    pub(super) fn new(instructions: u64) -> Self {
        let now = Instant::now();
        Self {
            instructions,
            last: (now, 0),
            next: now + Self::SHORTEST,
        }
    }

    /// When the counters are to be looked at.
    pub(super) fn next(&self) -> Instant {
        self.next
    }

    /// As many have been executed. Returns whether that is enough.
    pub(super) fn look(&mut self, executed: u64) -> bool {
        let now = Instant::now();
        let left = self.instructions.saturating_sub(executed);
        let (time, before) = self.last;
        let lately = executed.saturating_sub(before) as f64 / (now - time).as_secs_f64();
        let wait = left as f64 / (lately * Self::FASTER).max(Self::FAST);
        let wait = Duration::try_from_secs_f64(wait).unwrap_or(Self::LONGEST);
        let shortest = match executed == before {
            true => Self::IDLE,
            false => Self::SHORTEST,
        };
        self.next = now + wait.clamp(shortest, Self::LONGEST);
        self.last = (now, executed);
        left == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_less_is_left_the_sooner_is_the_next_look() {
        let billion = 1_000_000_000;
        let mut limit = Limit::new(billion);
        assert!(!limit.look(10));
        assert!(limit.next() - Instant::now() > Limit::LONGEST / 2);
        limit.last.0 -= Duration::from_millis(10);
        assert!(!limit.look(billion - 10));
        assert!(limit.next() - Instant::now() <= Limit::SHORTEST);
        assert!(limit.look(billion));
        assert!(limit.look(2 * billion));
    }
}
