//! Any bytes as an ELF file, probed at every instruction: planning must end without a panic, each instruction must be counted once,
//! in the order of addresses, and what probes change must not overlap.
#![no_main]

use std::path::Path;

use hodo_plan::model::Wanted;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(plan) = hodo_plan::plan_probes(Path::new("fuzzed"), bytes, Wanted::Every, 1) else {
        return;
    };
    let (mut patched, mut probed, mut count) = (0, None, plan.refused.len());
    for site in &plan.sites {
        assert!(
            site.patch >= patched,
            "overlapping sites at {:#x}",
            site.patch
        );
        patched = site.patch + u64::from(site.patch_len);
        assert!(
            site.displaced.contains(&site.patch),
            "a site at {:#x} outside of its region",
            site.patch
        );
        for insn in &site.probes {
            assert!(
                site.displaced.contains(&insn.addr),
                "a probe at {:#x} outside of its region",
                insn.addr
            );
            assert!(probed < Some(insn.addr), "two probes at {:#x}", insn.addr);
            probed = Some(insn.addr);
        }
        count += site.probes.len();
    }
    assert_eq!(
        count, plan.total,
        "instructions that are neither probed nor refused"
    );
});
