//! Programs as compilers build them: with sites for tracers, without a PLT, static, stripped.

#[path = "../../hodo-tests/src/skipped.rs"]
mod skipped;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use hodo_plan::model::{
    EntryOnlyReason, LibcallForm, Mode, Plan, PlannedFunction, SitePlan, Tactic,
};
use hodo_plan::{PlanOptions, plan};

const OURS: [&str; 7] = [
    "empty", "leaf", "branches", "tail", "loop", "caller", "main",
];

/// Compiles the program; `None` if there is no such compiler.
fn compile(name: &str, compiler: &str, flags: &[&str]) -> Option<PathBuf> {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("compiled");
    std::fs::create_dir_all(&directory).expect("a directory for programs");
    let file = directory.join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/functions.c");
    let output = Command::new(compiler)
        .stdin(Stdio::null())
        .arg("-O2")
        .args(flags)
        .arg(source)
        .arg("-o")
        .arg(&file)
        .output();
    let output = match output {
        Ok(output) => output,
        Err(error) => {
            assert_ne!(compiler, "gcc", "gcc is needed: {error}");
            skipped::skip(&format!("{compiler}: {error}"));
            return None;
        }
    };
    let text = String::from_utf8_lossy(&output.stderr);
    // Clang's runtime libraries are a separate package.
    if !output.status.success() && text.contains("libclang_rt.") {
        skipped::skip(&format!("{compiler} {flags:?}: {text}"));
        return None;
    }
    assert!(output.status.success(), "{compiler} {flags:?}: {text}");
    Some(file)
}

fn plan_of(file: &Path) -> Plan {
    let bytes = std::fs::read(file).expect("a program");
    plan(file, &bytes, &PlanOptions::default()).expect("a plan")
}

fn function<'p>(plan: &'p Plan, name: &str) -> &'p PlannedFunction {
    let mut functions = plan.functions.iter().filter(|f| f.name == name);
    functions.next().unwrap_or_else(|| panic!("no {name}"))
}

fn site<'p>(plan: &'p Plan, name: &str) -> &'p SitePlan {
    match &function(plan, name).outcome {
        Ok(site) => site,
        Err(reason) => panic!("{name}: {reason}"),
    }
}

fn libcall(plan: &Plan, name: &str) -> Option<LibcallForm> {
    let mut calls = plan.libcalls.iter().filter(|call| call.name == name);
    calls.next().map(|call| call.form)
}

/// Checks what holds for all programs: every function is traced, and with entry and exit, except for the one that reads
/// its return address.
fn check(plan: &Plan) {
    for name in OURS {
        let mode = match name {
            "caller" => Mode::EntryOnly(EntryOnlyReason::ReadsReturnAddress),
            _ => Mode::Call,
        };
        assert_eq!(site(plan, name).mode, mode, "{name}");
    }
    let refused: Vec<_> = plan
        .functions
        .iter()
        .filter(|f| f.outcome.is_err())
        .collect();
    assert!(
        refused.iter().all(|f| f.name == "__restore_rt"),
        "{refused:x?}"
    );
    let mut places: Vec<_> = plan.libcalls.iter().map(|call| call.patch).collect();
    places.sort_unstable();
    places.dedup();
    assert_eq!(places.len(), plan.libcalls.len(), "a call is planned twice");
}

fn check_sites(plan: &Plan, nops_each: usize) {
    check(plan);
    for name in OURS {
        assert_eq!(site(plan, name).tactic, Tactic::Site, "{name}");
        let function = function(plan, name);
        let inside = function.addr..function.addr + function.size;
        let nops = plan.nops.iter().filter(|(addr, _)| inside.contains(addr));
        assert!(nops.count() >= nops_each, "{name}: {:x?}", plan.nops);
    }
    let marked = plan.functions.iter().filter(|f| {
        f.outcome
            .as_ref()
            .is_ok_and(|site| site.tactic == Tactic::Site)
    });
    assert_eq!(marked.count(), OURS.len());
    assert!(plan.nops.is_sorted());
    for call in &plan.libcalls {
        let profiler = ["mcount", "_mcount", "__fentry__"].contains(&&*call.name);
        assert!(
            !profiler && !call.name.starts_with("__cyg"),
            "{}",
            call.name
        );
    }
}

#[test]
fn calls_of_mcount_become_nops() {
    for (name, compiler, flags) in [
        ("pg", "gcc", &["-pg"][..]),
        ("pg-O0", "gcc", &["-O0", "-pg"]),
        ("pg-fixed", "gcc", &["-pg", "-no-pie", "-fno-pie"]),
        ("pg-static", "gcc", &["-pg", "-static"]),
        ("pg-clang", "clang", &["-pg"]),
        ("fentry", "gcc", &["-pg", "-mfentry"]),
        ("fentry-clang", "clang", &["-pg", "-mfentry"]),
    ] {
        let Some(file) = compile(name, compiler, flags) else {
            continue;
        };
        let plan = plan_of(&file);
        check_sites(&plan, 1);
        assert_eq!(plan.nops.len(), OURS.len(), "{name}");
        for (addr, bytes) in &plan.nops {
            assert!(
                matches!(bytes.len(), 5 | 6),
                "{name}: {addr:x} {bytes:02x?}"
            );
        }
    }
}

