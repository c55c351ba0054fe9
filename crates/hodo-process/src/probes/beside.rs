//! Probes beside traced functions: both change code, and must not do so in the same place.
//!
//! Where a region that is moved for probes and the site of a function overlap, the function's beginning is planned as the
//! places of probes are. The region that begins there has the function's stub before its detour.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use anyhow::Result;
use hodo_plan::model::{Extra, Plan, ProbePlan, ProbeSite, Wanted};

use crate::modules::Chosen;

/// How often plans are made until no region overlaps a site.
const ROUNDS: usize = 8;

/// Bytes of the jump that a pun is part of.
const JUMP: u64 = 5;

/// What is changed, or moved away, or must stay as it is.
fn taken(patch: u64, patch_len: u8, displaced: &Range<u64>, extra: &Extra) -> Vec<Range<u64>> {
    let written = match extra {
        Extra::Pun { .. } => JUMP,
        _ => u64::from(patch_len),
    };
    let slot = match extra {
        Extra::HopSlot(slot) => Some(*slot..slot + JUMP),
        _ => None,
    };
    [patch..patch + written, displaced.clone()]
        .into_iter()
        .chain(slot)
        .collect()
}

/// Ranges of addresses, merged.
struct Taken(Vec<Range<u64>>);

impl Taken {
    fn new(sites: &[ProbeSite]) -> Self {
        let of = |site: &ProbeSite| taken(site.patch, site.patch_len, &site.displaced, &site.extra);
        let mut all: Vec<_> = sites.iter().flat_map(of).collect();
        all.sort_by_key(|range| range.start);
        let mut merged: Vec<Range<u64>> = Vec::new();
        for range in all {
            match merged.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => merged.push(range),
            }
        }
        Self(merged)
    }

    fn overlaps(&self, range: &Range<u64>) -> bool {
        let next = self.0.partition_point(|taken| taken.end <= range.start);
        self.0
            .get(next)
            .is_some_and(|taken| taken.start < range.end)
    }
}

/// The functions whose sites overlap what probes take, by address.
fn overlapping<'c>(
    functions: &Plan,
    chosen: &'c [Chosen],
    sites: &[ProbeSite],
) -> BTreeMap<u64, &'c Chosen> {
    let taken_by_probes = Taken::new(sites);
    let overlaps = |chosen: &&Chosen| {
        let Ok(site) = &functions.functions[chosen.index].outcome else {
            return false;
        };
        taken(site.patch, site.patch_len, &site.displaced, &site.extra)
            .iter()
            .any(|range| taken_by_probes.overlaps(range))
    };
    let overlapping = chosen.iter().filter(overlaps);
    overlapping
        .map(|chosen| (functions.functions[chosen.index].addr, chosen))
        .collect()
}

/// A plan, the functions that begin with its regions, and the probes that are not in it, with reasons.
type Beside = (ProbePlan, HashMap<u64, Chosen>, BTreeMap<u64, String>);

/// Plans the wanted probes beside functions.
pub(super) fn plan(
    (functions, chosen): (&Plan, &[Chosen]),
    which: Wanted<'_>,
    plan: impl Fn(Wanted<'_>) -> Result<ProbePlan>,
) -> Result<Beside> {
    let mut planned = plan(which)?;
    let mut wanted: BTreeSet<u64> = match which {
        Wanted::Every => BTreeSet::new(),
        Wanted::At(places) => places.iter().copied().collect(),
    };
    if let Wanted::At(_) = which {
        for _ in 0..ROUNDS {
            let more = overlapping(functions, chosen, &planned.sites);
            let before = wanted.len();
            wanted.extend(more.keys());
            if wanted.len() == before {
                break;
            }
            let places: Vec<u64> = wanted.iter().copied().collect();
            planned = plan(Wanted::At(&places))?;
        }
    }
    let mut left_out = BTreeMap::new();
    loop {
        let mut begun = overlapping(functions, chosen, &planned.sites);
        let starts: BTreeSet<u64> = planned.sites.iter().map(|s| s.displaced.start).collect();
        let mut others = begun.clone();
        others.retain(|addr, _| !starts.contains(addr));
        begun.retain(|addr, _| starts.contains(addr));
        if others.is_empty() {
            let begun = begun.into_iter().map(|(addr, chosen)| (addr, *chosen));
            return Ok((planned, begun.collect(), left_out));
        }
        // Their beginnings cannot be moved: the probes give way.
        leave_out((functions, &others), &mut planned.sites, &mut left_out);
    }
}

/// Leaves out the regions that overlap the sites of functions, and those that use bytes of such a region.
fn leave_out(
    (functions, others): (&Plan, &BTreeMap<u64, &Chosen>),
    sites: &mut Vec<ProbeSite>,
    left_out: &mut BTreeMap<u64, String>,
) {
    let mut out: Vec<(ProbeSite, String)> = Vec::new();
    for chosen in others.values() {
        let function = &functions.functions[chosen.index];
        let Ok(site) = &function.outcome else {
            continue;
        };
        let own = taken(site.patch, site.patch_len, &site.displaced, &site.extra);
        let clashes = |site: &mut ProbeSite| {
            let taken = taken(site.patch, site.patch_len, &site.displaced, &site.extra);
            let meet = |a: &Range<u64>, b: &Range<u64>| a.start < b.end && b.start < a.end;
            taken.iter().any(|a| own.iter().any(|b| meet(a, b)))
        };
        let reason = format!("the traced function {} is changed there", function.name);
        out.extend(
            sites
                .extract_if(.., clashes)
                .map(|site| (site, reason.clone())),
        );
    }
    let mut done = 0;
    while done < out.len() {
        let (gone, reason) = (out[done].0.displaced.clone(), out[done].1.clone());
        let uses = |site: &mut ProbeSite| match site.extra {
            Extra::HopSlot(slot) => gone.contains(&slot) || gone.contains(&(slot + JUMP - 1)),
            _ => false,
        };
        let more: Vec<_> = sites.extract_if(.., uses).collect();
        out.extend(more.into_iter().map(|site| (site, reason.clone())));
        done += 1;
    }
    for (site, reason) in out {
        left_out.extend(site.probes.into_iter().map(|addr| (addr, reason.clone())));
    }
}
