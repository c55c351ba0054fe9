//! Calls that do not simply return: tail calls, deep recursion, longjmp, coroutines, unwinding, exceptions.

use hodo_tests::{IS_SLOW, Kind, Run, SHORTER, build, build_with, needs};

/// Whether a program can get a signal after each of its instructions.
const STEPS: bool = cfg!(target_arch = "x86_64");
const NO_STEPS: &str = "the processor has no single steps";

fn available(kinds: &[Kind]) -> impl Iterator<Item = Kind> {
    kinds.iter().copied().filter(|kind| kind.is_available())
}

#[test]
fn a_million_tail_calls() {
    for kind in available(&Kind::ALL) {
        let program = build("tail_calls.c", kind, &[]);
        let trace = Run::new(&format!("a_million_tail_calls-{kind:?}"), program).same(&[]);
        if kind.has_names() {
            trace.has_calls(&[("main", 1), ("first", 500_001), ("second", 500_000)]);
            // On RISC-V these have no register for a jump, so they are left alone.
            if cfg!(target_arch = "x86_64") {
                trace.has_calls(&[("even", 500_001), ("odd", 500_000)]);
            }
        }
    }
}

#[test]
fn recursion_a_million_deep_under_a_raised_stack_limit() {
    for kind in available(&Kind::ALL) {
        let program = build("deep_recursion.c", kind, &[]);
        for options in [&[][..], &["-l"], &["--no-time"]] {
            let trace = Run::new(&format!("recursion_a_million_deep-{kind:?}"), &program)
                .args(["1000000"])
                .stack(256 << 20)
                .same(options);
            if kind.has_names() {
                trace.has_calls(&[("main", 1), ("descend", 1_000_001)]);
            }
        }
    }
}

#[test]
fn recursion_from_the_first_instructions() {
    for link in ["-pie", "-no-pie", "-static"] {
        let program = build_with(
            "gcc",
            &["recursion.c", "recursion.S"],
            &["-O2", "-fPIE", link],
        );
        for options in [&[][..], &["--no-time"]] {
            let trace = Run::new(&format!("recursion_early{link}"), &program).same(options);
            trace.has_calls(&[("main", 1), ("early", 101)]);
        }
    }
}

#[test]
fn stack_overflow_ends_the_program_as_it_does_alone() {
    for kind in [Kind::Pie, Kind::Static] {
        let program = build("deep_recursion.c", kind, &[]);
        let run =
            Run::new(&format!("recursion_that_overflows-{kind:?}"), program).args(["1000000000"]);
        let trace = run.same(&[]);
        assert!(trace.calls()["descend"] > 10_000);
    }
}

#[test]
fn return_addresses_that_others_look_at_and_replace() {
    let frames = ["-fno-omit-frame-pointer", "-Wno-frame-address"];
    for kind in available(&[Kind::Pie, Kind::Static, Kind::Musl]) {
        for more in [&[][..], &["-fno-asynchronous-unwind-tables"], &["-O0"]] {
            let program = build("retaddr.c", kind, &[&frames[..], more].concat());
            for options in [&[][..], &["-l"], &["--no-time"], &["--check-frames"]] {
                if IS_SLOW && !more.is_empty() && !options.is_empty() {
                    continue;
                }
                for how in ["0", "1", "2"] {
                    let name = format!("return_addresses-{kind:?}{}", more.concat());
                    let trace = Run::new(&name, &program).args([how]).same(options);
                    if kind.has_names() {
                        trace.has_calls(&[
                            ("main", 1),
                            ("look", 2500),
                            ("call_with_slot", if how == "0" { 1601 } else { 1600 }),
                            ("resume", 99),
                            ("plain", 500),
                            ("away", 1),
                        ]);
                    }
                }
            }
        }
    }
}

#[test]
fn longjmp_over_frames() {
    for kind in available(&Kind::ALL) {
        let program = build("jumps.c", kind, &[]);
        for options in [&[][..], &["-l"]] {
            let trace = Run::new(&format!("longjmp_over_frames-{kind:?}"), &program).same(options);
            if kind.has_names() {
                trace.has_calls(&[
                    ("main", 1),
                    ("attempt", 1000),
                    ("sink", 25_500),
                    ("leave", 1000),
                ]);
            }
        }
    }
}

