//! Plans of hand-written code for AArch64.

#[path = "riscv/mod.rs"]
mod cross;

use hodo_plan::model::{Tactic, Wanted};
use hodo_plan::{PlanOptions, plan, plan_probes};

use cross::{compile_with, symbol};

/// The library `tables_aarch64.s`; `None` if there is no compiler.
fn library(name: &str) -> Option<Vec<u8>> {
    let flags = ["-nostdlib", "-shared"];
    let file = compile_with("aarch64-linux-gnu-gcc", name, "tables_aarch64.s", &flags)?;
    Some(std::fs::read(file).expect("a library"))
}

#[test]
fn data_that_leads_into_instructions_is_no_table() {
    let Some(bytes) = library("no-table") else {
        return;
    };
    let plan = plan("hand".as_ref(), &bytes, &PlanOptions::default()).expect("a plan");
    for name in ["reads_data", "jumps"] {
        let function = plan.functions.iter().find(|f| f.name == name);
        let function = function.unwrap_or_else(|| panic!("no {name}"));
        let site = function.outcome.as_ref();
        let site = site.unwrap_or_else(|reason| panic!("{name}: {reason}"));
        assert_eq!(site.tactic, Tactic::Jump, "{name}");
    }
}

#[test]
fn distances_before_other_data_are_a_table() {
    let Some(bytes) = library("table") else {
        return;
    };
    let plan = plan_probes("hand".as_ref(), &bytes, Wanted::Every, 1).expect("a plan");
    let case = symbol(&bytes, "case");
    let site = plan
        .sites
        .iter()
        .find(|site| site.displaced.contains(&case));
    assert_eq!(site.expect("a site").patch, case);
}
