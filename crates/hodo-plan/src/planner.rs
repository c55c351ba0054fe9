//! The planner: which bytes of each function are changed, and how.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

use hodo_isa::Via;
use hodo_isa::code::{EntryFacts, InstructionSet};
use hodo_symbols::{Cfa, Function, Nature, Symbols};

use crate::bits::Bits;
use crate::donor_slots::Behind;
use crate::image::{Image, Text};
use crate::jumps::mark_distances;
use crate::live::Live;
use crate::model::{
    EntryOnlyReason, Extra, LibcallSite, Mode, Plan, PlanError, PlanOptions, PlannedFunction,
    SitePlan, Tactic,
};
use crate::pieces::{self, Piece, Verdict};
use crate::sites::{self, Profilers, Sites};
use crate::static_keys::{self, Statics};
use crate::sweep::{HEAD, PieceFacts, Sweep, Swept, Targets, Wanted};
use crate::tables::Tabled;
use crate::tactics::BLOCK_LIMIT;
use crate::{hosts, libcalls, modes, rseq, tables};

/// Plans the image in `bytes`, which is the content of the file `path`.
///
/// # Errors
/// If the file is no readable ELF image for an instruction set that is known.
pub fn plan(path: &Path, bytes: &[u8], options: &PlanOptions) -> Result<Plan, PlanError> {
    let mut survey = Survey::new(bytes, options.threads)?;
    let sites = {
        let Survey {
            image,
            profilers,
            pieces,
            swept,
            ..
        } = &survey;
        Sites::find(image, profilers, pieces, swept)
    };
    survey.find_return_reads(&sites);
    let verdicts = survey.join_pieces();
    let survey = &survey;
    let Survey {
        image,
        symbols,
        pieces,
        heads,
        targets,
        swept,
        statics,
        ..
    } = survey;
    let mut plan = Plan {
        build_id: image.build_id(),
        static_branches: statics.ranges().collect(),
        nops: sites.nops.clone(),
        ..Plan::default()
    };
    let host = hosts::detect(image, symbols, path);
    plan.remarks.extend(host.remark());
    let registers = options.functions && image.isa.needs_register();
    let mut planner = Planner {
        image,
        symbols,
        pieces,
        heads,
        verdicts: &verdicts,
        targets,
        occupied: Bits::new(&image.text),
        punned: Bits::new(&image.text),
        swept,
        sites: &sites,
        host: &host,
        statics,
        live: registers.then(|| {
            let mut live = Live::new(survey, options.keep);
            live.ask_callers(&sites.functions);
            live
        }),
    };
    statics.fill(&planner.occupied);
    statics.fill(&planner.punned);
    if options.functions {
        plan.functions = planner.functions();
    }
    // Moved instructions would miss their relocations, and the jumps to them would get them.
    let relocated = image
        .relocates_code()
        .then_some("its code is relocated when it is loaded");
    match (relocated, &statics.damage) {
        (Some(reason), _) => trace_nothing(&mut plan, reason, None),
        (None, Some(damage)) => trace_nothing(&mut plan, static_keys::DAMAGED, Some(damage)),
        (None, None) if options.libcalls => plan.libcalls = survey.libcalls(&host),
        (None, None) => {}
    }
    Ok(plan)
}

/// Refuses all functions of an image.
fn trace_nothing(plan: &mut Plan, reason: &str, details: Option<&String>) {
    for function in &mut plan.functions {
        function.outcome = Err(reason.to_owned());
    }
    plan.nops.clear();
    let mut remark = format!("nothing is traced: {reason}");
    if let Some(details) = details {
        remark = format!("{remark}: {details}");
    }
    plan.remarks.push(remark);
}

/// What is known of an image's code: where it branches to, and where from.
pub(crate) struct Survey<'a> {
    pub image: Image<'a>,
    pub symbols: Symbols,
    /// GOT slots and what they hold.
    slots: HashMap<u64, String>,
    pub pieces: Vec<Piece>,
    /// By function the index of its piece.
    pub heads: Vec<usize>,
    pub targets: Targets,
    profilers: Profilers,
    pub swept: Swept,
    /// What jump tables lead to.
    pub tabled: Tabled,
    /// Addresses in parts of functions that lie apart which the data has.
    pub taken_parts: Vec<u64>,
    /// Sequences that the kernel restarts.
    pub restarted: Vec<Range<u64>>,
    pub statics: Statics,
}

