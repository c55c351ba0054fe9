//! The files that are mapped into programs: what is in them ([`Image`]), their plans, which are kept from one recording
//! to the next ([`cache`]), and what a recording wants of them ([`Module`]).
//!
//! This knows nothing of probes' definitions and changes no process.

pub mod cache;
pub mod glob;
pub mod image;
pub mod linked;
mod module;

pub use image::Image;
pub use module::{Chosen, HOOKED, Module, Number, Probed};
