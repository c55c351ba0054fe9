//! Tracepoints, and functions that see them.

use std::sync::atomic::{AtomicU64, Ordering};

use hodo_keys::tracepoint::{self, Argument};

static HITS: AtomicU64 = AtomicU64::new(0);

#[cfg(with_c)]
unsafe extern "C" {
    /// Has a probe of `sys/sdt.h`.
    fn probed_in_c(value: i32) -> i32;
}

#[inline(never)]
fn first(x: u64, text: &str) -> u64 {
    hodo_keys::tracepoint!(built, first, x, text);
    x + 1
}

#[inline(always)]
fn generic<T: Argument>(value: T) {
    hodo_keys::tracepoint!(built, generic, value);
}

fn eight() {
    hodo_keys::tracepoint!(
        built,
        eight,
        a = -1_i8,
        b = 2_u16,
        c = -3_i32,
        d = 4_i64,
        e = true,
        f = 'f',
        g = 7.5_f64,
        h = c"eight"
    );
}

/// Only unused data refers to it: the linker drops it, together with everything that describes its tracepoint.
extern "C" fn unused() {
    hodo_keys::tracepoint!(built, unused);
}

std::arch::global_asm!(
    ".pushsection .data.nobody,\"aw\"",
    ".quad {unused}",
    ".popsection",
    unused = sym unused
);

fn all() {
    #[cfg(with_c)]
    // SAFETY: it returns its argument.
    assert_eq!(unsafe { probed_in_c(5) }, 5);
    assert_eq!(first(41, "some text"), 42);
    generic(7_u8);
    generic(-7_i16);
    generic(String::from("seven"));
    eight();
}

fn main() {
    all();
    assert_eq!(HITS.load(Ordering::Relaxed), 0);
    let registration = tracepoint::register("built:*", |event| {
        HITS.fetch_add(1, Ordering::Relaxed);
        println!("{event}");
    })
    .expect("registered");
    all();
    registration.remove().expect("removed");
    all();
    let enabled = tracepoint::enable("*:first").expect("enabled");
    all();
    drop(enabled);
    println!("hits {}", HITS.load(Ordering::Relaxed));
}
