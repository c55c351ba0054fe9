//! The stubs of an island.

use std::rc::Rc;

use hodo_patch::{Island, Stub};

use crate::arch;
use hodo_ptrace::Memory;

/// What is known about the stubs of one island.
#[derive(Debug, Clone, Default)]
pub struct Stubs {
    /// In ascending order. Children share them with their parents.
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

    /// Adds stubs with higher addresses than all others.
    pub fn add(&mut self, stubs: &[Stub]) {
        if !stubs.is_empty() {
            Rc::make_mut(&mut self.all).extend(stubs);
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Where each stub begins, and the instruction of the program for which it stands as long as nothing of it has been
    /// executed.
    pub fn starts(&self) -> impl Iterator<Item = (u64, u64)> {
        let functions = self.all.iter().filter(|stub| stub.original != 0);
        functions.map(|stub| (stub.entry, stub.original))
    }

    /// Whether this address is in a stub. Code after the last one does not count.
    pub fn is_inside(&self, at: u64) -> bool {
        let next = self.all.partition_point(|stub| stub.start <= at);
        let stub = next.checked_sub(1).and_then(|index| self.all.get(index));
        stub.is_some_and(|stub| at < stub.slow)
    }

    /// If this is where a traced function returns to: the function's address, 0 if its stub does not have it, and its
    /// displaced instructions.
    pub fn returns_to(&self, memory: &Memory, at: u64) -> Option<(u64, u64)> {
        let stub = self.all[..self.all.partition_point(|stub| stub.start <= at)].last()?;
        // The address is after the call of the body.
        let calls_body = || {
            let called = arch::called_before(memory, at)?;
            let is_it = called == stub.body || arch::after_signing(memory, called) == stub.body;
            is_it.then_some(())
        };
        let is_it = at > stub.start && at < stub.slow.max(stub.body) && calls_body().is_some();
        is_it.then_some((stub.original, stub.body))
    }
}