#[test]
fn labels_by_their_distances() {
    for level in ["-O1", "-O2", "-Os"] {
        let program = build_with("gcc", &["distances.c"], &[level, "-w"]);
        let trace = Run::new(&format!("distances{level}"), program).same(&[]);
        trace.has_calls(&[("main", 1)]);
    }
}

#[test]
fn coroutines_by_swapcontext() {
    for kind in Kind::GLIBC {
        let program = build("coroutines.c", kind, &[]);
        for options in [&[][..], &["-l"]] {
            let trace = Run::new(&format!("coroutines-{kind:?}"), &program).same(options);
            if kind.has_names() {
                trace.has_calls(&[
                    ("main", 1),
                    ("routine", 3),
                    ("step", 3000),
                    ("pause_in", 9000),
                ]);
            }
            // On AArch64, the C library's own functions call others before they switch. If these are traced, too, what
            // comes next is sometimes shown in the tree of the stack before.
            let is_clear = options.is_empty() || cfg!(not(target_arch = "aarch64"));
            // The heap of programs at fixed addresses is so low that a small stack there has no shadow.
            if kind.has_names() && !matches!(kind, Kind::Fixed | Kind::Static) && is_clear {
                // Each coroutine has a tree of its own, and what it calls after a switch is not inside the function
                // that switched.
                let dump = trace.view("dump", &[]);
                let of = |name: &str, depth: usize| {
                    let entries = dump.lines().filter(|line| line.contains("[entry]"));
                    let end = format!(" depth: {depth}");
                    let entries = entries.filter(|line| line.contains(&format!(" {name}(")));
                    entries.filter(|line| line.ends_with(&end)).count()
                };
                // What the C library begins a coroutine with may be a function, too.
                let base = usize::from(of("routine", 0) == 0);
                let found = (of("routine", base), of("step", base + 1));
                assert_eq!(found, (3, 3000), "{dump}");
                let depths = [1, 2, 3, 4, 5].map(|depth| of("pause_in", base + depth));
                assert_eq!(depths, [3000, 2400, 1800, 1200, 600]);
            }
        }
    }
}

#[test]
fn coroutines_by_assembly() {
    for kind in available(&Kind::GLIBC) {
        let program = build("switches.c", kind, &[]);
        for options in [&[][..], &["-l"]] {
            let trace = Run::new(&format!("switches-{kind:?}"), &program).same(options);
            if !kind.has_names() {
                continue;
            }
            trace.has_calls(&[
                ("main", 1),
                ("resume", 150),
                ("generator", 3),
                ("yield_in", 369),
                ("worker", 3),
                ("pass_on", 150),
                ("step", 300),
                ("in_handler", 50),
            ]);
            let dump = trace.view("dump", &[]);
            let of = |name: &str, depth: usize| {
                let entries = dump.lines().filter(|line| line.contains("[entry]"));
                let end = format!(" depth: {depth}");
                let entries = entries.filter(|line| line.contains(&format!(" {name}(")));
                entries.filter(|line| line.ends_with(&end)).count()
            };
            // What calls main may be a function, too. At first, a generator is shown inside `resume`. Once it has
            // yielded, it has a tree of its own, at any depth of its recursion.
            let base = (0..9).find(|&base| of("main", base) == 1);
            let base = base.expect("an entry of main");
            // Or inside `switch_to`, if that is seen to end only when its caller goes on.
            let first = [base + 2, base + 3].map(|depth| of("generator", depth));
            let inside = base + 2 + usize::from(first == [0, 3]);
            assert_eq!(of("generator", inside), 3, "{dump}");
            let depths = [1, 2, 3, 4].map(|depth| of("yield_in", depth));
            let mut expected = [147, 111, 72, 36];
            if let Some(first) = expected.get_mut(inside) {
                *first += 3;
            }
            assert_eq!(depths, expected, "{dump}");
            // Workers switch to one another. The first one stays inside `run_worker` until it is resumed.
            assert_eq!(of("run_worker", base + 1), 3);
            // Nothing is taken for left by a jump.
            assert!(!trace.view("replay", &[]).contains("unwound"), "{dump}");
        }
    }
}

