//! The `hodo` command.
fn main() {}
