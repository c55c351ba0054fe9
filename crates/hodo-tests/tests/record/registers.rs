//! No register is disturbed, and values of every class pass.

use hodo_tests::{Ended, IS_SLOW, Kind, Run, build, build_with, needs, skip};

/// Options that lead to different code in stubs.
const OPTIONS: [&[&str]; 8] = [
    &[],
    &["-l"],
    &["--no-time"],
    &["--check-frames"],
    &["-D", "2"],
    &["-t", "1ms"],
    &["-t", "1us", "--no-time"],
    &["-F", "main"],
];

/// How often each function is called: the other machines are slow, and on RISC-V some calls go through breakpoints.
const ROUNDS: u64 = if cfg!(target_arch = "x86_64") {
    5000
} else {
    200
};

/// Returns whether the processor has all registers that the programs use on x86-64.
#[cfg(target_arch = "x86_64")]
fn has_avx() -> bool {
    std::arch::is_x86_feature_detected!("avx")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx() -> bool {
    true
}

#[test]
fn every_register_is_kept_at_entry_and_exit() {
    needs!(has_avx(), "this processor has no AVX");
    let flags = ["-O2", "-w"];
    for link in ["-pie", "-no-pie", "-static"] {
        let mut all = flags.to_vec();
        all.extend(["-fPIE", link]);
        let program = build_with("gcc", &["registers.c", "registers.S"], &all);
        for (n, options) in OPTIONS.iter().enumerate() {
            let run = Run::new(&format!("every_register{link}-{n}"), &program);
            let trace = run.args([&*ROUNDS.to_string()]).same(options);
            if n < 4 {
                trace.has_calls(&[
                    ("long_first", 2 * ROUNDS),
                    ("short_first", ROUNDS),
                    ("marked", ROUNDS),
                    ("tests_memory", ROUNDS),
                    ("only_returns", ROUNDS),
                    ("looping", ROUNDS),
                    ("neighbour", 1),
                ]);
                // On RISC-V these are short and have no register for a jump.
                if cfg!(not(target_arch = "riscv64")) {
                    trace.has_calls(&[("branch_first", ROUNDS), ("jumps_on", ROUNDS)]);
                }
            }
        }
    }
}

#[test]
fn values_of_every_class_pass() {
    needs!(has_avx(), "this processor has no AVX");
    // A dynamic and a static one are enough where each takes long.
    let is_tried = |kind: &Kind| !IS_SLOW || matches!(kind, Kind::Pie | Kind::Static);
    let available = Kind::ALL.into_iter().filter(|kind| kind.is_available());
    for kind in available.filter(is_tried) {
        let program = build("values.c", kind, &[]);
        for (n, options) in OPTIONS.iter().enumerate() {
            // Without names a filter matches nothing, and hodo says so.
            if options.contains(&"-F") && !kind.has_names() {
                continue;
            }
            let trace = Run::new(&format!("values-{kind:?}-{n}"), &program).same(options);
            if kind.has_names() && n < 4 {
                let names = [
                    "give_two_doubles",
                    "give_double_and_long",
                    "give_two_longs",
                    "give_three_floats",
                    "give_large",
                    "give_long_double",
                    "give_int128",
                    "give_complex",
                    "give_long_complex",
                    "give_m128",
                    "give_m256",
                    "take_eight",
                    "sum",
                    "many",
                ];
                trace.has_calls(&names.map(|name| (name, 20_000)));
            }
        }
    }
}

#[test]
fn callers_that_know_which_registers_a_callee_keeps() {
    for level in ["-O2", "-O3"] {
        let program = build_with("gcc", &["own_registers.c"], &[level, "-fipa-ra", "-w"]);
        for (n, options) in OPTIONS.iter().enumerate() {
            let trace = Run::new(&format!("ipa_ra{level}-{n}"), &program).same(options);
            if n < 4 {
                trace.has_calls(&[("mix", 100_000), ("leaf", 200_000), ("leaf_with", 100_000)]);
            }
        }
    }
}

#[test]
fn vector_registers_in_use_at_entries_on_new_stacks() {
    needs!(
        cfg!(not(target_arch = "x86_64")),
        "system calls keep vector registers on x86-64"
    );
    let flags = ["-O2", "-w", "-pthread"];
    let [pie, fixed] = ["-pie", "-static"]
        .map(|link| build_with("gcc", &["vectors.c"], &[&flags[..], &[link]].concat()));
    // How many calls have no exit: those on a stack that cannot have a shadow, or on any new stack while the program
    // may not use vectors.
    let cases: [(_, &str, &[&str], u64, u64); 4] = [
        (&pie, "on", &[], 142, 2),
        (&pie, "on", &["--check-frames"], 142, 2),
        (&pie, "forbid", &[], 60, 60),
        (&fixed, "on", &["--no-time"], 142, 2),
    ];
    // A program cannot forbid SVE.
    let can_forbid = cfg!(target_arch = "riscv64");
    let cases = cases
        .into_iter()
        .filter(|case| can_forbid || case.1 != "forbid");
    for (n, (program, how, options, calls, endless)) in cases.enumerate() {
        let run = Run::new(&format!("vectors-{n}"), program).args([how]);
        let alone = run.alone();
        let shown = String::from_utf8_lossy(&alone.stdout);
        if shown.contains("no vector registers") {
            return skip("this processor has no vector registers");
        }
        assert_eq!(alone.ended, Ended::Code(0), "{alone:?}");
        assert!(!shown.contains("differs"), "{shown}");
        let traced = run.traced(options);
        assert_eq!(alone, traced.outcome, "{options:?}");
        assert_eq!(traced.remarks, "", "{options:?}");
        traced.trace.has_calls(&[("touched", calls)]);
        let remarks = traced.trace.log("remark");
        let texts: Vec<_> = remarks.iter().map(|remark| &remark["text"]).collect();
        let expected = format!("{endless} calls have no exit: their stack cannot have a shadow");
        assert_eq!(texts, [&expected]);
    }
}

/// Functions of assembly that return a flag, read data where they return to, or remove their arguments.
#[cfg(target_arch = "x86_64")]
#[test]
fn what_assembly_returns_beside_registers_is_kept() {
    let program = build_with(
        "gcc",
        &["returns_flags.c", "returns_flags.S"],
        &["-O1", "-w"],
    );
    let run = Run::new("returns_flags", &program);
    assert_eq!(run.alone().stdout, b"5\n42\n7\n19\n");
    for options in OPTIONS {
        run.same(options);
    }
}
