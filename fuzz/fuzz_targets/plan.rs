//! Any bytes as an ELF file: planning must end without a panic, and all sites must be in the file's code.
#![no_main]

use std::path::Path;

use hodo_plan::model::PlanOptions;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let options = PlanOptions {
        threads: 1,
        ..PlanOptions::default()
    };
    if let Ok(plan) = hodo_plan::plan(Path::new("fuzzed"), bytes, &options) {
        let mut end = 0;
        let mut sites: Vec<_> = plan
            .functions
            .iter()
            .filter_map(|f| f.outcome.as_ref().ok())
            .collect();
        sites.sort_by_key(|site| site.patch);
        for site in sites {
            assert!(site.patch >= end, "overlapping sites at {:#x}", site.patch);
            end = site.patch + u64::from(site.patch_len);
        }
    }
});