impl<'a> Survey<'a> {
    /// Reads all code in the file `bytes` with this many threads (0: as many as there are processors).
    ///
    /// # Errors
    /// If the file is no readable ELF image for an instruction set that is known.
    pub fn new(bytes: &'a [u8], threads: usize) -> Result<Self, PlanError> {
        let image = Image::parse(bytes)?;
        let symbols = hodo_symbols::symbols(bytes)?;
        let slots = libcalls::slots(&image);
        let (pieces, heads) = pieces::cut(&image, &symbols);
        let targets = Targets::new(&image);
        mark_known(&symbols, &targets);
        let statics = Statics::find(bytes);
        statics.mark(&targets);
        let profilers = sites::profilers(&image, &symbols, &slots);
        let wanted = Wanted {
            addresses: &profilers.addresses,
            slots: &slots,
            statics: &statics,
        };
        let threads = processors(threads);
        let sweep = Sweep {
            image: &image,
            pieces: &pieces,
            targets: &targets,
            wanted: &wanted,
            frames: &symbols.frames,
        };
        let mut swept = sweep.run(threads);
        let bases = std::mem::take(&mut swept.tables);
        let tabled = tables::mark(&image, &pieces, bases, &targets);
        let words = tables::words(&image, std::mem::take(&mut swept.absolute));
        let mut taken_parts = Vec::new();
        let is_part = |addr: u64| {
            let piece = pieces::find(&pieces, addr).and_then(|piece| pieces[piece].function);
            piece.is_none_or(|piece| symbols.functions[piece].nature == Nature::Part)
        };
        image.addresses(|at, addr| {
            match words.contains(&at) {
                true => targets.mark(addr),
                false => targets.take(addr),
            }
            let wanted = image.isa.needs_register();
            if wanted && image.text_at(addr).is_some_and(|text| !text.plt) && is_part(addr) {
                taken_parts.push(addr);
            }
        });
        let restarted = rseq::find(&image, &targets);
        for (piece, facts) in pieces.iter().zip(&swept.facts) {
            if facts.jumps
                && facts.forms_own
                && let Some(text) = image.text_at(piece.start)
            {
                mark_distances(&image, &targets, piece, text);
            }
        }
        Ok(Self {
            taken_parts,
            restarted,
            statics,
            image,
            symbols,
            slots,
            pieces,
            heads,
            targets,
            profilers,
            swept,
            tabled,
        })
    }
}

impl Survey<'_> {
    /// Finds out which pieces read their return address.
    fn find_return_reads(&mut self, sites: &Sites) {
        for (piece, addr) in std::mem::take(&mut self.swept.return_reads) {
            let image = &self.image;
            // Reads only for profiling functions do not matter: these are not called any more.
            let Piece { start, end, .. } = self.pieces[piece];
            let excused = sites.has_dropped(start..end)
                && image.text_at(start).is_some_and(|text| {
                    let code = text.slice(start, end);
                    let is_dropped = |call| sites.is_dropped(call);
                    image.isa.is_only_passed_on(code, start, addr, &is_dropped)
                });
            self.swept.facts[piece].reads_return |= !excused;
        }
    }

    /// Finds out which pieces are functions, and joins what is known of the parts of each.
    fn join_pieces(&mut self) -> Vec<Verdict> {
        let crossings = std::mem::take(&mut self.swept.crossings);
        let verdicts = pieces::verdicts(
            &self.symbols,
            (&self.pieces, &self.heads),
            &self.swept.facts,
            &self.targets,
            &crossings,
            |addr| self.tabled.doubtful.contains(&addr),
        );
        pieces::join(&self.pieces, &verdicts, &mut self.swept.facts, &crossings);
        verdicts
    }

    /// The calls into libraries, sorted by name.
    fn libcalls(&self, host: &hosts::Host) -> Vec<LibcallSite> {
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

/// How many threads are meant by a number of them, where 0 means as many as there are processors.
pub(crate) fn processors(threads: usize) -> usize {
    match threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        threads => threads,
    }
}

/// Marks what can be reached from elsewhere than by a direct branch, and what may be a function or not.
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

