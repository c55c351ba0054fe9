//! Translations of code that was unloaded.
//!
//! A program may load the same file again and again, for as long as it runs. If the file comes to the same place, and
//! has the same code, its former translation is used again: numbers of blocks and memory of the cache are not used up.

use std::collections::VecDeque;
use std::rc::Rc;

use hodo_ptrace::maps::Mapping;

use crate::known::Page;
use crate::placed::Placed;

/// The maximum number of mappings whose translations are kept.
const MOST: usize = 64;

/// What was translated of a mapping.
#[derive(Debug, Clone)]
pub(crate) struct Left {
    pub(crate) map: Mapping,
    pub(crate) known: Vec<(u64, Rc<Page>)>,
    pub(crate) images: Vec<Placed>,
    /// The pages that it depends on.
    pub(crate) code: Vec<(u64, Rc<[u8]>)>,
    /// Instructions that were executed often.
    pub(crate) hot: Vec<u64>,
}

/// Translations of code that was unloaded, the oldest first.
#[derive(Debug, Clone, Default)]
pub(crate) struct Unloaded(VecDeque<Left>);

impl Unloaded {
    /// Takes what was translated of a mapping that is the same as one now.
    pub(crate) fn take(&mut self, map: &Mapping) -> Option<Left> {
        let place = self.0.iter().position(|left| left.map == *map)?;
        self.0.remove(place)
    }

    /// Adds one.
    pub(crate) fn put(&mut self, left: Left) {
        self.0.retain(|other| other.map != left.map);
        if self.0.len() == MOST {
            self.0.pop_front();
        }
        self.0.push_back(left);
    }
}
