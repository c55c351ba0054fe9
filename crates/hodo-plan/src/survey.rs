//! Reads all code of an image, once for its plan and all of its probes.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::path::Path;

use hodo_symbols::{Nature, Symbols};

use crate::around::Part;
use crate::image::Image;
use crate::model::{LibcallSite, Mode, PlanError};
use crate::pieces::{self, Piece};
use crate::sites::{self, Profilers, Sites};
use crate::static_keys::Statics;
use crate::sweep::{PieceFacts, Sweep, Swept, Wanted};
use crate::tables::{Tabled, mark_distances};
use crate::targets::Targets;
use crate::verdicts::{self, Verdict};
use crate::{hosts, libcalls, rseq, tables};

/// What is known about an image's code: where it branches to, and from where. Plans are made from it; see
/// [`plan`](Self::plan) and [`plan_probes`](Self::plan_probes).
pub struct Survey<'a> {
    pub(crate) path: &'a Path,
    pub(crate) image: Image<'a>,
    pub(crate) symbols: Symbols,
    /// GOT slots and the functions whose addresses they hold.
    slots: HashMap<u64, String>,
    pub(crate) pieces: Vec<Piece>,
    /// For each function, the index of its piece.
    pub(crate) heads: Vec<usize>,
    pub(crate) targets: Targets,
    pub(crate) profilers: Profilers,
    pub(crate) swept: Swept,
    /// The targets of jump tables.
    pub(crate) tabled: Tabled,
    /// Addresses in the data that lead to parts of functions that lie apart.
    pub(crate) taken_parts: Vec<u64>,
    /// Sequences that the kernel restarts.
    pub(crate) restarted: Vec<Range<u64>>,
    pub(crate) statics: Statics,
    /// The code whose targets are known. Sorted, and the ranges do not overlap.
    pub(crate) ranges: Vec<Range<u64>>,
    /// Whether this is not all code.
    pub(crate) is_partial: bool,
}

impl<'a> Survey<'a> {
    /// Reads all code in `bytes`, which is the content of the file `path`, with this many threads (0: as many as there
    /// are processors).
    ///
    /// # Errors
    /// If the file is not a readable ELF image for a known instruction set.
    pub fn new(path: &'a Path, bytes: &'a [u8], threads: usize) -> Result<Self, PlanError> {
        Self::with_names(path, (bytes, None), threads)
    }

    /// By what the compiler has prepared functions for tracers: the profiling functions that they call, such as
    /// `_mcount`, and the sections with tables of their sites.
    #[must_use]
    pub fn prepared_by(&self) -> BTreeSet<String> {
        sites::prepared_by(&self.image, &self.symbols, &self.slots, &self.profilers)
    }

