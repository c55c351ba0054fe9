//! Markers in an address space. Threads stop at each: nothing leads to its instruction but an exit from the cache.

use std::cell::RefCell;
use std::rc::Rc;

use anyhow::{Context, Result};
use hodo_isa::native::asm::BREAKPOINT;
use hodo_ptrace::{Stopped, TargetAddr};
use rustc_hash::FxHashMap;

use super::Process;
use crate::markers::{Marker, Markers};
use crate::native::MARKER;
use crate::translate::{Point, State, Translation};

/// The markers of an address space.
#[derive(Debug, Clone, Default)]
pub(super) struct Marked {
    /// Those of files. `None`: threads do not stop at markers.
    all: Option<Rc<RefCell<Markers>>>,
    /// Those that are mapped.
    here: Rc<FxHashMap<u64, Marker>>,
    /// Breakpoints that lead to them.
    stubs: FxHashMap<u64, u64>,
    /// In how many parts the process is.
    depth: u32,
}

impl Process {
    /// Threads stop at markers, if there are some. The process is in this many parts.
    pub(crate) fn set_markers(&mut self, all: Option<Rc<RefCell<Markers>>>, depth: u32) {
        self.marked = Marked {
            all,
            depth,
            ..Marked::default()
        };
    }

    /// In how many parts the process is.
    pub(crate) fn depth(&self) -> u32 {
        self.marked.depth
    }

    /// A marker has changed that.
    pub(crate) fn set_depth(&mut self, depth: u32) {
        self.marked.depth = depth;
    }

    /// Whether its threads are observed.
    pub(crate) fn is_observed(&self) -> bool {
        self.recorder.is_some()
    }

    /// Whether threads stop at markers.
    pub(super) fn has_markers(&self) -> bool {
        self.marked.all.is_some()
    }

    /// Whether a marker is here, as far as the mappings are known.
    pub(super) fn is_marker(&self, pc: u64) -> bool {
        self.marked.here.contains_key(&pc)
    }

    /// Takes note of the markers in the mappings that have code.
    pub(super) fn list_markers(&mut self, thread: Stopped) {
        let Some(all) = &self.marked.all else {
            return;
        };
        let mut all = all.borrow_mut();
        let maps = self.files.mappings();
        let found = maps.iter().flat_map(|map| all.of(thread.tid(), map));
        let is_there = |at: u64| {
            let mut bytes = [0; MARKER.len()];
            let count = self.memory.read_some(TargetAddr(at), &mut bytes);
            count == bytes.len() && bytes == MARKER && !self.may_change(at)
        };
        let here: FxHashMap<u64, Marker> = found.filter(|&(at, _)| is_there(at)).collect();
        all.are_there |= !here.is_empty();
        self.marked.here = Rc::new(here);
    }

    /// What the marker says that a thread has reached, and the instruction after it. `None`: there is none.
    ///
    /// # Errors
    /// If the thread is gone.
    pub(crate) fn marker(&mut self, thread: Stopped, pc: u64) -> Result<Option<(Marker, u64)>> {
        if !self.has_markers() {
            return Ok(None);
        }
        self.list_files(thread)?;
        let marker = self.marked.here.get(&pc);
        Ok(marker.map(|&marker| (marker, pc + MARKER.len() as u64)))
    }

    /// Where a thread continues in the cache that reaches a marker: at a breakpoint.
    ///
    /// # Errors
    /// If the process is gone, or there is no room.
    pub(super) fn stub_of(&mut self, thread: Stopped, pc: u64) -> Result<u64> {
        if let Some(&at) = self.marked.stubs.get(&pc) {
            return Ok(at);
        }
        let region = self.cache.any_region_for(pc).context("the cache is full")?;
        let at = self.cache[region].next();
        let translation = Translation {
            bytes: BREAKPOINT.to_vec(),
            points: vec![Point {
                at,
                original: pc,
                state: State::default(),
            }],
            blocks: vec![(at, None)],
            ..Translation::default()
        };
        self.extend(thread, region, translation.bytes.len())?;
        self.add(region, translation)?;
        self.stops.add_moved(at, pc);
        self.marked.stubs.insert(pc, at);
        Ok(at)
    }
}
