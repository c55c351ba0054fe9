//! Traces what the planner has found in a file.

use std::ops::Range;

use hodo_codegen::native::detour::{Action, Counter, When};
use hodo_patch::{Probe, Region, Sites, Traced, TracedCall};
use hodo_plan::model::{LibcallSite, Mode, Plan, PlannedFunction, ProbePlan, SitePlan};

use crate::world::{World, follow};

impl World {
    /// Patches functions of a plan, each with the name that it gets, and library calls. `bias` is the difference
    /// between the code's addresses in memory and in the file.
    pub fn trace_planned<'p>(
        &mut self,
        (plan, file): (&Plan, &[u8]),
        bias: u64,
        functions: impl Iterator<Item = (&'p str, &'p PlannedFunction)>,
        calls: &[&LibcallSite],
    ) {
        let (names, functions): (Vec<_>, Vec<_>) = functions.unzip();
        let ids = self.names(names.into_iter().map(str::to_owned));
        let functions: Vec<_> = functions
            .into_iter()
            .zip(ids)
            .map(|(function, id)| Traced {
                function,
                id,
                filter: false,
            })
            .collect();
        let ids = self.names(calls.iter().map(|call| call.name.clone()));
        let libcalls: Vec<_> = calls
            .iter()
            .zip(ids)
            .map(|(site, id)| TracedCall {
                site,
                id,
                filter: false,
            })
            .collect();
        let sites = Sites {
            functions: &functions,
            libcalls: &libcalls,
            nops: &plan.nops,
            regions: &[],
        };
        // Segments of code are at the same offsets in the file.
        let code = |range: Range<u64>| file.get(range.start as usize..range.end as usize);
        self.add(sites, bias, &code);
        self.check_failures(&[]);
        follow(&self.patches);
    }
    /// Counts all probes of a plan, in words after an address that is at an offset of the control block, and patches
    /// library calls.
    pub fn probe_planned(
        &mut self,
        (plan, file): (&ProbePlan, &[u8]),
        bias: u64,
        base: u32,
        calls: &[&LibcallSite],
    ) {
        let mut number = 0;
        let mut count = || {
            number += 8;
            Action::Count(Counter::Shared {
                base,
                at: number - 8,
            })
        };
        let sites: Vec<_> = plan
            .sites
            .iter()
            .map(|site| {
                let probes = site.probes.iter().map(|probe| Probe {
                    addr: probe.addr,
                    flags_dead: probe.flags_dead,
                    free: probe.free,
                    when: When::Hit,
                    action: count(),
                });
                let probes: Vec<_> = probes.collect();
                let site = SitePlan {
                    tactic: site.tactic,
                    mode: Mode::Call,
                    patch: site.patch,
                    patch_len: site.patch_len,
                    displaced: site.displaced.clone(),
                    extra: site.extra.clone(),
                    via: site.via,
                    spare: site.spare.clone(),
                    signing: hodo_isa::Signing::None,
                    free: 0,
                    free_after: 0,
                    far: None,
                };
                (site, probes)
            })
            .collect();
        let regions = sites.iter().map(|(site, probes)| Region {
            site,
            probes,
            function: None,
        });
        let regions: Vec<_> = regions.collect();
        let ids = self.names(calls.iter().map(|call| call.name.clone()));
        let calls = calls.iter().zip(ids);
        let libcalls = calls.map(|(site, id)| TracedCall {
            site,
            id,
            filter: false,
        });
        let libcalls: Vec<_> = libcalls.collect();
        let sites = Sites {
            functions: &[],
            libcalls: &libcalls,
            nops: &[],
            regions: &regions,
        };
        let code = |range: Range<u64>| file.get(range.start as usize..range.end as usize);
        self.add(sites, bias, &code);
        self.check_failures(&["the island is full", "another site"]);
        follow(&self.patches);
    }

    /// Another site may cut calls that load an address. Any other failure must contain one of these texts.
    fn check_failures(&self, known: &[&str]) {
        let cut = "those that load its address";
        let is_known = |reason: &str| known.iter().chain([&cut]).any(|word| reason.contains(word));
        let mut failed = self.patches.failed.iter();
        let failed = failed.find(|(_, reason)| !is_known(&reason.to_string()));
        assert_eq!(failed, None);
    }
}
