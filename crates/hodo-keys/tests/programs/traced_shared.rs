//! A Rust library that the program and a library share, with a tracepoint that has branches only where it is used.

pub use hodo_keys;
use hodo_keys::tracepoint::Argument;

pub fn generic<T: Argument>(value: T) {
    hodo_keys::tracepoint!(shared, generic, value);
}
