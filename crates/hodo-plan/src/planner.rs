//! The planner: which bytes of each function are changed, and how.

use std::path::Path;

use hodo_arch::x86_64::entry::entry_facts;
use hodo_arch::x86_64::relocate::relocated_len;
use hodo_arch::x86_64::scan::{Flow, LANDING, Sweep};
use hodo_symbols::{Function, Symbols};

use crate::bits::Bits;
use crate::image::{Image, Text};
use crate::model::{
    EntryOnlyReason, Extra, Mode, Plan, PlanError, PlanOptions, PlannedFunction, SitePlan, Tactic,
};
use crate::sites::{self, Sites};
use crate::sweep::{HEAD, Near, Piece, Swept, Targets, Wanted, sweep};
use crate::{hosts, libcalls, modes, tables};

/// Bytes of the long jump.
const JUMP: u64 = 5;
/// Bytes of the short jump.
const HOP: u64 = 2;
/// No more than this of a function is moved as a whole.
const BLOCK_LIMIT: u64 = 512;

/// Plans the image in `bytes`, which is the content of the file `path`.
///
/// # Errors
/// If the file is no readable x86-64 ELF image.
pub fn plan(path: &Path, bytes: &[u8], options: &PlanOptions) -> Result<Plan, PlanError> {
    let image = Image::parse(bytes)?;
    let symbols = hodo_symbols::symbols(bytes)?;
    let threads = match options.threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        threads => threads,
    };
    let slots = libcalls::slots(&image);
    let (pieces, heads) = pieces(&image, &symbols);
    let targets = Targets::new(&image);
    mark_known(&image, &symbols, &targets);
    let profilers = sites::profilers(&image, &symbols, &slots);
    let wanted = Wanted {
        addresses: &profilers.addresses,
        slots: &slots,
    };
    let mut swept = sweep(&image, &pieces, &targets, &wanted, threads);
    let tables = std::mem::take(&mut swept.tables);
    tables::mark(&image, &pieces, tables, &targets);
    let sites = Sites::find(&image, &profilers, &pieces, &swept);
    let mut plan = Plan {
        build_id: image.build_id(),
        nops: sites.nops.clone(),
        ..Plan::default()
    };
    let host = hosts::detect(&image, &symbols, path);
    plan.remarks.extend(host.remark());
    let mut planner = Planner {
        image: &image,
        symbols: &symbols,
        pieces: &pieces,
        heads: &heads,
        targets: &targets,
        occupied: Bits::new(&image.text),
        swept: &swept,
        sites: &sites,
        host,
    };
    if options.functions {
        plan.functions = planner.functions();
    }
    if options.libcalls {
        plan.libcalls = libcalls::plt(&image, &slots);
        plan.libcalls
            .extend(libcalls::direct(&swept, &slots, &targets, &profilers.slots));
        plan.libcalls
            .sort_by(|a, b| (&a.name, a.patch).cmp(&(&b.name, b.patch)));
    }
    Ok(plan)
}

/// The code cut up at all places where something is known to begin, and by function the index of its piece.
fn pieces(image: &Image<'_>, symbols: &Symbols) -> (Vec<Piece>, Vec<usize>) {
    let functions = symbols.functions.iter().enumerate();
    let mut starts: Vec<(u64, u64, Option<usize>)> = functions
        .map(|(index, f)| (f.addr, f.size, Some(index)))
        .chain(symbols.fragments.iter().map(|f| (f.addr, f.size, None)))
        .chain(image.text.iter().map(|text| (text.addr, 0, None)))
        .collect();
    starts
        .sort_by_key(|&(addr, size, function)| (addr, function.is_none(), std::cmp::Reverse(size)));
    starts.dedup_by_key(|(addr, ..)| *addr);
    let mut pieces = Vec::with_capacity(starts.len());
    let mut heads = vec![usize::MAX; symbols.functions.len()];
    for (at, &(start, size, function)) in starts.iter().enumerate() {
        let Some(text) = image.text_at(start) else {
            continue;
        };
        let next = starts.get(at + 1).map_or(u64::MAX, |next| next.0);
        let limit = text.end().min(next);
        let end = match size {
            0 => limit,
            size => start.saturating_add(size).min(limit),
        };
        if let Some(function) = function {
            heads[function] = pieces.len();
        }
        let padding = |text: &Text<'_>| {
            let gap = text.slice(end, limit);
            gap.iter().all(|&b| b == 0) || Sweep::new(gap, end).all(|insn| insn.padding)
        };
        // Code that no symbol covers may branch anywhere.
        let covered = end == limit || padding(text);
        pieces.push(Piece {
            start,
            end,
            limit: if covered { limit } else { end },
            function,
        });
        if !covered {
            pieces.push(Piece {
                start: end,
                end: limit,
                limit,
                function: None,
            });
        }
    }
    (pieces, heads)
}

