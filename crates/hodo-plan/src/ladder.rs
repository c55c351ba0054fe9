//! The ladder of tactics for the regions of probes, for all regions together. Regions with room for a jump come first:
//! others can put their jumps into the bytes that these leave over.

use std::ops::{Range, RangeInclusive};

use hodo_isa::code::InstructionSet;
use hodo_isa::{JumpForm, Via};

use crate::bits::Bits;
use crate::model::{Extra, Pad, ProbePlan, ProbeSite, ProbedInsn, Spare, Tactic};
use crate::survey::Survey;

/// Bytes of the shortest long jump.
const SHORTEST: u64 = 4;
/// The number of places for puns in one process.
const SPOTS: usize = 4096;

/// A region before its tactic is chosen.
pub(crate) struct Region {
    /// The register that the long jump uses.
    pub via: Via,
    /// Registers for the moved instructions.
    pub spare: Spare,
    /// The exits that have no free register, and their targets, as [`Pad::from`] and [`Pad::to`].
    pub pads: Vec<(u64, u64)>,
    pub start: u64,
    /// The length of its first instruction if calls or jumps must find it: a jump comes after it.
    pub landing: u64,
    pub end: u64,
    /// The start of the call that ends it; otherwise `end`. The call's bytes stay as they are if the patch does not
    /// need them.
    pub call: u64,
    /// Bytes from `start` on that a patch may overwrite, up to the length of the long jump.
    pub room: u64,
    /// Whether one of its own branches leads into the bytes of the jump.
    pub block: bool,
    /// Whether something branches into the middle of its only instruction: its bytes stay in use.
    pub used: bool,
    pub probes: Vec<ProbedInsn>,
}

/// The part of padding that nothing leads to.
pub(crate) fn unused(survey: &Survey<'_>, pad: &Range<u64>) -> Range<u64> {
    let end = survey.targets.any.first(pad.clone());
    pad.start..end.unwrap_or(pad.end)
}

/// Chooses the tactics of regions, which are in the order of their addresses.
pub(crate) fn choose(survey: &Survey<'_>, regions: Vec<Region>, plan: &mut ProbePlan) {
    let mut ladder = Ladder::new(survey, &regions, plan);
    let regions = regions.into_iter();
    let small: Vec<Region> = regions.filter_map(|region| ladder.jump(region)).collect();
    let small = small.into_iter();
    let left: Vec<Region> = small.filter_map(|region| ladder.hop(region)).collect();
    for region in left {
        match ladder.isa.has_puns() {
            true => ladder.pun(region),
            false => ladder.near(region),
        }
    }
}

/// Gives each region breakpoints, although there may be room for a jump.
pub(crate) fn breakpoints(survey: &Survey<'_>, regions: Vec<Region>, plan: &mut ProbePlan) {
    let mut ladder = Ladder::new(survey, &regions, plan);
    for mut region in regions {
        if ladder.isa.has_puns() {
            traps(survey, region, ladder.plan);
            continue;
        }
        // Control may leave its copy through pads, which are jumps in unused bytes.
        find_pads(ladder.isa, &mut region, &mut ladder.free);
        ladder.trap(region);
    }
}

/// The bytes that are free for jumps: padding, and what long jumps leave over of their regions.
fn free(survey: &Survey<'_>, regions: &[Region]) -> Free {
    let mut free = Free::default();
    for pad in &survey.swept.pads {
        let pad = unused(survey, pad);
        let at = regions.partition_point(|region| region.start < pad.start);
        let before = at.checked_sub(1).map(|at| &regions[at]);
        let taken = before.map_or(0, |region| {
            let jump = survey.image.isa.jump(region.via).len;
            region.start + region.room.min(region.landing + jump)
        });
        free.add(pad.start.max(taken)..pad.end);
    }
    let leaves_pads = |region: &&Region| region.pads.is_empty();
    let left_over = regions
        .iter()
        .filter(leaves_pads)
        .filter_map(|region| left_over(survey.image.isa, region));
    left_over.for_each(|range| free.add(range));
    free.sort();
    free
}

/// The descent of regions down the ladder: each rung takes those that it can handle, and leaves the others to the next.
struct Ladder<'l> {
    survey: &'l Survey<'l>,
    isa: &'static dyn InstructionSet,
    free: Free,
    /// Bytes that patches have taken.
    occupied: Bits,
    /// Places for puns that are taken.
    spots: usize,
    plan: &'l mut ProbePlan,
}

