//! Programs built in different ways by compilers and linkers: with sites for tracers, with and without a PLT.

use hodo_tests::{Run, build_with, has_tool, links, needs, skip};

const CALLS: [(&str, u64); 4] = [
    ("main", 1),
    ("middle", 1000),
    ("leaf", 2000),
    ("average", 1000),
];

/// Builds a program, and checks that it has only these functions' calls, recorded through the expected sites.
fn check(name: &str, compiler: &str, flags: &[&str], sites: bool) {
    let mut all = vec!["-O2", "-w"];
    all.extend(flags);
    let program = build_with(compiler, &["prepared.c"], &all);
    for options in [&[][..], &["-l"], &["--no-time"], &["--check-frames"]] {
        let trace = Run::new(&format!("build-{name}"), &program).same(options);
        trace.has_calls(&CALLS);
    }
    // Unused sites record nothing.
    let trace = Run::new(&format!("build-{name}-one"), &program).same(&["-P", "middle"]);
    trace.has_calls(&[("main", 0), ("middle", 1000), ("leaf", 0), ("average", 0)]);
    let plan = std::process::Command::new(hodo_tests::hodo())
        .args(["plan", "--json"])
        .arg(&program)
        .output()
        .expect("hodo can be run");
    let plan: serde_json::Value = serde_json::from_slice(&plan.stdout).expect("the plan is JSON");
    let by_site = plan["functions"]["by_tactic"]["site"].as_u64();
    assert_eq!(by_site, Some(if sites { 4 } else { 0 }), "{name}: {plan}");
}

#[test]
fn built_with_pg() {
    check("pg", "gcc", &["-pg"], true);
    check("pg-fixed", "gcc", &["-pg", "-fno-pie", "-no-pie"], true);
    check("pg-static", "gcc", &["-pg", "-static"], true);
}

/// Whether compilers know `-mfentry`.
const FENTRY: bool = cfg!(target_arch = "x86_64");

#[test]
fn built_with_mfentry() {
    needs!(FENTRY, "compilers for this machine have no -mfentry");
    check("fentry", "gcc", &["-pg", "-mfentry"], true);
    check(
        "fentry-cet",
        "gcc",
        &["-pg", "-mfentry", "-fcf-protection=full"],
        true,
    );
    let fixed = ["-pg", "-mfentry", "-mrecord-mcount", "-fno-pie", "-no-pie"];
    check("recorded", "gcc", &fixed, true);
    let nops = [
        "-pg",
        "-mfentry",
        "-mnop-mcount",
        "-mrecord-mcount",
        "-fno-pie",
        "-no-pie",
    ];
    check("nops", "gcc", &nops, true);
    // Without a list of them, nops are instructions like any other.
    check(
        "nops-unlisted",
        "gcc",
        &["-pg", "-mfentry", "-mnop-mcount", "-fno-pie", "-no-pie"],
        false,
    );
}

#[test]
fn built_with_patchable_entries() {
    for room in ["1", "2", "5", "16", "5,2", "10,5", "16,16"] {
        let flag = format!("-fpatchable-function-entry={room}");
        check(&format!("patchable-{room}"), "gcc", &[&flag], true);
    }
}

#[test]
fn built_with_finstrument_functions() {
    check("finstrument", "gcc", &["-finstrument-functions"], true);
    // The hooks of a static program are its own: they cannot be replaced.
    let flags = ["-finstrument-functions", "-static"];
    check("finstrument-static", "gcc", &flags, false);
}

#[test]
fn built_by_clang_with_sites() {
    needs!(has_tool("clang"), "there is no clang");
    check("clang-pg", "clang", &["-pg"], true);
    if FENTRY {
        check("clang-fentry", "clang", &["-pg", "-mfentry"], true);
    }
    check(
        "clang-patchable",
        "clang",
        &["-fpatchable-function-entry=16,8"],
        true,
    );
    check(
        "clang-finstrument",
        "clang",
        &["-finstrument-functions"],
        true,
    );
}

#[test]
fn built_with_xray_sleds() {
    needs!(has_tool("clang"), "there is no clang");
    let flags = ["-fxray-instrument", "-fxray-instruction-threshold=1"];
    needs!(
        links("clang", &flags),
        "clang has no runtime library for XRay"
    );
    check("xray", "clang", &flags, true);
}

/// Options that make compilers call libraries through GOT slots only.
const NO_PLT: &str = match cfg!(target_arch = "riscv64") {
    true => "-mno-plt",
    false => "-fno-plt",
};

#[test]
fn calls_into_libraries_however_they_are_linked() {
    for (name, flags) in [
        ("lazy", &["-Wl,-z,lazy"][..]),
        ("now", &["-Wl,-z,relro,-z,now"]),
        ("fixed", &["-Wl,-z,relro,-z,now", "-fno-pie", "-no-pie"]),
        ("noplt", &[NO_PLT]),
        ("noplt-fixed", &[NO_PLT, "-fno-pie", "-no-pie"]),
        ("ibt", &["-fcf-protection=full", "-Wl,-z,ibtplt"]),
    ] {
        if cfg!(not(target_arch = "x86_64")) && name == "ibt" {
            continue;
        }
        if cfg!(target_arch = "aarch64") && name.starts_with("noplt") {
            skip("calls of libraries without a PLT are not recorded on AArch64 yet");
            continue;
        }
        let mut all = vec!["-O2", "-w"];
        all.extend(flags);
        let program = build_with("gcc", &["filters.c"], &all);
        let trace = Run::new(&format!("linked-{name}"), &program).same(&[]);
        trace.has_calls(&[("main", 1), ("slow", 10), ("nanosleep", 10), ("printf", 1)]);
        let trace = Run::new(&format!("linked-{name}"), &program).same(&["--no-libcall"]);
        trace.has_calls(&[("main", 1), ("slow", 10), ("nanosleep", 0), ("printf", 0)]);
    }
}
