//! The stubs of an island.

use std::rc::Rc;

use hodo_patch::{Island, Stub};

use crate::arch;
use hodo_ptrace::Memory;

/// What is known of the stubs of one island.
#[derive(Debug, Clone, Default)]
pub struct Stubs {
    /// In ascending order. Children have them in common with their parents.
    all: Rc<Vec<Stub>>,
}

impl Stubs {
    /// Adds the stubs of an island that was extended.
    pub fn extend(&mut self, island: &Island) {
        self.add(&island.stubs);
    }

    /// All of them.
    pub fn all(&self) -> &[Stub] {
        &self.all
    }

    /// Adds stubs that come after the others.
    pub fn add(&mut self, stubs: &[Stub]) {
        if !stubs.is_empty() {
            Rc::make_mut(&mut self.all).extend(stubs);
        }
    }

    /// Is there none?
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Where each stub begins, and for which instruction of the program it stands as long as nothing of it was
    /// executed.
    pub fn starts(&self) -> impl Iterator<Item = (u64, u64)> {
        let functions = self.all.iter().filter(|stub| stub.original != 0);
        functions.map(|stub| (stub.entry, stub.original))
    }

    /// Is this an address in a stub? What lies after the last one does not count.
    pub fn is_inside(&self, at: u64) -> bool {
        let next = self.all.partition_point(|stub| stub.start <= at);
        let stub = next.checked_sub(1).and_then(|index| self.all.get(index));
        stub.is_some_and(|stub| at < stub.slow)
    }

    /// If this is where a traced function returns to: where that function is, 0 if its stub does not tell; and its
    /// displaced instructions.
    pub fn returns_to(&self, memory: &Memory, at: u64) -> Option<(u64, u64)> {
        let stub = self.all[..self.all.partition_point(|stub| stub.start <= at)].last()?;
        // After the call of its body.
        let is_it = at > stub.start
            && at < stub.slow.max(stub.body)
            && arch::called_before(memory, at) == Some(stub.body);
        is_it.then_some((stub.original, stub.body))
    }
}
