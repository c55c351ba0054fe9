//! x86-64.

pub mod emit;
pub mod relocate;
pub mod scan;
pub mod stub;
