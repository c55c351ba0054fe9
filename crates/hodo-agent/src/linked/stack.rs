//! Nothing packs a stack here yet: events hold a copy of it.

use crate::Stack;

/// There is none.
#[must_use]
pub fn stack() -> Option<Stack> {
    None
}
