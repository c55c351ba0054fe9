//! What a probe does under a condition.

use alloc::vec::Vec;

use super::condition::Test;
use super::hist::Histogram;
use super::{Counter, Event, Fetch, Source};

/// The actions at a hit, if a condition holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// Offset of the control block's word that holds the address of the events file.
    pub base: u32,
    /// Offset in that file of a byte; while it is 0, nothing is done.
    pub switch: Option<u32>,
    /// Values of the condition, and of events.
    pub values: Vec<Fetch>,
    /// The condition.
    pub condition: Option<Test>,
    /// The actions, in order.
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

/// One action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Deed {
    /// Counts the hit.
    Count(Counter),
    /// Writes an event; if a byte of the events file is given, only while that is not 0. If the event's values are the
    /// block's (`true`), those that the condition has fetched are not fetched again.
    Record(Event, Option<u32>, bool),
    /// Counts the hit by its values.
    Histogram(Histogram),
    /// Sets a byte of the events file to 0 or 1.
    Switch(u32, bool),
    /// Copies the text at an address, cut to 15 bytes, into 16 bytes of the control block, and fills up with zeros.
    Name(Source, u32),
    /// Returns this without running the function; the last action.
    Return(u64),
}
