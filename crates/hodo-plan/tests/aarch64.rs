//! Plans of code for AArch64, some of it hand-written.

#[path = "riscv/mod.rs"]
mod cross;

use hodo_plan::model::{LibcallForm, Mode, Tactic, Wanted};
use hodo_plan::{PlanOptions, plan, plan_probes};

use cross::{compile_with, static_programs_of, symbol};
use hodo_isa::Signing;

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

/// Stubs must leave alone what callers expect to be unchanged, although some path through the function changes it.
#[test]
fn registers_of_private_conventions_are_not_free() {
    let flags = ["-nostdlib", "-shared"];
    let compiler = "aarch64-linux-gnu-gcc";
    let Some(path) = compile_with(compiler, "private", "private_aarch64.s", &flags) else {
        return;
    };
    let bytes = std::fs::read(&path).expect("a library");
    let plan = plan(&path, &bytes, &PlanOptions::default()).expect("a plan");
    let site = |name: &str| {
        let function = plan.functions.iter().find(|f| f.name == name);
        let function = function.unwrap_or_else(|| panic!("no {name}"));
        let site = function.outcome.as_ref();
        site.unwrap_or_else(|reason| panic!("{name}: {reason}"))
    };
    let bits = |numbers: &[u32]| numbers.iter().fold(0, |all, number| all | 1 << number);
    let (known, saved) = (bits(&[9, 13]), bits(&[9, 10]));
    for (name, expected) in [("private", known), ("saves", saved)] {
        let site = site(name);
        assert_eq!(site.free & expected, 0, "{name}");
        assert_eq!(site.free_after & expected, 0, "{name}");
    }
    // This one follows the convention.
    let ends = site("ends");
    assert!(ends.free & known != 0 && ends.free_after & known != 0);
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

/// A path that never returns says nothing about what callers expect.
#[test]
fn registers_are_free_if_a_function_overwrites_them_and_returns() {
    let flags = ["-nostdlib", "-shared"];
    let compiler = "aarch64-linux-gnu-gcc";
    let Some(file) = compile_with(compiler, "kept-aarch64", "kept_aarch64.s", &flags) else {
        return;
    };
    let bytes = std::fs::read(file).expect("a library");
    let plan = plan("hand".as_ref(), &bytes, &PlanOptions::default()).expect("a plan");
    let free = |name: &str| {
        let function = plan.functions.iter().find(|f| f.name == name);
        let site = function.and_then(|function| function.outcome.as_ref().ok());
        let site = site.unwrap_or_else(|| panic!("no site for {name}"));
        (site.free, site.free_after)
    };
    assert_eq!(free("asserts"), (1 << 14, 1 << 14));
    assert_eq!(free("calls"), (1 << 12 | 1 << 13, 1 << 12 | 1 << 13));
}

/// Calls go through argument registers, in which the callee may find the address; jumps go through `x16`.
#[test]
fn library_calls_are_seen_where_temporary_registers_have_the_address() {
    let flags = ["-fPIE", "-pie", "-fno-builtin", "-fno-plt"];
    let compiler = "aarch64-linux-gnu-gcc";
    let Some(path) = compile_with(compiler, "slots-aarch64", "slots.c", &flags) else {
        return;
    };
    let bytes = std::fs::read(&path).expect("a program");
    let plan = plan(&path, &bytes, &PlanOptions::default()).expect("a plan");
    let jumps = symbol(&bytes, "jumps");
    let loaded = |form: LibcallForm| matches!(form, LibcallForm::Loaded { .. });
    let calls: Vec<_> = plan
        .libcalls
        .iter()
        .filter(|call| loaded(call.form))
        .collect();
    let [call] = calls[..] else {
        panic!("{calls:x?}")
    };
    let (register, end) = (16, call.patch + 12);
    assert_eq!(call.form, LibcallForm::Loaded { register, end });
    assert_eq!((call.name.as_str(), call.patch_len), ("strdup", 8));
    assert!((jumps..jumps + 16).contains(&call.patch), "{call:x?}");
    assert_eq!(call.mode, Mode::Call);
}

#[test]
fn static_programs_lose_calls_of_the_c_librarys_mcount_only() {
    static_programs_of("aarch64-linux-gnu-gcc");
}

/// Calls through registers must find the landing instruction, which may have signed the return address.
#[test]
fn sites_come_after_landing_instructions_and_know_what_these_sign() {
    let compiler = "aarch64-linux-gnu-gcc";
    let keys = [
        ("pac-ret+bti", Signing::A),
        ("pac-ret+b-key+bti", Signing::B),
    ];
    for (number, (protection, key)) in keys.into_iter().enumerate() {
        let protection = format!("-mbranch-protection={protection}");
        let flags = ["-O2", "-fno-builtin", "-shared", "-fPIC", &protection];
        let name = format!("signed-{number}");
        let Some(path) = compile_with(compiler, &name, "slots.c", &flags) else {
            return;
        };
        let bytes = std::fs::read(&path).expect("a library");
        let plan = plan(&path, &bytes, &PlanOptions::default()).expect("a plan");
        let sites = plan.functions.iter().filter_map(|function| {
            let site = function.outcome.as_ref().ok()?;
            Some((function, site))
        });
        let (mut found, mut starts) = (Vec::new(), Vec::new());
        for (function, site) in sites {
            let after = site.patch != function.addr;
            assert_eq!(site.patch, function.addr + 4 * u64::from(after));
            assert!(after || site.signing == Signing::None, "{function:x?}");
            found.push((after, site.signing));
            starts.extend(after.then_some(function.addr));
        }
        for expected in [(true, key), (true, Signing::None)] {
            assert!(found.contains(&expected), "{expected:?}: {found:?}");
        }
        // Breakpoints count as landing instructions; jumps do not, and come after them.
        for wanted in [Wanted::Every, Wanted::At(&starts)] {
            let plan = plan_probes(&path, &bytes, wanted, 1).expect("a plan");
            let landings: Vec<_> = (plan.sites.iter())
                .filter(|site| starts.contains(&site.displaced.start))
                .collect();
            assert_eq!(landings.len(), starts.len());
            for site in landings {
                let after = if site.tactic == Tactic::Trap { 0 } else { 4 };
                assert_eq!(site.patch, site.displaced.start + after, "{site:x?}");
                let room = site.displaced.end >= site.patch + 4;
                assert!(room && site.tactic == Tactic::Jump, "{site:x?}");
            }
        }
    }
}
