//! The bytes that make a place a site.

use hodo_sys::poke::Bytes;

/// How a place becomes a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prepared {
    /// How many bytes after the place the site begins.
    pub distance: usize,
    /// How many bytes after that the bytes are to be written.
    pub offset: usize,
    /// The form of the site.
    pub form: crate::arch::Form,
    /// The instruction that is to be there again, where it must be kept (AArch64); otherwise 0.
    pub kept: u32,
    /// What is to be written, so that the site calls nobody. Nothing if [`super::fix`] does it.
    pub bytes: Bytes,
}
