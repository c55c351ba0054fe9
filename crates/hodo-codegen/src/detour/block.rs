//! What a probe does under a condition.

use alloc::vec::Vec;

use super::condition::Test;
use super::hist::Histogram;
use super::{Counter, Event, Fetch, Source};

/// What is done at a hit, if a condition holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// Offset of the control block's word with the address of the events file.
    pub base: u32,
    /// A byte of that file; nothing is done while it is 0.
    pub switch: Option<u32>,
    /// Values of the condition, and of events.
    pub values: Vec<Fetch>,
    /// What must be true.
    pub condition: Option<Test>,
    /// What is done, in this order.
    pub deeds: Vec<Deed>,
}

impl Block {
    /// Whether it reads memory that may not be there.
    pub(crate) fn may_fault(&self) -> bool {
        self.values.iter().any(Fetch::may_fault)
            || self.deeds.iter().any(|deed| match deed {
                Deed::Record(event, ..) => event.may_fault(),
                Deed::Name(..) => true,
                _ => false,
            })
    }
}

/// One thing that is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Deed {
    /// The hit is counted.
    Count(Counter),
    /// An event is written: with a byte of the events file, only if that is not 0. If its values are the block's
    /// (`true`), those that the condition has fetched are not fetched again.
    Record(Event, Option<u32>, bool),
    /// The hit is counted by its values.
    Histogram(Histogram),
    /// A byte of the events file becomes 0 or 1.
    Switch(u32, bool),
    /// The text at an address, cut to 15 bytes, is put into 16 bytes of the control block, with zeros after it.
    Name(Source, u32),
    /// The function is not run, but returns this: done at last.
    Return(u64),
}
