//! Loops that contain a check of some kind, and loops without one.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::measure::{Row, compare};

hodo_keys::define_static_key_false!(OFF; ON);
hodo_keys::define_static_key_true!(USUAL);
static_keys::define_static_key_false!(THEIR_OFF);

/// The conditions of the checks that use no keys.
static FLAG: AtomicBool = AtomicBool::new(false);
static SEEN: AtomicU64 = AtomicU64::new(0);

static DATA: [u64; 1024] = {
    let mut data = [0; 1024];
    let mut index = 0;
    while index < data.len() {
        data[index] = (index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        index += 1;
    }
    data
};

macro_rules! loops {
    ($slow:ident, $fast:ident, |$x:ident| $check:expr) => {
        /// Each round waits for the previous one.
        #[inline(never)]
        fn $slow(rounds: u64) {
            let mut $x = black_box(1_u64);
            for _ in 0..rounds {
                $check;
                $x ^= $x << 13;
                $x ^= $x >> 7;
                $x ^= $x << 17;
            }
            black_box($x);
        }

        /// Rounds overlap, so only the number of instructions counts.
        #[inline(never)]
        fn $fast(rounds: u64) {
            let (mut $x, mut other) = (0_u64, 0_u64);
            for round in 0..rounds {
                $check;
                $x = $x.wrapping_add(DATA[round as usize & 1023]);
                other ^= DATA[(round.wrapping_mul(5)) as usize & 1023];
            }
            black_box(($x, other));
        }
    };
}

fn see(x: u64) {
    SEEN.store(x, Ordering::Relaxed);
}

loops!(slow_without, fast_without, |x| {});
loops!(slow_again, fast_again, |x| {});
loops!(slow_key, fast_key, |x| {
    if hodo_keys::static_branch_unlikely!(OFF) {
        see(x);
    }
});
loops!(slow_usual, fast_usual, |x| {
    if !hodo_keys::static_branch_likely!(USUAL) {
        see(x);
    }
});
loops!(slow_flag, fast_flag, |x| {
    if FLAG.load(Ordering::Relaxed) {
        see(x);
    }
});
loops!(slow_theirs, fast_theirs, |x| {
    if static_keys::static_branch_unlikely!(THEIR_OFF) {
        see(x);
    }
});
loops!(slow_tracing, fast_tracing, |x| {
    tracing::trace!(x);
});
// The same work in code that is out of line, and in a loop that always does it.
loops!(slow_on, fast_on, |x| {
    if hodo_keys::static_branch_unlikely!(ON) {
        see(x);
    }
});
loops!(slow_always, fast_always, |x| see(x));

/// A subscriber that is interested in something, but in nothing of this program. With no subscriber at all, one global
/// number switches all callsites off.
struct Picky;

impl tracing::Subscriber for Picky {
    fn register_callsite(
        &self,
        _: &'static tracing::Metadata<'static>,
    ) -> tracing::subscriber::Interest {
        tracing::subscriber::Interest::never()
    }

    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        false
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {}

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

/// Prints the tables.
pub fn tables(rounds: usize) {
    tracing::subscriber::set_global_default(Picky).expect("there is no other");
    ON.enable().expect("switched");
    let count = 1_000_000;
    macro_rules! rows {
        ($($name:literal: $function:ident),* $(,)?) => {
            [$(Row::new($name, move || $function(count))),*]
        };
    }
    let rows = rows! {
        "branch removed": slow_without,
        "branch removed, the same again (noise)": slow_again,
        "key off (goal: 1.01)": slow_key,
        "likely key on": slow_usual,
        "AtomicBool": slow_flag,
        "static-keys, off": slow_theirs,
        "tracing callsite, off": slow_tracing,
    };
    compare(
        "== a loop whose rounds wait for each other",
        &rows,
        rounds,
        count,
    );
    let rows = rows! {
        "branch removed": fast_without,
        "branch removed, the same again (noise)": fast_again,
        "key off (goal: 1.01)": fast_key,
        "likely key on": fast_usual,
        "AtomicBool": fast_flag,
        "static-keys, off": fast_theirs,
        "tracing callsite, off": fast_tracing,
    };
    compare("== a loop whose rounds overlap", &rows, rounds, count);
    let rows = rows! {
        "one store each round, without a check": slow_always,
        "key on: a jump to the store, and one back": slow_on,
        "the same, rounds overlap: without a check": fast_always,
        "key on": fast_on,
    };
    compare("== what an enabled key costs", &rows, rounds, count);
}
