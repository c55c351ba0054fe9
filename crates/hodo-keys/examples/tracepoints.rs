//! A program with tracepoints, and a function of its own that counts their hits.
//!
//! ```text
//! cargo build -p hodo-keys --example tracepoints
//! hodo probe -e 'FILE:%shop:order id=$arg1 item=+0($arg2):string' -- FILE --enable 'shop:*'
//! ```
//!
//! `--enable PATTERN` keeps tracepoints enabled for outside tools; `--count PATTERN` counts their hits. Without these,
//! each tracepoint is one nop.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hodo_keys::tracepoint::{self, Registration};

struct Order {
    id: u32,
    item: String,
    cents: i64,
}

#[inline(never)]
fn order(order: &Order) -> i64 {
    hodo_keys::tracepoint!(
        shop,
        order,
        id = order.id,
        item = order.item,
        cents = order.cents
    );
    let total = order.cents * 119 / 100;
    hodo_keys::tracepoint!(shop, priced, order, total);
    total
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let hits = Arc::new(AtomicU64::new(0));
    let mut registrations: Vec<Registration> = Vec::new();
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let pattern = words.next().ok_or("what is the pattern?")?;
        registrations.push(match &*word {
            "--enable" => tracepoint::enable(&pattern)?,
            "--count" => {
                let hits = Arc::clone(&hits);
                tracepoint::register(&pattern, move |_| {
                    hits.fetch_add(1, Ordering::Relaxed);
                })?
            }
            other => return Err(format!("{other}: no such option").into()),
        });
    }
    let sum: i64 = (1..=3)
        .map(|id| Order {
            id,
            item: format!("item {id}"),
            cents: 1000 * i64::from(id) - 1500,
        })
        .map(|each| order(&each))
        .sum();
    println!("total {sum}");
    println!("hits {}", hits.load(Ordering::Relaxed));
    registrations
        .into_iter()
        .try_for_each(Registration::remove)?;
    Ok(())
}
