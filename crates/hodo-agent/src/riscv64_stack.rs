//! There is no code yet that packs a stack: events have a copy of it.

use crate::Stack;

/// There is none.
#[must_use]
pub fn stack() -> Option<Stack> {
    None
}
