//! There are no trampolines: no instruction begins inside a jump.

/// The pages with second jumps: none.
#[derive(Default)]
pub(crate) struct Trampolines {}
