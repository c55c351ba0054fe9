//! Probes in traced functions: both change code, but must not change the same place.
//!
//! Where a region that is moved for probes and the site of a function overlap, the function's beginning is planned as
//! the places of probes are. The region that begins there has the function's stub before its detour.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use anyhow::Result;
use hodo_isa::{InstructionSet, NATIVE, Via};
use hodo_plan::model::{Extra, Plan, ProbePlan, ProbeSite, SitePlan, Spare, Wanted, elsewhere};

use hodo_module::Chosen;

/// Bytes at the beginning of a hooked function that may be changed.
pub(super) const HOOK_LENGTH: u64 = 32;

/// How often plans are made until no region overlaps a site.
const ROUNDS: usize = 8;

/// Bytes of the jump that a pun is part of.
const JUMP: u64 = 5;

/// What is changed, or moved away, or must stay as it is.
fn taken(
    isa: &dyn InstructionSet,
    (patch, patch_len): (u64, u8),
    displaced: &Range<u64>,
    (extra, via): (&Extra, Via),
    spare: &Spare,
) -> Vec<Range<u64>> {
    let written = match extra {
        Extra::Pun { .. } => JUMP,
        _ => u64::from(patch_len),
    };
    [patch..patch + written, displaced.clone()]
        .into_iter()
        .chain(elsewhere(isa, extra, via, spare))
        .collect()
}

/// The bytes that a region's change takes.
fn taken_by(isa: &dyn InstructionSet, site: &ProbeSite) -> Vec<Range<u64>> {
    let patch = (site.patch, site.patch_len);
    taken(
        isa,
        patch,
        &site.displaced,
        (&site.extra, site.via),
        &site.spare,
    )
}

/// The bytes that the change of a function's site takes.
fn taken_for(isa: &dyn InstructionSet, site: &SitePlan) -> Vec<Range<u64>> {
    let patch = (site.patch, site.patch_len);
    taken(
        isa,
        patch,
        &site.displaced,
        (&site.extra, site.via),
        &site.spare,
    )
}

/// Ranges of addresses, merged.
struct Taken(Vec<Range<u64>>);

