//! A program in Rust and C. Argument: how many copies of hodo-keys it has.

use std::sync::atomic::{AtomicBool, Ordering};

hodo_keys::define_static_key_false!(IN_RUST);

unsafe extern "C" {
    fn c_branch() -> i32;
    fn c_switch(on: i32) -> i32;
    fn c_sum() -> usize;
}

#[inline(never)]
fn rust_branch() -> i32 {
    i32::from(hodo_keys::static_branch_unlikely!(IN_RUST))
        + 2 * i32::from(hodo_keys::static_branch_likely!(IN_RUST))
}

fn main() {
    let copies: usize = std::env::args().nth(1).unwrap().parse().unwrap();
    // SAFETY: it is the function of that name in `mixed.c`, here and below.
    let c = || unsafe { c_branch() };
    // SAFETY: see above.
    let switch = |on| assert_eq!(unsafe { c_switch(on) }, 0);
    assert_eq!((rust_branch(), c()), (0, 0));
    IN_RUST.enable().unwrap();
    assert_eq!((rust_branch(), c()), (3, 0));
    switch(1);
    assert_eq!((rust_branch(), c()), (3, 3));
    IN_RUST.disable().unwrap();
    switch(0);
    assert_eq!((rust_branch(), c()), (0, 0));
    // A copy knows the branches of its languages.
    let mut names = Vec::new();
    hodo_keys::for_each(|found| names.push((found.key.name(), found.branches))).unwrap();
    names.sort();
    let (rust, c_keys) = (("mixed::IN_RUST", 2), ("IN_C", 2));
    let (known, sum) = if copies == 1 { (vec![c_keys, rust], 4) } else { (vec![rust], 2) };
    assert_eq!(names, known);
    // SAFETY: see above.
    assert_eq!(unsafe { c_sum() }, sum);
    // Both are switched at the same time.
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                switch(1);
                assert_eq!(c(), 3);
                switch(0);
                assert_eq!(c(), 0);
            }
        });
        for _ in 0..500 {
            IN_RUST.enable().unwrap();
            assert_eq!(rust_branch(), 3);
            IN_RUST.disable().unwrap();
            assert_eq!(rust_branch(), 0);
        }
        stop.store(true, Ordering::Relaxed);
    });
    println!("ok");
}
