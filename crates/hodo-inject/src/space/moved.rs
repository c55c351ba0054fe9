//! Which instructions in islands stand for which instructions of the program.

use std::cell::OnceCell;

use hodo_abi::Span;
use hodo_codegen::statemap::{AppPoint, StateMap};

mod making;

/// Which instructions in islands stand for which of the program.
#[derive(Debug, Default)]
pub struct Moved {
    /// Made when needed: most stopped threads are in code from which nothing was moved, and there may be millions of
    /// instructions.
    map: OnceCell<StateMap>,
    /// Code of hodo where a thread is at no instruction of the program, even if it is within the program's code.
    ways: Vec<Span>,
}

impl Moved {
    /// Whether a thread there is neither at an instruction of the program nor at one that stands for it.
    pub fn is_on_the_way(&self, at: u64) -> bool {
        let next = self.ways.partition_point(|way| way.start <= at);
        let way = next.checked_sub(1).map(|index| self.ways[index]);
        way.is_some_and(|way| at < way.end)
    }

    /// The program's instruction for which this one of hodo's stands.
    pub fn app_point(&self, at: u64) -> Option<AppPoint> {
        self.map.get()?.at(at)
    }

    /// Whether it is known which instructions stand for which.
    #[cfg(test)]
    pub fn is_known(&self) -> bool {
        self.map.get().is_some()
    }

    /// Where an instruction of the program is executed, if not in place.
    pub fn copy_of(&self, at: u64) -> Option<u64> {
        self.map.get()?.copy_of(at)
    }
}