    /// The same for a file whose symbol table was moved to a separate file with this content, if there is one.
    ///
    /// # Errors
    /// If the file is not a readable ELF image for a known instruction set.
    pub fn with_names(
        path: &'a Path,
        (bytes, separate): (&'a [u8], Option<&[u8]>),
        threads: usize,
    ) -> Result<Self, PlanError> {
        Self::read(path, (bytes, separate), None, threads)
    }

    /// Reads the code in `bytes`, as [`with_names`](Self::with_names) does: if `places` are given, only as far as plans
    /// for probes there depend on it.
    pub(crate) fn read(
        path: &'a Path,
        (bytes, separate): (&'a [u8], Option<&[u8]>),
        places: Option<&[u64]>,
        threads: usize,
    ) -> Result<Self, PlanError> {
        let threads = processors(threads);
        let image = Image::parse(bytes)?;
        let symbols = hodo_symbols::symbols_with(bytes, separate)?;
        let (pieces, heads) = pieces::cut(&image, &symbols);
        let statics = Statics::find(bytes);
        let part = places.and_then(|places| {
            // Where nothing can have a probe, nothing need be known of the code.
            let host = hosts::detect(&image, &symbols, path);
            let refused = host.refuses_all_probes(&image, &statics).is_some();
            let places = if refused { &[] } else { places };
            Part::new(&image, (&symbols, &pieces), places, threads)
        });
        let ranges = match &part {
            Some(part) => part.ranges.clone(),
            None => image
                .text
                .iter()
                .map(|text| text.addr..text.end())
                .collect(),
        };
        let targets = Targets::new(&ranges);
        mark_known(&symbols, &targets);
        statics.mark(&targets);
        let mut survey = Self {
            path,
            slots: HashMap::new(),
            heads,
            targets,
            profilers: Profilers::default(),
            swept: Swept::default(),
            tabled: Tabled::default(),
            taken_parts: Vec::new(),
            restarted: Vec::new(),
            statics,
            is_partial: part.is_some(),
            image,
            symbols,
            pieces,
            ranges,
        };
        if part.is_none() {
            // Only functions that are traced need them.
            survey.slots = libcalls::slots(&survey.image);
            survey.profilers = sites::profilers(&survey.image, &survey.symbols, &survey.slots);
        }
        if !survey.ranges.is_empty() {
            survey.sweep(part.as_ref(), threads);
        }
        Ok(survey)
    }

    /// Sweeps over the code, and finds what else leads there.
    fn sweep(&mut self, part: Option<&Part>, threads: usize) {
        let Self {
            image,
            pieces,
            symbols,
            targets,
            ..
        } = self;
        let wanted = Wanted {
            addresses: &self.profilers.addresses,
            slots: &self.slots,
            statics: &self.statics,
        };
        let only = part.map(|part| &part.swept[..]);
        let sweep = Sweep {
            image,
            pieces,
            targets,
            wanted: &wanted,
            frames: &symbols.frames,
            only,
        };
        let mut swept = sweep.run(threads);
        let bases = std::mem::take(&mut swept.tables);
        let others = part.map(|part| &part.bases);
        self.tabled = tables::mark(image, pieces, (bases, others), targets);
        let words = tables::words(image, std::mem::take(&mut swept.absolute));
        let is_part = |addr: u64| {
            let piece = pieces::find(pieces, addr).and_then(|piece| pieces[piece].function);
            piece.is_none_or(|piece| symbols.functions[piece].nature == Nature::Part)
        };
        image.addresses(|at, addr| {
            match words.contains(&at) {
                true => targets.mark(addr),
                false => targets.take(addr),
            }
            let wanted = image.isa.tracks_registers();
            if wanted && image.text_at(addr).is_some_and(|text| !text.plt) && is_part(addr) {
                self.taken_parts.push(addr);
            }
        });
        self.restarted = rseq::find(image, targets);
        let all = 0..pieces.len();
        let indices = all.filter(|&index| only.is_none_or(|only| only[index]));
        for (index, facts) in indices.zip(&swept.facts) {
            let piece = &pieces[index];
            if facts.jumps
                && facts.forms_own
                && let Some(text) = image.text_at(piece.start)
            {
                mark_distances(image, targets, piece, text);
            }
        }
        self.swept = swept;
    }
}

impl Survey<'_> {
    /// Decides which pieces are functions, and joins what is known about the parts of each.
    pub(crate) fn functions(&self, sites: &Sites) -> (Vec<Verdict>, Vec<PieceFacts>) {
        let mut facts = self.swept.facts.clone();
        for &(piece, addr) in &self.swept.return_reads {
            let image = &self.image;
            // Reads only for profiling functions do not matter: these are no longer called.
            let Piece { start, end, .. } = self.pieces[piece];
            let excused = sites.has_dropped(start..end)
                && image.text_at(start).is_some_and(|text| {
                    let code = text.slice(start, end);
                    let is_dropped = |call| sites.is_dropped(call);
                    image.isa.is_only_passed_on(code, start, addr, &is_dropped)
                });
            facts[piece].reads_return |= !excused;
        }
        let crossings = &self.swept.crossings;
        let verdicts = verdicts::verdicts(
            &self.symbols,
            (&self.pieces, &self.heads),
            &facts,
            &self.targets,
            crossings,
            |addr| self.tabled.doubtful.contains(&addr),
        );
        verdicts::join(&self.pieces, &verdicts, &mut facts, crossings);
        (verdicts, facts)
    }

    /// The calls into libraries, sorted by name.
    pub(crate) fn libcalls(&self, host: &hosts::Host) -> Vec<LibcallSite> {
        let (image, slots, targets) = (&self.image, &self.slots, &self.targets);
        let dropped = &self.profilers.slots;
        let mut calls = libcalls::plt(image, slots, dropped);
        let direct = libcalls::direct(image.isa, &self.swept, slots, targets, dropped);
        calls.extend(direct);
        let loaded = libcalls::loaded(image, &self.pieces, slots, targets, dropped);
        calls.extend(loaded);
        for call in &mut calls {
            if let (Mode::Call, Some(reason)) = (call.mode, host.calls(&call.name)) {
                call.mode = Mode::EntryOnly(reason);
            }
        }
        calls.sort_by(|a, b| (&a.name, a.patch).cmp(&(&b.name, b.patch)));
        calls
    }
}

/// Returns the number of threads for an option in which 0 means as many as there are processors.
pub(crate) fn processors(threads: usize) -> usize {
    match threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        threads => threads,
    }
}

/// Marks what can be reached in other ways than by a direct branch, and what may or may not be a function.
fn mark_known(symbols: &Symbols, targets: &Targets) {
    for &addr in symbols.labels.iter().chain(&symbols.landing_pads) {
        targets.mark(addr);
    }
    for fragment in &symbols.fragments {
        targets.mark(fragment.addr);
        targets.doubtful.set(fragment.addr);
    }
    for function in &symbols.functions {
        if function.nature != Nature::Named {
            targets.doubtful.set(function.addr);
        }
    }
}