pub(crate) struct Planner<'a> {
    pub image: &'a Image<'a>,
    pub symbols: &'a Symbols,
    pub pieces: &'a [Piece],
    heads: &'a [usize],
    verdicts: &'a [Verdict],
    pub targets: &'a Targets,
    /// Bytes that patches have taken.
    pub occupied: Bits,
    /// Bytes of the jumps of puns, also those that stay as they are.
    pub punned: Bits,
    pub swept: &'a Swept,
    pub sites: &'a Sites,
    host: &'a hosts::Host,
    pub statics: &'a Statics,
    /// The registers that are free, where jumps need them.
    live: Option<Live<'a>>,
}

/// A function with what its code tells.
pub(crate) struct Subject<'a> {
    pub text: &'a Text<'a>,
    pub piece: usize,
    pub start: u64,
    pub end: u64,
    pub mode: Mode,
    /// It makes a frame before its first branch.
    pub makes_frame: bool,
    /// It uses memory below the stack pointer.
    pub red_zone: bool,
    /// Registers that are free when it has returned.
    pub free_behind: u32,
    isa: &'static dyn InstructionSet,
    /// By address what is used from the start of each instruction on, as far as one may be moved.
    live: Vec<(u64, u32)>,
}

impl Subject<'_> {
    /// The registers that are dead at one of its instructions.
    pub fn dead(&self, addr: u64) -> u32 {
        let found = self.live.binary_search_by_key(&addr, |&(addr, _)| addr);
        found.map_or(0, |at| !self.live[at].1)
    }

    /// Those of them that our code may use.
    pub fn free(&self, addr: u64) -> u32 {
        // Where it does not return, it may not use the return address; those who look at the stack do.
        self.isa.usable(self.dead(addr)) & !self.isa.link()
    }

    /// The register that a long jump takes at one of its instructions.
    pub fn via(&self, addr: u64) -> Via {
        self.isa.via(self.free(addr))
    }
}

impl<'a> Planner<'a> {
    fn functions(&mut self) -> Vec<PlannedFunction> {
        let functions = self.symbols.functions.iter().zip(self.verdicts);
        let mut planned: Vec<PlannedFunction> = Vec::with_capacity(functions.len());
        let mut left = Vec::new();
        for (index, (function, &verdict)) in functions.enumerate() {
            if verdict == Verdict::Part {
                continue;
            }
            let outcome = self.subject(index, function).and_then(|subject| {
                let mut site = self.jump(&subject);
                match &mut site {
                    Ok(site) if self.sites.functions.contains(&function.addr) => {
                        site.far = self.far(&subject, site).map(Box::new);
                    }
                    Ok(_) => {}
                    Err(_) => left.push((planned.len(), subject)),
                }
                site
            });
            if let Ok(site) = &outcome {
                self.occupy(site);
            }
            planned.push(PlannedFunction {
                name: function.name.clone(),
                addr: function.addr,
                size: function.size,
                outcome,
            });
        }
        // What has no room for a jump looks for one nearby when all others have theirs.
        let mut pads = self.free_pads();
        let mut hosts = Behind::new(&planned, self.image.isa.needs_register());
        for (at, subject) in left {
            let second = self
                .hop(&subject, &mut pads)
                .or_else(|| self.hop_behind(&subject, &mut hosts, &mut planned))
                .or_else(|| self.pun(&subject))
                .or_else(|| self.near_hop(&subject))
                .or_else(|| self.hop_by_pads(&subject))
                .map_or_else(|| self.trap(&subject), Ok);
            if let Ok(site) = &second {
                self.occupy(site);
            }
            planned[at].outcome = second;
        }
        for function in &mut planned {
            if let Ok(site) = &mut function.outcome {
                self.far_literal(site, &mut pads);
            }
            if let Ok(site) = &mut function.outcome
                && self.sites.functions.contains(&function.addr)
                && site.tactic != Tactic::Trap
            {
                site.tactic = Tactic::Site;
            }
        }
        planned
    }

    pub(crate) fn occupy(&self, site: &SitePlan) {
        for addr in site.patch..site.patch + u64::from(site.patch_len) {
            self.occupied.set(addr);
        }
        if let Via::Kept(_) = site.spare.back {
            let end = site.displaced.end;
            (end - Via::TAKE..end).for_each(|addr| self.occupied.set(addr));
        }
        let jump = |site: &SitePlan| self.image.isa.jump(site.via).len;
        match site.extra {
            Extra::HopSlot(slot) | Extra::HopBehind { slot, .. } => {
                (slot..slot + jump(site)).for_each(|addr| self.occupied.set(addr));
            }
            Extra::Pun { .. } => {
                (site.patch..site.patch + jump(site)).for_each(|addr| self.punned.set(addr));
            }
            Extra::None | Extra::Near => {}
        }
    }

