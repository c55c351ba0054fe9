//! Results of tools, for people and for scripts.

pub mod cache;
mod cachegrind;
pub mod callgrind;
pub mod calls;
mod cores;
pub mod coverage;
pub mod drcov;
pub mod flame;
pub mod heap;
mod html;
pub mod lcov;
mod objects;
pub mod sharing;
pub mod tables;

pub use html::Page;
