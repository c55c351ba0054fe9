//! A few bytes of code.

/// Up to 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes {
    bytes: [u8; 16],
    length: u8,
}

impl Bytes {
    /// The first 16 of these bytes.
    pub fn new(from: &[u8]) -> Self {
        let mut bytes = [0; 16];
        let length = from.len().min(bytes.len());
        bytes[..length].copy_from_slice(&from[..length]);
        Self {
            bytes,
            length: length as u8,
        }
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

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
