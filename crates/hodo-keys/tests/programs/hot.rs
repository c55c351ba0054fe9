//! Functions with a branch, and the same functions without it: the code shows what the branch adds.

use std::sync::atomic::{AtomicU64, Ordering};

use hodo_keys::{define_static_key_false, define_static_key_true};
use hodo_keys::{static_branch_likely, static_branch_unlikely};

define_static_key_false!(OFF);
define_static_key_true!(ON);

static SEEN: AtomicU64 = AtomicU64::new(0);

#[cold]
fn see(value: u64) {
    SEEN.fetch_add(value, Ordering::Relaxed);
}

/// The key is off, or on, and the branch falls through: nothing is done.
macro_rules! pair {
    ($with:ident, $without:ident, $branch:expr, |$($name:ident: $type:ty),*| -> $result:ty, $check:ident, $body:expr) => {
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub extern "C" fn $with($($name: $type),*) -> $result {
            macro_rules! $check {
                ($cold:expr) => {
                    if $branch {
                        $cold;
                    }
                };
            }
            $body
        }

        #[unsafe(no_mangle)]
        #[inline(never)]
        pub extern "C" fn $without($($name: $type),*) -> $result {
            macro_rules! $check {
                ($cold:expr) => {};
            }
            $body
        }
    };
}

// A leaf without a frame: the cold side is a tail call.
pair!(leaf_with, leaf_without, static_branch_unlikely!(OFF), |x: u64| -> u64, check, {
    check!(return cold(x));
    x ^ 5
});

// The branch is in the loop, which cannot be unrolled.
pair!(loop_with, loop_without, static_branch_unlikely!(OFF), |state: u64, mask: u64| -> u64, check, {
    let mut x = state;
    while x & mask != 0 {
        check!(SEEN.store(x, Ordering::Relaxed));
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
    }
    x
});

// The key is on; what happens while it is off is out of line.
pair!(likely_with, likely_without, !static_branch_likely!(ON), |state: u64, mask: u64| -> u64, check, {
    let mut x = state;
    while x & mask != 0 {
        check!(SEEN.store(x, Ordering::Relaxed));
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
    }
    x
});

// There are calls on both sides, so the frame is needed in any case.
pair!(frame_with, frame_without, static_branch_unlikely!(OFF), |state: u64, call: extern "C" fn(u64) -> u64| -> u64, check, {
    let mut x = call(state);
    check!(see(x));
    x = x.wrapping_mul(3) ^ call(x ^ 1);
    x.wrapping_add(call(state))
});

// A tracepoint between two calls: its arguments are in registers that calls preserve, in any case.
macro_rules! traced {
    ($name:ident, |$x:ident, $call:ident| $check:expr) => {
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub extern "C" fn $name($x: u64, $call: extern "C" fn(u64) -> u64) -> u64 {
            $call($x);
            $check;
            $call($x).wrapping_add($x)
        }
    };
}
traced!(traced_with, |x, call| {
    hodo_keys::tracepoint!(hot, step, x, call = call as *const (), text = "text");
});
traced!(traced_without, |x, call| {});

#[inline(never)]
#[cold]
extern "C" fn cold(x: u64) -> u64 {
    SEEN.fetch_add(x, Ordering::Relaxed)
}

extern "C" fn increment(x: u64) -> u64 {
    std::hint::black_box(x) + 1
}

fn main() {
    let all = || {
        [
            [leaf_with(7), leaf_without(7)],
            [loop_with(7, 9), loop_without(7, 9)],
            [likely_with(7, 9), likely_without(7, 9)],
            [frame_with(7, increment), frame_without(7, increment)],
            [traced_with(7, increment), traced_without(7, increment)],
        ]
    };
    let off = all();
    assert!(off.iter().all(|pair| pair[0] == pair[1]));
    assert_eq!(SEEN.load(Ordering::Relaxed), 0);
    OFF.enable().expect("switched");
    ON.disable().expect("switched");
    assert_ne!(all()[0][0], off[0][0]);
    assert_ne!(SEEN.load(Ordering::Relaxed), 0);
}