impl<'l> Ladder<'l> {
    fn new(survey: &'l Survey<'l>, regions: &[Region], plan: &'l mut ProbePlan) -> Self {
        let occupied = Bits::of(survey.ranges.iter().cloned());
        survey.statics.fill(&occupied);
        Self {
            survey,
            isa: survey.image.isa,
            free: free(survey, regions),
            occupied,
            spots: 0,
            plan,
        }
    }

    fn occupy(&self, bytes: Range<u64>) {
        bytes.for_each(|addr| self.occupied.set(addr));
    }

    /// A long jump at the start, or after what must be found there, if there is room.
    fn jump(&mut self, mut region: Region) -> Option<Region> {
        find_pads(self.isa, &mut region, &mut self.free);
        for at in region.spare.pads.iter().filter_map(|pad| pad.at) {
            self.occupy(at..at + Via::PAD);
        }
        let jump = self.isa.jump(region.via).len;
        // The code after a landing instruction may be executed again without it.
        let again = region.landing != 0 && region.block;
        if region.room < region.landing + jump || again {
            self.occupied.set(region.start);
            return Some(region);
        }
        self.occupy(region.start..region.start + region.landing + jump);
        let tactic = match region.block {
            true => Tactic::Block,
            false => Tactic::Jump,
        };
        let patch = region.start + region.landing;
        let site = ProbeSite {
            patch,
            ..site(region, tactic, jump, Extra::None)
        };
        self.plan.sites.push(site);
        None
    }

    /// A short jump to a long one in free bytes.
    fn hop(&mut self, region: Region) -> Option<Region> {
        let jump = self.isa.jump(region.via).len;
        let near = self.isa.near().iter();
        let mut near = near.filter(|near| near.len <= region.room);
        let slot = near.find_map(|near| {
            let reach = near.reach(region.start);
            Some((near.len, self.free.take(reach, jump, |_| true)?))
        });
        let Some((len, slot)) = slot else {
            return Some(region);
        };
        self.occupy(region.start..region.start + len);
        self.occupy(slot..slot + jump);
        let site = site(region, Tactic::Hop, len, Extra::HopSlot(slot));
        self.plan.sites.push(site);
        None
    }

    /// A short jump to code that is put within its reach, or a breakpoint.
    fn near(&mut self, region: Region) {
        let mut near = self.isa.near().iter();
        let Some(near) = near.next().filter(|near| near.len <= region.room) else {
            return self.trap(region);
        };
        let site = site(region, Tactic::Hop, near.len, Extra::Near);
        self.plan.sites.push(site);
    }

    /// A breakpoint: instructions that are moved together need only one.
    fn trap(&mut self, region: Region) {
        let mut trap = site(region, Tactic::Trap, self.isa.trap_len(), Extra::None);
        trap.via = Via::Nothing;
        self.plan.sites.push(trap);
    }

    /// A pun, or breakpoints.
    fn pun(&mut self, region: Region) {
        let len = (self.spots < SPOTS)
            .then(|| pun(self.survey, &region, &self.occupied))
            .flatten();
        let Some(len) = len else {
            traps(self.survey, region, self.plan);
            return;
        };
        self.spots += 1;
        self.occupy(region.start..region.start + len);
        let free = (len - 1) as u8;
        let site = site(region, Tactic::Pun, len, Extra::Pun { free });
        self.plan.sites.push(site);
    }
}

/// Returns the bytes that the long jump of a region leaves over, if the region has room for one.
fn left_over(isa: &'static dyn InstructionSet, region: &Region) -> Option<Range<u64>> {
    let jump = isa.jump(region.via).len;
    let taken = match region.spare.back {
        Via::Kept(_) => Via::TAKE,
        _ => 0,
    };
    let first = region.start + region.landing + jump;
    let has_room = region.room >= first - region.start && !region.used;
    has_room.then(|| first..region.call.saturating_sub(taken))
}

