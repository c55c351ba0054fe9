//! What was written over the code of an address space, and what our code there stands for.

use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

use hodo_abi::Span;
use hodo_module::image::{Image, Placed, Seen};
use hodo_patch::{Copies, Island, Lead, Patches, Stub};

use super::Moved;
use crate::arch::WAIT;
use crate::stubs::Stubs;

/// Code where threads are held, and its original bytes.
pub(crate) type Held = (u64, [u8; WAIT.len()]);

/// What was written over code.
#[derive(Debug, Clone, Default)]
pub(crate) struct Written {
    /// Original bytes of everything that was written, with addresses, in the order of the writes.
    originals: Vec<(u64, Vec<u8>)>,
    /// Breakpoints, and the stubs to which they lead.
    traps: HashMap<u64, u64>,
    /// Our instructions that read memory which may not be there, and where to continue then.
    faults: HashMap<u64, u64>,
    /// Jumps and the stubs that they lead to.
    sites: Vec<Lead>,
    /// Our code in the program or on the way there: see [`Patches::ways`].
    ways: Vec<Span>,
    /// Code in islands that control leaves through some of that: see [`Patches::leaving`].
    leaving: Vec<Span>,
    /// Counters of USDT probes that were raised.
    semaphores: Vec<u64>,
    /// What hooks have written. It stays when tracing ends, because open frames still return through stubs.
    hooks: Vec<(u64, Vec<u8>)>,
    /// Where threads are held for a moment.
    held: Vec<Held>,
    /// Functions of unwinders.
    unwinders: Vec<Span>,
    /// Where the unwinding of exceptions begins.
    unwinding: Vec<u64>,
    /// The stubs in each island.
    stubs: [Stubs; 2],
    /// Where displaced instructions are now. Children share this with their parents.
    copies: Rc<Copies>,
    /// The files whose code was changed.
    files: Vec<Placed>,
    /// Which instructions in islands stand for which of the program, once that was needed.
    moved: Option<Rc<Moved>>,
}

/// What was written.
impl Written {
    /// Original bytes of everything that was written, with addresses. If bytes were written several times, the first
    /// ones in the list are the program's.
    pub(crate) fn originals(&self) -> &[(u64, Vec<u8>)] {
        &self.originals
    }

    /// Whether something was written from this address on.
    pub(crate) fn begins(&self, at: u64) -> bool {
        self.originals.iter().any(|&(start, _)| start == at)
    }

    /// The stub to which the breakpoint at an address leads.
    pub(crate) fn trap(&self, at: u64) -> Option<u64> {
        self.traps.get(&at).copied()
    }

    /// The addresses of breakpoints.
    pub(crate) fn traps(&self) -> impl Iterator<Item = u64> {
        self.traps.keys().copied()
    }

    /// Where to continue after this instruction of ours has read memory that is not there.
    pub(crate) fn after_fault(&self, at: u64) -> Option<u64> {
        self.faults.get(&at).copied()
    }

    /// Whether we have instructions that may read memory that is not there.
    pub(crate) fn may_fault(&self) -> bool {
        !self.faults.is_empty()
    }

    /// Jumps and the stubs that they lead to.
    pub(crate) fn sites(&self) -> &[Lead] {
        &self.sites
    }

    /// Our code in the program or on the way there.
    pub(crate) fn ways(&self) -> &[Span] {
        &self.ways
    }

    /// Code in islands that control leaves through some of that.
    pub(crate) fn leaving(&self) -> &[Span] {
        &self.leaving
    }

    /// Counters of USDT probes that were raised.
    pub(crate) fn semaphores(&self) -> &[u64] {
        &self.semaphores
    }

    /// What hooks have written.
    pub(crate) fn hooks(&self) -> &[(u64, Vec<u8>)] {
        &self.hooks
    }

    /// Where threads are held for a moment.
    pub(crate) fn held(&self) -> &[Held] {
        &self.held
    }

    /// Functions of unwinders.
    pub(crate) fn unwinders(&self) -> &[Span] {
        &self.unwinders
    }

    /// Where the unwinding of exceptions begins.
    pub(crate) fn unwinding(&self) -> &[u64] {
        &self.unwinding
    }

    /// The stubs of both islands.
    pub(crate) fn stubs(&self) -> &[Stubs; 2] {
        &self.stubs
    }

    /// Where displaced instructions are.
    pub(crate) fn copies(&self) -> &Copies {
        &self.copies
    }

    /// The files whose code was changed.
    pub(crate) fn files(&self) -> &[Placed] {
        &self.files
    }

    /// Which instructions stand for which, if that was needed already.
    pub(super) fn moved(&self) -> Option<Rc<Moved>> {
        self.moved.clone()
    }
}