#[test]
fn recorded_nops_are_sites() {
    let fixed = ["-pg", "-mfentry", "-mrecord-mcount", "-no-pie", "-fno-pie"];
    let file = compile("record", "gcc", &fixed).expect("gcc");
    check_sites(&plan_of(&file), 1);
    let file = compile("nops", "gcc", &[&fixed[..], &["-mnop-mcount"]].concat()).expect("gcc");
    let plan = plan_of(&file);
    check_sites(&plan, 0);
    assert!(plan.nops.is_empty());
    let main = site(&plan, "main");
    assert_eq!(main.displaced, main.patch..main.patch + 5);
}

#[test]
fn patchable_entries_are_sites() {
    for (name, compiler, flag) in [
        ("entry-5", "gcc", "5"),
        ("entry-2", "gcc", "2"),
        ("entry-16-10", "gcc", "16,10"),
        ("entry-7-5", "gcc", "7,5"),
        ("entry-5-5", "gcc", "5,5"),
        ("entry-clang-5", "clang", "5"),
        ("entry-clang-8-5", "clang", "8,5"),
    ] {
        let flag = format!("-fpatchable-function-entry={flag}");
        for cet in ["none", "full"] {
            let protection = format!("-fcf-protection={cet}");
            let name = format!("{name}-{cet}");
            if let Some(file) = compile(&name, compiler, &[&flag, &protection]) {
                check_sites(&plan_of(&file), 0);
            }
        }
    }
}

#[test]
fn instrumented_functions_lose_their_calls() {
    for (name, compiler, flags) in [
        ("instrument", "gcc", &["-finstrument-functions"][..]),
        ("instrument-O0", "gcc", &["-O0", "-finstrument-functions"]),
        (
            "instrument-noplt",
            "gcc",
            &["-fno-plt", "-finstrument-functions"],
        ),
        ("instrument-clang", "clang", &["-finstrument-functions"]),
    ] {
        if let Some(file) = compile(name, compiler, flags) {
            check_sites(&plan_of(&file), 2);
        }
    }
}

#[test]
fn a_programs_own_profiler_is_still_called() {
    let flags = ["-finstrument-functions", "-DOWN_PROFILER"];
    let plan = plan_of(&compile("instrument-own", "gcc", &flags).expect("gcc"));
    assert!(plan.nops.is_empty(), "{:x?}", plan.nops);
    // It gets the return address: every function reads its own to pass it on.
    let reads = Mode::EntryOnly(EntryOnlyReason::ReadsReturnAddress);
    assert_eq!(site(&plan, "leaf").mode, reads);
    assert_eq!(site(&plan, "leaf").tactic, Tactic::Jump);
}

/// Although the C library's start in a static program prepares for its own.
#[test]
fn a_static_programs_own_mcount_is_still_called() {
    let flags = ["-pg", "-static", "-DOWN_MCOUNT=mcount"];
    let plan = plan_of(&compile("pg-static-own", "gcc", &flags).expect("gcc"));
    assert!(plan.nops.is_empty(), "{:x?}", plan.nops);
    assert_ne!(site(&plan, "leaf").tactic, Tactic::Site);
}

#[test]
fn xray_sleds_are_sites() {
    let flags = ["-fxray-instrument", "-fxray-instruction-threshold=1"];
    let Some(file) = compile("xray", "clang", &flags) else {
        return;
    };
    let plan = plan_of(&file);
    for name in OURS {
        let site = site(&plan, name);
        assert_eq!(site.tactic, Tactic::Site, "{name}");
        // The sled is a short jump over nine bytes.
        assert_eq!(site.displaced, site.patch..site.patch + 2, "{name}");
    }
}

