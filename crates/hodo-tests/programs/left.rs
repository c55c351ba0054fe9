//! The same with panics: caught where they begin and some frames up, with destructors on their way, resumed, and an own
//! tree.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

thread_local! {
    static DEPTH: Cell<usize> = const { Cell::new(0) };
    static TREE: RefCell<Vec<(usize, &'static str)>> = const { RefCell::new(Vec::new()) };
}

macro_rules! enter {
    ($name:literal) => {{
        let mine = DEPTH.get();
        TREE.with_borrow_mut(|tree| tree.push((mine, $name)));
        DEPTH.set(mine + 1);
        mine
    }};
}

#[unsafe(no_mangle)]
#[inline(never)]
pub fn t_leaf() {
    let mine = enter!("t_leaf");
    DEPTH.set(mine);
}

struct Guard(usize);

impl Drop for Guard {
    #[inline(always)]
    fn drop(&mut self) {
        DEPTH.set(self.0 + 1);
        t_leaf();
        DEPTH.set(self.0);
    }
}

#[unsafe(no_mangle)]
#[inline(never)]
pub fn t_panics(n: u32) {
    let mine = enter!("t_panics");
    t_leaf();
    match n {
        0 => resume_unwind(Box::new(7)),
        _ => t_panics(std::hint::black_box(n - 1)),
    }
    DEPTH.set(mine);
}

#[unsafe(no_mangle)]
#[inline(never)]
pub fn t_guarded(n: u32) {
    let mine = enter!("t_guarded");
    let _guard = Guard(mine);
    match n {
        0 => t_panics(4),
        _ => t_guarded(std::hint::black_box(n - 1)),
    }
}

#[unsafe(no_mangle)]
#[inline(never)]
pub fn t_catches(n: u32) {
    let mine = enter!("t_catches");
    let caught = catch_unwind(AssertUnwindSafe(|| t_guarded(std::hint::black_box(n))));
    DEPTH.set(mine + 1);
    t_leaf();
    if n == 2 {
        resume_unwind(caught.expect_err("it panics"));
    }
    DEPTH.set(mine);
}

#[unsafe(no_mangle)]
#[inline(never)]
pub fn t_all() {
    let mine = enter!("t_all");
    for n in 0..4 {
        let _ = catch_unwind(AssertUnwindSafe(|| t_catches(std::hint::black_box(n))));
        DEPTH.set(mine + 1);
        t_leaf();
        t_leaf();
    }
    DEPTH.set(mine);
}

fn main() {
    t_all();
    TREE.with_borrow(|tree| {
        for (depth, name) in tree {
            println!("{depth} {name}");
        }
    });
}
