//! `hodo-keys` in this kernel: branches that are switched while both harts run them.

use core::sync::atomic::{AtomicUsize, Ordering};

use hodo_keys::{Text, define_static_key_false, define_static_key_true, set_text};
use hodo_keys::{static_branch_likely, static_branch_unlikely, switch};

use crate::hart::NAME;
use crate::host::Kernel;
use crate::{functions, hart, paging, say, tracing};

define_static_key_false! {
    /// Whether `pass` counts.
    COUNTING;
}
define_static_key_true! {
    /// Whether `pass` takes the usual way.
    USUAL;
}

static KERNEL: &dyn Text = &Kernel;

/// How often each hart has counted, and has taken the way that is not the usual one.
static COUNTED: [AtomicUsize; hart::COUNT] = [const { AtomicUsize::new(0) }; hart::COUNT];
static UNUSUAL: [AtomicUsize; hart::COUNT] = [const { AtomicUsize::new(0) }; hart::COUNT];

/// Has a branch on each key. Both harts call it.
#[inline(never)]
pub fn pass(times: usize) {
    let hart = hart::current().index();
    for _ in 0..times {
        if static_branch_unlikely!(COUNTING) {
            COUNTED[hart].fetch_add(1, Ordering::Relaxed);
        }
        if !static_branch_likely!(USUAL) {
            UNUSUAL[hart].fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn numbers() -> [usize; 2] {
    [&COUNTED, &UNUSUAL].map(|number| number[0].load(Ordering::Relaxed))
}

/// Switches the keys, and counts.
pub fn demonstrate() {
    const SWITCHES: usize = 100;
    set_text(&KERNEL);
    pass(5);
    assert_eq!(numbers(), [0, 0]);
    switch(&[COUNTING.enabling()]).expect("code can be written");
    pass(5);
    assert_eq!(numbers(), [5, 0]);
    tracing::wait_for(&COUNTED[1]);
    switch(&[COUNTING.disabling(), USUAL.disabling()]).expect("code can be written");
    pass(5);
    assert_eq!(numbers(), [5, 5]);
    tracing::wait_for(&UNUSUAL[1]);
    say!("keys: 5 times the one branch, and 5 times the other; the second {NAME} takes them, too");
    for _ in 0..SWITCHES {
        switch(&[COUNTING.enabling(), USUAL.enabling()]).expect("code can be written");
        switch(&[COUNTING.disabling(), USUAL.disabling()]).expect("code can be written");
    }
    USUAL.enable().expect("code can be written");
    // What the second hart has begun before ends.
    tracing::wait_for(&functions::ROUNDS);
    let before = [&COUNTED[1], &UNUSUAL[1]].map(|number| number.load(Ordering::Relaxed));
    tracing::wait_for(&functions::ROUNDS);
    let after = [&COUNTED[1], &UNUSUAL[1]].map(|number| number.load(Ordering::Relaxed));
    assert_eq!(before, after);
    let (_, _, both) = paging::count();
    assert_eq!(both, 0);
    let fences = hart::HARTS[1].fences.load(Ordering::Relaxed);
    assert!(fences > 2 * SWITCHES);
    say!("keys: {SWITCHES} times on and off while the second {NAME} runs the branches");
}
