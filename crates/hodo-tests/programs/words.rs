//! A Rust program of the usual kind: collections, iterators, strings, threads, channels, trait objects.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, mpsc};

trait Shape {
    fn area(&self) -> f64;
}
struct Circle(f64);
struct Square(f64);
impl Shape for Circle {
    fn area(&self) -> f64 {
        self.0 * self.0 * 3.0
    }
}
impl Shape for Square {
    fn area(&self) -> f64 {
        self.0 * self.0
    }
}

#[derive(Debug)]
enum Wrong {
    Number(std::num::ParseIntError),
    Negative(i64),
}
impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(cause) => write!(f, "no number: {cause}"),
            Self::Negative(n) => write!(f, "{n} is negative"),
        }
    }
}

#[inline(never)]
fn parse(text: &str) -> Result<u64, Wrong> {
    let n: i64 = text.parse().map_err(Wrong::Number)?;
    u64::try_from(n).map_err(|_| Wrong::Negative(n))
}

fn main() {
    let (send, receive) = mpsc::channel();
    let shared = Arc::new(Mutex::new(HashMap::new()));
    let threads: Vec<_> = (0..4u64)
        .map(|t| {
            let (send, shared) = (send.clone(), Arc::clone(&shared));
            std::thread::spawn(move || {
                for i in 0..5000u64 {
                    let word = format!("{:x}", (i * 7919 + t) % 997);
                    *shared.lock().unwrap().entry(word).or_insert(0u64) += i;
                }
                send.send(t).unwrap();
            })
        })
        .collect();
    drop(send);
    let done: u64 = receive.iter().sum();
    for thread in threads {
        thread.join().unwrap();
    }
    let sorted: BTreeMap<String, u64> = shared.lock().unwrap().clone().into_iter().collect();
    let total: u64 = sorted.values().sum();
    let shapes: Vec<Box<dyn Shape>> = (0..1000)
        .map(|n| -> Box<dyn Shape> {
            if n % 2 == 0 { Box::new(Circle(f64::from(n))) } else { Box::new(Square(f64::from(n))) }
        })
        .collect();
    let area: f64 = shapes.iter().map(|shape| shape.area()).sum();
    println!("{done} {} {total} {:?} {area}", sorted.len(), sorted.iter().next());
    for text in ["12", "-3", "x"] {
        match parse(text) {
            Ok(n) => println!("{n}"),
            Err(wrong) => println!("{wrong}"),
        }
    }
}
