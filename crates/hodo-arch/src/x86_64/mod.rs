//! x86-64.

pub mod relocate;
pub mod scan;
