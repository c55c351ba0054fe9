//! AArch64.

pub mod masm;