/// Changes.
impl Written {
    /// Something is about to be written over these bytes.
    pub(crate) fn add_original(&mut self, at: u64, bytes: Vec<u8>) {
        self.originals.push((at, bytes));
    }

    /// These patches lead to our code, or are about to. Original bytes, semaphores and files are added on their own.
    pub(crate) fn add(&mut self, patches: &Patches) {
        let pair = |lead: &Lead| (lead.at, lead.to);
        self.traps.extend(patches.traps.iter().map(pair));
        self.faults.extend(patches.faults.iter().map(pair));
        self.sites.extend(patches.sites.iter().copied());
        self.ways.extend(patches.ways.iter().copied());
        self.leaving.extend(patches.leaving.iter().copied());
        self.hooks.extend(patches.hooks.iter().cloned());
        if !patches.copies.is_empty() {
            Rc::make_mut(&mut self.copies).extend(patches.copies.iter());
            self.moved = None;
        }
    }

    /// The code of a file was changed.
    pub(crate) fn add_file(&mut self, file: Placed) {
        self.files.push(file);
    }

    /// The counter of a USDT probe was raised.
    pub(crate) fn add_semaphore(&mut self, at: u64) {
        self.semaphores.push(at);
    }

    /// All such counters were lowered.
    pub(crate) fn semaphores_are_lowered(&mut self) {
        self.semaphores.clear();
    }

    /// Adds what was written into an island.
    pub(crate) fn extend_stubs(&mut self, index: usize, island: &Island) {
        self.stubs[index].extend(island);
    }

    /// Adds stubs of both islands.
    pub(crate) fn add_stubs(&mut self, new: [Vec<Stub>; 2]) {
        for (known, new) in self.stubs.iter_mut().zip(new) {
            known.add(&new);
        }
    }

    /// A jump becomes a breakpoint that leads to the same stub.
    pub(crate) fn becomes_trap(&mut self, site: Lead) {
        self.traps.insert(site.at, site.to);
    }

    /// Threads are held there; nowhere if this is empty.
    pub(crate) fn set_held(&mut self, held: Vec<Held>) {
        self.held = held;
    }

    /// Adds functions of unwinders, and where they begin to unwind exceptions.
    pub(crate) fn add_unwinders(&mut self, functions: Vec<Span>, entries: Vec<u64>) {
        self.unwinders.extend(functions);
        self.unwinding.extend(entries);
    }

    /// Sets these.
    pub(crate) fn set_unwinders(&mut self, functions: Vec<Span>, entries: Vec<u64>) {
        (self.unwinders, self.unwinding) = (functions, entries);
    }

    /// Remembers which instructions stand for which.
    pub(super) fn set_moved(&mut self, moved: &Rc<Moved>) {
        self.moved = Some(Rc::clone(moved));
    }

    /// Everything was undone except for what was written at these addresses; stubs and copies stay. `holds` returns
    /// whether an address is in our own memory.
    pub(crate) fn keep_only(&mut self, stay: &BTreeSet<u64>, holds: impl Fn(u64) -> bool) {
        self.originals.retain(|(at, _)| stay.contains(at));
        self.traps.retain(|at, _| stay.contains(at));
        self.sites.retain(|site| stay.contains(&site.at));
        // Code that leads into islands is gone except for hooks, as is code that leads out of them; no thread is there.
        self.ways
            .retain(|way| stay.contains(&(way.start - 1)) || holds(way.start));
        self.leaving.clear();
        self.moved = None;
    }

    /// Forgets what was written into code that is gone. `next` is where the next file begins.
    pub(crate) fn forget(&mut self, gone: &Seen, next: u64) {
        let inside = |at: u64| (gone.start..gone.end).contains(&at);
        // The data of a file lies after its code, and before the code of the next one.
        let own = gone.start..next;
        self.semaphores.retain(|at| !own.contains(at));
        self.traps.retain(|&at, _| !inside(at));
        self.sites.retain(|site| !inside(site.at));
        self.ways.retain(|way| !inside(way.start));
        self.unwinders.retain(|function| !inside(function.start));
        self.unwinding.retain(|&at| !inside(at));
        self.held.retain(|&(at, _)| !inside(at));
        self.hooks.retain(|(at, _)| !inside(*at));
        self.originals.retain(|&(at, _)| !inside(at));
        Rc::make_mut(&mut self.copies).retain(|copied| !inside(copied.original));
        self.moved = None;
        self.files
            .retain(|file| !inside(file.range.start) && !(file.range.contains(&gone.start)));
    }

    /// The file at an address whose code was changed, and the address in it.
    pub(crate) fn file_at(&self, at: u64) -> Option<(&Image, u64)> {
        let file = self.files.iter().find(|file| file.range.contains(&at))?;
        Some((&file.image, at.wrapping_sub(file.bias)))
    }
}
