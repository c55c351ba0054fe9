//! From an ELF image to the sites that can be patched.
#![forbid(unsafe_code)]

mod image;
mod libcalls;
pub mod model;
mod modes;
mod planner;

pub use model::{PlanError, PlanOptions};
pub use planner::plan;