#[test]
fn library_calls_are_found_in_all_forms() {
    for (name, flags, form) in [
        ("plt", &[][..], LibcallForm::Plt),
        ("now", &["-Wl,-z,relro,-z,now"], LibcallForm::Plt),
        ("lazy", &["-Wl,-z,lazy"], LibcallForm::Plt),
        (
            "ibt",
            &["-fcf-protection=full", "-Wl,-z,ibtplt,-z,now"],
            LibcallForm::Plt,
        ),
        (
            "ibt-lazy",
            &["-fcf-protection=full", "-Wl,-z,ibtplt,-z,lazy"],
            LibcallForm::Plt,
        ),
        ("no-plt", &["-fno-plt"], LibcallForm::Call),
        (
            "no-plt-fixed",
            &["-fno-plt", "-no-pie", "-fno-pie"],
            LibcallForm::Call,
        ),
        ("fixed", &["-no-pie", "-fno-pie"], LibcallForm::Plt),
    ] {
        let plan = plan_of(&compile(name, "gcc", flags).expect("gcc"));
        check(&plan);
        for callee in ["printf", "strdup", "free"] {
            // A linker may still make a PLT entry for a call, where that does not matter.
            let found = libcall(&plan, callee).or_else(|| libcall(&plan, "__strdup"));
            assert_eq!(found, Some(form), "{name}: {callee}");
        }
        for call in &plan.libcalls {
            let len = match call.form {
                LibcallForm::Plt => 5..=15,
                LibcallForm::Call | LibcallForm::Jump => 6..=6,
                LibcallForm::Loaded { .. } => 8..=8,
            };
            assert!(len.contains(&call.patch_len), "{name}: {call:x?}");
        }
    }
}

#[test]
fn musl_and_static_programs() {
    for (name, compiler, flags) in [
        ("static", "gcc", &["-static"][..]),
        ("static-pie", "gcc", &["-static-pie"]),
        ("musl", "musl-gcc", &[]),
        ("musl-static", "musl-gcc", &["-static"]),
    ] {
        let Some(file) = compile(name, compiler, flags) else {
            continue;
        };
        let plan = plan_of(&file);
        check(&plan);
        let shared = !name.contains("static");
        assert_eq!(libcall(&plan, "printf").is_some(), shared, "{name}");
        for function in &plan.functions {
            // The last function of a segment may be too short, with nothing after it.
            let trap = function
                .outcome
                .as_ref()
                .is_ok_and(|site| site.tactic == Tactic::Trap);
            assert!(!trap || function.name == "_fini", "{name}: {function:x?}");
        }
    }
}

#[test]
fn stripped_functions_are_named_by_address() {
    let whole = compile("whole", "gcc", &[]).expect("gcc");
    let stripped = whole.with_file_name("stripped");
    let done = Command::new("strip")
        .arg("-o")
        .args([&stripped, &whole])
        .status();
    assert!(done.expect("strip").success());
    let (whole, stripped) = (plan_of(&whole), plan_of(&stripped));
    for name in OURS {
        let known = function(&whole, name);
        let found = stripped.functions.iter().find(|f| f.addr == known.addr);
        let found = found.unwrap_or_else(|| panic!("{name} is not found"));
        // The start-up code shows where main is.
        let expected = match name {
            "main" => "main".to_owned(),
            _ => format!("<{:x}>", known.addr),
        };
        assert_eq!(found.name, expected);
        assert_eq!(found.outcome, known.outcome, "{name}");
    }
    assert_eq!(whole.libcalls, stripped.libcalls);
}

/// Code without symbols: megabytes of it, with the addresses of places in it and, if `tables`, of data that could be
/// tables of distances from there.
#[cfg(target_arch = "x86_64")]
fn unknown_code(tables: bool) -> Vec<u8> {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("unknown");
    std::fs::create_dir_all(&directory).expect("a directory for programs");
    let [source, file] = ["s", "so"].map(|suffix| directory.join(format!("{tables}.{suffix}")));
    let forms = match tables {
        true => "lea here(%rip), %rax\n lea table + 4 * \\n(%rip), %rcx",
        false => "mov here(%rip), %rax\n mov table(%rip), %rcx",
    };
    let text = format!(
        ".data\ntable: .fill 65536, 4, 16\n.text\nhere:\n.set n, 0\n.macro one n\n {forms}\n.fill 8, 1, 0x90\n.endm\n\
         .altmacro\n.rept 50000\n one %n\n.set n, n + 1\n.endr\n jmp *%rax\n"
    );
    std::fs::write(&source, text).expect("the source");
    let flags = ["-nostdlib", "-shared", "-s", "-o"];
    let mut gcc = Command::new("gcc");
    let done = gcc.args(flags).arg(&file).arg(&source).status();
    assert!(done.expect("gcc is needed").success());
    std::fs::read(file).expect("a library")
}

#[cfg(target_arch = "x86_64")]
#[test]
fn unknown_code_takes_no_longer_because_of_tables() {
    let time = |bytes: &[u8]| {
        let begun = std::time::Instant::now();
        plan("unknown".as_ref(), bytes, &PlanOptions::default()).expect("a plan");
        begun.elapsed()
    };
    let [with, without] = [true, false].map(unknown_code);
    // Other processes may disturb any of these.
    let least = |bytes: &[u8]| (0..5).map(|_| time(bytes)).min().unwrap_or_default();
    let (with, without) = (least(&with), least(&without));
    assert!(
        with < without * 4,
        "{with:?}, and {without:?} without tables"
    );
}