#[test]
fn backtrace_sees_the_callers() {
    for kind in Kind::GLIBC {
        let program = build("unwinding.c", kind, &[]);
        for options in [&[][..], &["-l"]] {
            let run = Run::new(&format!("backtrace-{kind:?}"), &program);
            let trace = run.same(options);
            if kind.has_names() {
                trace.has_calls(&[("main", 1), ("first", 3), ("second", 12), ("look", 3)]);
            }
        }
    }
}

#[test]
fn cplusplus_exceptions_caught() {
    for kind in Kind::GLIBC {
        let program = build("exceptions.cc", kind, &[]);
        for options in [&[][..], &["-l"], &["--no-time"]] {
            let trace = Run::new(&format!("exceptions_caught-{kind:?}"), &program).same(options);
            if kind.has_names() {
                trace.has_calls(&[
                    ("main", 1),
                    ("catches", 5000),
                    ("throws", 5000),
                    ("deep", 30_000),
                ]);
            }
        }
    }
}

#[test]
fn cplusplus_exceptions_through_small_frames() {
    for kind in Kind::GLIBC {
        let program = build("small_frames.cc", kind, &[]);
        for options in [&[][..], &["-l"]] {
            let trace = Run::new(&format!("small_frames-{kind:?}"), &program).same(options);
            if kind.has_names() {
                trace.has_calls(&[("outer", 20), ("inner", 40), ("throws", 40)]);
            }
        }
    }
}

#[test]
fn cplusplus_exceptions_uncaught() {
    for kind in Kind::GLIBC {
        let program = build("exceptions.cc", kind, SHORTER);
        for number in ["3", "4"] {
            let run = Run::new(&format!("exceptions_uncaught-{kind:?}-{number}"), &program)
                .args([number]);
            run.same(&[]);
            run.same(&["-l"]);
        }
    }
}

#[test]
fn cplusplus_exceptions_by_clang() {
    let program = build_with("clang++", &["exceptions.cc"], &["-O1", "-pthread", "-w"]);
    Run::new("exceptions_by_clang", program).same(&["-l"]);
}

#[test]
fn rust_panics_caught_and_uncaught() {
    let kinds = [
        ("debug", &["--edition=2024"][..]),
        ("release", &["--edition=2024", "-O"]),
        ("stripped", &["--edition=2024", "-O", "-Cstrip=symbols"]),
        ("abort", &["--edition=2024", "-O", "-Cpanic=abort"]),
    ];
    // All functions, where nothing is run.
    let programs = kinds.map(|(name, flags)| (name, build_with("rustc", &["panics.rs"], flags)));
    for (name, program) in programs {
        for options in [&[][..], &["-l"]] {
            Run::new(&format!("panics-{name}"), &program).same(options);
            Run::new(&format!("panics-{name}"), &program)
                .args(["2"])
                .same(options);
        }
    }
}

#[test]
fn handlers_unwind_from_wherever_the_signal_arrived() {
    for kind in available(&[Kind::Pie, Kind::Static]) {
        let program = build("interrupted.c", kind, &["-fno-ipa-icf"]);
        for how in ["first", "second", "profile", "cancel", "exit"] {
            let all = [&[][..], &["--check-frames"], &["--no-time"], &["-t", "1us"]];
            let options = if kind == Kind::Pie {
                &all[..]
            } else {
                &all[..1]
            };
            for options in options {
                let run = Run::new(&format!("interrupted-{how}-{kind:?}"), &program).args([how]);
                run.same(options);
            }
        }
    }
}

