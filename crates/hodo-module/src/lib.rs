//! The files that are mapped into programs: their contents ([`Image`]), their plans, which are kept between recordings
//! ([`cache`]), and what a recording does with them ([`Module`]).
//!
//! This crate knows nothing of probe definitions and changes no process.

pub mod cache;
pub mod glob;
pub mod image;
pub mod linked;
pub mod mapped;
mod module;
mod root;

pub use image::Image;
pub use module::{Chosen, HOOKED, Module, Number, Probed};
