//! From an ELF image to the sites that can be patched.
#![forbid(unsafe_code)]

mod bits;
mod hosts;
mod image;
mod libcalls;
pub mod model;
mod modes;
mod pieces;
mod planner;
mod sites;
mod sweep;
mod tables;
mod tactics;

pub use model::{PlanError, PlanOptions};
pub use planner::plan;