/// Marks what can be reached from elsewhere than by a direct branch.
fn mark_known(image: &Image<'_>, symbols: &Symbols, targets: &Targets) {
    for &addr in symbols.labels.iter().chain(&symbols.landing_pads) {
        targets.mark(addr);
    }
    for fragment in &symbols.fragments {
        targets.mark(fragment.addr);
    }
    image.addresses(|addr| targets.mark(addr));
}

struct Planner<'a> {
    image: &'a Image<'a>,
    symbols: &'a Symbols,
    pieces: &'a [Piece],
    heads: &'a [usize],
    targets: &'a Targets,
    /// Bytes that patches have taken.
    occupied: Bits,
    swept: &'a Swept,
    sites: &'a Sites,
    host: hosts::Host,
}

/// A function with what its code tells.
struct Subject<'a> {
    text: &'a Text<'a>,
    piece: usize,
    start: u64,
    end: u64,
    mode: Mode,
}

impl<'a> Planner<'a> {
    fn functions(&mut self) -> Vec<PlannedFunction> {
        let functions = &self.symbols.functions;
        let mut planned: Vec<PlannedFunction> = Vec::with_capacity(functions.len());
        let mut left = Vec::new();
        for (index, function) in functions.iter().enumerate() {
            if function.anonymous && self.targets.conditional.get(function.addr) {
                // Functions are not entered by conditional branches: it is a piece of one.
                continue;
            }
            let outcome = self.subject(index, function).and_then(|subject| {
                let site = self.best_jump(&subject);
                if site.is_err() {
                    left.push((planned.len(), subject));
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
        for (at, subject) in left {
            let second = self
                .hop(&subject, &mut pads)
                .or_else(|| self.pun(&subject))
                .or_else(|| self.trap(&subject).ok());
            if let Some(site) = second {
                self.occupy(&site);
                planned[at].outcome = Ok(site);
            }
        }
        for function in &mut planned {
            if let Ok(site) = &mut function.outcome
                && self.sites.functions.contains(&function.addr)
                && site.tactic != Tactic::Trap
            {
                site.tactic = Tactic::Site;
            }
        }
        planned
    }

    fn occupy(&self, site: &SitePlan) {
        for addr in site.patch..site.patch + u64::from(site.patch_len) {
            self.occupied.set(addr);
        }
        if let Extra::HopSlot(slot) = site.extra {
            for addr in slot..slot + JUMP {
                self.occupied.set(addr);
            }
        }
    }

    /// Looks at a function.
    ///
    /// # Errors
    /// Why it cannot be traced.
    fn subject(&self, index: usize, function: &Function) -> Result<Subject<'a>, String> {
        let names = || std::iter::once(&function.name).chain(&function.aliases);
        if let Some(reason) = names().find_map(|name| modes::untouchable(name)) {
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
        let entry = entry_facts(code, function.addr);
        let named = names()
            .map(|name| modes::by_name(name))
            .find(|mode| *mode != Mode::Call);
        let only = |reason| Mode::EntryOnly(reason);
        let mode = if let Some(mode) = named {
            mode
        } else if function.addr == self.image.entry || function.odd_entry {
            only(EntryOnlyReason::NotCalled)
        } else if facts.pops {
            only(EntryOnlyReason::PopsArguments)
        } else if entry.moves_return || entry.frame_pointer && facts.frame_return_written {
            only(EntryOnlyReason::MovesReturnAddress)
        } else if entry.reads_return || entry.frame_pointer && facts.frame_return_read {
            only(EntryOnlyReason::ReadsReturnAddress)
        } else if let Some(reason) = self.host.mode() {
            only(reason)
        } else {
            Mode::Call
        };
        Ok(Subject {
            text,
            piece,
            start: function.addr,
            end,
            mode,
        })
    }

    /// Branches from within the same piece to places near its start.
    fn near(&self, piece: usize) -> &'a [Near] {
        let from = self.swept.near.partition_point(|near| near.piece < piece);
        let to = self.swept.near.partition_point(|near| near.piece <= piece);
        &self.swept.near[from..to]
    }

    fn best_jump(&self, subject: &Subject<'_>) -> Result<SitePlan, String> {
        let landing = subject
            .text
            .slice(subject.start, subject.end)
            .starts_with(&LANDING);
        let behind = landing.then_some(subject.start + LANDING.len() as u64);
        let mut reason = String::new();
        for patch in behind.into_iter().chain([subject.start]) {
            match self.jump(subject, patch, JUMP) {
                Ok(site) => return Ok(site),
                Err(error) if reason.is_empty() => reason = error,
                Err(_) => {}
            }
        }
        Err(reason)
    }

    /// A jump of `len` bytes at `patch`.
    fn jump(&self, subject: &Subject<'_>, patch: u64, len: u64) -> Result<SitePlan, String> {
        let limit = self.pieces[subject.piece].limit;
        let patch_end = patch + len;
        if patch_end > limit {
            return Err("it is too short for a jump, and other code follows".to_owned());
        }
        let mut end = self.window(subject, patch, patch_end)?;
        if self.foreign(patch + 1..end.max(patch_end)) {
            return Err("a branch from elsewhere leads into its first instructions".to_owned());
        }
        // A branch back into the window must be moved along with it.
        let mut block = false;
        loop {
            let outside = |near: &&Near| {
                near.target >= patch
                    && near.target < end
                    && !(near.source.0 >= patch && near.source.1 <= end)
            };
            let Some(near) = self.near(subject.piece).iter().find(outside) else {
                break;
            };
            let into = near.target > patch;
            match self.extend(subject, patch, near.source.1) {
                Ok(further) if further > end => {
                    end = further;
                    block = true;
                }
                // A loop to the very start runs the stub again, which takes it for a tail call of itself: it is one.
                _ if !into => break,
                _ => return Err("a loop leads back into its first instructions".to_owned()),
            }
        }
        self.movable(subject, patch..end)?;
        Ok(SitePlan {
            tactic: if block { Tactic::Block } else { Tactic::Jump },
            mode: subject.mode,
            patch,
            patch_len: len as u8,
            displaced: patch..end,
            extra: Extra::None,
        })
    }

    /// Is a byte of the range reached from elsewhere, or taken by another patch?
    fn foreign(&self, range: std::ops::Range<u64>) -> bool {
        self.targets.foreign.any(range.clone()) || self.occupied.any(range)
    }

    /// Where the instructions end that a patch up to `patch_end` displaces.
    fn window(&self, subject: &Subject<'_>, patch: u64, patch_end: u64) -> Result<u64, String> {
        let mut end = patch;
        for insn in Sweep::new(subject.text.slice(patch, subject.end), patch) {
            if insn.flow == Flow::Invalid {
                return Err("it has bytes that are no instruction".to_owned());
            }
            end = insn.end();
            if end >= patch_end {
                return Ok(end);
            }
            if insn.flow.is_end() {
                break;
            }
            if matches!(insn.flow, Flow::Call(_) | Flow::IndirectCall)
                && !self.sites.is_dropped(insn.addr)
            {
                return Err("a call in its first instructions".to_owned());
            }
        }
        if end == patch {
            return Err("it is empty".to_owned());
        }
        // Its code ends here; what follows must be of no use to anybody.
        let dead = |addr: u64| {
            let at = self.swept.pads.partition_point(|pad| pad.start <= addr);
            at > 0 && addr < self.swept.pads[at - 1].end
        };
        if (end..patch_end).all(dead) {
            Ok(end)
        } else {
            Err("it is too short for a jump, and other code follows".to_owned())
        }
    }

    /// The end of the instructions from `patch` up to `until` at least, if they can all be moved.
    fn extend(&self, subject: &Subject<'_>, patch: u64, until: u64) -> Result<u64, String> {
        if until == u64::MAX || until > subject.end || until - patch > BLOCK_LIMIT {
            return Err("too far".to_owned());
        }
        if self.foreign(patch + 1..until) {
            return Err("a branch from elsewhere".to_owned());
        }
        self.movable(subject, patch..until)?;
        Ok(until)
    }

    /// Can the instructions run elsewhere? Those that become nops need not.
    fn movable(&self, subject: &Subject<'_>, range: std::ops::Range<u64>) -> Result<(), String> {
        let code = subject.text.slice(range.start, range.end);
        let mut code = std::borrow::Cow::Borrowed(code);
        for (addr, nop) in self.sites.nops_in(range.clone()) {
            let at = (addr - range.start) as usize;
            let len = nop.len().min(code.len() - at);
            code.to_mut()[at..at + len].copy_from_slice(&nop[..len]);
        }
        relocated_len(&code, range.start)
            .map(drop)
            .map_err(|error| error.to_string())
    }

    /// Padding that no patch has taken: address ranges, ascending.
    fn free_pads(&self) -> Vec<std::ops::Range<u64>> {
        let mut free = Vec::new();
        for pad in &self.swept.pads {
            let mut start = pad.start;
            for addr in pad.clone() {
                if self.occupied.get(addr) || self.targets.any.get(addr) {
                    if addr - start >= JUMP {
                        free.push(start..addr);
                    }
                    start = addr + 1;
                }
            }
            if pad.end - start >= JUMP {
                free.push(start..pad.end);
            }
        }
        free
    }

    /// A short jump to padding nearby, which has room for the long one.
    fn hop(&self, subject: &Subject<'_>, pads: &mut [std::ops::Range<u64>]) -> Option<SitePlan> {
        let landing = subject
            .text
            .slice(subject.start, subject.end)
            .starts_with(&LANDING);
        let behind = landing.then_some(subject.start + LANDING.len() as u64);
        for patch in behind.into_iter().chain([subject.start]) {
            let Ok(mut site) = self.jump(subject, patch, HOP) else {
                continue;
            };
            let from = patch + HOP;
            let reach = from.saturating_sub(128)..from + 127;
            let first = pads.partition_point(|pad| pad.end < reach.start + JUMP);
            for pad in &mut pads[first..] {
                if pad.start > reach.end {
                    break;
                }
                let slot = pad.start.max(reach.start);
                let free = slot + JUMP <= pad.end && slot <= reach.end;
                if !free
                    || self.occupied.any(slot..slot + JUMP)
                    || slot < site.displaced.end && slot + JUMP > patch
                {
                    continue;
                }
                pad.start = slot + JUMP;
                site.tactic = Tactic::Hop;
                site.extra = Extra::HopSlot(slot);
                return Some(site);
            }
        }
        None
    }

    /// A long jump whose last bytes are those of the instructions behind the first.
    fn pun(&self, subject: &Subject<'_>) -> Option<SitePlan> {
        let landing = subject
            .text
            .slice(subject.start, subject.end)
            .starts_with(&LANDING);
        let patch = subject.start + if landing { LANDING.len() as u64 } else { 0 };
        let mut site = self
            .jump(subject, patch, HOP)
            .or_else(|_| self.jump(subject, patch, 1))
            .ok()?;
        // The bytes of whole displaced instructions may be written, those behind them must stay.
        let own = site.displaced.end.min(patch + JUMP) - patch;
        if own >= JUMP || patch + JUMP > subject.text.end() || own < 2 {
            return None;
        }
        site.tactic = Tactic::Pun;
        site.patch_len = own as u8;
        site.extra = Extra::Pun {
            free: (own - 1) as u8,
        };
        Some(site)
    }

    /// A breakpoint.
    fn trap(&self, subject: &Subject<'_>) -> Result<SitePlan, String> {
        let landing = subject
            .text
            .slice(subject.start, subject.end)
            .starts_with(&LANDING);
        let patch = subject.start + if landing { LANDING.len() as u64 } else { 0 };
        let mut site = self.jump(subject, patch, 1)?;
        site.tactic = Tactic::Trap;
        Ok(site)
    }
}

const _: () = assert!(HEAD >= 16, "windows must lie within the head of a piece");
