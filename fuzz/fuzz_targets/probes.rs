//! Any bytes as an ELF file, probed at every instruction: planning must end without a panic, each instruction must be
//! counted once, in address order, and the bytes that probes change must not overlap.
#![no_main]

use std::path::Path;

use hodo_abi::Isa;
use hodo_isa::code::instruction_set;
use hodo_plan::model::{Wanted, elsewhere};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(plan) = hodo_plan::plan_probes(Path::new("fuzzed"), bytes, Wanted::Every, 1) else {
        return;
    };
    // `e_machine`: a file that was planned has a known one.
    let machine = u16::from_le_bytes([bytes[18], bytes[19]]);
    let isa = Isa::of_elf(machine)
        .and_then(instruction_set)
        .expect("it was planned");
    let (mut probed, mut count) = (None, plan.refused.len());
    let mut changed = Vec::new();
    for site in &plan.sites {
        changed.push(site.patch..site.patch + u64::from(site.patch_len));
        changed.extend(elsewhere(isa, &site.extra, site.via, &site.spare));
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
    changed.sort_unstable_by_key(|range| range.start);
    for pair in changed.windows(2) {
        assert!(pair[0].end <= pair[1].start, "{pair:x?} overlap");
    }
    assert_eq!(
        count, plan.total,
        "instructions that are neither probed nor refused"
    );
});
