//! Return addresses on processors that do not sign them.

/// How a function's return address is signed: it is not.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Signer;

impl Signer {
    /// The address as it is.
    pub(crate) fn sign(self, address: usize) -> usize {
        address
    }
}

/// How the return address of a function is signed that has come to its site.
///
/// # Safety
/// Nothing is asked for here.
pub(crate) unsafe fn signer_at_site(_: usize, _: usize, _: usize) -> Option<Signer> {
    Some(Signer)
}

/// How a return address is signed about which nothing else is known.
pub(crate) fn signer_of_plain(_: usize) -> Option<Signer> {
    Some(Signer)
}

/// A return address as it is: there are no signatures.
pub(crate) fn without_signature(address: usize) -> usize {
    address
}
