//! How the regions of probes are changed: the ladder of tactics, for all of them together. Those that have room for a jump
//! come first, for what their jumps leave over of them is where the others find places for theirs.

use std::ops::{Range, RangeInclusive};

use hodo_arch::Via;
use hodo_arch::code::{Isa, Near};

use crate::bits::Bits;
use crate::model::{Extra, Pad, ProbePlan, ProbeSite, ProbedInsn, Spare, Tactic};
use crate::planner::Survey;

/// Bytes of the shortest long jump that there is.
const SHORTEST: u64 = 5;
/// Places for puns in one process.
const SPOTS: usize = 4096;

/// A region before its tactic is chosen.
pub(crate) struct Region {
    /// The register that the long jump takes.
    pub via: Via,
    /// Registers for what is moved.
    pub spare: Spare,
    /// What leaves it without a register, and where to, as [`Pad::from`] and [`Pad::to`].
    pub pads: Vec<(u64, u64)>,
    pub start: u64,
    pub end: u64,
    /// Where the call begins that ends it; else `end`. A call's bytes are left alone, if the patch does not need them.
    pub call: u64,
    /// Bytes from `start` on that a patch may overwrite; no more than the long jump has are looked for.
    pub room: u64,
    /// A branch of its own leads to where the jump's bytes are.
    pub block: bool,
    /// Something branches into the middle of its only instruction: its bytes stay in use.
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
    let isa = survey.image.isa;
    let mut free = Free::default();
    for pad in &survey.swept.pads {
        let pad = unused(survey, pad);
        let at = regions.partition_point(|region| region.start < pad.start);
        let before = at.checked_sub(1).map(|at| &regions[at]);
        let taken = before.map_or(0, |region| {
            region.start + region.room.min(region.via.jump_len())
        });
        free.add(pad.start.max(taken)..pad.end);
    }
    let leaves_pads = |region: &&Region| region.pads.is_empty();
    let left_over = regions.iter().filter(leaves_pads).filter_map(left_over);
    left_over.for_each(|range| free.add(range));
    free.sort();
    let text = &survey.image.text;
    let occupied = Bits::new(text);
    survey.statics.fill(&occupied);
    let mut small = Vec::new();
    for mut region in regions {
        find_pads(isa, &mut region, &mut free);
        for at in region.spare.pads.iter().filter_map(|pad| pad.at) {
            (at..at + Via::PAD).for_each(|addr| occupied.set(addr));
        }
        let jump = region.via.jump_len();
        if region.room < jump {
            occupied.set(region.start);
            small.push(region);
            continue;
        }
        let patch_end = region.start + jump;
        (region.start..patch_end).for_each(|addr| occupied.set(addr));
        let tactic = match region.block {
            true => Tactic::Block,
            false => Tactic::Jump,
        };
        plan.sites.push(site(region, tactic, jump, Extra::None));
    }
    let mut left = Vec::new();
    for region in small {
        let jump = region.via.jump_len();
        let near = isa.near().iter().filter(|near| near.len <= region.room);
        let slot = near.into_iter().find_map(|near| {
            Some((
                near.len,
                free.take(near.reach(region.start), jump, |_| true)?,
            ))
        });
        let Some((len, slot)) = slot else {
            left.push(region);
            continue;
        };
        (region.start..region.start + len)
            .chain(slot..slot + jump)
            .for_each(|addr| occupied.set(addr));
        plan.sites
            .push(site(region, Tactic::Hop, len, Extra::HopSlot(slot)));
    }
    let mut spots = 0;
    for region in left {
        if !isa.has_puns() {
            match isa.near().first().filter(|near| near.len <= region.room) {
                Some(near) => plan
                    .sites
                    .push(site(region, Tactic::Hop, near.len, Extra::Near)),
                // What is moved together needs but one breakpoint.
                None => {
                    let mut trap = site(region, Tactic::Trap, isa.trap_len(), Extra::None);
                    trap.via = Via::Nothing;
                    plan.sites.push(trap);
                }
            }
            continue;
        }
        let len = (spots < SPOTS)
            .then(|| pun(survey, &region, &occupied))
            .flatten();
        let Some(len) = len else {
            traps(survey, region, plan);
            continue;
        };
        spots += 1;
        (region.start..region.start + len).for_each(|addr| occupied.set(addr));
        let free = (len - 1) as u8;
        plan.sites
            .push(site(region, Tactic::Pun, len, Extra::Pun { free }));
    }
}

/// What the long jump of a region leaves over of its bytes, if it has room for one.
fn left_over(region: &Region) -> Option<Range<u64>> {
    let jump = region.via.jump_len();
    let taken = match region.spare.back {
        Via::Kept(_) => Via::TAKE,
        _ => 0,
    };
    let has_room = region.room >= jump && !region.used;
    has_room.then(|| region.start + jump..region.call.saturating_sub(taken))
}

/// Finds the places by which control leaves a region without a register: in its own bytes, or elsewhere.
fn find_pads(isa: Isa, region: &mut Region, free: &mut Free) {
    let mut own = left_over(region).unwrap_or(0..0);
    for &(from, to) in &region.pads {
        let find = |short: &Near| {
            // The jump stands behind what takes the register back.
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

/// How many bytes a long jump may overwrite, if it can share its others with what lies behind, which must stay as it is:
/// no other patch is there, nor will be, for the first bytes of all regions are taken.
fn pun(survey: &Survey<'_>, region: &Region, occupied: &Bits) -> Option<u64> {
    let jump = region.via.jump_len();
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

/// Bytes that nobody executes any more, for long jumps.
#[derive(Default)]
pub(crate) struct Free {
    ranges: Vec<Range<u64>>,
    /// By range the next one that may have room: itself, or one behind it.
    next: Vec<usize>,
}

impl Free {
    /// Adds a range.
    pub fn add(&mut self, range: Range<u64>) {
        if range.start + SHORTEST <= range.end {
            self.ranges.push(range);
        }
    }

    /// Puts the ranges in order, when all are added.
    pub fn sort(&mut self) {
        self.ranges.sort_unstable_by_key(|range| range.start);
        self.next = (0..=self.ranges.len()).collect();
    }

    /// The first range from `at` on that may have room.
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

    /// A place of `len` bytes whose first is in `reach`, and that `fits`.
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
                // Sites come in the order of their addresses: what lies before this place is in nobody's reach soon.
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
