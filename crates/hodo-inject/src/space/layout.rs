//! What of ours is mapped in an address space.

use std::collections::BTreeSet;

use hodo_abi::Span;
use hodo_ptrace::arch::SCRATCH_PAGE;
use hodo_ptrace::{Memory, TargetAddr};
use hodo_trace::format::SHADOW_DISTANCE;

use crate::ledger::{Page, Region, State};

/// Our mappings. Whoever maps something adds it here, so that [`Self::regions`] returns all that has to be unmapped.
#[derive(Debug, Clone, Default)]
pub(crate) struct Layout {
    /// The `events` file, as much of it as is mapped.
    trace: Span,
    /// Counters and histograms.
    counters: Vec<Span>,
    /// Islands: of the program, and of the libraries.
    islands: [Span; 2],
    /// Address ranges whose shadow is mapped as a whole.
    shadows: [Span; 2],
    /// The page in which threads work; 0 if this instruction set needs none.
    scratch_page: u64,
    /// Pages for the jumps of punned sites.
    trampolines: Vec<Page>,
    /// Pages for control blocks that are in no file.
    private: Vec<Span>,
    /// Mappings that another hodo was about to make.
    announced: Vec<Span>,
    /// The starts of mappings that are already gone.
    unmapped: BTreeSet<u64>,
}

impl Layout {
    pub(crate) fn trace(&self) -> Span {
        self.trace
    }

    pub(crate) fn islands(&self) -> [Span; 2] {
        self.islands
    }

    pub(crate) fn shadows(&self) -> [Span; 2] {
        self.shadows
    }

    pub(crate) fn scratch_page(&self) -> u64 {
        self.scratch_page
    }

    pub(crate) fn trampolines(&self) -> &[Page] {
        &self.trampolines
    }

    /// Bytes of the trace, the islands and the shadows.
    pub(crate) fn size(&self) -> u64 {
        let spans = self.islands.iter().chain(&self.shadows);
        self.trace.len() + spans.map(|span| span.len()).sum::<u64>()
    }

    pub(crate) fn set_trace(&mut self, trace: Span) {
        self.trace = trace;
    }

    pub(crate) fn add_counters(&mut self, counters: Span) {
        self.counters.push(counters);
    }

    pub(crate) fn set_island(&mut self, index: usize, island: Span) {
        self.islands[index] = island;
    }

    /// Returns the islands that were chosen, and leaves none: they are not mapped yet.
    pub(crate) fn take_islands(&mut self) -> [Span; 2] {
        std::mem::take(&mut self.islands)
    }

    pub(crate) fn set_shadows(&mut self, shadows: [Span; 2]) {
        self.shadows = shadows;
    }

    pub(crate) fn set_scratch_page(&mut self, page: u64) {
        self.scratch_page = page;
    }

    pub(crate) fn set_trampolines(&mut self, pages: &[Page]) {
        self.trampolines = pages.to_vec();
    }

    pub(crate) fn add_trampoline(&mut self, page: Page) {
        self.trampolines.push(page);
    }

    pub(crate) fn add_private(&mut self, pages: Span) {
        self.private.push(pages);
    }

    /// Another hodo was about to map this.
    pub(crate) fn is_announced(&mut self, mapping: Span) {
        self.announced.push(mapping);
    }

    /// What begins there is no longer mapped.
    pub(crate) fn is_unmapped(&mut self, start: u64) {
        self.announced.retain(|mapping| mapping.start != start);
        self.unmapped.insert(start);
    }

    /// Whether this address is in our executable memory.
    pub(crate) fn holds(&self, at: u64) -> bool {
        self.islands.iter().any(|island| island.contains(at))
            || Span::at(self.scratch_page, SCRATCH_PAGE).contains(at)
            || (self.trampolines.iter()).any(|page| page.span().contains(at))
    }

    /// All our memory except for the ledger. `memory` is that of the process.
    pub(crate) fn regions(&self, memory: &Memory) -> Vec<Span> {
        const PIECE: u64 = 1 << 20;
        let mut regions = Vec::new();
        // The agent lists the pieces that it maps after the first shadow. They are unmapped before the list is.
        let first = self.shadows[0];
        let mut list = vec![0; 4096];
        if !first.is_empty()
            && memory
                .read(TargetAddr(first.end - SHADOW_DISTANCE), &mut list)
                .is_ok()
        {
            let words = list.chunks_exact(8);
            let pieces = words.map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()));
            // A number that is not such a multiple was not written by the agent.
            let mapped = pieces.filter(|&at| at != 0 && at.is_multiple_of(PIECE));
            regions.extend(mapped.map(|at| Span::at(at, PIECE)));
        }
        regions.extend(&self.announced);
        regions.push(self.trace);
        regions.extend(&self.counters);
        regions.extend(self.islands);
        regions.extend(self.trampolines.iter().map(|page| page.span()));
        regions.extend(&self.private);
        regions
            .extend((self.scratch_page != 0).then_some(Span::at(self.scratch_page, SCRATCH_PAGE)));
        for shadow in self.shadows.into_iter().filter(|shadow| !shadow.is_empty()) {
            regions.push(Span::at(
                shadow.start - SHADOW_DISTANCE,
                shadow.len() + 4096,
            ));
        }
        regions.retain(|region| !region.is_empty() && !self.unmapped.contains(&region.start));
        regions
    }

    /// Writes it into a state of the ledger.
    pub(crate) fn save(&self, state: &mut State) {
        let regions = |spans: &[Span]| spans.iter().copied().map(Region::from).collect();
        state.events = self.trace.into();
        state.counters = regions(&self.counters);
        state.islands = self.islands.map(Region::from);
        state.shadows = self.shadows.map(Region::from);
        state.scratch_page = self.scratch_page;
        state.trampolines.clone_from(&self.trampolines);
        state.private = regions(&self.private);
    }

    /// Takes it from a state of the ledger. Nothing of this is unmapped before everything is.
    pub(crate) fn restore(&mut self, state: &State) {
        let spans = |regions: &[Region]| regions.iter().copied().map(Span::from).collect();
        self.trace = state.events.into();
        self.counters = spans(&state.counters);
        self.islands = state.islands.map(Span::from);
        self.shadows = state.shadows.map(Span::from);
        self.scratch_page = state.scratch_page;
        self.trampolines.clone_from(&state.trampolines);
        self.private = spans(&state.private);
        self.unmapped.clear();
    }
}
