//! A Linux program that looks at itself: a probe sees the arguments and results of a function, another one counts, a
//! third one has a function return something else, and a static key switches messages on. Nothing but stable Rust and
//! two dependencies is needed.

use std::error::Error;
use std::ffi::c_void;
use std::hint::black_box;
use std::sync::Mutex;

use hodo_keys::{define_static_key_false, static_branch_unlikely};
use hodo_probe::{Engine, Registers, Request};

define_static_key_false!(VERBOSE);

/// What is probed must not be inlined. The calling convention of C says where arguments are.
#[inline(never)]
extern "C" fn price(items: u64, each: u64) -> u64 {
    if static_branch_unlikely!(VERBOSE) {
        println!("  {items} at {each}");
    }
    black_box(items * each)
}

#[inline(never)]
extern "C" fn discount(price: u64) -> u64 {
    black_box(price) / 10
}

fn total(orders: &[(u64, u64)]) -> u64 {
    let price = black_box(price as extern "C" fn(u64, u64) -> u64);
    let discount = black_box(discount as extern "C" fn(u64) -> u64);
    orders
        .iter()
        .map(|(items, each)| price(*items, *each))
        .map(|price| price - discount(price))
        .sum()
}

/// What the handlers have seen. They run in the thread that hits the probe, at any place where the probe is: here,
/// nobody holds the lock there.
#[derive(Default)]
struct Seen {
    items: Vec<u64>,
    prices: Vec<u64>,
}

fn seen(data: *mut c_void, note: impl FnOnce(&mut Seen)) {
    // SAFETY: `main` passes it, and keeps it while there are probes.
    let seen = unsafe { &*data.cast::<Mutex<Seen>>() };
    if let Ok(mut seen) = seen.lock() {
        note(&mut seen);
    }
}

extern "C" fn entered(registers: &mut Registers, data: *mut c_void) {
    let items = registers.argument(0).unwrap_or_default();
    seen(data, |seen| seen.items.push(items));
}

extern "C" fn returned(registers: &mut Registers, data: *mut c_void) {
    #[cfg(target_arch = "x86_64")]
    let result = registers.rax;
    #[cfg(target_arch = "riscv64")]
    let result = registers.a0;
    seen(data, |seen| seen.prices.push(result));
}

/// Has the function return at once.
extern "C" fn generous(registers: &mut Registers, _: *mut c_void) {
    // SAFETY: the probe is at the function's first instruction.
    unsafe { registers.return_now(50) };
}

fn main() -> Result<(), Box<dyn Error>> {
    let orders = [(2, 300), (1, 1000), (5, 20)];
    println!("total {}", total(&orders));

    let engine = Engine::new()?;
    let data = Mutex::new(Seen::default());
    let watch = Request::at(price as *const () as u64)
        .before(entered)
        .returning(returned)
        .data((&raw const data).cast_mut().cast());
    let count = Request::at(discount as *const () as u64).count();
    // SAFETY: the handlers may run at the entry and at the return of this function, and `data` outlives the probes.
    let (watch, count) = unsafe { (engine.register(&watch)?, engine.register(&count)?) };
    println!("total {}", total(&orders));
    println!("discounts: {}, missed: {}", count.count(), watch.missed());
    watch.unregister()?;
    count.unregister()?;
    let Seen { items, prices } = data.into_inner()?;
    println!("items {items:?}, prices {prices:?}");

    let generous = Request::at(discount as *const () as u64).before(generous);
    // SAFETY: the function may return at its entry, and the handler uses no data.
    let generous = unsafe { engine.register(&generous)? };
    println!("total {}", total(&orders));
    generous.unregister()?;

    VERBOSE.enable()?;
    println!("total {}", total(&orders));
    VERBOSE.disable()?;
    println!("total {}", total(&orders));
    Ok(())
}