#[test]
fn stacks_in_all_kinds_of_memory() {
    // musl has no contexts.
    for kind in [Kind::Pie, Kind::Static] {
        let program = build("odd_stacks.c", kind, &[]);
        for options in [&[][..], &["-l"], &["--check-frames"], &["--no-time"]] {
            let run = Run::new(&format!("odd_stacks-{kind:?}"), &program);
            let trace = run.same(options);
            trace.has_calls(&[("main", 1), ("deep", 15 * 5 * 51), ("leaf", 15 * 5)]);
        }
    }
}

/// One thread maps the memory for their return addresses while the other already uses it.
#[test]
fn threads_with_stacks_side_by_side() {
    let program = build("near_stacks.c", Kind::Pie, &["-pthread"]);
    let run = Run::new("near_stacks", &program);
    for _ in 0..4 {
        let trace = run.same(&["-P", "touched", "--no-libcall"]);
        trace.has_calls(&[("touched", 960)]);
    }
}

#[test]
fn a_signal_between_any_two_instructions() {
    needs!(STEPS, NO_STEPS);
    let program = build("stepped.c", Kind::Pie, &["-mno-red-zone"]);
    // Slightly more records than a chunk holds, with and without the reserve for this case.
    for (period, options) in [
        ("8186", &[][..]),
        ("8178", &[]),
        ("8178", &["--no-time"]),
        ("8178", &["--check-frames"]),
        ("8178", &["-D", "100"]),
    ] {
        let run = Run::new("stepped", &program).args([period]);
        // The handler runs at every instruction; its own records would be nearly all.
        let options = [&["-U", "on_step"], options].concat();
        let traced = run.traced(&options);
        assert_eq!(run.alone().stdout, traced.outcome.stdout);
        let counts: Vec<u64> = traced
            .remarks
            .split_whitespace()
            .filter_map(|word| word.parse().ok())
            .collect();
        let [calls, handled] = counts[..] else {
            panic!("{}", traced.remarks);
        };
        assert!(handled >= 800, "{handled}");
        traced
            .trace
            .has_calls(&[("leaf", calls), ("in_handler", handled)]);
    }
}

/// Unwinds a program in many ways, from each so many of its instructions: each takes a signal. `stride` says how many,
/// for a way of linking and a level of optimization.
fn unwinding(test: &str, stride: impl Fn(Kind, &str) -> &'static str) {
    for kind in [Kind::Pie, Kind::Static, Kind::Cet] {
        for level in ["-O2", "-O0"] {
            let flags = [level, "-mno-red-zone", "-fnon-call-exceptions"];
            let program = build("stepped_unwinding.cc", kind, &flags);
            for how in ["step", "timer", "throw"] {
                let all: [&[&str]; 7] = [
                    &[],
                    &["-l"],
                    &["--check-frames"],
                    &["--no-time"],
                    &["-t", "1us"],
                    &["-D", "3"],
                    &["-F", "outer", "-D", "2", "-t", "100ns"],
                ];
                let options = if (kind, level) == (Kind::Pie, "-O2") {
                    &all[..]
                } else {
                    &all[..1]
                };
                let name = format!("{test}-{how}-{kind:?}{level}");
                for options in options {
                    let stride = if options.is_empty() {
                        stride(kind, level)
                    } else {
                        "23"
                    };
                    let run = Run::new(&name, &program).args([how, stride]);
                    let alone = run.alone();
                    let traced = run.traced(options);
                    assert_eq!(alone.stdout, traced.outcome.stdout, "{name} {options:?}");
                    assert_eq!(alone.ended, traced.outcome.ended, "{name} {options:?}");
                }
            }
        }
    }
}

#[test]
fn unwinding_from_each_instruction() {
    needs!(STEPS, NO_STEPS);
    // Stubs are the same however a program is linked, so every seventh instruction is enough once.
    unwinding("unwinding_from_each_instruction", |kind, level| {
        if (kind, level) == (Kind::Pie, "-O2") {
            "7"
        } else {
            "23"
        }
    });
}

#[test]
#[ignore = "takes two minutes: the same program in all kinds, from three times as many instructions"]
fn unwinding_from_more_instructions() {
    needs!(STEPS, NO_STEPS);
    unwinding("unwinding_from_more_instructions", |_, _| "7");
}