    /// Looks at a function.
    ///
    /// # Errors
    /// Why it cannot be traced.
    pub fn subject(&self, index: usize, function: &Function) -> Result<Subject<'a>, String> {
        let names = || std::iter::once(&function.name).chain(&function.aliases);
        let reason = |name: &String| modes::untouchable(name).or_else(|| self.host.copies(name));
        let reason = names().find_map(reason);
        if let Some(reason) = reason.or_else(|| self.host.lends(function.addr)) {
            return Err(reason.to_owned());
        }
        if function.signal {
            return Err(
                "it is a signal handler's return, which unwinders know by its bytes".to_owned(),
            );
        }
        if let Some(reason) = self.host.refuses() {
            return Err(reason.to_owned());
        }
        if self.verdicts[index] == Verdict::Unclear {
            return Err(
                "one jump leads to it, no call: it may be a part of a function and use what that has below the stack pointer"
                    .to_owned(),
            );
        }
        let piece = self.heads[index];
        let (Some(text), Some(facts)) = (
            self.image.text_at(function.addr),
            self.swept.facts.get(piece),
        ) else {
            return Err("it is not in executable code".to_owned());
        };
        let end = self.pieces[piece].end;
        let code = text.slice(function.addr, end);
        if code.is_empty() {
            return Err("it is empty".to_owned());
        }
        let entry = facts.entry;
        let entry = entry.unwrap_or_else(|| self.image.isa.entry_facts(code, function.addr));
        if entry.reads_flags {
            return Err("it reads the flags that it is entered with".to_owned());
        }
        if entry.reads_red_zone {
            return Err("it is entered with live values below the stack pointer".to_owned());
        }
        Ok(Subject {
            text,
            piece,
            start: function.addr,
            end,
            mode: self.mode(function, &entry, facts),
            makes_frame: entry.makes_frame,
            red_zone: facts.red_zone,
            free_behind: self.live.as_ref().map_or(0, |live| live.behind(piece)),
            isa: self.image.isa,
            live: self.live(piece),
        })
    }

    /// What is used from the first instructions of a piece on.
    fn live(&self, piece: usize) -> Vec<(u64, u32)> {
        let Some(live) = &self.live else {
            return Vec::new();
        };
        let mut found = Vec::new();
        let nodes = live.of_piece(piece, &mut found);
        let piece = &self.pieces[piece];
        let end = nodes.last().map_or(piece.start, |_| piece.end);
        let addresses = nodes.iter().map(|node| piece.start + node.at());
        let addresses = addresses.chain([end]);
        let near = addresses.take_while(|&addr| addr <= piece.start + BLOCK_LIMIT + HEAD);
        near.zip(found).collect()
    }

    /// Whether the exit of a function can be recorded.
    fn mode(&self, function: &Function, entry: &EntryFacts, facts: &PieceFacts) -> Mode {
        let named = std::iter::once(&function.name)
            .chain(&function.aliases)
            .map(|name| modes::by_name(self.image.isa, name))
            .find(|mode| *mode != Mode::Call);
        let cfa = self.symbols.frames.at(function.addr);
        let reason = if let Some(mode) = named {
            return mode;
        } else if function.addr == self.image.entry
            || facts.leads_on
            || cfa.is_some_and(|cfa| cfa != Cfa::Stack(self.image.isa.entry_frame()))
        {
            EntryOnlyReason::NotCalled
        } else if facts.pops {
            EntryOnlyReason::PopsArguments
        } else if facts.other_link {
            EntryOnlyReason::OtherLink
        } else if entry.moves_return || facts.writes_return {
            EntryOnlyReason::MovesReturnAddress
        } else if facts.reads_return || entry.reads_return && cfa.is_none() {
            EntryOnlyReason::ReadsReturnAddress
        } else if let Some(reason) = self.host.mode() {
            reason
        } else {
            return Mode::Call;
        };
        Mode::EntryOnly(reason)
    }
}

const _: () = assert!(HEAD >= 16, "windows must lie within the head of a piece");
