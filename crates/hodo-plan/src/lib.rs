//! From an ELF image to the sites that can be patched.

pub mod model;