/// Finds places for the pads through which control leaves a region: in its own bytes, or elsewhere.
fn find_pads(isa: &'static dyn InstructionSet, region: &mut Region, free: &mut Free) {
    let mut own = left_over(isa, region).unwrap_or(0..0);
    for &(from, to) in &region.pads {
        let find = |short: &JumpForm| {
            // The jump follows the instructions that restore the register.
            let sources = short.sources(to);
            let before = |at: &u64| at.saturating_sub(Via::TAKE);
            let reach = before(sources.start())..=before(sources.end());
            if reach.contains(&own.start) && own.start + Via::PAD <= own.end {
                own.start += Via::PAD;
                return Some(own.start - Via::PAD);
            }
            free.take(reach, Via::PAD, |_| true)
        };
        let at = isa.near().first().and_then(find);
        region.spare.pads.push(Pad { from, at, to });
    }
}

/// Returns how many bytes a long jump may overwrite if it shares the rest with what follows and must not change. No
/// other patch is or will be there, because the first bytes of all regions are reserved.
fn pun(survey: &Survey<'_>, region: &Region, occupied: &Bits) -> Option<u64> {
    let jump = survey.image.isa.jump(region.via).len;
    let end = region.start + jump;
    let text = survey.image.text_at(region.start)?;
    let stays = end <= text.end() && occupied.first(region.start + 1..end).is_none();
    stays.then_some(region.room.min(jump - 1))
}

/// A breakpoint for each probe of a region.
fn traps(survey: &Survey<'_>, region: Region, plan: &mut ProbePlan) {
    let isa = survey.image.isa;
    let text = survey.image.text_at(region.start);
    for probe in region.probes {
        let addr = probe.addr;
        let code = text.map_or(&[][..], |text| text.slice(addr, region.end));
        let Some(step) = isa.sweep(code, addr).next() else {
            continue;
        };
        plan.sites.push(ProbeSite {
            tactic: Tactic::Trap,
            patch: addr,
            patch_len: isa.trap_len() as u8,
            displaced: addr..step.end(),
            extra: Extra::None,
            probes: vec![ProbedInsn {
                joined: false,
                ..probe
            }],
            via: Via::Nothing,
            spare: Spare::default(),
        });
    }
}

fn site(region: Region, tactic: Tactic, len: u64, extra: Extra) -> ProbeSite {
    ProbeSite {
        via: region.via,
        spare: region.spare,
        tactic,
        patch: region.start,
        patch_len: len as u8,
        displaced: region.start..region.end,
        extra,
        probes: region.probes,
    }
}

/// Bytes that are no longer executed, for long jumps.
#[derive(Default)]
pub(crate) struct Free {
    ranges: Vec<Range<u64>>,
    /// For each range, the next one that may have room: itself or a later one.
    next: Vec<usize>,
}

impl Free {
    /// Adds a range.
    pub fn add(&mut self, range: Range<u64>) {
        if range.start + SHORTEST <= range.end {
            self.ranges.push(range);
        }
    }

    /// Sorts the ranges, once all are added.
    pub fn sort(&mut self) {
        self.ranges.sort_unstable_by_key(|range| range.start);
        self.next = (0..=self.ranges.len()).collect();
    }

    /// Returns the first range from `at` on that may have room.
    fn next(&mut self, at: usize) -> usize {
        let mut found = at;
        while self.next[found] != found {
            found = self.next[found];
        }
        let mut at = at;
        while at != found {
            at = std::mem::replace(&mut self.next[at], found);
        }
        found
    }

    /// Returns a place of `len` bytes that begins in `reach` and that `fits` accepts.
    pub fn take(
        &mut self,
        reach: RangeInclusive<u64>,
        len: u64,
        fits: impl Fn(Range<u64>) -> bool,
    ) -> Option<u64> {
        let first = self
            .ranges
            .partition_point(|range| range.end < reach.start() + len);
        let mut at = self.next(first);
        while let Some(range) = self.ranges.get_mut(at) {
            if range.start > *reach.end() {
                break;
            }
            let slot = range.start.max(*reach.start());
            if reach.contains(&slot) && slot + len <= range.end && fits(slot..slot + len) {
                // Sites come in ascending order: soon, places before this one are out of reach.
                range.start = slot + len;
                if range.start + SHORTEST > range.end {
                    self.next[at] = at + 1;
                }
                return Some(slot);
            }
            at = self.next(at + 1);
        }
        None
    }
}