impl Taken {
    fn new(sites: &[ProbeSite]) -> Self {
        let mut all: Vec<_> = sites
            .iter()
            .flat_map(|site| taken_by(NATIVE, site))
            .collect();
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
        let own = taken_for(NATIVE, site);
        own.iter().any(|range| taken_by_probes.overlaps(range))
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
    for chosen in others.values() {
        let function = &functions.functions[chosen.index];
        let Ok(site) = &function.outcome else {
            continue;
        };
        let own = taken_for(NATIVE, site);
        let reason = format!("the traced function {} is changed there", function.name);
        keep_off(NATIVE, &own, &reason, (sites, left_out));
    }
}

/// Leaves out the regions that overlap these ranges, and those that use bytes of such a region, for a reason.
pub(super) fn keep_off(
    isa: &dyn InstructionSet,
    ranges: &[Range<u64>],
    reason: &str,
    (sites, left_out): (&mut Vec<ProbeSite>, &mut BTreeMap<u64, String>),
) {
    let clashes = |site: &mut ProbeSite| {
        let taken = taken_by(isa, site);
        let meet = |a: &Range<u64>, b: &Range<u64>| a.start < b.end && b.start < a.end;
        taken.iter().any(|a| ranges.iter().any(|b| meet(a, b)))
    };
    let out = sites.extract_if(.., clashes).collect();
    for site in with_users(isa, out, sites) {
        left_out.extend(
            site.probes
                .into_iter()
                .map(|probe| (probe.addr, reason.to_owned())),
        );
    }
}

/// Takes the regions out of `sites` that use bytes of some that are out already, after which they come.
pub(super) fn with_users(
    isa: &dyn InstructionSet,
    mut out: Vec<ProbeSite>,
    sites: &mut Vec<ProbeSite>,
) -> Vec<ProbeSite> {
    let mut done = 0;
    while done < out.len() {
        let gone = out[done].displaced.clone();
        let uses = |site: &mut ProbeSite| {
            let mut others = elsewhere(isa, &site.extra, site.via, &site.spare);
            others.any(|range| gone.contains(&range.start) || gone.contains(&(range.end - 1)))
        };
        let more: Vec<_> = sites.extract_if(.., uses).collect();
        out.extend(more);
        done += 1;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use hodo_plan::model::{Mode, Pad, PlannedFunction, ProbedInsn, Tactic};
    use std::slice::from_ref;

    fn site(displaced: Range<u64>, extra: Extra) -> ProbeSite {
        let hop = matches!(extra, Extra::HopSlot(_));
        ProbeSite {
            tactic: if hop { Tactic::Hop } else { Tactic::Jump },
            patch: displaced.start,
            patch_len: if hop { 2 } else { 5 },
            extra,
            probes: vec![ProbedInsn {
                addr: displaced.start,
                free: 0,
                flags_dead: true,
                joined: false,
                entered: true,
            }],
            via: Via::Nothing,
            spare: Spare::default(),
            displaced,
        }
    }

    #[test]
    fn regions_that_use_one_that_is_left_out_go_with_it() {
        let mut sites = vec![
            site(0x100..0x112, Extra::None),
            // Its slot is in the first one's displaced bytes, the next one's in its own.
            site(0x120..0x130, Extra::HopSlot(0x108)),
            site(0x140..0x143, Extra::HopSlot(0x128)),
            site(0x150..0x153, Extra::HopSlot(0x160)),
            site(0x170..0x180, Extra::None),
            // Only its slot is where something else is.
            site(0x190..0x193, Extra::HopSlot(0x118)),
            site(0x1A0..0x1B0, Extra::None),
            site(0x1B0..0x1C0, Extra::None),
        ];
        let pad = |from, at| Pad {
            from,
            at: Some(at),
            to: 0x500,
        };
        sites[6].spare.pads = vec![pad(0x1A4, 0x1A8), pad(0x1A8, 0x10A)];
        sites[7].spare.pads = vec![pad(0x1B4, 0x178)];
        let mut left_out = BTreeMap::new();
        keep_off(
            NATIVE,
            from_ref(&(0x110..0x11A)),
            "a reason",
            (&mut sites, &mut left_out),
        );
        let rest: Vec<u64> = sites.iter().map(|site| site.patch).collect();
        assert_eq!(rest, [0x150, 0x170, 0x1B0]);
        let gone: Vec<u64> = left_out.keys().copied().collect();
        assert_eq!(gone, [0x100, 0x120, 0x140, 0x190, 0x1A0]);
        assert!(left_out.values().all(|reason| reason == "a reason"));
    }

    #[test]
    fn probes_give_way_to_functions_and_say_to_which() {
        let function = PlannedFunction {
            name: "traced".to_owned(),
            addr: 0x100,
            size: 0x40,
            outcome: Ok(SitePlan {
                tactic: Tactic::Jump,
                mode: Mode::Call,
                patch: 0x100,
                patch_len: 5,
                displaced: 0x100..0x108,
                extra: Extra::None,
                via: Via::Nothing,
                spare: Spare::default(),
                signing: hodo_isa::Signing::None,
                free: 0,
                free_after: 0,
                far: None,
            }),
        };
        let functions = Plan {
            functions: vec![function],
            ..Plan::default()
        };
        let chosen = [Chosen {
            index: 0,
            id: 1,
            filter: false,
        }];
        // No region begins where the function does, so those that overlap its site cannot have its stub.
        let planned = |_: Wanted<'_>| {
            Ok(ProbePlan {
                sites: vec![
                    site(0x104..0x110, Extra::None),
                    site(0x120..0x123, Extra::HopSlot(0x10A)),
                    site(0x130..0x136, Extra::None),
                ],
                ..ProbePlan::default()
            })
        };
        let (left, begun, out) =
            plan((&functions, &chosen), Wanted::At(&[0x104]), planned).expect("a plan");
        assert_eq!((left.sites.len(), begun.len()), (1, 0));
        assert_eq!(left.sites[0].patch, 0x130);
        let reason = "the traced function traced is changed there".to_owned();
        let expected = [(0x104, reason.clone()), (0x120, reason)];
        assert_eq!(out, expected.into_iter().collect());
    }

    #[test]
    fn regions_with_nothing_near_stay() {
        let mut sites = vec![site(0x100..0x110, Extra::None)];
        let mut left_out = BTreeMap::new();
        keep_off(
            NATIVE,
            from_ref(&(0x110..0x120)),
            "a reason",
            (&mut sites, &mut left_out),
        );
        keep_off(
            NATIVE,
            from_ref(&(0xF0..0x100)),
            "a reason",
            (&mut sites, &mut left_out),
        );
        assert_eq!((sites.len(), left_out.len()), (1, 0));
    }
}
