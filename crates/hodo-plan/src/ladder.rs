//! How the regions of probes are changed: the ladder of tactics, for all of them together. Those that have room for a jump
//! come first, for what their jumps leave over of them is where the others find places for theirs.

use std::ops::Range;

use hodo_arch::Via;
use hodo_arch::x86_64::steps::Steps;

use crate::bits::Bits;
use crate::model::{Extra, ProbePlan, ProbeSite, Spare, Tactic};
use crate::planner::Survey;
use crate::tactics::{HOP, JUMP};

/// Places for puns in one process.
const SPOTS: usize = 4096;

/// A region before its tactic is chosen.
pub(crate) struct Region {
    pub start: u64,
    pub end: u64,
    /// Where the call begins that ends it; else `end`. A call's bytes are left alone, if the patch does not need them.
    pub call: u64,
    /// Bytes from `start` on that a patch may overwrite; no more than `JUMP` are looked for.
    pub room: u64,
    /// A branch of its own leads to where the jump's bytes are.
    pub block: bool,
    /// Something branches into the middle of its only instruction: its bytes stay in use.
    pub used: bool,
    pub probes: Vec<u64>,
    pub flags_dead: Vec<bool>,
    pub joined: Vec<bool>,
}

/// The part of padding that nothing leads to.
pub(crate) fn unused(survey: &Survey<'_>, pad: &Range<u64>) -> Range<u64> {
    let end = survey.targets.any.first(pad.clone());
    pad.start..end.unwrap_or(pad.end)
}

/// Chooses the tactics of regions, which are in the order of their addresses.
pub(crate) fn choose(survey: &Survey<'_>, regions: Vec<Region>, plan: &mut ProbePlan) {
    let mut free = Free::default();
    for pad in &survey.swept.pads {
        let pad = unused(survey, pad);
        let at = regions.partition_point(|region| region.start < pad.start);
        let before = at.checked_sub(1).map(|at| &regions[at]);
        let taken = before.map_or(0, |region| region.start + region.room.min(JUMP));
        free.add(pad.start.max(taken)..pad.end);
    }
    let text = &survey.image.text;
    let occupied = Bits::new(text);
    survey.statics.fill(&occupied);
    let mut small = Vec::new();
    for region in regions {
        if region.room < JUMP {
            occupied.set(region.start);
            small.push(region);
            continue;
        }
        let patch_end = region.start + JUMP;
        (region.start..patch_end).for_each(|addr| occupied.set(addr));
        if !region.used {
            free.add(patch_end..region.call);
        }
        let tactic = match region.block {
            true => Tactic::Block,
            false => Tactic::Jump,
        };
        plan.sites.push(site(region, tactic, JUMP, Extra::None));
    }
    free.sort();
    let mut left = Vec::new();
    for region in small {
        let slot = match region.room >= HOP {
            true => free.take(region.start + HOP),
            false => None,
        };
        let Some(slot) = slot else {
            left.push(region);
            continue;
        };
        (region.start..region.start + HOP)
            .chain(slot..slot + JUMP)
            .for_each(|addr| occupied.set(addr));
        plan.sites
            .push(site(region, Tactic::Hop, HOP, Extra::HopSlot(slot)));
    }
    let mut spots = 0;
    for region in left {
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

/// How many bytes a long jump may overwrite, if it can share its others with what lies behind, which must stay as it is:
/// no other patch is there, nor will be, for the first bytes of all regions are taken.
fn pun(survey: &Survey<'_>, region: &Region, occupied: &Bits) -> Option<u64> {
    let end = region.start + JUMP;
    let text = survey.image.text_at(region.start)?;
    let stays = end <= text.end() && occupied.first(region.start + 1..end).is_none();
    stays.then_some(region.room.min(JUMP - 1))
}

/// A breakpoint for each probe of a region.
fn traps(survey: &Survey<'_>, region: Region, plan: &mut ProbePlan) {
    let text = survey.image.text_at(region.start);
    for (addr, flags_dead) in region.probes.into_iter().zip(region.flags_dead) {
        let code = text.map_or(&[][..], |text| text.slice(addr, region.end));
        let Some(step) = Steps::new(code, addr).next() else {
            continue;
        };
        plan.sites.push(ProbeSite {
            tactic: Tactic::Trap,
            patch: addr,
            patch_len: 1,
            displaced: addr..step.end(),
            extra: Extra::None,
            probes: vec![addr],
            flags_dead: vec![flags_dead],
            joined: vec![false],
            via: Via::Nothing,
            spare: Spare::default(),
            free: vec![0],
        });
    }
}

fn site(region: Region, tactic: Tactic, len: u64, extra: Extra) -> ProbeSite {
    ProbeSite {
        via: Via::Nothing,
        spare: Spare::default(),
        free: vec![0; region.probes.len()],
        tactic,
        patch: region.start,
        patch_len: len as u8,
        displaced: region.start..region.end,
        extra,
        probes: region.probes,
        flags_dead: region.flags_dead,
        joined: region.joined,
    }
}

/// Bytes that nobody executes any more, for long jumps.
#[derive(Default)]
struct Free {
    ranges: Vec<Range<u64>>,
}

impl Free {
    fn add(&mut self, range: Range<u64>) {
        if range.start + JUMP <= range.end {
            self.ranges.push(range);
        }
    }

    fn sort(&mut self) {
        self.ranges.sort_unstable_by_key(|range| range.start);
    }

    /// A place for a long jump that a short one reaches whose end is at `from`.
    fn take(&mut self, from: u64) -> Option<u64> {
        let reach = from.saturating_sub(128)..=from + 127;
        let first = self
            .ranges
            .partition_point(|range| range.end < reach.start() + JUMP);
        for range in &mut self.ranges[first..] {
            if range.start > *reach.end() {
                break;
            }
            let slot = range.start.max(*reach.start());
            if reach.contains(&slot) && slot + JUMP <= range.end {
                // Regions come in the order of their addresses: what lies before this place is in nobody's reach soon.
                range.start = slot + JUMP;
                return Some(slot);
            }
        }
        None
    }
}
